//! Learning rates for more ranks, and the time to an accuracy.
//!
//! With one batch size per rank, a step of more ranks trains on more samples, and an epoch has fewer steps.
//! After the same number of epochs, the accuracy is then lower, unless each step is larger.

use serde::{Deserialize, Serialize};

use crate::calling::calling;
use crate::named::named;
use crate::{CommError, World};

/// How the learning rate grows with the number of ranks, if the batch size per rank stays the same.
///
/// ```
/// use burn_mpi::{LrScaling, warmup};
///
/// # let world_size = 4;
/// let rate = 1e-3 * LrScaling::Linear.factor(world_size); // world.size()
/// for step in 0..1000 {
///     let lr = rate * warmup(step, 100.0);
///     assert!(lr <= 4e-3);
///     // model = optimizer.step(lr, model, gradients);
/// }
/// ```
///
/// A learning rate scheduler of Burn takes the scaled rate as its initial rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrScaling {
    /// It does not grow.
    #[default]
    None,
    /// In proportion to the number of ranks: Goyal et al., "Accurate, large minibatch SGD" (2017).
    Linear,
    /// With the square root of the number of ranks: Krizhevsky, "One weird trick for parallelizing
    /// convolutional neural networks" (2014).
    Sqrt,
}

named!(LrScaling, "scaling": None = "none", Linear = "linear", Sqrt = "sqrt");

impl LrScaling {
    /// Returns the factor of the learning rate for `ranks` ranks; 1 for one rank.
    pub fn factor(self, ranks: usize) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Linear => ranks as f64,
            Self::Sqrt => (ranks as f64).sqrt(),
        }
    }
}

/// Returns the factor of the learning rate in a linear warmup over the first `steps` steps, which need not be
/// a whole number. `step` counts from 0. The factor is `1 / steps` in the first step, and 1 after the warmup
/// (Goyal et al., 2017, section 2.2).
///
/// ```
/// assert_eq!([0, 1, 2, 3, 4].map(|step| burn_mpi::warmup(step, 4.0)), [0.25, 0.5, 0.75, 1.0, 1.0]);
/// assert_eq!(burn_mpi::warmup(0, 0.0), 1.0);
/// ```
pub fn warmup(step: usize, steps: f64) -> f64 {
    let done = (step + 1) as f64;
    if done < steps { done / steps } else { 1.0 }
}

/// The test in which a training first reached its target accuracy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Reached {
    /// Accuracy of this test.
    pub accuracy: f64,
    /// Training steps before this test.
    pub steps: usize,
    /// Training seconds before this test, mean over ranks.
    pub seconds: f64,
}

/// Measures the training time until a test reaches a target accuracy.
///
/// ```no_run
/// # use burn_mpi::{CommError, TargetAccuracy, World};
/// # fn example(world: &World) -> Result<(), CommError> {
/// let mut target = TargetAccuracy::new(97.0);
/// let mut training = std::time::Duration::ZERO;
/// for step in 1..=10_000 {
///     let began = std::time::Instant::now();
///     // A training step.
///     training += began.elapsed();
///     let accuracy = 50.0; // Of a test on all ranks, every 100 steps.
///     if step % 100 == 0 && target.test(world, accuracy, step, training.as_secs_f64())? {
///         break;
///     }
/// }
/// println!("{:?}", target.reached());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TargetAccuracy {
    target: f64,
    reached: Option<Reached>,
}

impl TargetAccuracy {
    /// Returns a target that no test has reached yet. `target` has the unit of the accuracies of
    /// [`test`](Self::test).
    pub fn new(target: f64) -> Self {
        Self { target, reached: None }
    }

    /// Records a test after `steps` steps and `seconds` of training on this rank, without tests. Returns
    /// whether this test or an earlier one has reached the target. All ranks must call it after the same
    /// tests, and all ranks get the same result: rank 0's `accuracy` and `steps` count.
    ///
    /// # Errors
    /// If the transport fails.
    pub fn test(
        &mut self,
        world: &World,
        accuracy: f64,
        steps: usize,
        seconds: f64,
    ) -> Result<bool, CommError> {
        let _calling = calling("TargetAccuracy::test");
        let ranks: Vec<(f64, usize, f64)> = world.gather(&(accuracy, steps, seconds))?;
        let (accuracy, steps, _) = ranks[0];
        if self.reached.is_none() && accuracy >= self.target {
            let seconds = ranks.iter().map(|rank| rank.2).sum::<f64>() / ranks.len() as f64;
            self.reached = Some(Reached { accuracy, steps, seconds });
        }
        Ok(self.reached.is_some())
    }

    /// Forgets the tests so far. Call it on all ranks, for example after the test set has changed.
    pub fn reset(&mut self) {
        self.reached = None;
    }

    /// Returns the first test that reached the target; `None` if no test did so far.
    pub fn reached(&self) -> Option<Reached> {
        self.reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::{Options, run};

    #[test]
    fn rates_grow_with_ranks_as_named() {
        let factors = |ranks| LrScaling::ALL.map(|scaling| scaling.factor(ranks));
        assert_eq!((factors(1), factors(4)), ([1.0; 3], [1.0, 4.0, 2.0]));
        assert_eq!("sqrt".parse(), Ok(LrScaling::Sqrt));
    }

    #[test]
    fn a_warmup_of_part_of_a_step_ends_in_that_step() {
        assert_eq!([0, 1, 2, 3].map(|step| warmup(step, 2.5)), [0.4, 0.8, 1.0, 1.0]);
        assert_eq!(warmup(0, 0.5), 1.0);
    }

    /// The accuracies and seconds of rank 1 differ, but all ranks must go on or stop together.
    #[test]
    fn all_ranks_reach_a_target_in_the_same_test_and_keep_the_first() {
        for ranks in 1..4 {
            let tested = run(ranks, &Options::default(), |world| {
                let mut target = TargetAccuracy::new(90.0);
                let shift = world.rank() as f64;
                let mut test =
                    |accuracy: f64, steps| target.test(world, accuracy - shift, steps, steps as f64 + shift);
                let tests = [test(f64::NAN, 10)?, test(89.9, 20)?, test(90.0, 30)?, test(50.0, 40)?];
                let first = target.reached();
                target.reset();
                assert_eq!(target.reached(), None);
                Ok::<_, CommError>((tests, first))
            });
            let seconds = 30.0 + (ranks - 1) as f64 / 2.0;
            let first = Reached { accuracy: 90.0, steps: 30, seconds };
            assert_eq!(tested.unwrap(), vec![([false, false, true, true], Some(first)); ranks]);
        }
    }
}
