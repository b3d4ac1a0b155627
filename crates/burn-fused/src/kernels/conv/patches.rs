//! Batch normalisation of a direct convolution, from the moments of its patches.
//!
//! A patch is the 3x3 neighbourhood of a pixel in all input channels. The sums of the convolution are linear
//! in patches. Their mean and variance therefore follow from the sums of the patches' values and of the
//! products of two values, and so do the gradients. With few input channels, there are few of these sums.
//! They take less time than to store the convolution's sums and to read them again for the moments, for the
//! output and in backward. The output is then a direct convolution with scaled weights.

use super::plane::Plane;
use super::scratch::{Scratch, with_buffers};
use super::{Convolution, Gradients, RATE, Route, Shape};
use crate::kernels::norm::Moments;
use crate::kernels::simd::{Kernel, Lanes, Level};
use crate::runtime::memory::Buffer;
use crate::runtime::threads::each;

/// Returns whether this way suits a convolution: to multiply the values of a patch in pairs takes at most as
/// many multiplications as the convolution. The input then has one to three channels, so it is probably the
/// first layer of a network, whose input needs no gradient.
pub fn suits(Convolution { route, shape, .. }: Convolution) -> bool {
    route == Route::Direct && 9 * shape.inputs <= shape.outputs
}

/// Sums over all patches of a batch, in f64. The variance of smooth images is a small difference of large
/// sums. The products of two values of f32 are exact in f64.
#[derive(Debug)]
pub struct Patches {
    /// Number of patches.
    count: f64,
    /// Sums of the values.
    sums: Vec<f64>,
    /// Sums of the products of two values, a row for each value.
    products: Vec<f64>,
}

impl Patches {
    /// Sums the patches of `input`. Threads share blocks of images.
    pub fn new(level: Level, shape: Shape, input: &[f32]) -> Self {
        let size = 9 * shape.inputs;
        // There is one image in each lane of a vector of f64.
        let images = input.chunks(level.lanes() / 2 * shape.inputs * shape.pixels());
        let mut found = vec![0.0; images.len() * (size + 1) * size];
        let time = images.len() * shape.pixels() * (size + 1) * size / RATE / 2;
        each(time, images.zip(found.chunks_exact_mut((size + 1) * size)), |(images, found)| {
            with_buffers(|[buffers, _]| {
                level.run(SumBlock { shape, images, found, scratch: &mut buffers.input })
            });
        });
        let mut products = vec![0.0; (size + 1) * size];
        for found in found.chunks_exact(products.len()) {
            products.iter_mut().zip(found).for_each(|(total, sum)| *total += sum);
        }
        let sums = products.split_off(size * size);
        for row in 0..size {
            for column in 0..row {
                products[row * size + column] = products[column * size + row];
            }
        }
        Self { count: (shape.batch * shape.pixels()) as f64, sums, products }
    }

    /// Number of values in a patch.
    fn size(&self) -> usize {
        self.sums.len()
    }

    /// Returns the mean over the patches of the sum of `weights` times values.
    fn mean(&self, weights: &[f32]) -> f64 {
        dot(weights, &self.sums) / self.count
    }

    /// Returns the statistics of the convolution's sums.
    pub fn moments(&self, weights: &[f32], bias: &[f32], epsilon: f64) -> Moments {
        let mut moments = Moments::default();
        for (weights, &bias) in weights.chunks_exact(self.size()).zip(bias) {
            let (mean, bias) = (self.mean(weights), f64::from(bias));
            let square = self.products_with(weights).zip(weights).map(|(sum, &w)| sum * f64::from(w));
            let variance = square.sum::<f64>() / self.count - mean * mean;
            // Rounding may make a small variance negative. NaN stays NaN, also that of the bias.
            let variance = variance.clamp(0.0, f64::INFINITY) + 0.0 * bias;
            moments.push((bias + mean) as f32, variance, epsilon);
        }
        moments
    }

    /// Returns for each value of a patch the sum of `weights` times its products.
    fn products_with(&self, weights: &[f32]) -> impl Iterator<Item = f64> {
        self.products.chunks_exact(self.size()).map(move |row| dot(weights, row))
    }

    /// Returns the gradients of the weights, and those of scale and shift. `found` are the gradients of the
    /// weights and biases of the convolution that computes normalised sums. The gradients of the biases are
    /// zero or NaN, because the normalisation subtracts the mean.
    pub fn gradients(
        &self,
        weights: &[f32],
        scale: &[f32],
        moments: &Moments,
        found: Gradients,
    ) -> (Gradients, [Vec<f32>; 2]) {
        let size = self.size();
        let mut of_weights = Buffer::new(weights.len());
        let [mut of_bias, mut of_scale, mut of_shift] = [const { Vec::new() }; 3];
        let rows = weights.chunks_exact(size).zip(found.weights.chunks_exact(size));
        for (channel, (weights, gradients)) in rows.enumerate() {
            let [inverse, scale, gradient] =
                [moments.inverse[channel], scale[channel], found.bias[channel]].map(f64::from);
            let mean = self.mean(weights);
            let products = gradients.iter().zip(weights).map(|(&g, &w)| f64::from(g) * f64::from(w));
            let slope = inverse * (products.sum::<f64>() - mean * gradient);
            let target = &mut of_weights[channel * size..][..size];
            let values = self.sums.iter().zip(self.products_with(weights));
            for ((target, &g), (sum, product)) in target.iter_mut().zip(gradients).zip(values) {
                let flat = slope * inverse * (product - mean * sum);
                *target = (scale * inverse * (f64::from(g) - (gradient * sum + flat) / self.count)) as f32;
            }
            of_bias.push(0.0 * target.iter().sum::<f32>());
            of_scale.push(slope as f32);
            of_shift.push(gradient as f32);
        }
        (Gradients { input: None, weights: of_weights, bias: of_bias }, [of_scale, of_shift])
    }
}

/// Returns weights and biases of the convolution that computes normalised sums.
pub fn scaled([weights, bias]: [&[f32]; 2], [scale, shift]: [&[f32]; 2], moments: &Moments) -> [Vec<f32>; 2] {
    let (mut scaled, mut shifted) = (Vec::with_capacity(weights.len()), Vec::with_capacity(bias.len()));
    for (channel, weights) in weights.chunks_exact(weights.len() / bias.len()).enumerate() {
        let factor = scale[channel] * moments.inverse[channel];
        scaled.extend(weights.iter().map(|weight| weight * factor));
        let distance = f64::from(bias[channel]) - f64::from(moments.mean[channel]);
        shifted.push((distance * f64::from(factor) + f64::from(shift[channel])) as f32);
    }
    [scaled, shifted]
}

fn dot(weights: &[f32], values: &[f64]) -> f64 {
    weights.iter().zip(values).map(|(&weight, value)| f64::from(weight) * value).sum()
}

/// Sums the patches of a block of images.
struct SumBlock<'a> {
    shape: Shape,
    images: &'a [f32],
    /// Receives the products of two values, of which the first is not after the second, and then the sums of
    /// the values.
    found: &'a mut [f64],
    scratch: &'a mut Scratch,
}

impl Kernel for SumBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shape, images, found, scratch } = self;
        let (size, plane) = (9 * shape.inputs, Plane::bordered(shape.height, shape.width));
        let values = scratch.take::<S::f64s>(shape.inputs * plane.len);
        values.fill(simd.splat_f64s(0.0));
        let numbers: &mut [f64] = bytemuck::cast_slice_mut(values);
        for (at, image) in images.chunks_exact(shape.pixels()).enumerate() {
            let (lane, channel) = (at / shape.inputs, at % shape.inputs);
            let rows = numbers[(channel * plane.len + plane.first) * S::F64_LANES..]
                .chunks_mut(plane.stride * S::F64_LANES);
            for (row, target) in image.chunks_exact(shape.width).zip(rows) {
                for (&value, target) in row.iter().zip(target[lane..].iter_mut().step_by(S::F64_LANES)) {
                    *target = f64::from(value);
                }
            }
        }
        let planes: &[S::f64s] = values;
        for second in 0..shape.inputs {
            let right = &planes[second * plane.len..][..plane.len];
            for first in 0..9 * (second + 1) {
                let (channel, tap) = (first / 9, first % 9);
                let left = (&planes[channel * plane.len..][..plane.len], tap);
                let target = &mut found[first * size + 9 * second..][..9];
                // The taps of the same channel from `tap` on.
                match if channel == second { tap } else { 0 } {
                    0 => multiply::<S, 9>(simd, plane, left, right, target),
                    1 | 2 => multiply::<S, 8>(simd, plane, left, right, target),
                    3 | 4 => multiply::<S, 6>(simd, plane, left, right, target),
                    5 | 6 => multiply::<S, 4>(simd, plane, left, right, target),
                    _ => multiply::<S, 2>(simd, plane, left, right, target),
                }
            }
            for tap in 0..9 {
                let mut sum = simd.splat_f64s(0.0);
                for row in rows(plane, right, tap) {
                    for &values in row {
                        sum = simd.add_f64s(sum, values);
                    }
                }
                found[size * size + 9 * second + tap] = simd.reduce_sum_f64s(sum);
            }
        }
    }
}

/// Returns the rows of a plane as a tap reads them.
#[inline(always)]
fn rows<V>(plane: Plane, values: &[V], tap: usize) -> impl Iterator<Item = &[V]> {
    let [height, width] = plane.size;
    values[tap / 3 * plane.stride + tap % 3..].chunks(plane.stride).take(height).map(move |row| &row[..width])
}

/// Stores in the last `N` values of `target` the sums of the products of what one tap reads in a plane and of
/// what each of the last `N` taps reads in another plane.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn multiply<S: Lanes, const N: usize>(
    simd: S,
    plane: Plane,
    (left, tap): (&[S::f64s], usize),
    right: &[S::f64s],
    target: &mut [f64],
) {
    let [height, width] = plane.size;
    let mut sums = [simd.splat_f64s(0.0); N];
    for y in 0..height {
        let left = &left[(y + tap / 3) * plane.stride + tap % 3..][..width];
        let mut taps = [left; N];
        for at in 0..N {
            let tap = 9 - N + at;
            taps[at] = &right[(y + tap / 3) * plane.stride + tap % 3..][..width];
        }
        for x in 0..width {
            for at in 0..N {
                sums[at] = simd.add_f64s(sums[at], simd.mul_f64s(left[x], taps[at][x]));
            }
        }
    }
    for at in 0..N {
        target[9 - N + at] = simd.reduce_sum_f64s(sums[at]);
    }
}
