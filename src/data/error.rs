//! Errors in data sets: the file, what is wrong, what to do.

use std::path::{Path, PathBuf};

use data_import::ImportError;
use run_record::quoted;

use super::DataFormat;

/// An error in the files of a data set.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error(
        "cannot read {path}: {reason}; generate a data set with `mpiburn data`, or point --data-root at one"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error, as text: as the error's source it would be printed twice.
        reason: std::io::Error,
    },
    /// A file of a data set is missing.
    #[error(
        "{path} is missing{also}; generate a data set with `mpiburn data {}`, or point --data-root at one",
        kind.generator()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Further information, such as another missing file.
        also: String,
        /// The kind of the data set.
        kind: DataFormat,
    },
    /// A file does not have the expected format.
    #[error(
        "{path}: {what}; replace the file (incomplete download?) or generate a data set with `mpiburn data {}`",
        kind.generator()
    )]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
        /// The kind of the data set.
        kind: DataFormat,
    },
    /// A file is well-formed but cannot be used as it is.
    #[error("{path}: {what}")]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What was found, and what to do about it.
        what: String,
    },
    /// `dataset.json` cannot be read; what is wrong with it.
    #[error("{0}")]
    Import(String),
    /// The folder contains no data set.
    #[error("no data set in {root}: it {}", instead(root))]
    NoneHere {
        /// The folder.
        root: PathBuf,
    },
    /// The folder contains more than one data set.
    #[error(
        "two data sets in {root}, of {first} and of {second}; name one of them, or move it to another folder"
    )]
    SeveralHere {
        /// The folder.
        root: PathBuf,
        /// A file of the first.
        first: String,
        /// A file of the second.
        second: String,
    },
}

/// What to do with samples that a format of experiments does not have.
pub(super) const OTHER_SAMPLES: &str =
    "replace the file if it is damaged; samples of other classes or sizes are for `mpiburn data import`";

impl DataError {
    /// That a label of the file at `path` is none of the `classes`; `at` says which.
    pub(super) fn label(path: &Path, label: u16, at: &str, classes: usize) -> Self {
        let what = format!("label {label} of {at} is outside 0 to {}; {OTHER_SAMPLES}", classes - 1);
        Self::Unsuitable { path: path.to_owned(), what }
    }

    /// An error of a file of a data set of this kind.
    pub(super) fn of(kind: DataFormat, error: ImportError) -> Self {
        match error {
            ImportError::Read { path, reason } => Self::Read { path, reason },
            ImportError::Damaged { path, what } => Self::Invalid { path, what, kind },
            ImportError::Source { path, what } => Self::Unsuitable { path, what },
            other => Self::Import(other.to_string()),
        }
    }

    /// An error of the file at `path` that cannot be read.
    pub(super) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::Read { path: path.to_owned(), reason }
    }
}

impl From<ImportError> for DataError {
    fn from(error: ImportError) -> Self {
        Self::of(DataFormat::Npy, error)
    }
}

/// What a folder without a data set holds, and what to do.
fn instead(root: &Path) -> String {
    let folder = root.display();
    if root.is_file() {
        return format!(
            "is a file: `mpiburn data import {} --out DIR` may make one of it, for --data-root DIR",
            quoted(folder)
        );
    }
    if let Some(what) = data_import::recognised(root) {
        let set = format!("{}-set", folder.to_string().trim_end_matches('/'));
        return format!(
            "has {what}, of which `mpiburn data import {} --out {}` makes one",
            quoted(folder),
            quoted(set)
        );
    }
    // One that is named after a kind is generated as those of `mpiburn data` are.
    let named = ["digits", "objects", "features"].into_iter().find(|kind| root.ends_with(kind));
    let others = if named.is_none() { " (or objects, features)" } else { "" };
    format!(
        "has none of dataset.json, train-images-idx3-ubyte (or .gz), data_batch_1.bin and train_data/train_x.npy; generate \
         one with `mpiburn data {} --out {}`{others}, make one of your own pictures or table with `mpiburn data \
         import`, or point --data-root at one",
        named.unwrap_or("digits"),
        quoted(folder)
    )
}
