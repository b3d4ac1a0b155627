//! Batch normalisation of batches that have one value for each sample and channel. A row is one sample, and
//! all channels of a row are computed at once.

use super::{Affine, AffineBackward, Input, Moments, level_and_slope};
use crate::kernels::epilogue::{Epilogue, passes, relu};
use crate::runtime::memory::Buffer;

/// See [`normalised`](super::normalised).
#[inline(always)]
pub(super) fn forward(input: Input<'_>, epsilon: f64) -> (Buffer, Moments, Vec<u8>) {
    let Input { shape, x, .. } = input;
    let (channels, values) = (shape.channels, shape.values() as f64);
    let mut sums = vec![0.0f64; channels];
    for row in x.chunks_exact(channels) {
        sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
    }
    let means: Vec<f32> = sums.iter().map(|sum| (sum / values) as f32).collect();
    sums.fill(0.0);
    for row in x.chunks_exact(channels) {
        for (sum, (&x, &mean)) in sums.iter_mut().zip(row.iter().zip(&means)) {
            let distance = f64::from(x - mean);
            *sum += distance * distance;
        }
    }
    let mut moments = Moments::default();
    means.iter().zip(&sums).for_each(|(&mean, sum)| moments.push(mean, sum / values, epsilon));
    (inference(input, &moments), moments, Vec::new())
}

/// See [`inferred`](super::inferred).
#[inline(always)]
pub(super) fn inference(input: Input<'_>, moments: &Moments) -> Buffer {
    let Input { shape, epilogue, x, .. } = input;
    let affines = Affines::for_channels(&input, moments);
    let mut output = Buffer::new(x.len());
    for (row, of_row) in x.chunks_exact(shape.channels).zip(output.chunks_exact_mut(shape.channels)) {
        affines.apply(row, of_row);
        if epilogue != Epilogue::Identity {
            of_row.iter_mut().for_each(|x| *x = relu(*x));
        }
    }
    output
}

/// See [`gradients`](super::gradients).
#[inline(always)]
pub(super) fn backward(input: Input<'_>, moments: &Moments, gradient: &[f32]) -> (Buffer, [Vec<f32>; 2]) {
    let Input { shape, epilogue, x, .. } = input;
    let channels = shape.channels;
    let affines = Affines::for_channels(&input, moments);
    // A row of the gradient before the epilogue.
    let mut passed = vec![0.0; channels];
    let (mut gradients, mut distances) = (vec![0.0f64; channels], vec![0.0f64; channels]);
    for (row, of_row) in x.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
        affines.pass(epilogue, row, of_row, &mut passed);
        let of_channel = gradients.iter_mut().zip(&mut distances);
        let values = row.iter().zip(&passed).zip(&affines.mean);
        for ((gradients, distances), ((&x, &gradient), &mean)) in of_channel.zip(values) {
            *gradients += f64::from(gradient);
            *distances += f64::from(gradient) * f64::from(x - mean);
        }
    }
    let [mut levels, mut slopes] = [(); 2].map(|()| Vec::with_capacity(channels));
    for channel in 0..channels {
        let (gradients, distances) = (gradients[channel], distances[channel]);
        let inverse = moments.inverse[channel];
        let [level, slope] = level_and_slope(inverse, gradients, distances, shape.values());
        levels.push(level);
        slopes.push(slope);
    }
    let mut of_x = Buffer::new(x.len());
    let rows = x.chunks_exact(channels).zip(gradient.chunks_exact(channels));
    for ((row, of_row), target) in rows.zip(of_x.chunks_exact_mut(channels)) {
        affines.pass(epilogue, row, of_row, &mut passed);
        let values = row.iter().zip(&passed).zip(affines.mean.iter().zip(&affines.factor));
        let of_channel = levels.iter().zip(&slopes);
        for ((target, ((&x, &gradient), (&mean, &factor))), (&level, &slope)) in
            target.iter_mut().zip(values).zip(of_channel)
        {
            *target = AffineBackward { mean, factor, level, slope }.apply(x, gradient);
        }
    }
    let scales = distances.iter().zip(&moments.inverse);
    let of_scale = scales.map(|(sum, &inverse)| (sum * f64::from(inverse)) as f32).collect();
    (of_x, [of_scale, gradients.iter().map(|&sum| sum as f32).collect()])
}

/// [`Affine`] of all channels, with one `Vec` for each of its fields, so that a SIMD vector loads a field of
/// neighbouring channels.
struct Affines {
    mean: Vec<f32>,
    factor: Vec<f32>,
    shift: Vec<f32>,
}

impl Affines {
    #[inline(always)]
    fn for_channels(input: &Input<'_>, moments: &Moments) -> Self {
        let Moments { mean, inverse, .. } = moments;
        let all = (0..mean.len()).map(|channel| Affine::new(input, channel, mean[channel], inverse[channel]));
        let (factor, shift) = all.map(|affine| (affine.factor, affine.shift)).unzip();
        Self { mean: moments.mean.clone(), factor, shift }
    }

    /// Normalises, scales and shifts the values of a sample.
    #[inline(always)]
    fn apply(&self, row: &[f32], output: &mut [f32]) {
        let channels = self.mean.iter().zip(&self.factor).zip(&self.shift);
        for ((output, &x), ((&mean, &factor), &shift)) in output.iter_mut().zip(row).zip(channels) {
            *output = Affine { mean, factor, shift }.apply(x);
        }
    }

    /// Copies a sample's gradient to `passed`, with zeros where ReLU stops it.
    #[inline(always)]
    fn pass(&self, epilogue: Epilogue, row: &[f32], gradient: &[f32], passed: &mut [f32]) {
        if epilogue == Epilogue::Identity {
            return passed.copy_from_slice(gradient);
        }
        self.apply(row, passed);
        for (passed, &gradient) in passed.iter_mut().zip(gradient) {
            *passed = if passes(*passed) { gradient } else { 0.0 };
        }
    }
}
