//! Memory of a training step: settings of the allocator, counters of allocations and
//! live bytes, and buffers without initialisation.

#[cfg(feature = "mimalloc")]
pub mod allocator;
pub mod counting_allocator;
pub mod live_bytes;
pub(crate) mod uninit;
