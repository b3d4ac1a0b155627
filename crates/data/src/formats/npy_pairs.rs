//! Feature vectors in pairs of `.npy` files: `train_data/train_x.npy` with one row per
//! sample and `train_data/train_y.npy` with their labels, and the same for `test`.
//!
//! Labels may be any integers. A class is the index of its label among the sorted labels
//! of the training set, so labels need not start at 0 and may have gaps.

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

/// The paths of the files of such a data set in `root`.
pub(super) fn files(root: &Path) -> impl Iterator<Item = PathBuf> {
    Split::ALL.into_iter().flat_map(move |split| ['x', 'y'].map(|letter| path(root, split, letter)))
}

/// The name of a file of such a data set in `root`, if there is one.
pub(super) fn any_file(root: &Path) -> Option<String> {
    let found = files(root).find(|file| file.exists())?;
    Some(found.strip_prefix(root).unwrap_or(&found).display().to_string())
}

/// Opens the features and reads the labels of both splits.
///
/// # Errors
/// When a file is missing or does not have the expected format, when the numbers of
/// features and labels differ, or when the training set lacks a test label.
pub(super) fn open(root: &Path) -> Result<SampleSource, DataError> {
    let file = |split, letter, dtypes: &[&str]| {
        let path = path(root, split, letter);
        if !path.exists() {
            return Err(DataError::missing(&path, "", DataFormat::Npy));
        }
        NpyFile::open(&path, dtypes)
    };
    let pair = |split| -> Result<_, DataError> {
        let (x, y) = (file(split, 'x', &NpyFile::FLOATS)?, file(split, 'y', &NpyFile::INTEGERS)?);
        if let Some(file) = [&x, &y].into_iter().find(|file| file.shape.len() > 2) {
            bail!(&file.file.path, "its shape is {:?}{ONE_ROW}", file.shape);
        }
        x.check_labels(&y)?;
        let values = y.integers()?;
        Ok((x, y, values))
    };
    let (train, test) = (pair(Split::Train)?, pair(Split::Test)?);
    if train.0.columns != test.0.columns || train.0.dtype != test.0.dtype {
        bail!(
            &test.0.file.path,
            "{} features of {}, but the training set has {} of {}; save both with the same shape and dtype",
            test.0.columns,
            test.0.dtype,
            train.0.columns,
            train.0.dtype
        );
    }
    let mut classes = train.2.clone();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() > MOST_CLASSES {
        let found = classes.len();
        bail!(&train.1.file.path, "{found} different labels, at most {MOST_CLASSES} classes are supported");
    }
    let ranks = |file: &NpyFile, values: &[i128]| -> Result<Vec<u16>, DataError> {
        let rank = |(sample, value): (usize, &i128)| match classes.binary_search(value) {
            Ok(class) => Ok(class as u16),
            Err(_) => {
                bail!(&file.file.path, "label {value} of sample {sample} does not occur in the training set")
            }
        };
        values.iter().enumerate().map(rank).collect()
    };
    let element = match train.0.width {
        2 => Element::F16,
        4 => Element::F32,
        _ => Element::F64,
    };
    let (of_train, of_test) = (ranks(&train.1, &train.2)?, ranks(&test.1, &test.2)?);
    let description = Description {
        kind: DataFormat::Npy,
        shape: [1, 1, train.0.columns],
        element,
        classes: classes.len(),
        class_names: classes.iter().map(ToString::to_string).collect(),
        mean: Vec::new(),
        std: Vec::new(),
    };
    let rows = |(file, labels)| NpyRows { file: Arc::new(file), labels, element };
    Ok(SampleSource::from_splits(description, [(train.0, of_train), (test.0, of_test)].map(rows)))
}

#[cfg(test)]
#[path = "npy_pairs_tests.rs"]
mod tests;
