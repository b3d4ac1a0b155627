//! A rank's samples in memory: sharding is [`ShardPlan`]'s.

pub use burn_mpi::{SampleOrder as Order, ShardPlan};
use data_import::label_bytes;
use sha2::{Digest, Sha256};

use super::{DataError, SampleSource, Split};
use run_record::files;

/// SHA-256 over the labels and then the samples of a data set, in file order.
struct SetDigest(Sha256);

impl SetDigest {
    fn of_labels(labels: &[u16], classes: usize) -> Self {
        Self(Sha256::new_with_prefix(label_bytes(labels, classes)))
    }

    fn add(&mut self, sample: &[u8]) {
        self.0.update(sample);
    }

    fn finish(self) -> String {
        files::hex(self.0.finalize())
    }
}

/// The digest of the first `samples` samples of `split`, with which ranks compare
/// their data sets.
///
/// # Errors
/// When a file is invalid.
pub fn digest(source: &dyn SampleSource, split: Split, samples: usize) -> Result<String, DataError> {
    let mut digest = SetDigest::of_labels(&source.labels(split, samples)?, source.description().classes);
    source.for_each_image(split, samples, &mut |_, bytes| digest.add(bytes))?;
    as_recorded(source, split, samples, digest.finish())
}

/// The digest of samples, if they are not known to have had another one when they were imported.
fn as_recorded(
    source: &dyn SampleSource,
    split: Split,
    samples: usize,
    digest: String,
) -> Result<String, DataError> {
    match source.recorded_digest(split) {
        Some(recorded) if samples == source.len(split) && recorded != digest => {
            let name = split.name();
            Err(DataError::Import(format!(
                "the {name} samples have the digest {}…, and dataset.json was written for {}…: they were changed \
                 after the import; import the data set again",
                &digest[..12],
                recorded.get(..12).unwrap_or(recorded)
            )))
        }
        _ => Ok(digest),
    }
}

/// One rank's samples, in the order in which it uses them, in the format on disk.
#[derive(Debug)]
pub struct Shard {
    images: Vec<u8>,
    labels: Vec<u16>,
    numbers: Vec<u32>,
    item: usize,
    digest: String,
    class_counts: Vec<usize>,
}

impl Shard {
    /// Reads `rank`'s samples of the first `plan.samples` of `split`.
    ///
    /// # Errors
    /// When a file is invalid.
    pub fn load(
        source: &dyn SampleSource,
        split: Split,
        plan: &ShardPlan,
        rank: usize,
        order: Order,
    ) -> Result<Self, DataError> {
        let all_labels = source.labels(split, plan.samples)?;
        let description = source.description();
        let mut class_counts = vec![0; description.classes];
        all_labels.iter().for_each(|&label| class_counts[usize::from(label)] += 1);
        let mut digest = SetDigest::of_labels(&all_labels, description.classes);
        let mut shard = Self {
            images: Vec::new(),
            labels: Vec::new(),
            numbers: Vec::new(),
            item: description.sample_bytes(),
            digest: String::new(),
            class_counts,
        };
        shard.fill(source, split, plan, rank, order, &mut |bytes| digest.add(bytes))?;
        shard.digest = as_recorded(source, split, plan.samples, digest.finish())?;
        Ok(shard)
    }

    /// Replaces the samples by those that are `rank`'s in another order. The data set is
    /// assumed to be unchanged.
    ///
    /// # Errors
    /// When a file is invalid.
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
        *numbers = plan.shard(rank, order);
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

    /// The digest of all samples in use, including those of other ranks.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Number of samples of each class among all samples in use, including those of other ranks.
    pub fn class_counts(&self) -> &[usize] {
        &self.class_counts
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether this rank has none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Bytes and labels of the samples `from..from + count` that exist.
    pub fn samples(&self, from: usize, count: usize) -> (&[u8], &[u16]) {
        let from = from.min(self.len());
        let to = from.saturating_add(count).min(self.len());
        (&self.images[from * self.item..to * self.item], &self.labels[from..to])
    }

    /// Bytes of the indices.
    pub fn index_bytes(&self) -> usize {
        size_of_val(&self.numbers[..])
    }

    /// The indices of those samples in the data set, which are independent of rank and
    /// order.
    pub fn numbers(&self, from: usize, count: usize) -> &[u32] {
        let from = from.min(self.len());
        &self.numbers[from..from.saturating_add(count).min(self.len())]
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
