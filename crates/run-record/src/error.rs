//! Errors of reading and writing a run directory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::quoted;

/// An error of a run directory. Its message names the file, what is wrong, and in most cases a remedy.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file cannot be written.
    #[error("cannot write {path}: {reason}{}", remedy(reason))]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. The message contains it, so it is not a `#[source]`: an error chain would
        /// print it twice.
        reason: io::Error,
    },
    /// The directory of a new run, or a file in it, cannot be written.
    #[error("cannot write {path}: {reason}{}", remedy_of_new(reason))]
    WriteNew {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. The message contains it, so it is not a `#[source]`: an error chain would
        /// print it twice.
        reason: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}{}", advice(reason))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. The message contains it, so it is not a `#[source]`: an error chain would
        /// print it twice.
        reason: io::Error,
    },
    /// The run directory already exists.
    #[error(
        "{0} already exists: choose another --out, continue it with --resume {quoted}, or replace it with --overwrite",
        quoted = quoted(.0.display())
    )]
    Exists(PathBuf),
    /// Another process writes to the folder.
    #[error("{folder} is in use by {holder}: wait until it ends, or choose another folder")]
    InUse {
        /// The run directory, or a sweep's folder.
        folder: PathBuf,
        /// The process, and its host.
        holder: String,
    },
    /// The path exists and is not a run directory.
    #[error("{0} already exists and is not a run directory: choose another --out")]
    NoRun(PathBuf),
    /// `run.json` exists and cannot be parsed, so the files beside it may belong to another program.
    #[error(
        "{0}: is damaged, or another program wrote it, so nothing was overwritten: {remedy}",
        remedy = restore_or_train(.0.parent().unwrap_or(.0))
    )]
    NotReplaced(PathBuf),
    /// A process was killed while it replaced the run. It had already moved the run's files into
    /// `.replaced/`.
    #[error(
        "{0}: a process was killed while it replaced the run, which is now in {0}/.replaced: restore the run with \
         mpiburn train --resume {quoted}",
        quoted = quoted(.0.display())
    )]
    Replaced(PathBuf),
    /// A file is damaged.
    #[error("{path}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// Somebody has renamed or copied a checkpoint's folder.
    #[error(
        "{path}: contains the checkpoint {name}: rename the folder to {name}, or remove it if it is a copy"
    )]
    Misnamed {
        /// The folder.
        path: PathBuf,
        /// The name that the folder should have.
        name: String,
    },
    /// A checkpoint was written by a newer version of this program.
    #[error(
        "{path}: has format version {version}, but this program reads version {known}: use a newer mpiburn"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// The file's version.
        version: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// The file contains float weights, and an int8 model is expected.
    #[error(
        "{0}: contains float weights instead of an int8 model: create the int8 model with mpiburn quantize"
    )]
    FloatWeights(PathBuf),
    /// The file contains an int8 model, and float weights are expected.
    #[error("{0}: contains an int8 model instead of float weights: use model.safetensors")]
    Int8Weights(PathBuf),
    /// The checkpoint has no int8 model.
    #[error("there is no {0}: create it with mpiburn quantize")]
    NoInt8(PathBuf),
    /// A command that reads a run was given a path that is not a run or does not exist.
    #[error("{what}")]
    NotARun {
        /// What is at the path, and which path to give instead.
        what: String,
        /// Whether the path exists.
        is_there: bool,
    },
    /// All checkpoints of the run are damaged.
    #[error("{0}; no other checkpoint is intact: restore one, or train again with --overwrite")]
    NoneIntact(Box<Self>),
    /// There is no checkpoint to resume from.
    #[error(
        "no checkpoint in {0}: the run ended before it wrote a checkpoint, or the checkpoints were removed: restore \
         them, or replace the run with mpiburn train --out {run} --overwrite",
        run = quoted(.0.parent().unwrap_or(.0).display())
    )]
    NoCheckpoint(PathBuf),
}

/// Says what to do about a damaged `run.json` in `folder`: a new run does not replace it, even with
/// `--overwrite`.
pub fn restore_or_train(folder: &Path) -> String {
    format!("restore the file, or remove the folder {} and run the training again", folder.display())
}

/// Advice for a file that cannot be written.
fn remedy(reason: &io::Error) -> &'static str {
    match reason.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free space there",
        ErrorKind::FileTooLarge => "; raise the limit of file sizes (ulimit -f)",
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            "; make it writable, or resume a copy of the run (cp -a)"
        }
        _ if is_out_of_descriptors(reason) => "; raise the limit of open files (ulimit -n)",
        _ => "",
    }
}

/// Advice for a file of a new run that cannot be written.
fn remedy_of_new(reason: &io::Error) -> &'static str {
    match reason.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free space there, or choose another --out",
        // A link or something else is in the way. The reason itself says what to do.
        ErrorKind::AlreadyExists => "",
        ErrorKind::FileTooLarge => remedy(reason),
        _ if is_out_of_descriptors(reason) => remedy(reason),
        _ => "; choose another --out",
    }
}

/// Advice for a file that cannot be read. Empty if the file is missing or is not a regular file. In all other
/// cases, the content of the file is not lost, so the advice is how to read it.
fn advice(reason: &io::Error) -> &'static str {
    match reason.kind() {
        _ if is_damage(reason) => "",
        _ if is_out_of_descriptors(reason) => {
            "; nothing was changed: raise the limit of open files (ulimit -n)"
        }
        ErrorKind::PermissionDenied => ": allow this user to read it",
        _ => "; nothing was changed: start again when the disk can be read",
    }
}

fn is_out_of_descriptors(reason: &io::Error) -> bool {
    matches!(Errno::from_io_error(reason), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a file could not be read because it is missing, or because its path leads to something else: a
/// folder, a pipe, a Git LFS pointer, or a cycle of links.
fn is_damage(reason: &io::Error) -> bool {
    let kinds =
        [ErrorKind::NotFound, ErrorKind::InvalidInput, ErrorKind::NotADirectory, ErrorKind::IsADirectory];
    kinds.contains(&reason.kind()) || Errno::from_io_error(reason) == Some(Errno::LOOP)
}

impl RecordError {
    /// Whether a file is missing, damaged or not a regular file, or contains float weights instead of an int8
    /// model.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::FloatWeights(_) => true,
            Self::Read { reason, .. } => is_damage(reason),
            _ => false,
        }
    }

    /// Whether the error says that the file does not exist. `false` does not mean that the file exists.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Read { reason, .. }
            if matches!(reason.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// Whether a command was given a file of the wrong kind, or a file that was never made. This is an error
    /// of usage, even if [`is_damage`](Self::is_damage) is also true.
    pub fn is_wrong_kind(&self) -> bool {
        matches!(
            self,
            Self::FloatWeights(_)
                | Self::Int8Weights(_)
                | Self::NoInt8(_)
                | Self::NotARun { is_there: true, .. }
        )
    }

    /// Makes the error of a file or folder `path` that cannot be written.
    pub fn write(path: &Path, reason: io::Error) -> Self {
        Self::Write { path: path.to_owned(), reason }
    }

    /// Turns [`Write`](Self::Write) into [`WriteNew`](Self::WriteNew), whose message advises another `--out`
    /// where that helps. Other errors stay as they are.
    pub(crate) fn of_new_run(self) -> Self {
        match self {
            Self::Write { path, reason } => Self::WriteNew { path, reason },
            other => other,
        }
    }

    /// Makes the error of a file or folder `path` that cannot be read.
    pub fn read(path: &Path, reason: io::Error) -> Self {
        Self::Read { path: path.to_owned(), reason }
    }

    /// Makes the error of a damaged file `path`. `what` says what is wrong with it.
    pub fn damaged(path: &Path, what: String) -> Self {
        Self::Damaged { path: path.to_owned(), what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_reason_is_told_once() {
        let full = || io::Error::from(ErrorKind::StorageFull);
        for error in [RecordError::write(Path::new("a"), full()), RecordError::read(Path::new("a"), full())] {
            let text = format!("{:#}", anyhow::Error::from(error));
            assert_eq!(text.matches(&full().to_string()).count(), 1, "{text}");
        }
    }

    #[test]
    fn a_run_without_checkpoints_is_replaced_by_a_command_that_can_be_typed() {
        let error = RecordError::NoCheckpoint("my runs/x/checkpoints".into()).to_string();
        assert!(error.ends_with("train --out 'my runs/x' --overwrite"), "{error}");
    }

    #[test]
    fn the_advice_is_for_the_reason() {
        let messages_of = |errno: Errno| {
            let write = || RecordError::write(Path::new("a"), io::Error::from(errno));
            [write(), write().of_new_run(), RecordError::read(Path::new("a"), io::Error::from(errno))]
                .map(|error| error.to_string())
        };
        for message in messages_of(Errno::MFILE) {
            assert!(message.ends_with("(ulimit -n)"), "{message}");
        }
        for errno in [Errno::ROFS, Errno::ACCESS, Errno::NOSPC, Errno::IO, Errno::NOTDIR] {
            let [resumed, new, _] = messages_of(errno);
            assert!(!resumed.contains("--out"), "{resumed}");
            assert!(new.ends_with("choose another --out") && !new.contains("resume"), "{new}");
        }
        let [resumed, ..] = messages_of(Errno::ROFS);
        assert!(resumed.contains("cp -a"), "{resumed}");
        let [.., read] = messages_of(Errno::ACCESS);
        assert!(read.contains("allow this user") && !read.contains("changed"), "a reader: {read}");
    }
}
