//! Memory of a training step: settings of the allocator, counters of allocations and live bytes, and a pool
//! of tensor buffers.

#[cfg(feature = "mimalloc")]
pub mod allocator;
mod buffer;
pub mod counting_allocator;
pub mod live_bytes;
mod scratch;

pub(crate) use buffer::Buffer;
pub(crate) use scratch::Scratch;
