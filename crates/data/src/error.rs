//! Errors in data sets. Each message names the file, what is wrong with it, and what to do.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use run_record::{RecordError, quoted};

use crate::DataFormat;

/// Makes the calling function return [`DataError::Source`] for `$path`. The other arguments are a format
/// string and its values, as for `format!`. They give the reason.
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
    /// Something is wrong with the files of a data set. The text is the whole message: it names the files,
    /// and says what is wrong and what to do.
    #[error("{0}")]
    Files(String),
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The I/O error. The message contains it. `Error::source` does not return it, because a program that
        /// prints sources would then print it twice.
        reason: std::io::Error,
    },
    /// A file or folder cannot be written.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        reason: std::io::Error,
    },
    /// An option of an import has an invalid value, or does not apply to the files that are imported.
    #[error("--{option}{}{value}: {problem}", if value.is_empty() { "" } else { " " })]
    Option {
        /// The long name of the option, without `--`.
        option: &'static str,
        /// The value as given, or empty to leave it out of the message.
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
    /// The contents of a file do not follow its format: the file is truncated, too long or damaged.
    #[error("{path}: {what}; save or download the file again")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        what: String,
    },
    /// Another process holds the lock of the import's folder, or the lock file cannot be opened.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The caller stopped the import.
    #[error("stopped")]
    Stopped,
}

/// End of an error message about samples that do not have the sizes or classes of MNIST or CIFAR-10.
pub(crate) const OTHER_SAMPLES: &str =
    "restore the file if it is damaged; import samples of other classes or sizes with `mpiburn data import`";

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

    /// Returns a function that turns the error of a reader into a [`DataError`]. An unexpected end of the
    /// file and an error of a decoder become [`Self::Damaged`]. Any other error becomes [`Self::Read`].
    pub(crate) fn unpack(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| match damage(&reason) {
            Some(what) => Self::damaged(path, what),
            None => Self::read(path)(reason),
        }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |reason| Self::Write { path: path.to_owned(), reason }
    }

    /// Returns the error for a folder `root` that contains two data sets. The message names both: `first` is
    /// a file or folder of one data set, and `second` is a file or folder of the other.
    pub(crate) fn several(root: &Path, [first, second]: [impl Display; 2]) -> Self {
        let root = root.display();
        Self::Files(format!(
            "{root}: contains two data sets, {first} and {second}: choose the folder of one of them, or move one \
             to another folder"
        ))
    }

    /// Returns the error for a missing file of a data set of the format `kind`. `also` is written after "is
    /// missing": for example, the name of another missing file.
    pub(crate) fn missing(path: &Path, also: &str, kind: DataFormat) -> Self {
        let (path, generator) = (path.display(), kind.generator());
        Self::Files(format!(
            "{path} is missing{also}: generate a data set with `mpiburn data {generator}`, or name another folder"
        ))
    }

    /// Returns [`Self::Damaged`].
    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// Returns the error for a label in the file `path` that is not below `classes`. `at` names the sample.
    pub(crate) fn label(path: &Path, label: u16, at: &str, classes: usize) -> Self {
        let last = classes - 1;
        Self::source(path, format!("label {label} of {at} is outside 0 to {last}; {OTHER_SAMPLES}"))
    }

    /// Adds advice to the error about a damaged or unreadable file of a data set: how to make the file
    /// readable, or how to replace it. `kind` is the format of the data set. Other errors stay as they are.
    pub(crate) fn in_set(self, kind: DataFormat) -> Self {
        Self::Files(match self {
            Self::Read { path, reason } if reason.kind() == std::io::ErrorKind::PermissionDenied => {
                format!("cannot read {}: {reason}: allow this user to read it", path.display())
            }
            Self::Read { path, reason } if kind == DataFormat::Imported => {
                format!("cannot read {}: {reason}: import the data set again", path.display())
            }
            Self::Read { path, reason } => format!(
                "cannot read {}: {reason}; generate a data set with `mpiburn data {}`, or name another folder",
                path.display(),
                kind.generator()
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

/// Returns the message that this build cannot read `what` because it lacks the crate feature `feature`.
pub(crate) fn without(what: &str, feature: &str) -> String {
    format!("this build cannot read {what}; build with the feature {feature}")
}

/// Turns [`DataError::Stopped`] into success. A visitor returns this error to end a reading early.
pub(crate) fn until_stopped(read: Result<(), DataError>) -> Result<(), DataError> {
    if let Err(DataError::Stopped) = read { Ok(()) } else { read }
}

/// Result of [`damage`] for contents that are not truncated, but that the decoder rejects.
pub(crate) const DAMAGED: &str = "is damaged";

/// Describes why a decoder failed: the contents are truncated or damaged. Returns `None` for an error of the
/// operating system. The decoder's own message is not used because it names internal types of the decoder.
pub(crate) fn damage(error: &std::io::Error) -> Option<&'static str> {
    match error.kind() {
        _ if error.raw_os_error().is_some() => None,
        std::io::ErrorKind::UnexpectedEof => Some("is truncated"),
        _ => Some(DAMAGED),
    }
}

/// Returns the folder of a file, as the user would type it: `.` for a file name without a folder.
pub(crate) fn parent(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the message of [`DataError::NoneHere`]: what `root` contains instead of a data set, and what to
/// do.
fn instead(root: &Path) -> String {
    let folder = root.display();
    if root.is_file() {
        if let Some(kind) = crate::import::part_of_data_set(root) {
            return format!(
                "no data set in {folder}: it is {kind}: name its folder, {}",
                parent(root).display()
            );
        }
        return format!(
            "no data set in {folder}: it is a file; import it with `mpiburn data import {} --out DIR`, then name DIR",
            quoted(&folder)
        );
    }
    // Check for runs and sweeps before tables: a run or a sweep contains .csv files, but no samples.
    for (file, what) in [("run.json", "run"), ("sweep.json", "sweep")] {
        if root.join(file).is_file() {
            return format!(
                "no data set in {folder}: it is the folder of a {what}; name the folder of a data set instead"
            );
        }
    }
    if let Some(what) = crate::import::recognised(root) {
        // Propose an output folder named after the source. `.`, `..` and `/` have no file name: propose `DIR`
        // for them.
        let root = root.components().as_path();
        let out = root.file_name().map_or("DIR".into(), |_| quoted(format!("{}-set", root.display())));
        return format!(
            "no data set in {folder}: it contains {what}; import them with `mpiburn data import {} --out {out}`",
            quoted(&folder)
        );
    }
    // If the folder is named after a generator (`data/digits`), propose that generator.
    let named = ["digits", "objects", "features"].into_iter().find(|kind| root.ends_with(kind));
    let others = if named.is_none() { " (or objects, features)" } else { "" };
    let generate = format!("`mpiburn data {} --out {}`{others}", named.unwrap_or("digits"), quoted(&folder));
    match (root.exists(), named) {
        (false, None) => format!(
            "there is no folder {}: name the folder of a data set, generate one with \
             `mpiburn data digits` (or objects, features), or import your own pictures or table with `mpiburn data \
             import`",
            quoted(&folder)
        ),
        (false, Some(_)) => format!(
            "there is no folder {}: generate one with {generate}, or name the folder of a data set",
            quoted(&folder)
        ),
        (true, _) => format!(
            "no data set in {folder}: it contains neither dataset.json, train-images-idx3-ubyte (or .gz), \
             data_batch_1.bin nor train_data/train_x.npy; name the folder of a data set, generate one \
             with {generate}, or import your own pictures or table with `mpiburn data import`"
        ),
    }
}

/// Returns whether a message contains all `facts`, which are separated by ` | `. Tests compare the facts of a
/// message, not its wording.
#[cfg(test)]
pub(crate) fn names_all(message: &str, facts: &str) -> bool {
    facts.split(" | ").all(|fact| message.contains(fact))
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn an_unreadable_file_needs_no_other_data_set() {
        let line = |kind: ErrorKind| {
            DataError::read(Path::new("d/x"))(kind.into()).in_set(DataFormat::Idx).to_string()
        };
        let denied = line(ErrorKind::PermissionDenied);
        assert!(denied.contains("d/x") && denied.contains("allow this user"), "{denied}");
        assert!(!denied.contains("generate") && line(ErrorKind::NotFound).contains("generate"), "{denied}");
    }
}
