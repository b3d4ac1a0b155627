//! Feature vectors in pairs of `.npy` files: `train_data/train_x.npy` with one row per
//! sample and `train_data/train_y.npy` with their labels, and the same for `test`.
//!
//! Labels may be any integers. A class is the index of its label among the sorted labels
//! of the training set, so labels need not start at 0 and may have gaps.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::formats::npy::{NpyFile, ONE_ROW};

use super::rows::{Rows, unsuitable};
use crate::{DataError, DataFormat, Description, Element, SampleSource, Split};

const FEATURES: [&str; 3] = ["<f2", "<f4", "<f8"];
/// Classes are stored in 16 bits.
const MOST_CLASSES: usize = 1 << u16::BITS;

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
        match path.exists() {
            true => Ok(NpyFile::open(&path, dtypes)?),
            false => Err(DataError::missing(&path, "", DataFormat::Npy)),
        }
    };
    let pair = |split| -> Result<_, DataError> {
        let (x, y) = (file(split, 'x', &FEATURES)?, file(split, 'y', &NpyFile::INTEGERS)?);
        check(&x, &y)?;
        let values = y.integers()?;
        Ok((x, y, values))
    };
    let (train, test) = (pair(Split::Train)?, pair(Split::Test)?);
    if train.0.columns != test.0.columns || train.0.dtype != test.0.dtype {
        return Err(unsuitable(
            &test.0,
            format!(
                "{} features of {}, but the training set has {} of {}; save both with the same shape and dtype",
                test.0.columns, test.0.dtype, train.0.columns, train.0.dtype
            ),
        ));
    }
    let mut classes = train.2.clone();
    classes.sort_unstable();
    classes.dedup();
    if classes.len() > MOST_CLASSES {
        return Err(unsuitable(
            &train.1,
            format!("{} different labels, at most {MOST_CLASSES} classes are supported", classes.len()),
        ));
    }
    let ranks = |file: &NpyFile, values: &[i128]| -> Result<Vec<u16>, DataError> {
        let rank = |(sample, value): (usize, &i128)| match classes.binary_search(value) {
            Ok(class) => Ok(class as u16),
            Err(_) => Err(unsuitable(
                file,
                format!("label {value} of sample {sample} does not occur in the training set"),
            )),
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
    let rows = |(file, labels)| Rows { file: Arc::new(file), labels, element };
    Ok(SampleSource::of(description, [(train.0, of_train), (test.0, of_test)].map(rows)))
}

/// Checks that the two files of a split match.
fn check(x: &NpyFile, y: &NpyFile) -> Result<(), DataError> {
    if let Some(file) = [x, y].into_iter().find(|file| file.shape.len() > 2) {
        return Err(unsuitable(file, format!("its shape is {:?}{ONE_ROW}", file.shape)));
    }
    if y.columns != 1 {
        return Err(unsuitable(y, format!("{} labels per sample, expected one", y.columns)));
    }
    if x.rows != y.rows {
        let what = format!("{} samples, but {} labels in {}", x.rows, y.rows, y.file.path.display());
        return Err(unsuitable(x, what));
    }
    if x.rows == 0 || x.columns == 0 {
        return Err(unsuitable(x, format!("{} samples of {} features", x.rows, x.columns)));
    }
    Ok(())
}

#[cfg(test)]
#[path = "npy_pairs_tests.rs"]
mod tests;
