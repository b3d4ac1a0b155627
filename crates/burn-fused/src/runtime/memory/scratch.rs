//! Memory that is aligned to vectors.

use bytemuck::{Pod, Zeroable};

/// Size and alignment of the widest vector.
#[derive(Debug, Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(crate) struct Line([f32; 16]);

/// A buffer that grows and is never freed.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    /// `len` values of an earlier use, or zeros.
    pub fn take<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0[..lines])[..len]
    }

    /// All values.
    pub fn values<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }

    /// All values, mutable.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}
