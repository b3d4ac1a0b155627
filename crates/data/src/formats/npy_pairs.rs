//! Reads feature vectors from pairs of `.npy` files: `train_data/train_x.npy` with one row for each sample,
//! `train_data/train_y.npy` with the labels, and the same files for `test`.
//!
//! Labels may be any integers: they need not start at 0 and may have gaps. The different labels of the
//! training set are sorted, and the class of a sample is the index of its label among them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::npy::NpyRows;
use super::npy::{NpyFile, ONE_ROW};
use crate::source::MOST_CLASSES;
use crate::{DataError, DataFormat, Description, Element, SampleSource, Split};

fn path(root: &Path, split: Split, letter: char) -> PathBuf {
    let name = split.name();
    root.join(format!("{name}_data")).join(format!("{name}_{letter}.npy"))
}

/// Returns the paths of all files of this format in `root`.
pub(super) fn files(root: &Path) -> impl Iterator<Item = PathBuf> {
    Split::ALL.into_iter().flat_map(move |split| ['x', 'y'].map(|letter| path(root, split, letter)))
}

/// Returns the path, relative to `root`, of a file that belongs to a data set of this format. Returns `None`
/// if `root` has no such file.
pub(super) fn any_file(root: &Path) -> Option<String> {
    let found = files(root).find(|file| file.exists())?;
    Some(found.strip_prefix(root).unwrap_or(&found).display().to_string())
}

/// The two files of a split.
struct OpenPair {
    features: NpyFile,
    labels: NpyFile,
    /// The labels in the file. They are not yet converted to classes.
    values: Vec<i128>,
}

impl OpenPair {
    fn open(root: &Path, split: Split) -> Result<Self, DataError> {
        let file = |letter, dtypes: &[&str]| {
            let path = path(root, split, letter);
            if !path.exists() {
                return Err(DataError::missing(&path, "", DataFormat::Npy));
            }
            NpyFile::open(&path, dtypes)
        };
        let (features, labels) = (file('x', &NpyFile::FLOATS)?, file('y', &NpyFile::INTEGERS)?);
        if let Some(file) = [&features, &labels].into_iter().find(|file| file.shape.len() > 2) {
            bail!(&file.file.path, "has the shape {:?}{ONE_ROW}", file.shape);
        }
        features.check_labels(&labels)?;
        let values = labels.integers()?;
        Ok(Self { features, labels, values })
    }

    /// Returns the index of each label in the sorted list `classes`. A label that is not in the list is an
    /// error.
    fn class_indices(&self, classes: &[i128]) -> Result<Vec<u16>, DataError> {
        let index_of = |(sample, value): (usize, &i128)| match classes.binary_search(value) {
            Ok(class) => Ok(class as u16),
            Err(_) => bail!(
                &self.labels.file.path,
                "label {value} of sample {sample} does not occur in the training set"
            ),
        };
        self.values.iter().enumerate().map(index_of).collect()
    }
}

/// Opens the features and reads the labels of both splits.
///
/// # Errors
/// When a file is missing, cannot be read or does not have the expected format, when the number of labels
/// differs from the number of rows, when the two splits differ in dtype or number of features, when there are
/// more than 65,536 classes, or when a test label does not occur in the training set.
pub(super) fn open(root: &Path) -> Result<SampleSource, DataError> {
    let (train, test) = (OpenPair::open(root, Split::Train)?, OpenPair::open(root, Split::Test)?);
    if train.features.columns != test.features.columns || train.features.dtype != test.features.dtype {
        bail!(
            &test.features.file.path,
            "has {} features of type {}, but the training set has {} of type {}; save both with the same shape and \
             dtype",
            test.features.columns,
            test.features.dtype,
            train.features.columns,
            train.features.dtype
        );
    }
    let mut classes = train.values.clone();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() > MOST_CLASSES {
        let found = classes.len();
        bail!(
            &train.labels.file.path,
            "has {found} different labels, but at most {MOST_CLASSES} classes are supported"
        );
    }
    let element = match train.features.width {
        2 => Element::F16,
        4 => Element::F32,
        _ => Element::F64,
    };
    let (of_train, of_test) = (train.class_indices(&classes)?, test.class_indices(&classes)?);
    let description = Description {
        kind: DataFormat::Npy,
        shape: [1, 1, train.features.columns],
        element,
        classes: classes.len(),
        class_names: classes.iter().map(ToString::to_string).collect(),
        mean: Vec::new(),
        std: Vec::new(),
    };
    let rows = |(pair, labels): (OpenPair, _)| NpyRows { file: Arc::new(pair.features), labels, element };
    Ok(SampleSource::from_splits(description, [(train, of_train), (test, of_test)].map(rows)))
}

#[cfg(test)]
#[path = "npy_pairs_tests.rs"]
mod tests;
