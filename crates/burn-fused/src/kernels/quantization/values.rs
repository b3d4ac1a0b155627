//! Quantization of values, and the formula of fake quantization, which is that of PyTorch's `fake_quantize`.

use super::{QParams, Scheme};
use crate::kernels::simd::{Level, kernel};

/// Quantizes real values: q = clamp(round(x · (1 / scale)) + zero point), rounding half to even. NaN becomes
/// the smallest quantized value.
///
/// # Panics
/// If lengths differ, or the parameters are invalid for [`Scheme::Affine`].
pub fn quantize(values: &[f32], parameters: QParams, quantized: &mut [u8]) {
    let grid = Grid::new(Scheme::Affine, parameters);
    assert_eq!(values.len(), quantized.len(), "values and quantized values must have the same length");
    quantize_each(Level::current(), values, grid, parameters.zero_point, quantized);
}

/// Quantizes weights, with one scale for each of `scales.len()` equal parts of `weights`.
///
/// # Panics
/// If there are no scales, if the number of scales does not divide the number of weights, or if a scale is
/// invalid for [`Scheme::Symmetric`].
pub fn quantize_weights(weights: &[f32], scales: &[f32]) -> Vec<i8> {
    let divide = !scales.is_empty() && weights.len().is_multiple_of(scales.len());
    assert!(
        divide,
        "{} weights cannot be divided into {} equal parts, one for each scale",
        weights.len(),
        scales.len()
    );
    let mut quantized = vec![0i8; weights.len()];
    let len = (weights.len() / scales.len()).max(1);
    for ((values, part), &scale) in weights.chunks(len).zip(quantized.chunks_mut(len)).zip(scales) {
        let grid = Grid::new(Scheme::Symmetric, QParams { scale, zero_point: 0 });
        let quantized = bytemuck::cast_slice_mut(part);
        quantize_each(Level::current(), values, grid, 0, quantized);
    }
    quantized
}

/// Dequantizes values: (q - zero point) · scale.
///
/// # Panics
/// If lengths differ, or the parameters are invalid for [`Scheme::Affine`].
pub fn dequantize(quantized: &[u8], parameters: QParams, values: &mut [f32]) {
    assert_eq!(values.len(), quantized.len(), "values and quantized values must have the same length");
    let (Grid { scale, .. }, zero_point) = (Grid::new(Scheme::Affine, parameters), parameters.zero_point);
    for (value, &q) in values.iter_mut().zip(quantized) {
        *value = (i32::from(q) - zero_point) as f32 * scale;
    }
}

/// 1.5 · 2^23. Adding it to a number of magnitude below 2^22, and then subtracting it, rounds the number to
/// an integer, half to even. The portable level has no instruction that rounds.
const ROUND: f32 = 12_582_912.0;

/// A quantization grid: scale and bounds, in the form that kernels need.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub scale: f32,
    /// The inverse of the scale. As in PyTorch, values are multiplied by it instead of divided by the scale.
    pub inverse: f32,
    /// `low` and `high` are the bounds of quantized values, minus the zero point.
    pub low: f32,
    pub high: f32,
}

impl Grid {
    /// # Panics
    /// If `parameters` are invalid.
    pub fn new(scheme: Scheme, parameters: QParams) -> Self {
        let checked = parameters.check(scheme);
        let QParams { scale, zero_point } = checked.unwrap_or_else(|error| panic!("{error}"));
        let [low, high] = scheme.bounds().map(|bound| (bound - zero_point) as f32);
        Self { scale, inverse: 1.0 / scale, low, high }
    }

    /// Returns the fake-quantized value, and whether its gradient passes: false if `value` was clipped or is
    /// NaN.
    #[inline(always)]
    pub fn apply(self, value: f32) -> (f32, bool) {
        let Self { scale, inverse, low, high } = self;
        // Beyond 2^22 the sum is rounded more coarsely than to integers, but the bounds clip such values
        // anyway. Comparisons in this order keep NaN. The gradient of NaN does not pass.
        let rounded = (value * inverse + ROUND) - ROUND;
        let clamped = if rounded < low { low } else { rounded };
        let clamped = if clamped > high { high } else { clamped };
        let passes = clamped == rounded;
        (clamped * scale, passes)
    }

    /// Returns `value` as a number of steps of the scale, rounded and within the bounds. NaN becomes `low`.
    #[inline(always)]
    fn nearest(self, value: f32) -> i32 {
        let steps = value * self.inverse;
        // Comparisons in this order turn NaN into `low`.
        let steps = if steps > self.low { steps } else { self.low };
        let steps = if steps < self.high { steps } else { self.high };
        (steps + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
    }
}

kernel! {
    fn quantize_each<S>(
        _simd: S,
        values: &[f32],
        grid: Grid,
        zero_point: i32,
        // The quantized values: u8, or the bits of i8.
        quantized: &mut [u8],
    ) {
        for (&value, quantized) in values.iter().zip(quantized) {
            *quantized = (grid.nearest(value) + zero_point) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Random;

    /// Computes PyTorch's `fake_quantize` of one value. Returns the quantized value, and whether its gradient
    /// passes.
    fn plain(x: f32, scheme: Scheme, QParams { scale, zero_point }: QParams) -> (i64, bool) {
        let [qmin, qmax] = scheme.bounds().map(i64::from);
        let steps = (x * (1.0 / scale)).round_ties_even();
        let q = if steps.is_nan() { i64::MIN } else { (steps as i64).saturating_add(i64::from(zero_point)) };
        (q.clamp(qmin, qmax), (qmin..=qmax).contains(&q))
    }

    fn some_values(random: &mut Random, scale: f32) -> Vec<f32> {
        let mut values = random.floats(517, 300.0 * scale);
        // Ties, both bounds, and NaN.
        values.extend((-600..600).map(|half| half as f32 * 0.5 * scale));
        values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 0.0, -0.0, 1e-40]);
        values
    }

    #[test]
    fn values_equal_those_of_a_plain_loop_on_every_level() {
        let mut random = Random(3);
        for level in Level::available() {
            let _held = level.hold();
            for (scale, zero_point) in [(0.25, 0), (0.1, 255), (2f32.powi(-23), 128), (1e30, 7)] {
                let parameters = QParams { scale, zero_point };
                let values = some_values(&mut random, scale);
                let mut quantized = vec![1; values.len()];
                quantize(&values, parameters, &mut quantized);
                let expected: Vec<_> =
                    values.iter().map(|&x| plain(x, Scheme::Affine, parameters).0 as u8).collect();
                assert_eq!(quantized, expected, "{level}");
                let expected: Vec<_> = values
                    .iter()
                    .map(|&x| plain(x, Scheme::Symmetric, QParams { scale, zero_point: 0 }).0 as i8)
                    .collect();
                assert_eq!(quantize_weights(&values, &[scale]), expected, "{level}");
            }
        }
    }

    #[test]
    fn fake_quantization_is_quantization_and_back() {
        let mut random = Random(4);
        let values = random.floats(400, 2.0);
        let parameters = Scheme::Affine.parameters(-1.0, 1.5).unwrap();
        let grid = Grid::new(Scheme::Affine, parameters);
        let (fake, passes): (Vec<_>, Vec<_>) = values.iter().map(|&x| grid.apply(x)).unzip();
        let (mut quantized, mut back) = (vec![0; 400], vec![0.0; 400]);
        quantize(&values, parameters, &mut quantized);
        dequantize(&quantized, parameters, &mut back);
        assert_eq!(fake, back);
        assert!(passes.contains(&true) && passes.contains(&false));
    }

    #[test]
    fn each_channel_has_its_own_scale() {
        assert_eq!(quantize_weights(&[0.6, 200.0, 0.6, -63.4], &[1.0, 0.5]), [1, 127, 1, -127]);
    }
}
