//! Blocks of units. A block is [`MAX_LANES`] neighbouring hidden units of a row. Rows are padded to whole
//! blocks, and kernels compute one block at a time.

use crate::kernels::simd::MAX_LANES;

/// The values of a block of units: one to four vectors, depending on the SIMD level.
pub type Units = [f32; MAX_LANES];

/// Returns the block that starts at unit `first`.
#[inline(always)]
pub fn units(values: &[f32], first: usize) -> &Units {
    values[first..].first_chunk().expect("rows are padded")
}

/// Returns the block that starts at unit `first`, for writing.
#[inline(always)]
pub fn units_mut(values: &mut [f32], first: usize) -> &mut Units {
    values[first..].first_chunk_mut().expect("rows are padded")
}

/// Stores a block of units in a row that is not padded, from `first` on. Drops the units beyond the row's
/// end.
#[inline(always)]
pub fn store_units(row: &mut [f32], first: usize, units: &Units) {
    let target = &mut row[first..];
    match target.first_chunk_mut() {
        Some(target) => *target = *units,
        None => target.copy_from_slice(&units[..target.len()]),
    }
}

/// Returns `x` limited to the range from `-clip` to `clip`. NaN stays NaN.
#[inline(always)]
pub fn clipped(x: f32, clip: f32) -> f32 {
    let below = if x > clip { clip } else { x };
    if below < -clip { -clip } else { below }
}
