//! Dynamic loss scaling, as PyTorch's `GradScaler`: small gradients would be 0 in f16,
//! so the loss is multiplied by a scale, and gradients are divided by it in f32.
//! Micikevicius et al., "Mixed precision training" (2018), section 3.2.
//!
//! It reads the averaged gradients, which are the same bits on every rank: an overflow
//! on one of them is an infinity or a NaN in the average, so that all ranks skip the
//! step.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::AveragedGradients;
use burn_fused::simd::{Kernel, Lanes, Level};
use burn_mpi::CommError;

/// The first scale, as PyTorch's.
const FIRST: f32 = 65536.0;
/// Factor after an overflow, and its inverse after [`GOOD`] steps without one. Powers
/// of two: scaling rounds nothing.
const BACKOFF: f32 = 0.5;
/// Steps without an overflow before the scale grows.
const GOOD: u32 = 2000;

/// The scale, and what determines its next value. It is part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// Factor of the loss.
    pub scale: f32,
    /// Steps since the last overflow or growth.
    pub good_steps: u32,
    /// Steps without an update, because a gradient was NaN or infinite.
    pub skipped_steps: usize,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: FIRST, good_steps: 0, skipped_steps: 0 }
    }
}

impl LossScale {
    /// Divides the averaged gradients at `places` by the scale, and sets the next one.
    /// Returns whether all are finite; otherwise, the step is to be skipped.
    ///
    /// # Errors
    /// If a parameter has no gradient; it is named.
    pub fn unscale(
        &mut self,
        places: &[(usize, Range<usize>)],
        gradients: &mut impl AveragedGradients,
    ) -> Result<bool, CommError> {
        let mut finite = true;
        for (param, _) in places {
            let (values, factor) = (gradients.gradient_mut(*param)?, 1.0 / self.scale);
            finite &= Level::current().run(Scale { values, factor });
        }
        if !finite {
            self.skipped_steps += 1;
            self.good_steps = 0;
            // Its inverse must be finite too.
            self.scale = (self.scale * BACKOFF).max(f32::MIN_POSITIVE);
            return Ok(false);
        }
        self.good_steps += 1;
        if self.good_steps >= GOOD {
            self.good_steps = 0;
            let grown = self.scale / BACKOFF;
            self.scale = if grown.is_finite() { grown } else { self.scale };
        }
        Ok(true)
    }
}

/// Multiplies values; returns whether all of them were finite.
pub(super) struct Scale<'a> {
    pub values: &'a mut [f32],
    pub factor: f32,
}

impl Kernel for Scale<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) -> bool {
        // Counted without a branch, so that the loop is vectorised.
        let mut others = 0;
        for value in self.values {
            others += u32::from(!value.is_finite());
            *value *= self.factor;
        }
        others == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Given(Vec<Vec<f32>>);

    impl AveragedGradients for Given {
        fn gradient_mut(&mut self, param: usize) -> Result<&mut [f32], CommError> {
            Ok(&mut self.0[param])
        }
    }

    fn step(scale: &mut LossScale, values: [f32; 2]) -> (bool, Vec<Vec<f32>>) {
        let mut given = Given(values.map(|value| vec![1.0, value]).to_vec());
        let fits = scale.unscale(&[(0, 0..2), (1, 2..4)], &mut given).expect("every gradient exists");
        (fits, given.0)
    }

    #[test]
    fn gradients_are_divided_by_the_scale() {
        let mut scale = LossScale::default();
        let (fits, found) = step(&mut scale, [65536.0, -3.0 * 65536.0]);
        assert!(fits);
        assert_eq!(found, [[1.0 / 65536.0, 1.0], [1.0 / 65536.0, -3.0]]);
        assert_eq!(scale, LossScale { good_steps: 1, ..LossScale::default() });
    }

    #[test]
    fn an_overflow_skips_the_step_and_halves_the_scale() {
        let mut scale = LossScale { good_steps: 7, ..LossScale::default() };
        for (n, value) in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN].into_iter().enumerate() {
            assert!(!step(&mut scale, [0.0, value]).0);
            let expected =
                LossScale { scale: FIRST / 2f32.powi(n as i32 + 1), good_steps: 0, skipped_steps: n + 1 };
            assert_eq!(scale, expected);
        }
        // However often, gradients stay finite where they are.
        (0..300).for_each(|_| assert!(!step(&mut scale, [0.0, f32::NAN]).0));
        let (fits, found) = step(&mut scale, [0.0, 0.0]);
        assert!(fits && found.iter().flatten().all(|x| x.is_finite()), "{scale:?}");
    }

    #[test]
    fn the_scale_doubles_after_2000_good_steps() {
        let mut scale = LossScale::default();
        (0..1999).for_each(|_| assert!(step(&mut scale, [1.0, 2.0]).0));
        assert_eq!(scale.scale, FIRST);
        assert!(step(&mut scale, [1.0, 2.0]).0);
        assert_eq!((scale.scale, scale.good_steps), (2.0 * FIRST, 0));
        // An overflow starts the count anew.
        (0..1999).for_each(|_| assert!(step(&mut scale, [1.0, 2.0]).0));
        assert!(!step(&mut scale, [1.0, f32::INFINITY]).0);
        assert!(step(&mut scale, [1.0, 2.0]).0);
        assert_eq!((scale.scale, scale.good_steps, scale.skipped_steps), (FIRST, 1, 1));
    }
}
