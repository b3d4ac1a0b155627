//! Gather and scatter-add: copies rows of a matrix, and adds rows to a matrix. Rows are selected by their
//! indices.

use crate::kernels::simd::kernel;
use crate::runtime::memory::Buffer;

/// Copies the rows of `values` whose indices are in `rows`, in the order of `rows`. Each row has `width`
/// values.
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
    /// Adds row `n` of `values` to row `rows[n]` of `sums`, for `n` from 0 upwards.
    pub(crate) fn add_rows<S>(_simd: S, width: usize, rows: &[usize], values: &[f32], sums: &mut [f32]) {
        for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
            let sums = &mut sums[row * width..][..width];
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
    }
}
