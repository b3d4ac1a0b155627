//! Batch normalisation of a direct convolution, from the moments of its patches.
//!
//! A patch is the 3x3 neighbourhood of a pixel in all input channels. The sums of the convolution are linear in
//! patches. Their mean and variance therefore follow from the sums of the patches' values and of the products of
//! two values, and so do the gradients. With few input channels, there are few of these sums. They take less time
//! than to store the convolution's sums and to read them again for the moments, for the output and in backward.
//! The output is then a direct convolution with scaled weights.

use super::blocks::{images_of, load_input};
use super::correlation::weight_gradient;
use super::plane::Plane;
use super::scratch::{Buffers, with_buffers};
use super::{Convolution, Gradients, RATE, Route, Shape};
use crate::kernels::norm::Moments;
use crate::kernels::simd::{Kernel, Lanes, Level};
use crate::runtime::memory::Buffer;
use crate::runtime::threads::each;

/// Returns whether this way suits a convolution: to multiply the values of a patch in pairs takes at most as many
/// multiplications as the convolution. The input then has one to three channels, so it is probably the first layer
/// of a network, whose input needs no gradient.
pub fn suits(Convolution { route, shape, .. }: Convolution) -> bool {
    route == Route::Direct && 9 * shape.inputs <= shape.outputs
}

/// Sums over all patches of a batch. To lose no precision if values are far from zero, `centers` are subtracted
/// from the values, and from the zeros around an image.
#[derive(Debug)]
pub struct Patches {
    /// Number of patches.
    count: f64,
    /// About the mean of each input channel.
    centers: Vec<f64>,
    /// Sums of the values.
    sums: Vec<f64>,
    /// Sums of the products of two values, a row for each value.
    products: Vec<f64>,
}

impl Patches {
    /// Sums the patches of `input`. Threads share blocks of images.
    pub fn new(level: Level, shape: Shape, input: &[f32]) -> Self {
        let (size, lanes) = (9 * shape.inputs, level.lanes());
        // The mean of the first image.
        let center = |plane: &[f32]| plane.iter().map(|&x| f64::from(x)).sum::<f64>() / plane.len() as f64;
        let planes = input.chunks_exact(shape.pixels()).take(shape.inputs);
        let centers: Vec<f64> = planes.map(|plane| f64::from(center(plane) as f32)).collect();
        let blocks = shape.batch.div_ceil(lanes);
        let mut found = vec![0.0; blocks * (size + 1) * size];
        let time = blocks * shape.pixels() * (size + 1) * size / RATE;
        each(time, found.chunks_exact_mut((size + 1) * size).enumerate(), |(block, found)| {
            with_buffers(|[buffers, _]| {
                level.run(SumBlock { shape, input, block, centers: &centers, found, buffers });
            });
        });
        let mut totals = vec![0.0; (size + 1) * size];
        for found in found.chunks_exact(totals.len()) {
            totals.iter_mut().zip(found).for_each(|(total, sum)| *total += sum);
        }
        let sums = totals.split_off(size * size);
        Self { count: (shape.batch * shape.pixels()) as f64, centers, sums, products: totals }
    }

    /// Number of values in a patch.
    fn size(&self) -> usize {
        self.sums.len()
    }

    /// Returns the mean over the patches of the sum of `weights` times values, without the centers.
    fn mean(&self, weights: &[f32]) -> f64 {
        dot(weights, &self.sums) / self.count
    }

    /// Returns the statistics of the convolution's sums.
    pub fn moments(&self, weights: &[f32], bias: &[f32], epsilon: f64) -> Moments {
        let mut moments = Moments::default();
        for (weights, &bias) in weights.chunks_exact(self.size()).zip(bias) {
            let of_centers = weights.chunks_exact(9).zip(&self.centers);
            let of_centers = of_centers.map(|(taps, center)| center * sum(taps)).sum::<f64>();
            let mean = self.mean(weights);
            let square = self.products_with(weights).zip(weights).map(|(sum, &w)| sum * f64::from(w));
            let variance = square.sum::<f64>() / self.count - mean * mean;
            // Rounding may make a small variance negative. NaN stays NaN.
            let variance = variance.clamp(0.0, f64::INFINITY);
            moments.push((f64::from(bias) + of_centers + mean) as f32, variance, epsilon);
        }
        moments
    }

    /// Returns for each value of a patch the sum of `weights` times its products.
    fn products_with(&self, weights: &[f32]) -> impl Iterator<Item = f64> {
        self.products.chunks_exact(self.size()).map(move |row| dot(weights, row))
    }

    /// Returns the gradients of the weights, and those of scale and shift. `found` are the gradients of the
    /// weights and biases of the convolution that computes normalised sums. The gradients of the biases are zero,
    /// because the normalisation subtracts the mean.
    pub fn gradients(
        &self,
        weights: &[f32],
        scale: &[f32],
        moments: &Moments,
        found: Gradients,
    ) -> (Gradients, [Vec<f32>; 2]) {
        let size = self.size();
        let mut of_weights = Buffer::new(weights.len());
        let (mut of_scale, mut of_shift) = (Vec::new(), Vec::new());
        let rows = weights.chunks_exact(size).zip(found.weights.chunks_exact(size));
        for (channel, (weights, gradients)) in rows.enumerate() {
            let [inverse, scale, of_bias] =
                [moments.inverse[channel], scale[channel], found.bias[channel]].map(f64::from);
            let centers = self.centers.iter().flat_map(|&center| [center; 9]);
            let gradients: Vec<f64> =
                gradients.iter().zip(centers).map(|(&g, center)| f64::from(g) - center * of_bias).collect();
            let mean = self.mean(weights);
            let slope = inverse * (dot(weights, &gradients) - mean * of_bias);
            let target = of_weights[channel * size..][..size].iter_mut().zip(&gradients);
            for ((target, gradient), (sum, product)) in
                target.zip(self.sums.iter().zip(self.products_with(weights)))
            {
                let flat = slope * inverse * (product - mean * sum);
                *target = (scale * inverse * (gradient - (of_bias * sum + flat) / self.count)) as f32;
            }
            of_scale.push(slope as f32);
            of_shift.push(of_bias as f32);
        }
        let bias = vec![0.0; of_scale.len()];
        (Gradients { input: None, weights: of_weights, bias }, [of_scale, of_shift])
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

fn sum(values: &[f32]) -> f64 {
    values.iter().map(|&x| f64::from(x)).sum()
}

fn dot(weights: &[f32], values: &[f64]) -> f64 {
    weights.iter().zip(values).map(|(&weight, value)| f64::from(weight) * value).sum()
}

/// Sums the patches of a block of images.
struct SumBlock<'a> {
    shape: Shape,
    input: &'a [f32],
    block: usize,
    centers: &'a [f64],
    /// Receives the products, and then the sums.
    found: &'a mut [f64],
    buffers: &'a mut Buffers,
}

impl Kernel for SumBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shape, input, block, centers, found, buffers } = self;
        let plane = Plane::bordered(shape.height, shape.width);
        let (inputs, size) = (shape.inputs, 9 * shape.inputs);
        // Before the first plane and after the last one is room for a plane that is shifted by a tap.
        let lanes = buffers.input.take::<S::f32s>(inputs * plane.len + 2 * plane.first);
        let values = &mut lanes[plane.first..][..inputs * plane.len];
        load_input(simd, shape, plane, input, block, values);
        let (_, images) = images_of::<S>(shape.batch, block);
        let inside = simd.mask_between_m32s(0, images as u32).mask();
        for (plane, &center) in values.chunks_exact_mut(plane.len).zip(centers) {
            let center = simd.splat_f32s(center as f32);
            for value in plane {
                *value = simd.select_f32s(inside, simd.sub_f32s(*value, center), simd.splat_f32s(0.0));
            }
        }
        let ones = buffers.output.take::<S::f32s>(plane.len);
        ones.fill(simd.splat_f32s(1.0));
        let sums = buffers.sums.take::<S::f32s>((size + 1) * size);
        sums.fill(simd.splat_f32s(0.0));
        let values = &lanes[plane.first..][..inputs * plane.len];
        for (at, sums) in sums.chunks_exact_mut(size).enumerate() {
            let (channel, tap) = (at / 9, at % 9);
            let factor = if at < size {
                &lanes[channel * plane.len + tap / 3 * plane.stride + tap % 3..][..plane.len]
            } else {
                &*ones
            };
            weight_gradient(simd, plane, [inputs, 1], values, factor, sums);
        }
        let sums: &[f32] = bytemuck::cast_slice(sums);
        for (found, lanes) in found.iter_mut().zip(sums.chunks_exact(S::F32_LANES)) {
            *found = lanes.iter().map(|&lane| f64::from(lane)).sum();
        }
    }
}
