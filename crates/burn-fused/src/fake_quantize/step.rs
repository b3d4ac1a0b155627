//! The formula of fake quantization, for one value and for vectors.

use crate::int8::{QParams, Scheme};
use crate::simd::Lanes;

/// 1.5 · 2^23: adding it to a number below 2^22 and subtracting it again rounds the
/// number to an integer, half to even. The portable level has no instruction for
/// that.
const ROUND: f32 = 12_582_912.0;

/// Parameters of some values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    pub(super) scale: f32,
    /// PyTorch multiplies by the inverse instead of dividing.
    pub(super) inverse: f32,
    /// Bounds, minus the zero point.
    pub(super) low: f32,
    pub(super) high: f32,
}

impl Step {
    /// # Panics
    /// If `parameters` are invalid.
    pub fn new(scheme: Scheme, parameters: QParams) -> Self {
        let QParams { scale, zero_point } = match parameters.check(scheme) {
            Ok(parameters) => parameters,
            Err(error) => panic!("{error}"),
        };
        let [low, high] = scheme.bounds().map(|bound| (bound - zero_point) as f32);
        Self { scale, inverse: 1.0 / scale, low, high }
    }

    /// The dequantized value, and whether the gradient passes.
    #[inline(always)]
    pub fn apply(self, value: f32) -> (f32, bool) {
        let Self { scale, inverse, low, high } = self;
        // Beyond 2^22 the sum is rounded to more than an integer, which the bounds clip
        // all the same. Comparisons in this order keep NaN, and NaN does not pass.
        let rounded = (value * inverse + ROUND) - ROUND;
        let clamped = if rounded < low { low } else { rounded };
        let clamped = if clamped > high { high } else { clamped };
        let passes = clamped == rounded;
        (clamped * scale, passes)
    }

    /// Bounds, minus the zero point, of the [rounded](Self::round) values whose gradients pass.
    pub fn bounds(self) -> [f32; 2] {
        [self.low, self.high]
    }

    /// Quotients by the scale, rounded.
    #[inline(always)]
    pub fn round<S: Lanes>(self, simd: S, values: S::f32s) -> S::f32s {
        let round = simd.splat_f32s(ROUND);
        let quotients = simd.mul_f32s(values, simd.splat_f32s(self.inverse));
        simd.sub_f32s(simd.add_f32s(quotients, round), round)
    }

    /// The dequantized values, the same bits as those of [`apply`](Self::apply).
    #[inline(always)]
    pub fn quantized<S: Lanes>(self, simd: S, values: S::f32s) -> S::f32s {
        let (low, high) = (simd.splat_f32s(self.low), simd.splat_f32s(self.high));
        let rounded = self.round(simd, values);
        let clamped = simd.select_f32s(simd.less_than_f32s(rounded, low), low, rounded);
        let clamped = simd.select_f32s(simd.greater_than_f32s(clamped, high), high, clamped);
        simd.mul_f32s(clamped, simd.splat_f32s(self.scale))
    }
}
