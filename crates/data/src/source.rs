//! Reads the samples of a data set in the same way from every file format. Each format implements
//! `SplitReader`, and callers use [`SampleSource`].

use std::sync::Arc;

use run_record::{count, files};

use crate::formats::{DataFormat, DataSet, NpyFile};
use crate::{DataError, Element};

/// A split of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Training split.
    Train = 0,
    /// Test split.
    Test = 1,
}

impl Split {
    /// Both splits.
    pub const ALL: [Self; 2] = [Self::Train, Self::Test];

    /// Returns `train` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
        }
    }
}

/// Formats the shape of a sample for messages: `3x32x32` for an image, `4 features` for a row of a table.
pub fn size_of_sample([channels, height, width]: [usize; 3]) -> String {
    match [channels, height] {
        [1, 1] => count(width, "feature"),
        _ => format!("{channels}x{height}x{width}"),
    }
}

/// Maximum number of classes: labels are u16.
pub(crate) const MOST_CLASSES: usize = 1 << u16::BITS;

/// What all samples of a data set have in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The format of the files.
    pub kind: DataFormat,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// Element type of a sample on disk.
    pub element: Element,
    /// Number of classes. Labels are 0 to `classes - 1`.
    pub classes: usize,
    /// Name of each class.
    pub class_names: Vec<String>,
    /// For bytes: mean of each channel, with bytes scaled to [0, 1]. For floats: mean of each feature, or
    /// empty if floats are not normalised.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel or feature, in the units of `mean`. Empty if `mean` is empty.
    pub std: Vec<f32>,
}

impl Description {
    /// Returns the description of pictures whose pixels are bytes. All channels have the same mean and the
    /// same standard deviation.
    pub(crate) fn pictures(
        kind: DataFormat,
        shape: [usize; 3],
        class_names: Vec<String>,
        [mean, std]: [f32; 2],
    ) -> Self {
        let (element, classes) = (Element::U8, class_names.len());
        let [mean, std] = [mean, std].map(|value| vec![value; shape[0]]);
        Self { kind, shape, element, classes, class_names, mean, std }
    }

    /// Returns the size of a sample on disk in bytes.
    pub fn sample_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.bytes()
    }

    /// Returns a digest (SHA-256, hexadecimal) of everything that a network sees of a split.
    ///
    /// `samples` is the digest of the labels and of the sample bytes. The result also covers everything that
    /// turns labels and bytes into targets and inputs: shape, element type, normalisation, number and names
    /// of the classes. The result does not cover the file format, so equal samples in different formats have
    /// equal digests.
    pub fn digest(&self, samples: &str) -> String {
        let Self { kind: _, shape, element, classes, class_names, mean, std } = self;
        let text = format!("{samples} {shape:?} {element:?} {classes} {class_names:?} {mean:?} {std:?}");
        files::sha256(text.as_bytes())
    }
}

/// A data set with a training split and a test split. Samples are read from the files on request, in file
/// order. Random samples ([`noise`](crate::generate::noise)) have no files: they are drawn on request.
pub struct SampleSource {
    description: Description,
    /// Contents of `dataset.json`, if `mpiburn data import` wrote the data set.
    pub(crate) imported: Option<DataSet>,
    splits: [Box<dyn SplitReader>; 2],
}

/// Reads the samples of one split. Each format implements this trait.
pub(crate) trait SplitReader {
    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// See [`SampleSource::for_each_sample`].
    fn for_each(&self, limit: usize, visit: &mut dyn FnMut(usize, &[u8])) -> Result<(), DataError>;

    /// See [`SampleSource::labels`].
    fn labels(&self, limit: usize) -> Result<Vec<u16>, DataError>;

    /// Returns the file that has one sample in each row, in the order of [`Self::for_each`]. Returns `None`
    /// if the format has no such file.
    fn rows(&self) -> Option<Arc<NpyFile>> {
        None
    }
}

impl SampleSource {
    pub(crate) fn from_splits<S: SplitReader + 'static>(description: Description, splits: [S; 2]) -> Self {
        Self {
            description,
            imported: None,
            splits: splits.map(|split| Box::new(split) as Box<dyn SplitReader>),
        }
    }

    /// Returns the description of the samples.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// Returns the description, so that the caller can change it. For example, samples for a trained network
    /// must be normalised with the mean and standard deviation of the network's training data.
    pub fn description_mut(&mut self) -> &mut Description {
        &mut self.description
    }

    /// Returns the contents of `dataset.json`, if `mpiburn data import` wrote the data set.
    pub fn imported(&self) -> Option<&DataSet> {
        self.imported.as_ref()
    }

    /// Returns the digest that `dataset.json` records for all samples of `split`. Returns `None` if the data
    /// set was not imported.
    pub(crate) fn recorded_digest(&self, split: Split) -> Option<&str> {
        Some(&self.imported.as_ref()?.split(split).sha256)
    }

    /// Returns the number of samples of `split`.
    pub fn len(&self, split: Split) -> usize {
        self.splits[split as usize].len()
    }

    /// Returns the file that has one sample of `split` in each row. Returns `None` if the data set was not
    /// imported.
    pub(crate) fn rows(&self, split: Split) -> Option<Arc<NpyFile>> {
        self.imported.as_ref().and_then(|_| self.splits[split as usize].rows())
    }

    /// Calls `visit` with the index and the bytes of each of the first `limit` samples, in file order. The
    /// bytes are the little-endian numbers of type [`Description::element`], as `[channels, height, width]`.
    ///
    /// # Errors
    /// When a file cannot be read, is damaged, or contains a value that is NaN or infinite.
    pub fn for_each_sample(
        &self,
        split: Split,
        limit: usize,
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DataError> {
        self.splits[split as usize]
            .for_each(limit, visit)
            .map_err(|error| error.in_set(self.description.kind))
    }

    /// Returns the labels of the first `limit` samples. Each label is below the number of classes.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged, or when a label is not below the number of classes.
    pub fn labels(&self, split: Split, limit: usize) -> Result<Vec<u16>, DataError> {
        self.splits[split as usize].labels(limit).map_err(|error| error.in_set(self.description.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_covers_whatever_changes_inputs_or_targets() {
        let known = Description {
            kind: DataFormat::Idx,
            shape: [1, 2, 3],
            element: Element::U8,
            classes: 2,
            class_names: vec!["a".into(), "b, c".into()],
            mean: vec![0.5],
            std: vec![0.25],
        };
        let digest = known.digest("d");
        let with = |change: &dyn Fn(&mut Description)| {
            let mut other = known.clone();
            change(&mut other);
            other.digest("d")
        };
        let others = [
            known.digest("e"),
            with(&|d| d.shape = [1, 3, 2]),
            with(&|d| d.element = Element::F32),
            with(&|d| d.classes = 3),
            with(&|d| d.class_names[0] = "x".into()),
            with(&|d| d.class_names = vec!["a, b".into(), "c".into()]),
            with(&|d| d.mean[0] = 0.25),
            with(&|d| d.std[0] = 0.5),
        ];
        assert!(others.iter().all(|other| *other != digest));
        assert_eq!(with(&|d| d.kind = DataFormat::Npy), digest, "the same samples in other files");
    }
}
