//! Learning rate schedules: the learning rate and the momentum of each step.
//!
//! A rate is a pure function of epoch and step, so a resumed run needs no stored state to continue exactly.

use std::f64::consts::PI;

use burn_mpi::warmup;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::optimizer::Rate;

/// Names of the schedules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lower")]
pub enum ScheduleKind {
    /// Constant.
    #[default]
    Constant,
    /// Multiplied by a factor every few epochs: PyTorch's StepLR.
    Step,
    /// Half a cosine over all epochs, towards 0: CosineAnnealingLR.
    Cosine,
    /// Up and down over all steps (Smith and Topin, 2019): OneCycleLR.
    OneCycle,
}

/// The learning rates of a training.
///
/// OneCycle has PyTorch's defaults. It starts at 1/25 of its highest rate, reaches the highest rate after 30%
/// of the steps, and ends at 1/10,000 of its start. Meanwhile the momentum falls from 0.95 to 0.85 and rises
/// to 0.95 again.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// Kind of the schedule.
    pub kind: ScheduleKind,
    /// StepLR: epochs between decays.
    pub step_size: usize,
    /// StepLR: factor of each decay.
    pub gamma: f64,
    /// OneCycle: the highest learning rate.
    pub max_lr: f64,
    /// Number of steps of the warmup, in which the rate rises linearly to the schedule; 0 without a warmup.
    pub warmup: f64,
    /// Initial learning rate and momentum; OneCycle ignores them.
    pub base: Rate,
    /// Epochs of the training.
    pub epochs: usize,
    /// Steps of an epoch.
    pub steps: usize,
}

/// An epoch with a learning rate below this part of the initial rate changes weights by next to nothing.
const NEGLIGIBLE: f64 = 1e-6;

impl Schedule {
    /// Returns the first epoch from `epoch` on whose last step has a learning rate of 0, or of less than a
    /// millionth of `initial`. `initial` is the rate with which the run began. Returns `None` if there is no
    /// such epoch.
    pub fn negligible_from(&self, epoch: usize, initial: f64) -> Option<usize> {
        let is_negligible = |epoch: &usize| {
            let lr = self.rate(*epoch, self.steps.saturating_sub(1)).lr;
            lr == 0.0 || lr < NEGLIGIBLE * initial
        };
        // Except with a gamma above 1, the last epoch has the lowest rate: if it is not negligible, no epoch
        // is. With a gamma above 1, rates rise, and low rates at the beginning are not reported.
        let last = self.epochs.checked_sub(1).filter(is_negligible)?;
        (epoch..=last).find(is_negligible)
    }

    /// Returns the learning rate of the first step, without the warmup.
    pub fn initial(&self) -> f64 {
        self.scheduled(0, 0).lr
    }

    /// Returns the rate of step `step` of epoch `epoch`, both counted from 0.
    pub fn rate(&self, epoch: usize, step: usize) -> Rate {
        let Rate { lr, momentum } = self.scheduled(epoch, step);
        Rate { lr: lr * warmup(epoch * self.steps + step, self.warmup), momentum }
    }

    /// Returns the rate of a step without the warmup.
    fn scheduled(&self, epoch: usize, step: usize) -> Rate {
        let Rate { lr, momentum } = self.base;
        match self.kind {
            ScheduleKind::Constant => self.base,
            ScheduleKind::Step => {
                let decays = i32::try_from(epoch / self.step_size.max(1)).unwrap_or(i32::MAX);
                Rate { lr: lr * self.gamma.powi(decays), momentum }
            }
            ScheduleKind::Cosine => {
                let done = epoch as f64 / self.epochs.max(1) as f64;
                Rate { lr: lr * (1.0 + (PI * done).cos()) / 2.0, momentum }
            }
            ScheduleKind::OneCycle => {
                let steps = self.steps as f64;
                one_cycle(self.max_lr, epoch as f64 * steps + step as f64, self.epochs as f64 * steps)
            }
        }
    }
}

fn one_cycle(max_lr: f64, step: f64, total: f64) -> Rate {
    const RISE: f64 = 0.3;
    let (start, end) = (max_lr / 25.0, max_lr / 25.0 / 1e4);
    let (low, high) = (0.85, 0.95);
    // As in PyTorch, the curve ends at position `total - 1`, the last step. The maximum may lie between two
    // steps, and before the first step in very short trainings.
    let (top, last) = (RISE * total - 1.0, total - 1.0);
    if step <= top {
        let done = step / top;
        return Rate { lr: anneal(start, max_lr, done), momentum: anneal(high, low, done) };
    }
    let done = (step - top) / (last - top);
    Rate { lr: anneal(max_lr, end, done), momentum: anneal(low, high, done) }
}

/// Returns `from` if `done` is 0, `to` if `done` is 1, and values on half a cosine between them.
fn anneal(from: f64, to: f64, done: f64) -> f64 {
    to + (from - to) / 2.0 * (1.0 + (PI * done).cos())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(kind: ScheduleKind, epochs: usize, steps: usize) -> Schedule {
        let base = Rate { lr: 0.1, momentum: 0.9 };
        Schedule { kind, step_size: 2, gamma: 0.5, max_lr: 1.0, warmup: 0.0, base, epochs, steps }
    }

    fn by_epoch(kind: ScheduleKind) -> Vec<f64> {
        let schedule = schedule(kind, 4, 5);
        (0..4)
            .map(|epoch| {
                let first = schedule.rate(epoch, 0);
                assert_eq!(first, schedule.rate(epoch, 4), "the same in all steps of an epoch");
                assert_eq!(first.momentum, 0.9);
                first.lr
            })
            .collect()
    }

    fn assert_near(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{found} for {expected}");
        }
    }

    #[test]
    fn schedules_by_epoch_fall_as_they_say() {
        assert_eq!(by_epoch(ScheduleKind::Constant), [0.1; 4]);
        assert_near(&by_epoch(ScheduleKind::Step), &[0.1, 0.1, 0.05, 0.05]);
        let half = 0.5f64.sqrt();
        assert_near(&by_epoch(ScheduleKind::Cosine), &[0.1, 0.05 * (1.0 + half), 0.05, 0.05 * (1.0 - half)]);
    }

    #[test]
    fn one_cycle_rises_and_falls_with_the_momentum_against_it() {
        let schedule = schedule(ScheduleKind::OneCycle, 4, 5);
        let rates: Vec<Rate> = (0..20).map(|step| schedule.rate(step / 5, step % 5)).collect();
        // The maximum is at 30% of 20 steps, minus one because the first step is 0.
        let (first, top, last) = (rates[0], rates[5], rates[19]);
        assert_near(&[first.lr, first.momentum], &[0.04, 0.95]);
        assert_near(&[top.lr, top.momentum], &[1.0, 0.85]);
        assert_near(&[last.lr, last.momentum], &[4e-6, 0.95]);
        assert!(rates[..6].is_sorted_by(|a, b| a.lr < b.lr && a.momentum > b.momentum));
        assert!(rates[5..].is_sorted_by(|a, b| a.lr > b.lr && a.momentum < b.momentum));
    }

    #[test]
    fn an_epoch_is_negligible_below_a_millionth_of_the_initial_rate() {
        let falling = Schedule { gamma: 0.1, ..schedule(ScheduleKind::Step, 14, 5) };
        assert_eq!(falling.negligible_from(0, 0.1), None, "the last two epochs have exactly a millionth");
        let falling = Schedule { epochs: 16, ..falling };
        assert_eq!(
            [0, 14, 15, 16].map(|from| falling.negligible_from(from, 0.1)),
            [Some(14), Some(14), Some(15), None]
        );
        for kind in [ScheduleKind::Constant, ScheduleKind::Cosine, ScheduleKind::OneCycle] {
            let initial = schedule(kind, 1000, 5).rate(0, 0).lr;
            assert_eq!(schedule(kind, 1000, 5).negligible_from(0, initial), None, "{kind:?}");
        }
        let constant = |lr| {
            let base = Rate { lr, momentum: 0.0 };
            Schedule { base, ..schedule(ScheduleKind::Constant, 4, 5) }
        };
        assert_eq!(constant(0.0).negligible_from(0, 0.0), Some(0), "a rate of 0 changes nothing");
        assert_eq!(constant(1e-9).negligible_from(2, 0.1), Some(2), "a resumed run that began with 0.1");
        assert_eq!(constant(1e-9).negligible_from(0, 1e-9), None, "a low rate from the start");
    }

    #[test]
    fn a_warmup_multiplies_the_rates_of_every_schedule() {
        for kind in ScheduleKind::value_variants() {
            let plain = schedule(*kind, 4, 5);
            let warmed = Schedule { warmup: 7.5, ..plain };
            for at in 0..20 {
                let [Rate { lr, momentum }, expected] = [warmed, plain].map(|of| of.rate(at / 5, at % 5));
                let factor = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0].get(at).map_or(1.0, |done| done / 7.5);
                assert_near(&[lr, momentum], &[factor * expected.lr, expected.momentum]);
            }
        }
    }

    #[test]
    fn one_cycle_of_a_few_steps_has_rates_between_its_ends() {
        for total in 1..6 {
            for step in 0..total {
                let Rate { lr, momentum } = one_cycle(1.0, step as f64, total as f64);
                assert!((4e-6..=1.0).contains(&lr) && (0.85..=0.95).contains(&momentum), "{step} of {total}");
            }
        }
    }
}
