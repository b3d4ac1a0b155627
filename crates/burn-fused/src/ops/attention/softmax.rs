//! Softmax of a block of scores, with masks and dropout, and its gradient.

use super::{Block, Setup};
use crate::kernels::attention::{maximum, sum};
use crate::kernels::simd::math::exp;
use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, kernel};

kernel! {
    /// Computes the weights of a block from its scores, in place.
    pub fn softmax<S>(
        simd: S,
        setup: &Setup,
        block: &Block,
        // On entry, the scores of the block's keys; on return, their weights, with dropout applied. Each row
        // is padded to whole vectors.
        scores: &mut [f32],
        // Distance between rows, in values.
        step: usize,
        // For each row, the maximum score and the reciprocal of softmax's denominator.
        stats: &mut [[f32; 2]],
        // The weights of all keys; empty if they are not requested.
        weights: &mut [f32],
    ) {
        let mut factors = vec![0.0; if setup.dropout.is_some() { block.width() } else { 0 }];
        for (r, (row, stats)) in scores.chunks_mut(step).zip(stats).enumerate() {
            let row = &mut row[..block.width()];
            setup.mask(block, r, row);
            let mut most = maximum(simd, row);
            if setup.quiet && most == f32::NEG_INFINITY {
                most = 0.0;
            }
            let mut sums = [0.0; MAX_LANES];
            for chunk in row.chunks_mut(MAX_LANES) {
                for (sum, x) in sums.iter_mut().zip(chunk) {
                    *x = exp(*x - most);
                    *sum += *x;
                }
            }
            let rest = if setup.quiet { (-most).exp() } else { 0.0 };
            *stats = [most, 1.0 / (sum(simd, &sums) + rest)];
            row.iter_mut().for_each(|x| *x *= stats[1]);
            if let Some(dropout) = setup.dropout {
                dropout.factors(setup.sizes.weight(block, r) + block.keys.start, &mut factors);
                row.iter_mut().zip(&factors).for_each(|(x, factor)| *x *= factor);
            }
            if !weights.is_empty() {
                let weights = &mut weights[r * setup.sizes.keys..][..setup.sizes.keys];
                weights.fill(0.0);
                weights[block.keys.clone()].copy_from_slice(&row[..block.keys.len()]);
            }
        }
    }
}

/// Computes the gradient of a block's scores from the gradient of its weights, in place.
pub struct SoftmaxBackward<'a> {
    pub setup: &'a Setup,
    pub block: &'a Block,
    /// On entry, the scores of the block's keys; on return, their weights, with dropout applied. Row `r`
    /// begins at `r * step`.
    pub scores: &'a mut [f32],
    /// On entry, the gradient of the weights with dropout applied; on return, the gradient of the products of
    /// queries and keys. Rows begin as those of `scores` do.
    pub gradient: &'a mut [f32],
    /// Distance between rows, in values.
    pub step: usize,
    /// For each row, the maximum score and the reciprocal of softmax's denominator, from [`softmax`].
    pub stats: &'a [[f32; 2]],
    /// For each row, the sum of the products of each weight and its gradient.
    pub means: &'a [f32],
}

impl Kernel for SoftmaxBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { setup, block, scores, gradient, step, stats, means } = self;
        let mut factors = vec![1.0; block.width()];
        let rows = scores.chunks_mut(step).zip(gradient.chunks_mut(step)).zip(stats.iter().zip(means));
        for (r, ((row, gradient), (&[most, factor], mean))) in rows.enumerate() {
            let (row, gradient) = (&mut row[..block.width()], &mut gradient[..block.width()]);
            setup.mask(block, r, row);
            if let Some(dropout) = setup.dropout {
                dropout.factors(setup.sizes.weight(block, r) + block.keys.start, &mut factors);
            }
            for ((x, g), dropped) in row.iter_mut().zip(&mut *gradient).zip(&factors) {
                let weight = exp(*x - most) * factor;
                // Treat a weight of 1 as exact: its slope is 0. The formula would leave a rounding error,
                // because `mean` is rounded differently from the gradient.
                let slope = if weight == 1.0 { 0.0 } else { weight };
                *g = slope * (*g * dropped - mean) * setup.scale;
                *x = weight * dropped;
            }
            setup.masks.fill(block, r, &mut gradient[..block.keys.len()], 0.0);
        }
    }
}
