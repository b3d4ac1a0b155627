//! Memory that is written before it is read.

use std::mem::MaybeUninit;

/// Room for values that are each written once: storing zeros in it first would be
/// as much work again for the memory.
pub(crate) struct Uninit {
    room: Vec<f32>,
    len: usize,
}

impl Uninit {
    /// Room for `len` values.
    pub(crate) fn new(len: usize) -> Self {
        Self { room: Vec::with_capacity(len), len }
    }

    /// The room, of `len` values.
    pub(crate) fn values(&mut self) -> &mut [MaybeUninit<f32>] {
        &mut self.room.spare_capacity_mut()[..self.len]
    }

    /// The values.
    ///
    /// # Safety
    /// The caller has written each of the `len` values.
    pub(crate) unsafe fn assume_init(mut self) -> Vec<f32> {
        // SAFETY: `new` made room for `len` values, and the caller has written them.
        unsafe { self.room.set_len(self.len) };
        self.room
    }
}
