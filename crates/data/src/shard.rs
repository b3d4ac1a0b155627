//! One rank's samples, in memory or read from disk for each step. The caller says which samples those are.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use run_record::files;
use sha2::{Digest, Sha256};

use crate::formats::NpyFile;
use crate::formats::data_set::label_bytes;
use crate::{DataError, DataFormat, SampleSource, Split};

/// The beginning of SHA-256 over the labels and then the samples of a data set, in file order.
fn of_labels(labels: &[u16], classes: usize) -> Sha256 {
    Sha256::new_with_prefix(label_bytes(labels, classes))
}

/// The digest of the first `samples` samples of `split`, with which ranks compare
/// their data sets.
///
/// # Errors
/// When a file is invalid.
pub fn digest(source: &SampleSource, split: Split, samples: usize) -> Result<String, DataError> {
    let mut digest = of_labels(&source.labels(split, samples)?, source.description().classes);
    source.for_each_image(split, samples, &mut |_, bytes| digest.update(bytes))?;
    as_recorded(source, split, samples, files::hex(digest.finalize()))
}

/// The digest of samples, if they are not known to have had another one when they were imported.
fn as_recorded(
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

/// Reads the rows `numbers` one after another. Neighbours in the file are read together.
fn read_rows(file: &NpyFile, numbers: &[u32], mut bytes: &mut [u8]) -> Result<(), DataError> {
    file.file.check_unchanged()?;
    for run in numbers.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let (part, behind) = bytes.split_at_mut(run.len() * file.columns * file.width);
        file.row(run[0] as usize, part)?;
        bytes = behind;
    }
    Ok(())
}

/// Is shown the bytes of a sample.
type Look<'a> = dyn FnMut(&[u8]) + 'a;

/// The bytes of a shard's samples.
#[derive(Debug)]
enum Images {
    /// In the shard's order.
    Memory(Vec<u8>),
    /// Rows of a file, by their numbers in the data set.
    File(Arc<NpyFile>),
}

/// One rank's samples, in the order in which it uses them, in the format on disk.
#[derive(Debug)]
pub struct Shard {
    split: Split,
    /// Number of samples in use, those of other ranks included.
    samples: usize,
    images: Images,
    labels: Vec<u16>,
    numbers: Vec<u32>,
    item: usize,
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
        let mut digest = of_labels(&all_labels, description.classes);
        let mut shard = Self {
            split,
            samples,
            images: source.rows(split).filter(|_| on_disk).map_or(Images::Memory(Vec::new()), Images::File),
            labels: Vec::new(),
            numbers: Vec::new(),
            item: description.sample_bytes(),
            digest: String::new(),
            class_counts,
        };
        shard.fill(source, numbers, Some(&mut |bytes| digest.update(bytes)))?;
        shard.digest = as_recorded(source, split, samples, files::hex(digest.finalize()))?;
        Ok(shard)
    }

    /// Replaces the samples by those with other `numbers`. The data set is assumed to be unchanged.
    ///
    /// # Errors
    /// When a file is invalid.
    pub fn reload(&mut self, source: &SampleSource, numbers: Vec<u32>) -> Result<(), DataError> {
        self.fill(source, numbers, None)
    }

    /// Fills it; `look` is shown all samples, those of other ranks as well.
    fn fill(
        &mut self,
        source: &SampleSource,
        numbers: Vec<u32>,
        look: Option<&mut Look<'_>>,
    ) -> Result<(), DataError> {
        const NOT_MINE: u32 = u32::MAX;
        let (split, samples, item) = (self.split, self.samples, self.item);
        self.numbers = numbers;
        let all = source.labels(split, samples)?;
        self.labels.clear();
        self.labels.extend(self.numbers.iter().map(|&number| all[number as usize]));
        let (images, mut look) = match (&mut self.images, look) {
            (Images::File(_), None) => return Ok(()),
            (Images::File(_), Some(look)) => {
                return source.for_each_image(split, samples, &mut |_, bytes| look(bytes));
            }
            (Images::Memory(images), look) => (images, look),
        };
        let mut slots = vec![NOT_MINE; samples];
        for (slot, &number) in self.numbers.iter().enumerate() {
            slots[number as usize] = slot as u32;
        }
        images.resize(self.labels.len() * item, 0);
        source.for_each_image(split, samples, &mut |sample, bytes| {
            look.iter_mut().for_each(|look| look(bytes));
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
        let bytes = match &self.images {
            Images::Memory(images) => Cow::Borrowed(&images[from * self.item..to * self.item]),
            Images::File(file) => {
                let mut bytes = vec![0; (to - from) * self.item];
                let read = read_rows(file, &self.numbers[from..to], &mut bytes);
                // Only an import has its samples in a file of rows.
                read.map_err(|error| error.in_set(DataFormat::Imported))?;
                Cow::Owned(bytes)
            }
        };
        Ok((bytes, &self.labels[from..to]))
    }

    /// Bytes of the indices.
    pub fn index_bytes(&self) -> usize {
        size_of_val(&self.numbers[..])
    }

    /// The indices of those samples in the data set, which are independent of rank and
    /// order.
    pub fn numbers(&self, from: usize, count: usize) -> &[u32] {
        &self.numbers[self.range(from, count)]
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
