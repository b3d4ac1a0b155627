//! ReLU and 2x2 max pooling on vectors, each lane on its own.

use crate::epilogue::NO_MAXIMUM;
use crate::simd::Lanes;

/// ReLU, which propagates NaN.
#[inline(always)]
pub fn relu<S: Lanes>(simd: S, x: S::f32s) -> S::f32s {
    simd.select_f32s(passes(simd, x), x, simd.splat_f32s(0.0))
}

/// Lanes in which ReLU passes `x` on.
#[inline(always)]
pub fn passes<S: Lanes>(simd: S, x: S::f32s) -> S::m32s {
    simd.or_m32s(simd.greater_than_f32s(x, simd.splat_f32s(0.0)), is_nan(simd, x))
}

#[inline(always)]
fn is_nan<S: Lanes>(simd: S, x: S::f32s) -> S::m32s {
    simd.not_m32s(simd.equal_f32s(x, x))
}

/// ReLU of the maximum of four, and its index: the first of equal values, the last
/// NaN.
#[inline(always)]
pub fn largest<S: Lanes>(simd: S, values: [S::f32s; 4]) -> (S::f32s, S::u32s) {
    let mut largest = values[0];
    let mut which = simd.splat_u32s(0);
    for (p, &value) in values.iter().enumerate().skip(1) {
        let wins = simd.or_m32s(simd.greater_than_f32s(value, largest), is_nan(simd, value));
        largest = simd.select_f32s(wins, value, largest);
        which = simd.select_u32s(wins, simd.splat_u32s(p as u32), which);
    }
    let passes = passes(simd, largest);
    (
        simd.select_f32s(passes, largest, simd.splat_f32s(0.0)),
        simd.select_u32s(passes, which, simd.splat_u32s(NO_MAXIMUM)),
    )
}
