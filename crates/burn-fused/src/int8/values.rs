//! Quantization of values, and fake quantization: PyTorch's `fake_quantize`.

use super::{QParams, Scheme};
use crate::simd::{Kernel, Lanes, Level};

/// 1.5 · 2^23: adding it to a number below 2^22 rounds that to an integer, half to
/// even, in the low bits of the sum. The portable level has no instruction for that.
const ROUND: f32 = 12_582_912.0;

/// Quantizes real values: q = clamp(round(x · (1 / scale)) + zero point), half to
/// even. NaN becomes the smallest.
///
/// # Panics
/// If lengths differ, or the parameters are invalid for [`Scheme::Affine`].
pub fn quantize(values: &[f32], parameters: QParams, quantized: &mut [u8]) {
    let step = Step::new(Scheme::Affine, parameters);
    assert_eq!(values.len(), quantized.len(), "lengths of values and quantized values");
    Level::current().run(Quantize { values, step, quantized });
}

/// Quantizes weights, with one scale for each of `scales.len()` equal parts of
/// `weights`.
///
/// # Panics
/// If there are no scales, they do not divide the weights, or one is not positive and finite.
pub fn quantize_weights(weights: &[f32], scales: &[f32]) -> Vec<i8> {
    let divide = !scales.is_empty() && weights.len().is_multiple_of(scales.len());
    assert!(divide, "{} weights, {} scales", weights.len(), scales.len());
    let mut quantized = vec![0i8; weights.len()];
    let len = (weights.len() / scales.len()).max(1);
    for ((values, part), &scale) in weights.chunks(len).zip(quantized.chunks_mut(len)).zip(scales) {
        let step = Step::new(Scheme::Symmetric, QParams { scale, zero_point: 0 });
        Level::current().run(Quantize { values, step, quantized: bytemuck::cast_slice_mut(part) });
    }
    quantized
}

/// Dequantizes values: (q - zero point) · scale.
///
/// # Panics
/// As [`quantize`].
pub fn dequantize(quantized: &[u8], parameters: QParams, values: &mut [f32]) {
    assert_eq!(values.len(), quantized.len(), "lengths of values and quantized values");
    let Step { scale, zero_point, .. } = Step::new(Scheme::Affine, parameters);
    for (value, &q) in values.iter_mut().zip(quantized) {
        *value = (i32::from(q) - zero_point) as f32 * scale;
    }
}

/// Fake quantization, in place: each value is quantized and dequantized. There is one
/// pair of parameters for all values, or one for each of as many equal parts. `mask`
/// is true where gradients pass: where qmin <= round(x · (1 / scale)) + zero point <=
/// qmax. NaN becomes the smallest, and its gradient does not pass.
///
/// # Panics
/// If lengths differ, there are no parameters, they do not divide the values, or are invalid.
///
/// ```
/// use burn_fused::int8::{QParams, Scheme, fake_quantize, mask_gradient};
///
/// let mut values = [0.1, -0.3, 70.0];
/// let mut mask = [false; 3];
/// let parameters = QParams { scale: 0.25, zero_point: 10 };
/// fake_quantize(&mut values, Scheme::Affine, &[parameters], &mut mask);
/// assert_eq!(values, [0.0, -0.25, 61.25]);
///
/// let mut gradient = [1.0, 2.0, 3.0];
/// mask_gradient(&mut gradient, &mask);
/// assert_eq!(gradient, [1.0, 2.0, 0.0]);
/// ```
pub fn fake_quantize(values: &mut [f32], scheme: Scheme, parameters: &[QParams], mask: &mut [bool]) {
    assert_eq!(values.len(), mask.len(), "lengths of values and mask");
    let parts = parameters.len();
    let divide = parts > 0 && values.len().is_multiple_of(parts);
    assert!(divide, "{} values, {parts} parameters", values.len());
    let len = (values.len() / parts).max(1);
    for ((values, mask), &parameters) in values.chunks_mut(len).zip(mask.chunks_mut(len)).zip(parameters) {
        Level::current().run(Fake { values, step: Step::new(scheme, parameters), mask });
    }
}

/// The gradient of fake quantization (straight-through): 0 where the mask is false.
///
/// # Panics
/// If lengths differ.
pub fn mask_gradient(gradient: &mut [f32], mask: &[bool]) {
    assert_eq!(gradient.len(), mask.len(), "lengths of gradient and mask");
    Level::current().run(Mask(gradient, mask));
}

/// Parameters, as a kernel needs them.
#[derive(Clone, Copy)]
struct Step {
    scale: f32,
    /// PyTorch multiplies by the inverse instead of dividing.
    inverse: f32,
    zero_point: i32,
    /// Bounds, minus the zero point.
    bounds: [f32; 2],
}

impl Step {
    fn new(scheme: Scheme, parameters: QParams) -> Self {
        let QParams { scale, zero_point } = match parameters.check(scheme) {
            Ok(parameters) => parameters,
            Err(error) => panic!("{error}"),
        };
        let bounds = scheme.bounds().map(|bound| (bound - zero_point) as f32);
        Self { scale, inverse: 1.0 / scale, zero_point, bounds }
    }

    /// The multiple of the scale nearest to `value`, at most `margin` steps beyond
    /// the bounds.
    #[inline(always)]
    fn round(self, value: f32, margin: f32) -> i32 {
        let [low, high] = [self.bounds[0] - margin, self.bounds[1] + margin];
        let steps = value * self.inverse;
        // In this order, NaN becomes `low`.
        let steps = if steps > low { steps } else { low };
        let steps = if steps < high { steps } else { high };
        (steps + ROUND).to_bits() as i32 - ROUND.to_bits() as i32
    }
}

struct Quantize<'a> {
    values: &'a [f32],
    step: Step,
    /// u8, or the bits of i8.
    quantized: &'a mut [u8],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        for (&value, quantized) in self.values.iter().zip(self.quantized) {
            *quantized = (self.step.round(value, 0.0) + self.step.zero_point) as u8;
        }
    }
}

struct Fake<'a> {
    values: &'a mut [f32],
    step: Step,
    mask: &'a mut [bool],
}

impl Kernel for Fake<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let [low, high] = self.step.bounds;
        for (value, pass) in self.values.iter_mut().zip(self.mask) {
            let steps = self.step.round(*value, 1.0) as f32;
            let clamped = if steps > low { steps } else { low };
            let clamped = if clamped < high { clamped } else { high };
            *pass = clamped == steps;
            *value = clamped * self.step.scale;
        }
    }
}

struct Mask<'a>(&'a mut [f32], &'a [bool]);

impl Kernel for Mask<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        for (value, &pass) in self.0.iter_mut().zip(self.1) {
            *value = if pass { *value } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::int8::testing::Random;

    /// PyTorch's `fake_quantize`, value by value: the quantized value, and whether
    /// the gradient passes.
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
                for scheme in [Scheme::Affine, Scheme::Symmetric] {
                    let zero_point = if scheme == Scheme::Affine { zero_point } else { 0 };
                    let parameters = QParams { scale, zero_point };
                    let (mut fake, mut mask) = (values.clone(), vec![false; values.len()]);
                    fake_quantize(&mut fake, scheme, &[parameters], &mut mask);
                    for ((&x, &fake), &mask) in values.iter().zip(&fake).zip(&mask) {
                        let (q, pass) = plain(x, scheme, parameters);
                        let real = (q - i64::from(zero_point)) as f32 * scale;
                        assert_eq!((fake, mask), (real, pass), "{level}: {x} by {parameters:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn fake_quantization_is_quantization_and_back() {
        let mut random = Random(4);
        let values = random.floats(400, 2.0);
        let parameters = Scheme::Affine.parameters(-1.0, 1.5).unwrap();
        let (mut fake, mut mask) = (values.clone(), vec![false; 400]);
        fake_quantize(&mut fake, Scheme::Affine, &[parameters], &mut mask);
        let (mut quantized, mut back) = (vec![0; 400], vec![0.0; 400]);
        quantize(&values, parameters, &mut quantized);
        dequantize(&quantized, parameters, &mut back);
        assert_eq!(fake, back);
        assert!(mask.iter().any(|&pass| pass) && mask.iter().any(|&pass| !pass));
    }

    #[test]
    fn each_channel_has_its_own_scale() {
        let parameters = [1.0, 0.5].map(|scale| QParams { scale, zero_point: 0 });
        let (mut values, mut mask) = ([0.6, 200.0, 0.6, -63.4], [false; 4]);
        fake_quantize(&mut values, Scheme::Symmetric, &parameters, &mut mask);
        assert_eq!((values, mask), ([1.0, 127.0, 0.5, -63.5], [true, false, true, true]));
        assert_eq!(quantize_weights(&[0.6, 200.0, 0.6, -63.4], &[1.0, 0.5]), [1, 127, 1, -127]);
    }
}
