//! Gather and scatter-add: copies rows of a matrix, and adds rows to a matrix. Rows are selected by their
//! indices.

use crate::kernels::simd::{Level, kernel};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// Copies the rows of `values` whose indices are in `rows`, in the order of `rows`. Each row has `width`
/// values.
pub(crate) fn copy_rows(rows: &[usize], values: &[f32], width: usize) -> Buffer {
    let mut copy = Buffer::new(rows.len() * width);
    if width > 0 {
        let some = ITEM.div_ceil(width);
        each(copy.len() / 8, copy.chunks_mut(some * width).zip(rows.chunks(some)), |(copy, rows)| {
            for (copy, row) in copy.chunks_exact_mut(width).zip(rows) {
                copy.copy_from_slice(&values[row * width..][..width]);
            }
        });
    }
    copy
}

/// Approximate number of values in an item for a thread.
const ITEM: usize = 1 << 13;
/// Maximum number of items of a sum. Each of them reads all indices.
const ITEMS: usize = 64;

/// Sets `sums` to zero. Then adds row `n` of `values` to row `rows[n]` of `sums`, for `n` from 0 upwards.
pub(crate) fn sum_rows(
    level: Level,
    width: usize,
    rows: &[usize],
    values: &[f32],
    sums: &mut [f32],
    poll: Poll,
) {
    if width == 0 {
        return;
    }
    let some = (ITEM / width).max(sums.len() / width / ITEMS).max(1);
    each(sums.len() / 16 + values.len() / 8, sums.chunks_mut(some * width).enumerate(), |(item, sums)| {
        sums.fill(0.0);
        add_rows(level, width, (rows, item * some), values, sums);
        poll.call();
    });
}

kernel! {
    /// Adds rows of `values` to the rows of `sums`, the first of which is row `first`. Leaves out other rows.
    pub(crate) fn add_rows<S>(
        _simd: S,
        width: usize,
        rows_and_first: (&[usize], usize),
        values: &[f32],
        sums: &mut [f32],
    ) {
        let (rows, first) = rows_and_first;
        for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
            let sums = row.checked_sub(first).and_then(|row| sums.get_mut(row * width..(row + 1) * width));
            if let Some(sums) = sums {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
    }
}
