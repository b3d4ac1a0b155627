//! Holds the training or test samples of one rank (a process of an MPI job). The samples are in memory, or
//! stay on disk until they are needed. The caller decides which samples belong to the rank.
//!
//! All ranks together use the first samples of a split, up to a limit. Each rank reads all of these samples
//! once and computes their digest, including the samples of other ranks. By comparing digests, ranks check
//! that they train on equal data.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use run_record::files;
use sha2::{Digest, Sha256};

use crate::formats::NpyFile;
use crate::formats::data_set::label_bytes;
use crate::{DataError, DataFormat, SampleSource, Split};

/// Starts the SHA-256 digest of a split: hashes the labels. The caller then adds the samples, in file order.
fn digest_of_labels(labels: &[u16], classes: usize) -> Sha256 {
    Sha256::new_with_prefix(label_bytes(labels, classes))
}

/// Returns the digest (SHA-256, hexadecimal) of the first `samples` samples of `split`. Ranks compare these
/// digests to check that they train on equal data.
///
/// # Errors
/// When a file cannot be read, is invalid, or differs from what was imported.
pub fn digest(source: &SampleSource, split: Split, samples: usize) -> Result<String, DataError> {
    let mut digest = digest_of_labels(&source.labels(split, samples)?, source.description().classes);
    source.for_each_sample(split, samples, &mut |_, bytes| digest.update(bytes))?;
    check_recorded(source, split, samples, files::hex(digest.finalize()))
}

/// Returns `digest`. If `digest` covers the whole split and differs from the digest that the import recorded,
/// returns an error instead.
fn check_recorded(
    source: &SampleSource,
    split: Split,
    samples: usize,
    digest: String,
) -> Result<String, DataError> {
    match source.recorded_digest(split) {
        Some(recorded) if samples == source.len(split) && recorded != digest => {
            let name = if split == Split::Train { "training" } else { "test" };
            let file = source.rows(split);
            let folder = file.as_ref().and_then(|rows| rows.file.path.parent());
            Err(DataError::Files(format!(
                "{}: the {name} samples were changed after the import (digest {}…, in dataset.json {}…): import the \
                 data set again",
                folder.unwrap_or(Path::new(".")).display(),
                &digest[..12],
                recorded.get(..12).unwrap_or(recorded)
            )))
        }
        _ => Ok(digest),
    }
}

/// Reads the rows `numbers` into `bytes`, in the order of `numbers`. Rows that are adjacent both in `numbers`
/// and in the file are read in one call.
fn read_rows(file: &NpyFile, numbers: &[u32], mut bytes: &mut [u8]) -> Result<(), DataError> {
    file.file.check_unchanged()?;
    for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let (part, behind) = bytes.split_at_mut(run.len() * file.columns * file.width);
        file.row(run[0] as usize, part)?;
        bytes = behind;
    }
    Ok(())
}

/// Called with the bytes of each sample.
type Visit<'a> = dyn FnMut(&[u8]) + 'a;

/// Where the bytes of a shard's samples are.
#[derive(Debug)]
enum SampleBytes {
    /// In memory, in the order in which the rank uses the samples.
    Memory(Vec<u8>),
    /// In a file that contains all samples of the split, one in each row.
    File(Arc<NpyFile>),
}

/// The samples of one rank, in the order in which the rank uses them. The samples are the bytes of the file:
/// they are not normalised.
#[derive(Debug)]
pub struct Shard {
    split: Split,
    /// Number of samples that all ranks together use.
    samples: usize,
    bytes: SampleBytes,
    labels: Vec<u16>,
    /// Index of each sample of this rank in the file order of the split.
    numbers: Vec<u32>,
    /// Size of a sample in bytes.
    sample_bytes: usize,
    /// Digest of the samples that all ranks together use.
    digest: String,
    /// Number of samples of each class among the samples that all ranks together use.
    class_counts: Vec<usize>,
}

impl Shard {
    /// Reads the first `samples` samples of `split` into memory, in file order.
    ///
    /// # Errors
    /// When a file cannot be read, is invalid, or differs from what was imported.
    ///
    /// # Panics
    /// If `samples` exceeds `u32::MAX` or the number of samples of `split`.
    pub fn first(source: &SampleSource, split: Split, samples: usize) -> Result<Self, DataError> {
        let end = u32::try_from(samples).expect("at most u32::MAX samples");
        Self::open(source, split, samples, (0..end).collect(), false)
    }

    /// Opens the samples of `split` that have the indices `numbers`, for one rank. All ranks together use the
    /// first `samples` samples of the split, and the digest covers all of them.
    ///
    /// The rank's samples are read into memory. If `on_disk` is set and the source has a file with one sample
    /// in each row, the samples stay in this file instead: `open` reads the file once for the digest, and
    /// [`Shard::read`] reads samples when they are needed.
    ///
    /// # Errors
    /// When a file cannot be read, is invalid, or differs from what was imported.
    ///
    /// # Panics
    /// If an index is not below `samples` or not below the number of samples of `split`.
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

    /// Replaces this rank's samples by the samples with the indices `numbers`. The files of the data set must
    /// not have changed since [`Shard::open`].
    ///
    /// # Errors
    /// When a file cannot be read or is invalid.
    ///
    /// # Panics
    /// If an index is not below the number of samples that all ranks together use.
    pub fn reload(&mut self, source: &SampleSource, numbers: Vec<u32>) -> Result<(), DataError> {
        self.fill(source, numbers, None)
    }

    /// Makes the samples with the indices `numbers` the samples of this rank. If `visit` is given, also calls
    /// it with each sample of all ranks.
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

    /// Returns the digest of the samples that all ranks together use.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the number of samples of each class among the samples that all ranks together use.
    pub fn class_counts(&self) -> &[usize] {
        &self.class_counts
    }

    /// Returns the number of samples of this rank.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Returns whether this rank has no samples.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns the range `from..from + count`, cut to the samples that exist.
    fn range(&self, from: usize, count: usize) -> Range<usize> {
        let from = from.min(self.len());
        from..from.saturating_add(count).min(self.len())
    }

    /// Returns the bytes and the labels of this rank's samples `from..from + count`. At the end of the shard,
    /// there are fewer than `count` samples.
    ///
    /// # Errors
    /// When the samples are on disk and cannot be read, or their file was changed after it was opened.
    pub fn read(&self, from: usize, count: usize) -> Result<(Cow<'_, [u8]>, &[u16]), DataError> {
        let Range { start: from, end: to } = self.range(from, count);
        let bytes = match &self.bytes {
            SampleBytes::Memory(memory) => {
                Cow::Borrowed(&memory[from * self.sample_bytes..to * self.sample_bytes])
            }
            SampleBytes::File(file) => {
                let mut bytes = vec![0; (to - from) * self.sample_bytes];
                let read = read_rows(file, &self.numbers[from..to], &mut bytes);
                // `SampleSource::rows` returns files only of imported data sets.
                read.map_err(|error| error.in_set(DataFormat::Imported))?;
                Cow::Owned(bytes)
            }
        };
        Ok((bytes, &self.labels[from..to]))
    }

    /// Returns the memory that the indices take, in bytes.
    pub fn index_bytes(&self) -> usize {
        size_of_val(&self.numbers[..])
    }

    /// Returns the indices, in the file order of the split, of this rank's samples `from..from + count`. At
    /// the end of the shard, there are fewer than `count` indices. An index stands for the same sample on
    /// every rank and in every epoch.
    pub fn numbers(&self, from: usize, count: usize) -> &[u32] {
        &self.numbers[self.range(from, count)]
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
