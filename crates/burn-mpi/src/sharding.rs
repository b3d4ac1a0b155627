//! Sharding: which samples a rank trains on, and in which order.
//!
//! Sharding is strided (round-robin), as in PyTorch's `DistributedSampler`: rank `r` of `w` gets the samples
//! `r`, `r + w`, `r + 2w`, … of the epoch's sample order. Nothing is padded or dropped, so shards differ by
//! one sample at most. The union of all ranks' batches of one step is a contiguous range of this order: the
//! batch of a single process whose batch size is `w` times as large.

use std::fmt;

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// How a data set is divided into shards and steps; the same on every rank.
///
/// ```
/// use burn_mpi::{SampleOrder, ShardPlan};
///
/// let plan = ShardPlan { samples: 10, world_size: 4, batch_size: 2 };
/// assert_eq!(plan.shard(1, SampleOrder::Sequential), [1, 5, 9]);
/// assert_eq!(plan.steps(), 2);
/// // The second step has two samples, of ranks 0 and 1; the others take part with none.
/// assert_eq!([0, 1, 2, 3].map(|rank| plan.batch_len(rank, 1)), [1, 1, 0, 0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPlan {
    /// Number of samples in use, over all ranks; at most `u32::MAX`.
    pub samples: usize,
    /// Number of ranks, at least 1.
    pub world_size: usize,
    /// Batch size per rank, at least 1.
    pub batch_size: usize,
}

impl ShardPlan {
    /// Returns the number of samples in `rank`'s shard.
    pub fn shard_len(&self, rank: usize) -> usize {
        self.samples.saturating_sub(rank).div_ceil(self.world_size)
    }

    /// Returns the indices of `rank`'s samples in the data set, in the order in which the rank uses them.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` samples.
    pub fn shard(&self, rank: usize, order: SampleOrder) -> Vec<u32> {
        order.samples(self.samples).into_iter().skip(rank).step_by(self.world_size).collect()
    }

    /// Returns the number of steps of an epoch, the same on every rank: the number of batches in the largest
    /// shard, which is rank 0's.
    pub fn steps(&self) -> usize {
        self.shard_len(0).div_ceil(self.batch_size)
    }

    /// Returns the number of samples in `rank`'s batch of `step`; 0 if its shard is exhausted.
    pub fn batch_len(&self, rank: usize, step: usize) -> usize {
        let left = self.shard_len(rank).saturating_sub(step.saturating_mul(self.batch_size));
        left.min(self.batch_size)
    }

    /// Returns the number of samples in all ranks' batches of `step`.
    pub fn global_batch_len(&self, step: usize) -> usize {
        (0..self.world_size).map(|rank| self.batch_len(rank, step)).sum()
    }

    /// Returns the plan of the same training on `ranks` ranks, at least 1. The global batch, which is
    /// `world_size * batch_size`, stays, so `batch_size` changes. In both plans, step `s` trains on the same
    /// samples of the epoch's order, so a training can continue with the other plan before any step: each
    /// sample is still used once in the epoch.
    ///
    /// ```
    /// use burn_mpi::ShardPlan;
    ///
    /// let plan = ShardPlan { samples: 10, world_size: 4, batch_size: 2 };
    /// let fewer = plan.with_ranks(2)?;
    /// assert_eq!((fewer.world_size, fewer.batch_size, fewer.steps()), (2, 4, plan.steps()));
    /// assert!(plan.with_ranks(3).is_err());
    /// # Ok::<(), burn_mpi::UnevenBatch>(())
    /// ```
    ///
    /// # Errors
    /// If the global batch cannot be divided by `ranks`.
    pub fn with_ranks(self, ranks: usize) -> Result<Self, UnevenBatch> {
        let uneven = UnevenBatch { world_size: self.world_size, batch_size: self.batch_size, ranks };
        let global = uneven.global();
        let batch_size = usize::try_from(global / ranks.max(1) as u128).map_err(|_| uneven)?;
        if ranks == 0 || !global.is_multiple_of(ranks as u128) || batch_size == 0 {
            return Err(uneven);
        }
        Ok(Self { world_size: ranks, batch_size, ..self })
    }
}

/// A global batch that cannot be divided by another number of ranks. The text names numbers of ranks that
/// divide it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnevenBatch {
    /// Number of ranks that have the batch so far.
    pub world_size: usize,
    /// Batch size of each of these ranks.
    pub batch_size: usize,
    /// The other number of ranks.
    pub ranks: usize,
}

/// How many numbers of ranks the text of [`UnevenBatch`] names below the rejected number, and how many above.
const NAMED: usize = 6;

impl UnevenBatch {
    fn global(&self) -> u128 {
        self.world_size as u128 * self.batch_size as u128
    }

    /// Returns the divisors of the global batch that are nearest to the rejected number of ranks.
    fn nearest(&self) -> Vec<u128> {
        let (global, ranks) = (self.global(), self.ranks as u128);
        let divides = |ranks: &u128| global.is_multiple_of(*ranks);
        let mut named: Vec<u128> = (1..ranks).rev().filter(divides).take(NAMED).collect();
        named.reverse();
        // Numbers far above the present ones are of no use, and the search must end soon.
        let most = global.min(2 * ranks.max(self.world_size as u128)).min(ranks + 4096);
        named.extend((ranks + 1..=most).filter(divides).take(NAMED));
        named
    }
}

impl fmt::Display for UnevenBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world_size, batch_size, ranks } = self;
        let named: Vec<String> = self.nearest().iter().map(ToString::to_string).collect();
        write!(
            f,
            "a batch of {} samples ({world_size} {} x {batch_size}) cannot be divided by {ranks}: use {}",
            self.global(),
            if *world_size == 1 { "rank" } else { "ranks" },
            match named.split_last() {
                Some((last, [])) if last == "1" => "1 rank".to_owned(),
                Some((last, [])) => format!("{last} ranks"),
                Some((last, others)) => format!("{} or {last} ranks", others.join(", ")),
                None => format!("{world_size} ranks"),
            }
        )
    }
}

impl std::error::Error for UnevenBatch {}

/// The order of the samples in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleOrder {
    /// The order of the data set.
    Sequential,
    /// A permutation drawn from a seed and the epoch, the same on all ranks.
    Shuffled {
        /// The run's seed.
        seed: u64,
        /// The epoch, from 0.
        epoch: u64,
    },
}

impl SampleOrder {
    /// Returns the sample index at each position of the order, for a data set of `count` samples.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` samples.
    pub fn samples(self, count: usize) -> Vec<u32> {
        let end = u32::try_from(count).expect("at most u32::MAX samples");
        let mut order: Vec<u32> = (0..end).collect();
        if let Self::Shuffled { seed, epoch } = self {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(epoch + 1);
            // Fisher-Yates shuffle, from the end. `bounded` is implemented here so that a library update
            // cannot change the permutation of a seed.
            for last in (1..count).rev() {
                order.swap(last, bounded(&mut rng, last as u32 + 1) as usize);
            }
        }
        order
    }
}

/// Draws a uniform number below `bound`, without bias: Lemire, "Fast random integer generation in an
/// interval" (2019).
fn bounded(rng: &mut ChaCha8Rng, bound: u32) -> u32 {
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(bound);
        let low = product as u32;
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (product >> 32) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(samples: usize, world_size: usize, batch_size: usize) -> ShardPlan {
        ShardPlan { samples, world_size, batch_size }
    }

    #[test]
    fn every_sample_is_used_once_for_all_sizes() {
        for (samples, world, batch) in [(10, 3, 2), (60_000, 4, 32), (7, 7, 1), (101, 2, 32), (5, 4, 3)] {
            let plan = plan(samples, world, batch);
            let total: usize = (0..plan.steps()).map(|step| plan.global_batch_len(step)).sum();
            assert_eq!(total, samples);
            let lengths: Vec<_> = (0..world).map(|rank| plan.shard_len(rank)).collect();
            assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
            for rank in 0..world {
                let own: usize = (0..plan.steps()).map(|step| plan.batch_len(rank, step)).sum();
                assert_eq!(own, plan.shard_len(rank));
                assert_eq!(own, plan.shard(rank, SampleOrder::Sequential).len());
            }
        }
    }

    #[test]
    fn a_rank_with_an_exhausted_shard_still_takes_part_in_the_step() {
        let plan = plan(5, 4, 1);
        assert_eq!(plan.steps(), 2);
        assert_eq!([0, 1, 2, 3].map(|rank| plan.batch_len(rank, 1)), [1, 0, 0, 0]);
        assert_eq!(plan.global_batch_len(1), 1);
    }

    #[test]
    fn the_largest_batch_is_one_step_of_all_samples() {
        let plan = plan(10, 3, usize::MAX);
        assert_eq!((plan.steps(), plan.global_batch_len(0), plan.global_batch_len(2)), (1, 10, 0));
    }

    /// All small cases: a training that continues on another number of ranks before any step uses each
    /// sample once, in the same step as before.
    #[test]
    fn other_ranks_continue_at_any_step_with_each_sample_once() {
        let mut continued = 0;
        let sizes = (0..20).flat_map(|samples| (1..5).map(move |world| (samples, world)));
        for (samples, world, batch) in sizes.flat_map(|(s, w)| (1..5).map(move |batch| (s, w, batch))) {
            let before = plan(samples, world, batch);
            for ranks in 1..7 {
                let divides = (world * batch).is_multiple_of(ranks);
                let after = before.with_ranks(ranks);
                assert_eq!(after.is_ok(), divides, "{before:?} on {ranks}");
                let Ok(after) = after else { continue };
                assert_eq!((after.samples, after.world_size), (samples, ranks));
                assert_eq!(after.steps(), before.steps(), "{before:?}, {after:?}");
                let order = SampleOrder::Shuffled { seed: 3, epoch: 1 };
                let of_step = |plan: &ShardPlan, step: usize| {
                    let mut all: Vec<u32> = Vec::new();
                    for rank in 0..plan.world_size {
                        let own = plan.shard(rank, order);
                        let from = (step * plan.batch_size).min(own.len());
                        all.extend(&own[from..from + plan.batch_len(rank, step)]);
                    }
                    all.sort_unstable();
                    all
                };
                for position in 0..=before.steps() {
                    let plans =
                        (0..before.steps()).map(|step| if step < position { &before } else { &after });
                    let mut used: Vec<u32> = Vec::new();
                    for (step, plan) in plans.enumerate() {
                        assert_eq!(of_step(plan, step), of_step(&before, step));
                        used.extend(of_step(plan, step));
                    }
                    used.sort_unstable();
                    assert_eq!(used, SampleOrder::Sequential.samples(samples), "{before:?}, {after:?}");
                    continued += 1;
                }
            }
        }
        assert!(continued > 1000, "{continued}");
    }

    #[test]
    fn a_batch_that_cannot_be_divided_is_described_with_numbers_of_ranks_that_divide_it() {
        let text = |world, batch, ranks| plan(100, world, batch).with_ranks(ranks).unwrap_err().to_string();
        assert_eq!(
            text(4, 8, 3),
            "a batch of 32 samples (4 ranks x 8) cannot be divided by 3: use 1, 2, 4 or 8 ranks"
        );
        assert!(text(4, 1, 3).ends_with("use 1, 2 or 4 ranks"), "{}", text(4, 1, 3));
        assert!(text(1, 1, 2).ends_with("use 1 rank"), "{}", text(1, 1, 2));
        assert!(
            text(1, 720_720, 17).contains("use 11, 12, 13, 14, 15, 16, 18, 20, "),
            "{}",
            text(1, 720_720, 17)
        );
        assert!(text(3, usize::MAX, 1).contains(" by 1: use 3 or 5 ranks"), "{}", text(3, usize::MAX, 1));
        assert!(plan(1, 1, 1).with_ranks(0).is_err());
    }

    #[test]
    #[should_panic = "at most u32::MAX samples"]
    fn more_samples_than_a_number_has_bits_are_no_empty_order() {
        SampleOrder::Sequential.samples(1 << 32);
    }

    #[test]
    fn shuffling_is_a_permutation_by_seed_and_epoch() {
        let order = |seed, epoch| SampleOrder::Shuffled { seed, epoch }.samples(1000);
        let mut sorted = order(1, 0);
        assert_ne!(sorted, SampleOrder::Sequential.samples(1000));
        assert_eq!(sorted, order(1, 0));
        assert_ne!(sorted, order(1, 1));
        assert_ne!(sorted, order(2, 0));
        sorted.sort_unstable();
        assert_eq!(sorted, SampleOrder::Sequential.samples(1000));
    }

    /// A resumed run of an earlier version must get the same samples.
    #[test]
    fn a_seed_has_the_same_permutation_in_all_versions() {
        assert_eq!(SampleOrder::Shuffled { seed: 5, epoch: 1 }.samples(8), [5, 4, 0, 7, 3, 1, 6, 2]);
    }
}
