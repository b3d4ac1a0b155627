//! Scratch memory that is aligned to the widest SIMD vector.

use bytemuck::{Pod, Zeroable};

/// A block of memory with the size and the alignment of the widest SIMD vector: 64 bytes, 16 values of f32.
#[derive(Debug, Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
pub(crate) struct Line([f32; 16]);

/// A buffer that grows on demand and never shrinks.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Vec<Line>);

impl Scratch {
    /// Returns the first `len` values, and grows the buffer if necessary. The values are zeros, or remain
    /// from an earlier use.
    pub fn take<T: Pod>(&mut self, len: usize) -> &mut [T] {
        let lines = (len * size_of::<T>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0.resize(lines, Line::zeroed());
        }
        &mut bytemuck::cast_slice_mut(&mut self.0[..lines])[..len]
    }

    /// Returns the whole buffer as values of type `T`.
    pub fn values<T: Pod>(&self) -> &[T] {
        bytemuck::cast_slice(&self.0)
    }

    /// Returns the whole buffer as mutable values of type `T`.
    pub fn values_mut<T: Pod>(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}
