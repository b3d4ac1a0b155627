//! What can be wrong with a data set: the file, what is wrong, what to do.

use std::path::PathBuf;

/// An error in the files of a data set.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file is missing or cannot be read.
    #[error(
        "cannot read {path}: {source}; make a data set with `mpiburn data digits --out DIR`, or point --data-root at one"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// Neither the plain nor the gzipped file exists.
    #[error(
        "no {path} (nor {name}.gz beside it); make a data set with `mpiburn data digits --out {root}`, or point --data-root at one"
    )]
    Missing {
        /// The plain file.
        path: PathBuf,
        /// Its name.
        name: String,
        /// The folder.
        root: PathBuf,
    },
    /// The file is not what its name says.
    #[error(
        "{path}: {what}; replace the file (a download cut short?) or make a new set with `mpiburn data digits`"
    )]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
    },
    /// The set cannot be used as asked.
    #[error("{0}")]
    Unusable(String),
}
