//! Units of padded rows, of which a kernel computes some at a time.

use crate::kernels::simd::MAX_LANES;

/// Values of units: one vector or a few of any SIMD level.
pub type Units = [f32; MAX_LANES];

/// The units from `first` on.
#[inline(always)]
pub fn units(values: &[f32], first: usize) -> &Units {
    values[first..].first_chunk().expect("rows are padded")
}

/// As [`units`], to be written.
#[inline(always)]
pub fn units_mut(values: &mut [f32], first: usize) -> &mut Units {
    values[first..].first_chunk_mut().expect("rows are padded")
}

/// Stores units in a row that is not padded, from `first` on.
#[inline(always)]
pub fn store_units(row: &mut [f32], first: usize, units: &Units) {
    let target = &mut row[first..];
    match target.first_chunk_mut() {
        Some(target) => *target = *units,
        None => target.copy_from_slice(&units[..target.len()]),
    }
}

/// `x` within `-clip` and `clip`; NaN stays.
#[inline(always)]
pub fn clipped(x: f32, clip: f32) -> f32 {
    let below = if x > clip { clip } else { x };
    if below < -clip { -clip } else { below }
}
