//! What a training step allocates: settings of the allocator, counters, and
//! memory that is written before it is read.

#[cfg(feature = "mimalloc")]
pub mod allocator;
pub mod counting_allocator;
pub mod live_bytes;
pub(crate) mod uninit;
