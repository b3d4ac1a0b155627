//! Sharding: which samples a rank trains on, and in which order.
//!
//! Sharding is strided (round-robin), as in PyTorch's `DistributedSampler`: rank `r` of `w` gets the samples
//! `r`, `r + w`, `r + 2w`, … of the epoch's sample order. Nothing is padded or dropped, so shards differ by
//! one sample at most. The union of all ranks' batches of one step is a contiguous range of this order: the
//! batch of a single process whose batch size is `w` times as large.

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
}

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
