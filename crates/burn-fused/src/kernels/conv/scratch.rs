//! Buffers of convolutions. Each thread keeps its buffers and reuses them in the next training step.

use std::cell::RefCell;

use bytemuck::Pod;

pub(super) use crate::runtime::memory::Scratch;

/// A buffer that forward passes to backward. When it is dropped, the thread keeps its memory for the next
/// forward, unless the thread already keeps a buffer of at least this size.
#[derive(Debug, Default)]
pub struct Kept(Scratch);

impl Kept {
    /// Returns a buffer of `len` values, which are zero or left from an earlier use.
    pub fn new<T: Pod>(len: usize) -> Self {
        let mut kept = KEPT.take();
        kept.0.take::<T>(len);
        kept
    }

    /// The values.
    pub fn values<T: Pod>(&self) -> &[T] {
        self.0.values()
    }

    /// The values, mutable.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        self.0.values_mut()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let scratch = std::mem::take(&mut self.0);
        // If the thread is ending, `KEPT` may have been dropped already.
        let _ = KEPT.try_with(|kept| {
            if kept.borrow().0.values::<u8>().len() < scratch.values::<u8>().len() {
                kept.borrow_mut().0 = scratch;
            }
        });
    }
}

/// The buffers of one convolution. The fields say what the direct convolution and im2col + GEMM store in
/// them. Winograd and AMX tiles store other values in the same buffers.
#[derive(Default)]
pub struct Buffers {
    /// The input, in lanes or as columns.
    pub input: Scratch,
    /// The output or its gradient.
    pub output: Scratch,
    /// The argmax or the gradient of the input, in lanes. With im2col + GEMM, the gradient of columns.
    pub part: Scratch,
    /// Sums over images.
    pub sums: Scratch,
}

thread_local! {
    static BUFFERS: RefCell<[Buffers; 2]> = RefCell::default();
    static SHARED: RefCell<Buffers> = RefCell::default();
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Calls `body` with this thread's buffers, for up to two convolutions. The buffers are taken out of the
/// thread-local variable and put back afterwards. If they were borrowed instead, this function would panic
/// whenever `body` calls the poll callback and the callback runs a convolution.
pub fn with_buffers<R>(body: impl FnOnce(&mut [Buffers; 2]) -> R) -> R {
    let mut taken = BUFFERS.take();
    let result = body(&mut taken);
    BUFFERS.set(taken);
    result
}

/// Calls `body` with the buffers that all threads of a pass share. They belong to the thread that runs the
/// pass; [`with_buffers`] gives each thread, this one included, buffers of its own.
pub(super) fn with_shared<R>(body: impl FnOnce(&mut Buffers) -> R) -> R {
    let mut taken = SHARED.take();
    let result = body(&mut taken);
    SHARED.set(taken);
    result
}
