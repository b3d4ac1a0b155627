//! Errors of an import: the file, what is wrong, what to do.

use std::path::{Path, PathBuf};

use run_record::RecordError;

/// Returns the error that the source at a path cannot be imported, for a reason in the words of `format!`.
macro_rules! bail {
    ($path:expr, $($what:tt)+) => {
        return Err($crate::import::ImportError::source($path, format!($($what)+)))
    };
}

/// Why nothing was imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error, as text: as the error's source it would be printed twice.
        reason: std::io::Error,
    },
    /// The data set cannot be written.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: std::io::Error,
    },
    /// An option does not fit.
    #[error("--{option}{}{value}: {problem}", if value.is_empty() { "" } else { " " })]
    Option {
        /// Its long name.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The source cannot be imported.
    #[error("{path}: {what}")]
    Source {
        /// The file or folder.
        path: PathBuf,
        /// What was found, and what to do.
        what: String,
    },
    /// A file does not have the format that it begins with.
    #[error("{path}: {what}; save or download the file again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
    },
    /// The folder of the data set is in use.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The caller stopped the import.
    #[error("stopped")]
    Stopped,
}

impl ImportError {
    pub(crate) fn option(option: &'static str, value: impl ToString, problem: impl Into<String>) -> Self {
        Self::Option { option, value: value.to_string(), problem: problem.into() }
    }

    pub(crate) fn source(path: &Path, what: impl Into<String>) -> Self {
        Self::Source { path: path.to_owned(), what: what.into() }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::Read { path: path.to_owned(), reason }
    }

    /// As [`Self::read`], for a file whose contents may end early or be rejected by a decoder.
    pub(crate) fn unpack(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| match damage(&reason) {
            Some(what) => Self::Damaged { path: path.to_owned(), what: what.into() },
            None => Self::read(path)(reason),
        }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::Write { path: path.to_owned(), reason }
    }
}

/// The result of a reading that a visitor may end early with [`ImportError::Stopped`].
pub(crate) fn until_stopped(read: Result<(), ImportError>) -> Result<(), ImportError> {
    if let Err(ImportError::Stopped) = read { Ok(()) } else { read }
}

/// What is wrong with contents that a decoder rejects; `None` for an error of the operating system. A decoder's own
/// message names its internal types.
pub(crate) fn damage(error: &std::io::Error) -> Option<&'static str> {
    match error.kind() {
        _ if error.raw_os_error().is_some() => None,
        std::io::ErrorKind::UnexpectedEof => Some("is truncated"),
        _ => Some("is damaged"),
    }
}
