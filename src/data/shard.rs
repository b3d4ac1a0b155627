//! Strided (round-robin) sharding: rank `r` of `w` gets the samples r, r + w,
//! r + 2w, … of the epoch's order.
//!
//! Nothing is padded and nothing dropped, so shards differ by one sample at most,
//! and the union of all ranks' batches of one step is a contiguous run of the data
//! set: the batch that one rank alone would have seen.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use sha2::{Digest, Sha256};

use super::{DataError, SampleSource, Split};
use crate::files;

/// How a split is sharded and stepped through. The same on every rank.
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

/// SHA-256 over the labels and then the samples of a data set, in file order.
struct SetDigest(Sha256);

impl SetDigest {
    fn of_labels(labels: &[u8]) -> Self {
        Self(Sha256::new_with_prefix(labels))
    }

    fn add(&mut self, sample: &[u8]) {
        self.0.update(sample);
    }

    fn finish(self) -> String {
        files::hex(self.0.finalize())
    }
}

/// The digest of the first `samples` samples of `split`, by which ranks compare
/// their data sets.
///
/// # Errors
/// When a file is bad.
pub fn digest(source: &dyn SampleSource, split: Split, samples: usize) -> Result<String, DataError> {
    let mut digest = SetDigest::of_labels(&source.labels(split, samples)?);
    source.for_each_image(split, samples, &mut |_, bytes| digest.add(bytes))?;
    Ok(digest.finish())
}

/// One rank's samples, in the order in which it uses them, as they are on disk.
#[derive(Debug)]
pub struct Shard {
    images: Vec<u8>,
    labels: Vec<u8>,
    numbers: Vec<u32>,
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
        let mut digest = SetDigest::of_labels(&source.labels(split, plan.samples)?);
        let mut shard = Self {
            images: Vec::new(),
            labels: Vec::new(),
            numbers: Vec::new(),
            item: source.description().sample_bytes(),
            digest: String::new(),
        };
        shard.fill(source, split, plan, rank, order, &mut |bytes| digest.add(bytes))?;
        shard.digest = digest.finish();
        Ok(shard)
    }

    /// Reads the samples that another order makes `rank`'s, in the place of
    /// those that it has. The data set is taken to be the same as before.
    ///
    /// # Errors
    /// When a file is bad.
    pub fn reload(
        &mut self,
        source: &dyn SampleSource,
        split: Split,
        plan: &ShardPlan,
        rank: usize,
        order: Order,
    ) -> Result<(), DataError> {
        self.fill(source, split, plan, rank, order, &mut |_| ())
    }

    fn fill(
        &mut self,
        source: &dyn SampleSource,
        split: Split,
        plan: &ShardPlan,
        rank: usize,
        order: Order,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), DataError> {
        const NOT_MINE: u32 = u32::MAX;
        let Self { images, labels, numbers, item, .. } = self;
        let item = *item;
        *numbers = order.samples(plan.samples).into_iter().skip(rank).step_by(plan.world_size).collect();
        let mut slots = vec![NOT_MINE; plan.samples];
        for (slot, &number) in numbers.iter().enumerate() {
            slots[number as usize] = slot as u32;
        }
        let all_labels = source.labels(split, plan.samples)?;
        labels.clear();
        labels.extend(numbers.iter().map(|&number| all_labels[number as usize]));
        images.resize(labels.len() * item, 0);
        source.for_each_image(split, plan.samples, &mut |sample, bytes| {
            look(bytes);
            if slots[sample] != NOT_MINE {
                let at = slots[sample] as usize * item;
                images[at..at + item].copy_from_slice(bytes);
            }
        })
    }

    /// The digest of all samples in use, other ranks' too.
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

    /// The numbers of those samples in the data set, which are the same on any
    /// rank and in any order.
    pub fn numbers(&self, from: usize, count: usize) -> &[u32] {
        let from = from.min(self.len());
        &self.numbers[from..(from + count).min(self.len())]
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
