//! Options of local updates, and their errors.

use derive_setters::Setters;

use crate::{Reduction, WireType};

/// Options of [`LocalUpdates`](crate::LocalUpdates). They must be equal on all ranks.
///
/// ```
/// use burn_mpi::{LocalOptions, Outer};
///
/// // DiLoCo with the settings of Douillard et al. 2023.
/// let outer = Outer::Nesterov { learning_rate: 0.7, momentum: 0.9 };
/// let diloco = LocalOptions::default().with_every(500).with_outer(outer);
/// assert_eq!(diloco.check(), Ok(()));
/// // Streaming DiLoCo: a quarter of the parameters every 25 steps, in flight during 5 steps.
/// let streaming = diloco.with_every(100).with_fragments(4).with_delay(5).with_merge(0.5);
/// assert_eq!(streaming.check(), Ok(()));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct LocalOptions {
    /// Number of local steps between two synchronisations of a parameter, at least 1. It is called H in the
    /// papers.
    pub every: usize,
    /// What is done with the averaged change of the parameters.
    pub outer: Outer,
    /// Number of parts of the parameters that synchronise at different steps. It divides `every`.
    pub fragments: usize,
    /// Number of local steps during which the sum of a fragment is in flight, below `every`. With 0, ranks
    /// wait for the sum.
    pub delay: usize,
    /// Share of a rank's own values in its parameters after a synchronisation with a `delay`: at least 0,
    /// below 1. With 0, the result replaces the rank's values, and the `delay` steps made meanwhile are lost.
    /// Streaming DiLoCo recommends 0.5 and calls it alpha.
    pub merge: f32,
    /// Type in which changes are sent.
    pub wire: WireType,
    /// Summation order over ranks.
    pub reduction: Reduction,
}

impl Default for LocalOptions {
    /// Synchronises all parameters after each step, without an outer optimizer.
    fn default() -> Self {
        Self {
            every: 1,
            outer: Outer::None,
            fragments: 1,
            delay: 0,
            merge: 0.0,
            wire: WireType::F32,
            reduction: Reduction::Native,
        }
    }
}

/// The optimizer that receives the averaged change of the parameters as a gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outer {
    /// The averaged change is added to the parameters: local SGD (Stich, "Local SGD Converges Fast and
    /// Communicates Little", ICLR 2019).
    None,
    /// SGD with Nesterov momentum, as `torch.optim.SGD(nesterov=True)` computes it. The negative averaged
    /// change is the gradient: DiLoCo (Douillard et al., arXiv 2311.08105, 2023), with a learning rate of 0.7
    /// and a momentum of 0.9.
    Nesterov {
        /// Learning rate, above 0. With 1 and a momentum of 0, the result is that of [`None`](Self::None).
        learning_rate: f32,
        /// Momentum, at least 0 and below 1.
        momentum: f32,
    },
}

/// Why options or a state of local updates are rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LocalError {
    /// `every` is 0.
    #[error(
        "every is 0: local updates need the number of local steps between two synchronisations, with and without an \
         outer optimizer"
    )]
    Every,
    /// `fragments` does not divide `every`.
    #[error(
        "fragments ({fragments}) must divide every ({every}): fragments synchronise at equal distances of \
         every/fragments steps"
    )]
    Fragments {
        /// The number of fragments.
        fragments: usize,
        /// The number of local steps.
        every: usize,
    },
    /// There are fewer trainable parameters than fragments.
    #[error(
        "fragments ({fragments}) exceeds the number of trainable parameters ({parameters}), and a parameter is not \
         divided; use at most {parameters}"
    )]
    FewParameters {
        /// The number of fragments.
        fragments: usize,
        /// The number of trainable parameters that are not empty.
        parameters: usize,
    },
    /// `delay` is not below `every`.
    #[error(
        "delay ({delay}) must be below every ({every}): a fragment's result arrives before its next synchronisation"
    )]
    Delay {
        /// The delay.
        delay: usize,
        /// The number of local steps.
        every: usize,
    },
    /// `merge` is not a share below 1.
    #[error("merge ({0}) must be at least 0 and below 1; Streaming DiLoCo recommends 0.5")]
    Merge(f32),
    /// `merge` without a `delay`.
    #[error(
        "merge ({0}) requires a delay of at least 1: without a delay, the result replaces the parameters; set merge \
         to 0, or a delay"
    )]
    MergeWithoutDelay(f32),
    /// A learning rate or momentum of the outer optimizer.
    #[error(
        "the outer optimizer needs a learning rate above 0 and a momentum from 0 to below 1, but has {learning_rate} and \
         {momentum}; DiLoCo recommends 0.7 and 0.9"
    )]
    Outer {
        /// The learning rate.
        learning_rate: f32,
        /// The momentum.
        momentum: f32,
    },
    /// A state that was made with another module, other options or another number of ranks.
    #[error("the state of local updates does not fit this module, these options and ranks: {0}")]
    State(String),
}

impl LocalOptions {
    /// Checks the options, except for the number of fragments of a module.
    ///
    /// # Errors
    /// [`LocalError`] names the first option that is rejected, and says what is possible.
    pub fn check(&self) -> Result<(), LocalError> {
        let Self { every, outer, fragments, delay, merge, .. } = *self;
        if every == 0 {
            return Err(LocalError::Every);
        }
        if fragments == 0 || !every.is_multiple_of(fragments) {
            return Err(LocalError::Fragments { fragments, every });
        }
        if delay >= every {
            return Err(LocalError::Delay { delay, every });
        }
        if !(0.0..1.0).contains(&merge) {
            return Err(LocalError::Merge(merge));
        }
        if merge > 0.0 && delay == 0 {
            return Err(LocalError::MergeWithoutDelay(merge));
        }
        match outer {
            Outer::Nesterov { learning_rate, momentum }
                if !(learning_rate > 0.0 && learning_rate.is_finite() && (0.0..1.0).contains(&momentum)) =>
            {
                Err(LocalError::Outer { learning_rate, momentum })
            }
            _ => Ok(()),
        }
    }

    /// Returns the fragment that starts a synchronisation at `step`, counted from 1; `None` if no fragment
    /// does. Fragment 0 starts at steps H, 2H, …, fragment p at steps pH/F, pH/F + H, …
    pub(super) fn starting_at(&self, step: usize) -> Option<usize> {
        let apart = self.every / self.fragments;
        step.is_multiple_of(apart).then(|| step % self.every / apart)
    }

    /// Returns the fragments whose synchronisation started before or at `step` and is due after it, in the
    /// order in which they started.
    pub(super) fn in_flight_after(&self, step: usize) -> impl Iterator<Item = usize> {
        ((step + 1).saturating_sub(self.delay).max(1)..=step).filter_map(|started| self.starting_at(started))
    }

    /// Returns the fragment whose synchronisation is due at `step`; `None` if none is.
    pub(super) fn due_at(&self, step: usize) -> Option<usize> {
        self.starting_at(step.checked_sub(self.delay).filter(|&started| started > 0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_option_is_named() {
        let good = LocalOptions { every: 6, fragments: 3, delay: 5, merge: 0.5, ..LocalOptions::default() };
        let outer = |learning_rate, momentum| Outer::Nesterov { learning_rate, momentum };
        assert_eq!((good.check(), LocalOptions::default().check()), (Ok(()), Ok(())));
        for (options, expected) in [
            (LocalOptions { every: 0, ..good }, "every is 0"),
            (
                LocalOptions { every: 0, outer: outer(0.7, 0.9), ..good },
                "with and without an outer optimizer",
            ),
            (LocalOptions { fragments: 4, ..good }, "fragments (4) must divide every (6)"),
            (LocalOptions { fragments: 0, ..good }, "fragments (0) must divide"),
            (LocalOptions { delay: 6, ..good }, "delay (6) must be below every (6)"),
            (LocalOptions { merge: 1.0, ..good }, "merge (1) must be"),
            (LocalOptions { merge: f32::NAN, ..good }, "merge (NaN) must be"),
            (LocalOptions { merge: -0.1, ..good }, "merge (-0.1) must be"),
            (LocalOptions { delay: 0, ..good }, "merge (0.5) requires a delay"),
            (LocalOptions { outer: outer(0.0, 0.9), ..good }, "has 0 and 0.9"),
            (LocalOptions { outer: outer(f32::INFINITY, 0.9), ..good }, "has inf and 0.9"),
            (LocalOptions { outer: outer(0.7, 1.0), ..good }, "has 0.7 and 1"),
            (LocalOptions { outer: outer(f32::NAN, 0.5), ..good }, "has NaN and 0.5"),
        ] {
            let line = options.check().unwrap_err().to_string();
            assert!(line.contains(expected) && !line.contains('\n'), "{expected}: {line}");
        }
    }

    #[test]
    fn each_fragment_starts_once_in_every_steps_and_is_due_after_the_delay() {
        for (every, fragments, delay) in [(1, 1, 0), (6, 1, 0), (6, 3, 1), (6, 3, 5), (4, 4, 3), (12, 2, 7)] {
            let options = LocalOptions { every, fragments, delay, ..LocalOptions::default() };
            let mut expected: Vec<usize> = Vec::new();
            for step in 1..=5 * every {
                let starting: Vec<usize> =
                    (0..fragments).filter(|p| step % every == p * every / fragments % every).collect();
                assert_eq!(options.starting_at(step).into_iter().collect::<Vec<_>>(), starting);
                expected.extend(&starting);
                if let Some(due) = options.due_at(step) {
                    assert_eq!(expected.remove(0), due, "{options:?} at step {step}");
                }
                assert_eq!(options.in_flight_after(step).collect::<Vec<_>>(), expected, "at step {step}");
            }
        }
    }
}
