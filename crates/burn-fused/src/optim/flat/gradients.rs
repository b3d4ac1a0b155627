//! Operations on gradients before the update: penalties, norms and scaling.

use std::sync::atomic::{AtomicBool, Ordering};

use super::PART;
use crate::kernels::simd::{Level, kernel};
use crate::runtime::threads::each;

/// Adds to `gradients` the gradients of two penalties of `weights`: `l1 * sum |w|` and `l2 * sum w^2`. The
/// gradient of `|w|` at 0 is 0, as in PyTorch.
///
/// # Panics
/// If the slices differ in length.
pub fn add_penalties(l1: f32, l2: f32, weights: &[f32], gradients: &mut [f32]) {
    assert_eq!(weights.len(), gradients.len(), "weights and their gradients");
    let level = Level::current();
    let parts = weights.chunks(PART).zip(gradients.chunks_mut(PART));
    each(weights.len() / 8, parts, |(weights, gradients)| penalise(level, l1, l2, weights, gradients));
}

/// Returns the sum of the squares of `values`, in f64. The order of additions does not depend on the SIMD
/// level or the threads, so processes that sum the same values get the same bits.
pub fn square_sum(values: &[f32]) -> f64 {
    let (level, mut sums) = (Level::current(), vec![0.0; values.len().div_ceil(PART)]);
    let parts = values.chunks(PART).zip(&mut sums);
    each(values.len() / 8, parts, |(values, sum)| *sum = sixteen_sums(level, values));
    sums.into_iter().fold(0.0, |total, sum| total + sum)
}

/// Multiplies `values` by `factor`. Returns whether all values were finite before.
pub fn scale(values: &mut [f32], factor: f32) -> bool {
    let (level, finite) = (Level::current(), AtomicBool::new(true));
    each(values.len() / 8, values.chunks_mut(PART), |values| {
        if !scaled(level, values, factor) {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

kernel! {
    fn penalise<S>(_simd: S, l1: f32, l2: f32, weights: &[f32], gradients: &mut [f32]) {
        for (gradient, &weight) in gradients.iter_mut().zip(weights) {
            let sign = if weight > 0.0 { l1 } else { 0.0 } - if weight < 0.0 { l1 } else { 0.0 };
            *gradient += sign + 2.0 * l2 * weight;
        }
    }
}

kernel! {
    fn sixteen_sums<S>(_simd: S, values: &[f32]) -> f64 {
        let mut sums = [0.0f64; 16];
        let (whole, rest) = values.as_chunks::<16>();
        for chunk in whole {
            for (sum, &value) in sums.iter_mut().zip(chunk) {
                *sum += f64::from(value) * f64::from(value);
            }
        }
        for (sum, &value) in sums.iter_mut().zip(rest) {
            *sum += f64::from(value) * f64::from(value);
        }
        sums.iter().sum()
    }
}

kernel! {
    fn scaled<S>(_simd: S, values: &mut [f32], factor: f32) -> bool {
        // The loop counts non-finite values without a branch, so that the compiler vectorises it.
        let mut others = 0;
        for value in values {
            others += u32::from(!value.is_finite());
            *value *= factor;
        }
        others == 0
    }
}
