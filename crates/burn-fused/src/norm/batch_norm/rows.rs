//! Batch normalisation of features, with one value per sample and channel: all
//! channels at once, row by row.

use super::{Affine, Back, Forward, Gradients, Input, Moments};
use crate::epilogue::{Epilogue, passes, relu};
use crate::simd::{Kernel, Lanes};

/// See [`super::forward`].
pub(super) struct ForwardPass<'a> {
    pub input: Input<'a>,
    pub epsilon: f64,
}

impl Kernel for ForwardPass<'_> {
    type Output = Forward;

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) -> Forward {
        let Self { input, epsilon } = self;
        let Input { shape, epilogue, x, .. } = input;
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
        let affines = affines(&input, &moments);
        let mut output = Vec::with_capacity(x.len());
        for row in x.chunks_exact(channels) {
            let normalised = row.iter().zip(&affines).map(|(&x, affine)| affine.apply(x));
            match epilogue {
                Epilogue::Identity => output.extend(normalised),
                _ => output.extend(normalised.map(relu)),
            }
        }
        Forward { output, moments, argmax: Vec::new() }
    }
}

/// See [`super::backward`].
pub(super) struct BackwardPass<'a> {
    pub input: Input<'a>,
    pub moments: &'a Moments,
    pub gradient: &'a [f32],
}

impl Kernel for BackwardPass<'_> {
    type Output = Gradients;

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) -> Gradients {
        let Self { input, moments, gradient } = self;
        let Input { shape, epilogue, x, .. } = input;
        let channels = shape.channels;
        let affines = affines(&input, moments);
        let passed = |affine: Affine, x: f32, gradient: f32| match epilogue {
            Epilogue::Identity => gradient,
            _ if passes(affine.apply(x)) => gradient,
            _ => 0.0,
        };
        let mut sums = vec![[0.0f64; 2]; channels];
        for (row, of_row) in x.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
            let values = row.iter().zip(of_row).zip(&affines);
            for (sums, ((&x, &gradient), &affine)) in sums.iter_mut().zip(values) {
                let gradient = f64::from(passed(affine, x, gradient));
                sums[0] += gradient;
                sums[1] += gradient * f64::from(x - affine.mean);
            }
        }
        let channel = |at: usize| {
            let [gradients, distances] = sums[at];
            Back::of(affines[at], moments.inverse[at], gradients, distances, shape.values())
        };
        let backs: Vec<Back> = (0..channels).map(channel).collect();
        let mut of_x = Vec::with_capacity(x.len());
        for (row, of_row) in x.chunks_exact(channels).zip(gradient.chunks_exact(channels)) {
            let values = row.iter().zip(of_row).zip(affines.iter().zip(&backs));
            of_x.extend(
                values.map(|((&x, &gradient), (&affine, back))| back.apply(x, passed(affine, x, gradient))),
            );
        }
        let inverses = sums.iter().zip(&moments.inverse);
        Gradients {
            x: of_x,
            scale: inverses.map(|(sums, &inverse)| (sums[1] * f64::from(inverse)) as f32).collect(),
            shift: sums.iter().map(|sums| sums[0] as f32).collect(),
        }
    }
}

#[inline(always)]
fn affines(input: &Input<'_>, moments: &Moments) -> Vec<Affine> {
    (0..input.shape.channels).map(|channel| Affine::of(input, moments, channel)).collect()
}
