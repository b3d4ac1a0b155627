//! Errors in data sets: the file, what is wrong, what to do.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use run_record::{RecordError, quoted};

use crate::DataFormat;

/// Returns [`DataError::Source`] for a path. The reason is formatted as by `format!`.
macro_rules! bail {
    ($path:expr, $($what:tt)+) => {
        return Err($crate::DataError::source($path, format!($($what)+)))
    };
}

/// Why a data set cannot be read, imported or written.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The folder contains no data set.
    #[error("{}", instead(root))]
    NoneHere {
        /// The folder.
        root: PathBuf,
    },
    /// Which files are wrong, and what to do.
    #[error("{0}")]
    Files(String),
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error. It is part of the message, and as the error's source would be printed twice.
        reason: std::io::Error,
    },
    /// A data set cannot be written.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: std::io::Error,
    },
    /// An option of an import has an invalid value, or does not fit the source.
    #[error("--{option}{}{value}: {problem}", if value.is_empty() { "" } else { " " })]
    Option {
        /// Its long name.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A file or folder cannot be used as it is.
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

/// What to do about samples that do not fit the sizes and classes of MNIST or CIFAR-10.
pub(crate) const OTHER_SAMPLES: &str =
    "replace the file if it is damaged; samples of other classes or sizes are for `mpiburn data import`";

impl DataError {
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
            Some(what) => Self::damaged(path, what),
            None => Self::read(path)(reason),
        }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::Write { path: path.to_owned(), reason }
    }

    /// The folder `root` contains two data sets: `first` and `second` are a file of each.
    pub(crate) fn several(root: &Path, [first, second]: [impl Display; 2]) -> Self {
        let root = root.display();
        Self::Files(format!(
            "two data sets in {root}, of {first} and of {second}; name one of them, or move it to another folder"
        ))
    }

    /// A file of a data set of this kind is missing. `also` follows in the message, such as another missing file.
    pub(crate) fn missing(path: &Path, also: &str, kind: DataFormat) -> Self {
        let (path, generator) = (path.display(), kind.generator());
        Self::Files(format!(
            "{path} is missing{also}; generate a data set with `mpiburn data {generator}`, or point --data-root at one"
        ))
    }

    /// A file does not have the format that it begins with.
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// The file at `path` has a label that is not below `classes`. `at` names its sample.
    pub(crate) fn label(path: &Path, label: u16, at: &str, classes: usize) -> Self {
        let last = classes - 1;
        Self::source(path, format!("label {label} of {at} is outside 0 to {last}; {OTHER_SAMPLES}"))
    }

    /// Adds to an error in a data set of this kind what to do about it.
    pub(crate) fn in_set(self, kind: DataFormat) -> Self {
        Self::Files(match self {
            Self::Read { path, reason } => format!(
                "cannot read {}: {reason}; generate a data set with `mpiburn data`, or point --data-root at one",
                path.display()
            ),
            Self::Damaged { path, what } if kind == DataFormat::Imported => {
                format!("{}: {what}: import the data set again", path.display())
            }
            Self::Damaged { path, what } => format!(
                "{}: {what}; save or download the file again, or generate a data set with `mpiburn data {}`",
                path.display(),
                kind.generator()
            ),
            other => return other,
        })
    }
}

/// The reason why a build without `feature` cannot read a source.
pub(crate) fn without(what: &str, feature: &str) -> String {
    format!("this build cannot read {what}; build with the feature {feature}")
}

/// Treats [`DataError::Stopped`], with which a visitor ends a reading early, as success.
pub(crate) fn until_stopped(read: Result<(), DataError>) -> Result<(), DataError> {
    if let Err(DataError::Stopped) = read { Ok(()) } else { read }
}

/// What is wrong with contents that are not those of the format.
pub(crate) const DAMAGED: &str = "is damaged";

/// What is wrong with contents that a decoder rejects; `None` for an error of the operating system. A decoder's own
/// message names its internal types.
pub(crate) fn damage(error: &std::io::Error) -> Option<&'static str> {
    match error.kind() {
        _ if error.raw_os_error().is_some() => None,
        std::io::ErrorKind::UnexpectedEof => Some("is truncated"),
        _ => Some(DAMAGED),
    }
}

/// The message of [`DataError::NoneHere`]: what `root` contains instead of a data set, and what to do.
fn instead(root: &Path) -> String {
    let folder = root.display();
    if root.is_file() {
        return format!(
            "no data set in {folder}: it is a file; make a data set of it with `mpiburn data import {} --out DIR`, for \
             --data-root DIR",
            quoted(&folder)
        );
    }
    // Runs and sweeps contain tables, which are not samples.
    for (file, what) in [("run.json", "run"), ("sweep.json", "sweep")] {
        if root.join(file).is_file() {
            return format!("no data set in {folder}: it is a {what}; name the folder of a data set instead");
        }
    }
    if let Some(what) = crate::import::recognised(root) {
        // `.`, `..` and `/` have no name that another could be made of.
        let root = root.components().as_path();
        let out = root.file_name().map_or("DIR".into(), |_| quoted(format!("{}-set", root.display())));
        return format!(
            "no data set in {folder}: it has {what}; make one of it with `mpiburn data import {} --out {out}`",
            quoted(&folder)
        );
    }
    // A folder named after a kind of `mpiburn data` is meant for that kind.
    let named = ["digits", "objects", "features"].into_iter().find(|kind| root.ends_with(kind));
    let others = if named.is_none() { " (or objects, features)" } else { "" };
    let generate = format!("`mpiburn data {} --out {}`{others}", named.unwrap_or("digits"), quoted(&folder));
    match (root.exists(), named) {
        (false, None) => format!(
            "there is no folder {folder}: point --data-root at the folder of a data set, or make one with `mpiburn data \
             digits` (or objects, features) or, of your own pictures or table, `mpiburn data import`"
        ),
        (false, Some(_)) => format!(
            "there is no folder {folder}: generate one with {generate}, or point --data-root at the folder of a data set"
        ),
        (true, _) => format!(
            "no data set in {folder}: it has none of dataset.json, train-images-idx3-ubyte (or .gz), data_batch_1.bin \
             and train_data/train_x.npy; point --data-root at the folder of a data set, generate one with {generate}, \
             or make one of your own pictures or table with `mpiburn data import`"
        ),
    }
}
