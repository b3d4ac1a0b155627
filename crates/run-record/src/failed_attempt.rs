//! Failed attempts of a run, and what `mpiburn launch --restart` reads from a run directory before it starts
//! the run again. An attempt is one start of all ranks of the run.

use std::fs;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::run_dir::content;
use super::{RecordError, RunDir, Status, checkpoint};
use crate::files::{create_here, if_there, read_regular};

/// A failed attempt of a run under `mpiburn launch --restart`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Time of the start: ISO 8601 in UTC.
    pub started_at: String,
    /// Time of the failure.
    pub ended_at: String,
    /// Step of the checkpoint that the attempt started from; 0 if it started without a checkpoint.
    pub from_step: usize,
    /// Number of steps of the run that were done when the attempt failed.
    pub step: usize,
    /// Exit code of the launcher.
    pub exit_code: i32,
    /// The line that names the cause, as a rank or the launcher printed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

/// What a run directory contains, as far as a restart needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDirState {
    /// Whether the directory contains anything but a lock.
    pub occupied: bool,
    /// Content of `run.json`; `None` if there is no such file. Every attempt that reaches its first step has
    /// changed this content, because it contains the process ids of the ranks. A restart compares the content
    /// with that before the attempt.
    pub run_json: Option<Vec<u8>>,
    /// Status of the run; `None` if `run.json` is missing or damaged.
    pub status: Option<Status>,
    /// Attempts of the run that have failed so far.
    pub failed: Vec<FailedAttempt>,
    /// Step of the newest checkpoint; `None` if there is no checkpoint.
    pub checkpoint: Option<usize>,
    /// Number of finished steps in the [`StepFile`]; `None` if there is no such file, or it contains no
    /// number.
    pub noted: Option<usize>,
}

impl RunDirState {
    /// Reads the run directory `path`, which need not exist.
    ///
    /// # Errors
    /// If a file or folder in it cannot be read: the state of the run is then unknown.
    pub fn read(path: &Path) -> Result<Self, RecordError> {
        let file = path.join("run.json");
        let run_json = if_there(read_regular(&file)).map_err(|e| RecordError::read(&file, e))?;
        let record: serde_json::Value =
            run_json.as_deref().and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let step = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
        Ok(Self {
            occupied: !content(path).map_err(|e| RecordError::read(path, e))?.is_empty(),
            status: serde_json::from_value(record["status"].clone()).ok(),
            failed: serde_json::from_value(record["failed_attempts"].clone()).unwrap_or_default(),
            run_json,
            checkpoint: checkpoint::list(&path.join("checkpoints"))?.last().and_then(step),
            noted: StepFile::read(path)?,
        })
    }
}

/// Finds a file or folder in `checkpoints/` that would be lost if the run in the directory `path` were
/// replaced, such as a damaged checkpoint that was renamed.
///
/// The caller has found no complete checkpoint in the folder. This function ignores unfinished checkpoints,
/// and returns `None` if the folder contains nothing else.
///
/// # Errors
/// If the folder cannot be read.
pub fn set_aside(path: &Path) -> Result<Option<PathBuf>, RecordError> {
    let folder = path.join("checkpoints");
    let found = content(&folder).map_err(|e| RecordError::read(&folder, e))?;
    let is_unfinished = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".step-");
    Ok(found.iter().find(|entry| !is_unfinished(entry)).map(fs::DirEntry::path))
}

impl RunDir {
    /// Writes the failed attempts to `run.json`, unless they are there already. The caller must hold the
    /// directory's lock.
    ///
    /// # Errors
    /// If the run directory cannot be read, or `run.json` is damaged or cannot be written.
    pub fn note_failed(path: &Path, failed: &[FailedAttempt]) -> Result<(), RecordError> {
        if RunDirState::read(path)?.failed == failed {
            return Ok(());
        }
        let (dir, _) = Self::open::<serde_json::Value>(path)?;
        dir.note("failed_attempts", &failed)
    }
}

/// Name of the host file of `mpiburn launch --restart N --shrink` in the run directory. It lists the machines
/// that are left, while an attempt runs on them.
pub const HOSTS: &str = ".hosts";

/// Name of the step file in the run directory.
pub(super) const STEP: &str = ".step";

/// The step file. Under `mpiburn launch --restart`, rank 0 writes the number of finished steps to this file
/// at every step, which takes a microsecond.
///
/// The file tells how far a failed attempt got. The file is not synced, so it may be lost if the machine
/// fails. Then only the step of the last checkpoint is known.
#[derive(Debug)]
pub struct StepFile {
    path: PathBuf,
    file: File,
}

impl StepFile {
    /// Creates the file and writes that `step` steps are done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(dir: &RunDir, step: usize) -> Result<Self, RecordError> {
        let path = dir.path().join(STEP);
        let file = create_here(&path).map_err(|error| RecordError::write(&path, error))?;
        let file = Self { path, file };
        file.note(step);
        Ok(file)
    }

    /// Writes that `step` steps are done. Errors, such as a full disk, are ignored: they must not end a
    /// training.
    pub fn note(&self, step: usize) {
        let _ = self.file.write_all_at(format!("{step:020}\n").as_bytes(), 0);
    }

    /// Removes the file.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Reads the number of steps from the step file of the run directory `dir`; `None` if there is no such
    /// file, or it contains no number.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn read(dir: &Path) -> Result<Option<usize>, RecordError> {
        let path = dir.join(STEP);
        let bytes = if_there(read_regular(&path)).map_err(|e| RecordError::read(&path, e))?;
        Ok(bytes.and_then(|bytes| String::from_utf8_lossy(&bytes).trim().parse().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_checkpoint_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        fs::create_dir_all(path.join("checkpoints/.step-00000004.tmp")).unwrap();
        assert_eq!(set_aside(path).unwrap(), None);
        let aside = path.join("checkpoints/step-00000004.damaged");
        fs::create_dir(&aside).unwrap();
        assert_eq!(set_aside(path).unwrap(), Some(aside));
    }

    #[test]
    fn a_folder_is_seen_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        let nothing = RunDirState::read(&path.join("none")).unwrap();
        assert!(!nothing.occupied && nothing.run_json.is_none() && nothing.checkpoint.is_none());
        for step in [3, 120] {
            fs::create_dir_all(path.join("checkpoints").join(checkpoint::folder_name(step))).unwrap();
        }
        fs::write(path.join("run.json"), r#"{"status": "stopped"}"#).unwrap();
        fs::write(path.join(".step"), "00121\n").unwrap();
        let seen = RunDirState::read(path).unwrap();
        assert_eq!((seen.checkpoint, seen.noted, seen.status), (Some(120), Some(121), Some(Status::Stopped)));
    }

    #[test]
    fn a_part_that_cannot_be_read_is_an_error_and_no_empty_folder() {
        let root = tempfile::tempdir().unwrap();
        for name in ["checkpoints", "run.json", ".step"] {
            let path = root.path().join(name);
            std::os::unix::fs::symlink(name, &path).unwrap();
            let error = RunDirState::read(root.path()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot read {}", path.display())), "{error}");
            assert_eq!(set_aside(root.path()).is_err(), name == "checkpoints");
            fs::remove_file(&path).unwrap();
        }
    }
}

#[cfg(test)]
mod step_file_tests {
    use super::*;

    #[test]
    fn the_last_step_is_read_until_the_file_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let dir = RunDir::create(&root.path().join("run"), false).unwrap();
        assert_eq!(StepFile::read(dir.path()).unwrap(), None);
        let file = StepFile::create(&dir, 10_000).unwrap();
        assert_eq!(StepFile::read(dir.path()).unwrap(), Some(10_000));
        for step in [10_001, 7] {
            file.note(step);
            assert_eq!(StepFile::read(dir.path()).unwrap(), Some(step));
        }
        file.remove();
        assert_eq!(StepFile::read(dir.path()).unwrap(), None);
        std::os::unix::fs::symlink("elsewhere", dir.path().join(STEP)).unwrap();
        assert!(StepFile::create(&dir, 0).unwrap_err().to_string().contains("symbolic link"));
    }
}
