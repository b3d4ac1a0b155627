//! Copies and sums of rows of a matrix, selected by their indices.

use crate::kernels::simd::kernel;
use crate::runtime::memory::Buffer;

/// Copies the rows with these indices, each of `width` values.
pub(crate) fn copy_rows(rows: &[usize], values: &[f32], width: usize) -> Buffer {
    let mut copy = Buffer::new(rows.len() * width);
    if width > 0 {
        for (copy, row) in copy.chunks_exact_mut(width).zip(rows) {
            copy.copy_from_slice(&values[row * width..][..width]);
        }
    }
    copy
}

kernel! {
    /// Adds the n-th row of `values` to row `rows[n]` of `sums`, in this order.
    pub(crate) fn add_rows<S>(_simd: S, width: usize, rows: &[usize], values: &[f32], sums: &mut [f32]) {
        for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
            let sums = &mut sums[row * width..][..width];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
}
