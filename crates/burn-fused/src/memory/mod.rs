//! Memory of a training step: settings of the allocator, counters of allocations and
//! live bytes, and buffers without initialisation.

#[cfg(feature = "mimalloc")]
pub mod allocator;
mod buffer;
pub mod counting_allocator;
pub mod live_bytes;
mod scratch;

use std::mem::MaybeUninit;

pub(crate) use buffer::Buffer;
pub(crate) use scratch::Scratch;

/// An output buffer whose values are each written once: initialising it with zeros
/// would double the memory traffic.
pub(crate) struct Uninit {
    buffer: Vec<f32>,
    len: usize,
}

impl Uninit {
    /// A buffer of `len` values.
    pub(crate) fn new(len: usize) -> Self {
        Self { buffer: Vec::with_capacity(len), len }
    }

    /// The buffer, of `len` values.
    pub(crate) fn values(&mut self) -> &mut [MaybeUninit<f32>] {
        &mut self.buffer.spare_capacity_mut()[..self.len]
    }

    /// The values.
    ///
    /// # Safety
    /// The caller has written each of the `len` values.
    pub(crate) unsafe fn assume_init(mut self) -> Vec<f32> {
        // SAFETY: `new` reserved `len` values, and the caller has written them.
        unsafe { self.buffer.set_len(self.len) };
        self.buffer
    }
}
