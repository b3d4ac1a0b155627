//! The samples of one rank, in memory or read from disk for each step. The caller decides which samples these are.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use run_record::files;
use sha2::{Digest, Sha256};

use crate::formats::NpyFile;
use crate::formats::data_set::label_bytes;
use crate::{DataError, DataFormat, SampleSource, Split};

/// Begins a SHA-256 over the labels and then the samples of a data set, in file order.
fn digest_of_labels(labels: &[u16], classes: usize) -> Sha256 {
    Sha256::new_with_prefix(label_bytes(labels, classes))
}

/// The digest of the first `samples` samples of `split`, with which ranks compare
/// their data sets.
///
/// # Errors
/// When a file is invalid.
pub fn digest(source: &SampleSource, split: Split, samples: usize) -> Result<String, DataError> {
    let mut digest = digest_of_labels(&source.labels(split, samples)?, source.description().classes);
    source.for_each_sample(split, samples, &mut |_, bytes| digest.update(bytes))?;
    check_recorded(source, split, samples, files::hex(digest.finalize()))
}

/// Returns `digest`, or an error if these samples had another digest when they were imported.
fn check_recorded(
    source: &SampleSource,
    split: Split,
    samples: usize,
    digest: String,
) -> Result<String, DataError> {
    match source.recorded_digest(split) {
        Some(recorded) if samples == source.len(split) && recorded != digest => {
            let name = split.name();
            Err(DataError::Files(format!(
                "the {name} samples have the digest {}…, and dataset.json was written for {}…: they were changed \
                 after the import; import the data set again",
                &digest[..12],
                recorded.get(..12).unwrap_or(recorded)
            )))
        }
        _ => Ok(digest),
    }
}

/// Reads the rows `numbers` into `bytes`, in this order. Rows that follow each other in the file are read at once.
fn read_rows(file: &NpyFile, numbers: &[u32], mut bytes: &mut [u8]) -> Result<(), DataError> {
    file.file.check_unchanged()?;
    for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let (part, behind) = bytes.split_at_mut(run.len() * file.columns * file.width);
        file.row(run[0] as usize, part)?;
        bytes = behind;
    }
    Ok(())
}

/// A function that is called with the bytes of each sample.
type Visit<'a> = dyn FnMut(&[u8]) + 'a;

/// The bytes of a shard's samples.
#[derive(Debug)]
enum SampleBytes {
    /// Samples in the shard's order.
    Memory(Vec<u8>),
    /// A file with a sample in each row.
    File(Arc<NpyFile>),
}

/// The samples of one rank, as bytes of the format on disk, in the order in which the rank uses them.
#[derive(Debug)]
pub struct Shard {
    split: Split,
    /// Number of samples in use, those of other ranks included.
    samples: usize,
    bytes: SampleBytes,
    labels: Vec<u16>,
    /// Indices of the samples in the data set.
    numbers: Vec<u32>,
    /// Bytes of a sample.
    sample_bytes: usize,
    /// Digest of the samples in use.
    digest: String,
    class_counts: Vec<usize>,
}

impl Shard {
    /// Reads the first `samples` of `split` into memory, in the order of the file.
    ///
    /// # Errors
    /// When a file is invalid.
    ///
    /// # Panics
    /// If there are more than `u32::MAX` samples.
    pub fn first(source: &SampleSource, split: Split, samples: usize) -> Result<Self, DataError> {
        let end = u32::try_from(samples).expect("at most u32::MAX samples");
        Self::open(source, split, samples, (0..end).collect(), false)
    }

    /// Opens the samples `numbers` of `split`. All ranks together use the first `samples` of the split; the digest covers
    /// them, and each number is below `samples`.
    ///
    /// The samples are read into memory. With `on_disk`, they stay in their file if the source has one with a row for
    /// each sample: they are read once for the digest, and each step reads its samples again.
    ///
    /// # Errors
    /// When a file is invalid.
    pub fn open(
        source: &SampleSource,
        split: Split,
        samples: usize,
        numbers: Vec<u32>,
        on_disk: bool,
    ) -> Result<Self, DataError> {
        let all_labels = source.labels(split, samples)?;
        let description = source.description();
        let mut class_counts = vec![0; description.classes];
        all_labels.iter().for_each(|&label| class_counts[usize::from(label)] += 1);
        let mut digest = digest_of_labels(&all_labels, description.classes);
        let mut shard = Self {
            split,
            samples,
            bytes: source
                .rows(split)
                .filter(|_| on_disk)
                .map_or(SampleBytes::Memory(Vec::new()), SampleBytes::File),
            labels: Vec::new(),
            numbers: Vec::new(),
            sample_bytes: description.sample_bytes(),
            digest: String::new(),
            class_counts,
        };
        shard.fill(source, numbers, Some(&mut |bytes| digest.update(bytes)))?;
        shard.digest = check_recorded(source, split, samples, files::hex(digest.finalize()))?;
        Ok(shard)
    }

    /// Replaces the samples by those with other `numbers`. The data set is assumed to be unchanged.
    ///
    /// # Errors
    /// When a file is invalid.
    pub fn reload(&mut self, source: &SampleSource, numbers: Vec<u32>) -> Result<(), DataError> {
        self.fill(source, numbers, None)
    }

    /// Loads the samples `numbers`. `visit` is called with every sample in use, including those of other ranks.
    fn fill(
        &mut self,
        source: &SampleSource,
        numbers: Vec<u32>,
        visit: Option<&mut Visit<'_>>,
    ) -> Result<(), DataError> {
        const NOT_MINE: u32 = u32::MAX;
        let (split, samples, size) = (self.split, self.samples, self.sample_bytes);
        self.numbers = numbers;
        let all = source.labels(split, samples)?;
        self.labels.clear();
        self.labels.extend(self.numbers.iter().map(|&number| all[number as usize]));
        let (memory, mut visit) = match (&mut self.bytes, visit) {
            (SampleBytes::File(_), None) => return Ok(()),
            (SampleBytes::File(_), Some(visit)) => {
                return source.for_each_sample(split, samples, &mut |_, bytes| visit(bytes));
            }
            (SampleBytes::Memory(memory), visit) => (memory, visit),
        };
        let mut slots = vec![NOT_MINE; samples];
        for (slot, &number) in self.numbers.iter().enumerate() {
            slots[number as usize] = slot as u32;
        }
        memory.resize(self.labels.len() * size, 0);
        source.for_each_sample(split, samples, &mut |sample, bytes| {
            visit.iter_mut().for_each(|visit| visit(bytes));
            if slots[sample] != NOT_MINE {
                let at = slots[sample] as usize * size;
                memory[at..at + size].copy_from_slice(bytes);
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

    /// Whether this rank has no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The samples `from..from + count` that exist.
    fn range(&self, from: usize, count: usize) -> Range<usize> {
        let from = from.min(self.len());
        from..from.saturating_add(count).min(self.len())
    }

    /// Bytes and labels of the samples `from..from + count` that exist.
    ///
    /// # Errors
    /// When they are on disk and cannot be read.
    pub fn read(&self, from: usize, count: usize) -> Result<(Cow<'_, [u8]>, &[u16]), DataError> {
        let Range { start: from, end: to } = self.range(from, count);
        let bytes = match &self.bytes {
            SampleBytes::Memory(memory) => {
                Cow::Borrowed(&memory[from * self.sample_bytes..to * self.sample_bytes])
            }
            SampleBytes::File(file) => {
                let mut bytes = vec![0; (to - from) * self.sample_bytes];
                let read = read_rows(file, &self.numbers[from..to], &mut bytes);
                // Only samples of an import stay on disk.
                read.map_err(|error| error.in_set(DataFormat::Imported))?;
                Cow::Owned(bytes)
            }
        };
        Ok((bytes, &self.labels[from..to]))
    }

    /// Memory of the indices in bytes.
    pub fn index_bytes(&self) -> usize {
        size_of_val(&self.numbers[..])
    }

    /// Indices in the data set of the samples `from..from + count` that exist. An index means the same sample on every
    /// rank and in every order.
    pub fn numbers(&self, from: usize, count: usize) -> &[u32] {
        &self.numbers[self.range(from, count)]
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
