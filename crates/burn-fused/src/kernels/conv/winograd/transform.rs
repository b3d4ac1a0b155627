//! The transforms of Winograd F(4x4, 3x3), which computes 4x4 outputs from 3x3 weights. Each transform is
//! applied to the columns of a square of values, and then to the rows of the result.
//!
//! The matrices of the transforms are the transposed matrices of the Toom-Cook algorithm with the points 0,
//! ±a, ±1/a and ∞, where a is √½. Pairs of a point and its inverse have the smallest rounding errors (Alam et
//! al. 2022, "Winograd Convolution for Deep Neural Networks: Efficient Point Selection", section 4). The
//! usual points 0, ±1, ±2 and ∞ take the same number of instructions, and their largest error is three times
//! as large.

use std::f32::consts::{FRAC_1_SQRT_2, SQRT_2};

use crate::kernels::simd::Lanes;

/// Number of points in one dimension: 4 outputs and 3 weights need 6 products.
pub const POINTS: usize = 6;
/// Number of products of a tile for each pair of an input and an output channel.
pub const PRODUCTS: usize = POINTS * POINTS;

/// For each point of a dimension, whether a [`HalfTile`] has this point. The order is 0, A, -A, B, -B, ∞.
pub const HALF: [bool; POINTS] = [true, true, true, false, false, true];

/// The points other than 0 and ∞ are ±A and ±B.
const A: f32 = FRAC_1_SQRT_2;
const B: f32 = SQRT_2;

/// A transform of one dimension. It is a trait instead of a closure: a closure may be compiled as a separate
/// function, without the instructions of `S`.
pub trait LineTransform<const I: usize, const O: usize>: Copy {
    /// Transforms a column or row.
    fn apply<S: Lanes>(self, simd: S, values: [S::f32s; I]) -> [S::f32s; O];
}

/// Applies `down` to each column of a square, and then `along` to each row of the result. `value` returns the
/// square's value at a row and a column.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
pub fn square<S: Lanes, const I: usize, const O: usize>(
    simd: S,
    down: impl LineTransform<I, O>,
    along: impl LineTransform<I, O>,
    value: impl Fn(usize, usize) -> S::f32s,
) -> [[S::f32s; O]; O] {
    let zero = simd.splat_f32s(0.0);
    let mut half = [[zero; I]; O];
    for column in 0..I {
        let mut values = [zero; I];
        for row in 0..I {
            values[row] = value(row, column);
        }
        let results = down.apply(simd, values);
        for row in 0..O {
            half[row][column] = results[row];
        }
    }
    let mut whole = [[zero; O]; O];
    for row in 0..O {
        whole[row] = along.apply(simd, half[row]);
    }
    whole
}

/// `factor * x + sum`.
#[inline(always)]
fn plus<S: Lanes>(simd: S, factor: f32, x: S::f32s, sum: S::f32s) -> S::f32s {
    simd.fma(simd.splat_f32s(factor), x, sum)
}

/// `factor * x`.
#[inline(always)]
fn times<S: Lanes>(simd: S, factor: f32, x: S::f32s) -> S::f32s {
    simd.mul_f32s(simd.splat_f32s(factor), x)
}

/// Transforms six pixels of the input to six factors.
#[derive(Debug, Clone, Copy)]
pub struct InputTransform;

impl LineTransform<6, 6> for InputTransform {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [d0, d1, d2, d3, d4, d5]: [S::f32s; 6]) -> [S::f32s; 6] {
        let (even_a, odd_a) = (plus(simd, -2.0, d2, d4), plus(simd, -2.0, d1, d3));
        let (even_b, odd_b) = (plus(simd, -0.5, d2, d4), plus(simd, -0.5, d1, d3));
        [
            plus(simd, -2.5, d2, simd.add_f32s(d0, d4)),
            plus(simd, A, odd_a, even_a),
            plus(simd, -A, odd_a, even_a),
            plus(simd, B, odd_b, even_b),
            plus(simd, -B, odd_b, even_b),
            plus(simd, -2.5, d3, simd.add_f32s(d1, d5)),
        ]
    }
}

/// Transforms three weights to six factors.
#[derive(Debug, Clone, Copy)]
pub struct WeightTransform;

impl LineTransform<3, 6> for WeightTransform {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [g0, g1, g2]: [S::f32s; 3]) -> [S::f32s; 6] {
        let (even_a, odd_a) =
            (times(simd, -2.0 / 3.0, plus(simd, 0.5, g2, g0)), times(simd, -2.0 / 3.0 * A, g1));
        let (even_b, odd_b) =
            (times(simd, 1.0 / 6.0, plus(simd, 2.0, g2, g0)), times(simd, 1.0 / 6.0 * B, g1));
        [
            g0,
            simd.add_f32s(even_a, odd_a),
            simd.sub_f32s(even_a, odd_a),
            simd.add_f32s(even_b, odd_b),
            simd.sub_f32s(even_b, odd_b),
            g2,
        ]
    }
}

/// Transforms six products to four outputs.
#[derive(Debug, Clone, Copy)]
pub struct OutputTransform;

impl LineTransform<6, 4> for OutputTransform {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [m0, m1, m2, m3, m4, m5]: [S::f32s; 6]) -> [S::f32s; 4] {
        let (even_a, odd_a) = (simd.add_f32s(m1, m2), simd.sub_f32s(m1, m2));
        let (even_b, odd_b) = (simd.add_f32s(m3, m4), simd.sub_f32s(m3, m4));
        [
            simd.add_f32s(m0, simd.add_f32s(even_a, even_b)),
            plus(simd, A, odd_a, times(simd, B, odd_b)),
            plus(simd, 0.5, even_a, times(simd, 2.0, even_b)),
            plus(simd, 0.5 * A, odd_a, plus(simd, 2.0 * B, odd_b, m5)),
        ]
    }
}

/// The transform of a tile that has its last two outputs beyond the image. It is F(2, 3), for which the
/// points 0, ±A and ∞ are enough. It uses the weights' factors of whole tiles. The pixels' factors at ±B are
/// zero, and so are the last two outputs.
#[derive(Debug, Clone, Copy)]
pub struct HalfTile<L>(pub L);

impl LineTransform<6, 6> for HalfTile<InputTransform> {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [d0, d1, d2, d3, ..]: [S::f32s; 6]) -> [S::f32s; 6] {
        // At ±A, the factors of the weights are -2/3 of the factors of F(2, 3), so the factors of the pixels
        // are multiplied by -3/2.
        let (even, zero) = (times(simd, -1.5, d2), simd.splat_f32s(0.0));
        [
            plus(simd, -2.0, d2, d0),
            plus(simd, -1.5 * A, d1, even),
            plus(simd, 1.5 * A, d1, even),
            zero,
            zero,
            plus(simd, -0.5, d1, d3),
        ]
    }
}

impl LineTransform<6, 4> for HalfTile<OutputTransform> {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [m0, m1, m2, _, _, m5]: [S::f32s; 6]) -> [S::f32s; 4] {
        let zero = simd.splat_f32s(0.0);
        let first = simd.add_f32s(m0, simd.add_f32s(m1, m2));
        [first, plus(simd, A, simd.sub_f32s(m1, m2), m5), zero, zero]
    }
}

impl LineTransform<4, 6> for HalfTile<OutputGradientTransform> {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [y0, y1, ..]: [S::f32s; 4]) -> [S::f32s; 6] {
        let zero = simd.splat_f32s(0.0);
        [y0, plus(simd, A, y1, y0), plus(simd, -A, y1, y0), zero, zero, y1]
    }
}

/// Transforms the gradients of four outputs to the gradients of six products: [`OutputTransform`] transposed.
#[derive(Debug, Clone, Copy)]
pub struct OutputGradientTransform;

impl LineTransform<4, 6> for OutputGradientTransform {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [y0, y1, y2, y3]: [S::f32s; 4]) -> [S::f32s; 6] {
        let (even_a, odd_a) = (plus(simd, 0.5, y2, y0), plus(simd, 0.5, y3, y1));
        let (even_b, odd_b) = (plus(simd, 2.0, y2, y0), plus(simd, 2.0, y3, y1));
        [
            y0,
            plus(simd, A, odd_a, even_a),
            plus(simd, -A, odd_a, even_a),
            plus(simd, B, odd_b, even_b),
            plus(simd, -B, odd_b, even_b),
            y3,
        ]
    }
}

/// Transforms the gradients of six factors to the gradients of three weights: [`WeightTransform`] transposed.
#[derive(Debug, Clone, Copy)]
pub struct WeightGradientTransform;

impl LineTransform<6, 3> for WeightGradientTransform {
    #[inline(always)]
    fn apply<S: Lanes>(self, simd: S, [u0, u1, u2, u3, u4, u5]: [S::f32s; 6]) -> [S::f32s; 3] {
        let (even_a, odd_a) = (simd.add_f32s(u1, u2), simd.sub_f32s(u1, u2));
        let (even_b, odd_b) = (simd.add_f32s(u3, u4), simd.sub_f32s(u3, u4));
        [
            plus(simd, -2.0 / 3.0, even_a, plus(simd, 1.0 / 6.0, even_b, u0)),
            plus(simd, -2.0 / 3.0 * A, odd_a, times(simd, 1.0 / 6.0 * B, odd_b)),
            plus(simd, -1.0 / 3.0, even_a, plus(simd, 1.0 / 3.0, even_b, u5)),
        ]
    }
}
