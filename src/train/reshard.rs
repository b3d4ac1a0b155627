//! Continues a position on another number of ranks (`--reshard`).
//!
//! Weights, moments, schedule, loss scale, ranges and the order of gradients are equal on all ranks. The
//! number of steps in an epoch and the samples of each step do not depend on the number of ranks either, see
//! [`ShardPlan::with_ranks`]. Only the lists with an element per rank change.
//!
//! Sums over samples are divided: each new rank gets a share in proportion to the samples that it would have
//! had so far. The total of all ranks stays, and each rank's tally of an epoch still has as many samples as
//! its shard. The share of a rank has the mean loss and accuracy of all ranks, so in the epoch of the change
//! the results of single ranks are less different than they were.

use super::{Position, Tally};
use burn_mpi::ShardPlan;

impl Position {
    /// Divides the lists per rank among the ranks of `train` and `test`, which are the plans of this job. The
    /// checkpoint was written by `ranks` ranks.
    pub fn reshard(&mut self, ranks: usize, train: &ShardPlan, test: &ShardPlan) {
        self.first_ranks.get_or_insert(ranks);
        // At the end of an epoch, the tallies are those of the whole epoch.
        let end = if self.step_in_epoch == 0 { train.steps() } else { self.step_in_epoch };
        self.epoch_tallies = divided(&self.epoch_tallies, train, 0..end);
        self.window_tallies = divided(&self.window_tallies, train, self.window_begin.unwrap_or(0)..end);
        for tallies in [&mut self.test_tallies, &mut self.int8_tallies] {
            *tallies = divided(tallies, test, 0..test.steps());
        }
        // The weights file has the averages of the running statistics, which every rank then takes.
        self.buffers.clear();
        let waits = self.comm_seconds.iter().sum::<f64>() / self.comm_seconds.len().max(1) as f64;
        self.comm_seconds = vec![waits; train.world_size];
    }
}

/// Divides the total of `tallies` among the ranks of `plan`, in proportion to their samples in `steps`. The
/// list stays empty if it was empty.
fn divided(tallies: &[Tally], plan: &ShardPlan, steps: std::ops::Range<usize>) -> Vec<Tally> {
    if tallies.is_empty() {
        return Vec::new();
    }
    let before = |rank: usize, step: usize| plan.shard_len(rank).min(step.saturating_mul(plan.batch_size));
    let samples =
        (0..plan.world_size).map(|rank| before(rank, steps.end).saturating_sub(before(rank, steps.start)));
    let all = Tally::total(tallies);
    let whole = samples.clone().sum::<usize>().max(1) as f64;
    // The sums of the first ranks are computed, and a rank has the difference of two of them: counts are
    // whole numbers, and the total is exact.
    let up_to = |samples: usize| {
        let share = samples as f64 / whole;
        Tally {
            loss: all.loss * share,
            correct: (all.correct * share).round(),
            samples: (all.samples * share).round(),
        }
    };
    let mut given = 0;
    let share = |samples: usize| {
        let [from, to] = [given, given + samples].map(up_to);
        given += samples;
        Tally {
            loss: to.loss - from.loss,
            correct: to.correct - from.correct,
            samples: to.samples - from.samples,
        }
    };
    samples.map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: Tally = Tally { loss: 3.5, correct: 7.0, samples: 11.0 };

    /// The position of 4 ranks with batches of 3 of 37 samples, after 2 steps of the second epoch.
    fn position() -> (Position, ShardPlan) {
        let plan = ShardPlan { samples: 37, world_size: 4, batch_size: 3 };
        let tally = |rank: usize, steps: std::ops::Range<usize>| {
            let samples: usize = steps.map(|step| plan.batch_len(rank, step)).sum();
            Tally::from_batch(0.5 + rank as f64, samples.saturating_sub(rank), samples)
        };
        let all = |steps: std::ops::Range<usize>| (0..4).map(|rank| tally(rank, steps.clone())).collect();
        let position = Position {
            epoch: 1,
            step_in_epoch: 2,
            step: plan.steps() + 2,
            epoch_tallies: all(0..2),
            window_tallies: all(1..2),
            window_begin: Some(1),
            test_tallies: vec![FEW; 4],
            buffers: vec![vec![1.0]; 4],
            comm_seconds: vec![1.0, 2.0, 3.0, 6.0],
            ..Position::default()
        };
        (position, plan)
    }

    #[test]
    fn sums_stay_and_each_rank_has_as_many_samples_as_its_batches_so_far() {
        for ranks in [1, 2, 3, 4, 6, 12] {
            for step_in_epoch in [0, 1, 2, 3] {
                let (mut position, plan) = position();
                (position.step_in_epoch, position.window_begin) = (step_in_epoch, Some(0));
                let done = if step_in_epoch == 0 { plan.steps() } else { step_in_epoch };
                let len = |plan: &ShardPlan, rank: usize| -> usize {
                    (0..done).map(|step| plan.batch_len(rank, step)).sum()
                };
                position.epoch_tallies =
                    (0..4).map(|rank| Tally::from_batch(0.3 * rank as f64, 1, len(&plan, rank))).collect();
                position.window_tallies = position.epoch_tallies.clone();
                let before = position.clone();
                let plan = plan.with_ranks(ranks).unwrap();
                let test = ShardPlan { samples: 44, world_size: ranks, batch_size: 5 };
                position.reshard(4, &plan, &test);
                for (tallies, old) in [
                    (&position.epoch_tallies, &before.epoch_tallies),
                    (&position.window_tallies, &before.window_tallies),
                    (&position.test_tallies, &before.test_tallies),
                ] {
                    let (new, old) = (Tally::total(tallies), Tally::total(old));
                    assert_eq!((new.samples, new.correct, tallies.len()), (old.samples, old.correct, ranks));
                    assert!((new.loss - old.loss).abs() < 1e-12, "{new:?} {old:?}");
                    assert!(tallies.iter().all(|tally| tally.correct <= tally.samples), "{tallies:?}");
                }
                for rank in 0..ranks {
                    assert_eq!(position.epoch_tallies[rank].samples, len(&plan, rank) as f64);
                    assert_eq!(position.test_tallies[rank].samples, test.shard_len(rank) as f64);
                }
                assert_eq!(position.comm_seconds, vec![3.0; ranks]);
                assert_eq!((position.first_ranks, position.buffers.len()), (Some(4), 0));
                assert!(position.int8_tallies.is_empty());
            }
        }
    }

    #[test]
    fn a_window_has_only_its_own_steps_and_the_first_ranks_stay() {
        let (mut position, plan) = position();
        let samples = Tally::total(&position.window_tallies).samples;
        let (two, test) =
            (plan.with_ranks(2).unwrap(), ShardPlan { samples: 44, world_size: 2, batch_size: 5 });
        position.reshard(4, &two, &test);
        assert_eq!(position.window_tallies.iter().map(|tally| tally.samples).collect::<Vec<_>>(), [6.0, 6.0]);
        assert_eq!(samples, 12.0);
        position.reshard(2, &plan, &test);
        assert_eq!(position.first_ranks, Some(4));
    }
}
