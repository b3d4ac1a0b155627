//! Buffers that are reused from one step to the next.

use std::cell::RefCell;

use bytemuck::{Pod, Zeroable};

/// Size and alignment of the widest vector.
#[derive(Debug, Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A buffer that grows and is never freed.
#[derive(Debug, Default)]
pub struct Scratch(Vec<Line>);

impl Scratch {
    /// `len` values of an earlier use, or zeros.
    pub fn take<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0[..lines])[..len]
    }
}

/// A buffer that forward passes to backward, and backward returns for the next forward.
#[derive(Debug, Default)]
pub struct Kept(Scratch);

impl Kept {
    /// A buffer of `len` values: those of an earlier use, or zeros.
    pub fn new<T: Pod>(len: usize) -> Self {
        let mut kept = KEPT.take();
        kept.0.take::<T>(len);
        kept
    }

    /// The values.
    pub fn values<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0.0)
    }

    /// The values, mutable.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0.0)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let scratch = std::mem::take(&mut self.0);
        // A thread that is ending has dropped `KEPT` already.
        let _ = KEPT.try_with(|kept| {
            if kept.borrow().0.0.len() < scratch.0.len() {
                kept.borrow_mut().0 = scratch;
            }
        });
    }
}

/// The buffers of one convolution.
#[derive(Default)]
pub struct Buffers {
    /// The input, in lanes or as columns.
    pub input: Scratch,
    /// The output or its gradient.
    pub output: Scratch,
    /// One plane, or the gradient of columns.
    pub part: Scratch,
    /// Sums over images.
    pub sums: Scratch,
}

thread_local! {
    static BUFFERS: RefCell<[Buffers; 2]> = RefCell::default();
    static KEPT: RefCell<Kept> = RefCell::default();
}

/// Calls `body` with this thread's buffers, for two convolutions: taken out rather than borrowed, because
/// `body` may call the poll callback, which may use operators itself.
pub fn with_buffers<R>(body: impl FnOnce(&mut [Buffers; 2]) -> R) -> R {
    let mut taken = BUFFERS.take();
    let result = body(&mut taken);
    BUFFERS.set(taken);
    result
}
