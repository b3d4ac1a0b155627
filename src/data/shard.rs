//! Which sample is whose.
//!
//! Samples are dealt out like cards: rank `r` of `w` gets the 1st, (w+1)th, …
//! card after its own place. Nothing is padded and nothing dropped, so shards
//! differ by one sample at most, and the union of all ranks' batches of one
//! step is a contiguous run of the data set: the batch that one rank alone
//! would have seen.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use super::{DataError, SampleSource, Split};

/// How a split is dealt out and stepped through. The same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPlan {
    /// Samples in use, over all ranks.
    pub samples: usize,
    /// Number of ranks.
    pub world_size: usize,
    /// Samples of one rank's batch.
    pub batch_size: usize,
}

impl ShardPlan {
    /// Samples of `rank`'s shard.
    pub fn shard_len(&self, rank: usize) -> usize {
        self.samples.saturating_sub(rank).div_ceil(self.world_size)
    }

    /// Steps of an epoch, the same on every rank: as many as the largest shard
    /// (rank 0's) has batches.
    pub fn steps(&self) -> usize {
        self.shard_len(0).div_ceil(self.batch_size)
    }

    /// Samples in `rank`'s batch of `step`; 0 where its shard is used up.
    pub fn batch_len(&self, rank: usize, step: usize) -> usize {
        let left = self.shard_len(rank).saturating_sub(step * self.batch_size);
        left.min(self.batch_size)
    }

    /// Samples in all ranks' batches of `step`.
    pub fn global_batch_len(&self, step: usize) -> usize {
        (0..self.world_size).map(|rank| self.batch_len(rank, step)).sum()
    }
}

/// The order in which an epoch goes through the data set, as sample numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// As in the file.
    File,
    /// A permutation drawn from a seed and the epoch, the same on all ranks.
    Shuffled {
        /// The run's seed.
        seed: u64,
        /// The epoch, from 0.
        epoch: u64,
    },
}

impl Order {
    /// The sample number at each place.
    fn samples(self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        if let Self::Shuffled { seed, epoch } = self {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            rng.set_stream(epoch + 1);
            // Fisher and Yates, downwards; `bounded` is our own so that a new
            // version of a library cannot change what a seed means.
            for last in (1..count).rev() {
                order.swap(last, bounded(&mut rng, last as u32 + 1) as usize);
            }
        }
        order
    }
}

/// A uniform number below `bound`, without bias: Lemire, "Fast random integer
/// generation in an interval" (2019).
fn bounded(rng: &mut ChaCha8Rng, bound: u32) -> u32 {
    loop {
        let product = u64::from(rng.next_u32()) * u64::from(bound);
        let low = product as u32;
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (product >> 32) as u32;
        }
    }
}

/// One rank's samples, in the order in which it uses them, as they are on disk.
#[derive(Debug)]
pub struct Shard {
    images: Vec<u8>,
    labels: Vec<u8>,
    item: usize,
    digest: String,
}

impl Shard {
    /// Reads `rank`'s samples of the first `plan.samples` of `split`.
    ///
    /// # Errors
    /// When a file is bad.
    pub fn load(
        source: &dyn SampleSource,
        split: Split,
        plan: &ShardPlan,
        rank: usize,
        order: Order,
    ) -> Result<Self, DataError> {
        const NOT_MINE: u32 = u32::MAX;
        let item: usize = source.description().shape.iter().product();
        let all_labels = source.labels(split, plan.samples)?;
        let mut labels = Vec::with_capacity(plan.shard_len(rank));
        let mut slots = vec![NOT_MINE; plan.samples];
        let mine = order.samples(plan.samples).into_iter().skip(rank);
        for (slot, sample) in mine.step_by(plan.world_size).enumerate() {
            slots[sample as usize] = slot as u32;
            labels.push(all_labels[sample as usize]);
        }
        let mut hasher = Sha256::new_with_prefix(&all_labels);
        let mut images = vec![0u8; labels.len() * item];
        source.for_each_image(split, plan.samples, &mut |sample, bytes| {
            hasher.update(bytes);
            if slots[sample] != NOT_MINE {
                let at = slots[sample] as usize * item;
                images[at..at + item].copy_from_slice(bytes);
            }
        })?;
        let digest = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { images, labels, item, digest })
    }

    /// SHA-256 over all samples in use, other ranks' too, in file order.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether this rank has none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Bytes and labels of the samples `from..from + count`, as far as there are.
    pub fn samples(&self, from: usize, count: usize) -> (&[u8], &[u8]) {
        let from = from.min(self.len());
        let to = (from + count).min(self.len());
        (&self.images[from * self.item..to * self.item], &self.labels[from..to])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(samples: usize, world_size: usize, batch_size: usize) -> ShardPlan {
        ShardPlan { samples, world_size, batch_size }
    }

    #[test]
    fn every_sample_is_used_once_whatever_the_sizes() {
        for (samples, world, batch) in [(10, 3, 2), (60_000, 4, 32), (7, 7, 1), (101, 2, 32), (5, 4, 3)] {
            let plan = plan(samples, world, batch);
            let total: usize = (0..plan.steps()).map(|step| plan.global_batch_len(step)).sum();
            assert_eq!(total, samples);
            let lengths: Vec<_> = (0..world).map(|rank| plan.shard_len(rank)).collect();
            assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
            for rank in 0..world {
                let own: usize = (0..plan.steps()).map(|step| plan.batch_len(rank, step)).sum();
                assert_eq!(own, plan.shard_len(rank));
            }
        }
    }

    #[test]
    fn a_rank_with_nothing_left_still_takes_the_step() {
        let plan = plan(5, 4, 1);
        assert_eq!(plan.steps(), 2);
        assert_eq!([0, 1, 2, 3].map(|rank| plan.batch_len(rank, 1)), [1, 0, 0, 0]);
        assert_eq!(plan.global_batch_len(1), 1);
    }

    #[test]
    fn shuffling_permutes_by_seed_and_epoch() {
        let order = |seed, epoch| Order::Shuffled { seed, epoch }.samples(1000);
        let mut sorted = order(1, 0);
        assert_ne!(sorted, Order::File.samples(1000));
        assert_eq!(sorted, order(1, 0));
        assert_ne!(sorted, order(1, 1));
        assert_ne!(sorted, order(2, 0));
        sorted.sort_unstable();
        assert_eq!(sorted, Order::File.samples(1000));
    }
}
