//! What can be wrong with a data set: the file, what is wrong, what to do.

use std::path::{Path, PathBuf};

use super::Kind;

/// An error in the files of a data set.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {reason}; make a data set with `mpiburn data`, or point --data-root at one")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's. Not the error's source, which would be printed twice.
        reason: std::io::Error,
    },
    /// A file of a data set is not there.
    #[error(
        "no {path}{also}; make a data set with `mpiburn data {}`, or point --data-root at one",
        kind.generator()
    )]
    Missing {
        /// The file.
        path: PathBuf,
        /// Which other file would have done, in brackets.
        also: String,
        /// The kind of the data set.
        kind: Kind,
    },
    /// A file is not what its name says.
    #[error(
        "{path}: {what}; replace the file (a download cut short?) or make a new set with `mpiburn data {}`",
        kind.generator()
    )]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
        /// The kind of the data set.
        kind: Kind,
    },
    /// A file is well-formed and yet no use as it is.
    #[error("{path}: {what}")]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What was found, and what to do about it.
        what: String,
    },
    /// The folder holds no data set.
    #[error(
        "no data set in {root}: neither train-images-idx3-ubyte (nor .gz), data_batch_1.bin nor train_data/train_x.npy; make one with `mpiburn data digits --out {root}`, or objects or features for digits, or point --data-root at one"
    )]
    NoneHere {
        /// The folder.
        root: PathBuf,
    },
    /// The folder holds more than one data set.
    #[error("two data sets in {root}, of {first} and of {second}; move one of them to another folder")]
    SeveralHere {
        /// The folder.
        root: PathBuf,
        /// A file of the first.
        first: String,
        /// A file of the second.
        second: String,
    },
}

impl DataError {
    /// For a file that the system does not let us read.
    pub(super) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::Read { path: path.to_owned(), reason }
    }
}
