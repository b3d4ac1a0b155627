//! Errors of a run directory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::quoted;

/// An error of a run directory, with the file and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A file cannot be written.
    #[error("cannot write {path}: {reason}{}", remedy(reason))]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. Not the error's source, which would be printed
        /// twice.
        reason: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {path}: {reason}{}", advice(reason))]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error. Not the error's source, which would be printed
        /// twice.
        reason: io::Error,
    },
    /// The run directory already exists.
    #[error(
        "{0} exists already: choose another --out, go on with it (--resume {quoted}) or replace it (--overwrite)",
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
    #[error("{0} exists already and is no run directory, so it is not replaced: choose another --out")]
    NoRun(PathBuf),
    /// A `run.json` that is not one that this program can read, so that what is beside it may be anybody's.
    #[error(
        "{0}: damaged, or another program's, so that nothing is replaced: put a copy of it back, or remove or \
         rename the folder"
    )]
    NotReplaced(PathBuf),
    /// A run that a process was replacing when it was killed.
    #[error(
        "{0}/.replaced holds the run that was being replaced when a process was killed: mpiburn train --resume \
         {quoted} puts it back",
        quoted = quoted(.0.display())
    )]
    Replaced(PathBuf),
    /// A file is damaged.
    #[error("{path}: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// A checkpoint of a newer version of this program.
    #[error(
        "{path}: its layout has version {version}, and this program reads {known}: use the newer program"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest version that this program reads.
        known: u32,
    },
    /// A float network's weights where an int8 model is expected.
    #[error(
        "{0} holds a float network's weights, where an int8 model belongs: make one with mpiburn quantize"
    )]
    FloatWeights(PathBuf),
    /// An int8 model where a float network's weights are expected.
    #[error(
        "{0} holds an int8 model, where a float network's weights belong; the float ones are in model.safetensors"
    )]
    Int8Weights(PathBuf),
    /// No int8 model beside a checkpoint.
    #[error("there is no {0}: make it with mpiburn quantize")]
    NoInt8(PathBuf),
    /// A path to nothing, or to something else than a run, in a command that reads one.
    #[error("{what}")]
    NotARun {
        /// What is there, and what to name.
        what: String,
        /// Whether there is anything.
        is_there: bool,
    },
    /// There is no checkpoint to resume from.
    #[error(
        "no checkpoint in {0}: the run ended before its first, or they were removed; put them back, or replace the \
         run (--overwrite)"
    )]
    NoCheckpoint(PathBuf),
}

/// What to do about a file that cannot be written.
fn remedy(reason: &io::Error) -> &'static str {
    match reason.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; free space there, or choose another --out",
        ErrorKind::FileTooLarge => "; raise the limit of file sizes (ulimit -f)",
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => {
            "; choose another --out; to resume a run, make it writable or copy it (cp -a)"
        }
        _ if is_out_of_descriptors(reason) => "; raise the limit of open files (ulimit -n)",
        // Of a link or something else that is in the way, which the reason tells.
        ErrorKind::AlreadyExists => "",
        _ => "; choose another --out",
    }
}

/// What to do about a file that is there and cannot be read: what is in it is not lost.
fn advice(reason: &io::Error) -> &'static str {
    match reason.kind() {
        _ if is_damage(reason) => "",
        _ if is_out_of_descriptors(reason) => {
            "; nothing was changed: raise the limit of open files (ulimit -n)"
        }
        ErrorKind::PermissionDenied => {
            "; nothing was changed: give this user the permission, and start again"
        }
        _ => "; nothing was changed: start again when the disk can be read",
    }
}

fn is_out_of_descriptors(reason: &io::Error) -> bool {
    matches!(Errno::from_io_error(reason), Some(Errno::MFILE | Errno::NFILE))
}

/// Whether a file that cannot be read for this reason is missing, or something else is in its place: a
/// folder, a pipe, links in a circle.
fn is_damage(reason: &io::Error) -> bool {
    let kinds =
        [ErrorKind::NotFound, ErrorKind::InvalidInput, ErrorKind::NotADirectory, ErrorKind::IsADirectory];
    kinds.contains(&reason.kind()) || Errno::from_io_error(reason) == Some(Errno::LOOP)
}

impl RecordError {
    /// Whether a file that was written before is missing, cut short or changed.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } | Self::FloatWeights(_) => true,
            Self::Read { reason, .. } => is_damage(reason),
            _ => false,
        }
    }

    /// Whether there is no such file: whatever else keeps one from being read says nothing of that.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Read { reason, .. }
            if matches!(reason.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// Whether a command was given a file of the wrong kind, or one that was never
    /// made: an error of usage, and no damage.
    pub fn is_wrong_kind(&self) -> bool {
        matches!(
            self,
            Self::FloatWeights(_)
                | Self::Int8Weights(_)
                | Self::NoInt8(_)
                | Self::NotARun { is_there: true, .. }
        )
    }

    /// That the file or folder `path` cannot be written.
    pub fn write(path: &Path, reason: io::Error) -> Self {
        Self::Write { path: path.to_owned(), reason }
    }

    /// That the file or folder `path` cannot be read.
    pub fn read(path: &Path, reason: io::Error) -> Self {
        Self::Read { path: path.to_owned(), reason }
    }

    /// That the file `path` is damaged.
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
    fn the_advice_is_for_the_reason() {
        let messages_of = |errno: Errno| {
            let error = || io::Error::from(errno);
            [RecordError::write(Path::new("a"), error()), RecordError::read(Path::new("a"), error())]
                .map(|error| error.to_string())
        };
        let [write, read] = messages_of(Errno::MFILE);
        assert!(write.ends_with("(ulimit -n)") && read.ends_with("(ulimit -n)"), "{write} {read}");
        let [write, _] = messages_of(Errno::ROFS);
        assert!(write.ends_with("to resume a run, make it writable or copy it (cp -a)"), "{write}");
        let [write, read] = messages_of(Errno::IO);
        assert!(
            write.ends_with("choose another --out") && read.ends_with("when the disk can be read"),
            "{read}"
        );
    }
}
