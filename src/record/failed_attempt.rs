//! Attempts of a run that failed, and the run directory as the process that starts it again sees it.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::run_dir::content;
use super::step_file::STEP;
use super::{RecordError, RunDir, Status, StepFile, checkpoint};
use crate::files::read_regular;

/// An attempt of a run that failed under `mpiburn launch --restart`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAttempt {
    /// Its start: ISO 8601 in UTC.
    pub started_at: String,
    /// Its end.
    pub ended_at: String,
    /// Step of the checkpoint that it started from, or 0.
    pub from_step: usize,
    /// Steps that were done when it failed.
    pub step: usize,
    /// Exit code of the launcher.
    pub exit_code: i32,
    /// The line with the cause that a rank or the launcher printed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<String>,
}

/// What a run directory shows of its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Whether there is anything but a lock.
    pub occupied: bool,
    /// `run.json`: each process of the run writes its id to it before its first step.
    pub run_json: Option<Vec<u8>>,
    /// Status of the run.
    pub status: Option<Status>,
    /// Attempts that failed before.
    pub failed: Vec<FailedAttempt>,
    /// Step of the newest checkpoint.
    pub checkpoint: Option<usize>,
    /// The last step that was noted.
    pub noted: Option<usize>,
}

impl Seen {
    /// The run directory `path`, which may not exist.
    ///
    /// # Errors
    /// If something in it cannot be read: what it has is not known then.
    pub fn of(path: &Path) -> Result<Self, RecordError> {
        let file = path.join("run.json");
        let run_json = match read_regular(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            text => Some(text.map_err(|e| RecordError::read(&file, e))?),
        };
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

/// The first thing in the run directory `path` that no run without a checkpoint writes, which
/// replacing the directory would delete. `written` are more of the run's files.
///
/// # Errors
/// If the directory, or its folder of checkpoints, cannot be read.
pub fn foreign(path: &Path, written: &[&Path]) -> Result<Option<PathBuf>, RecordError> {
    let of_rank = |name: &str| {
        name.strip_prefix("rank").is_some_and(|rank| rank.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let of_run = |name: &str| {
        let unfinished = name.starts_with('.') && name.ends_with(".part");
        ["run.json", "epochs.csv", "tensorboard", "checkpoints", STEP].contains(&name)
            || of_rank(name)
            || unfinished
    };
    let unfinished = |name: &str| name.starts_with(".step-");
    let first = |folder: &Path, known: &dyn Fn(&str) -> bool| {
        let found = content(folder).map_err(|e| RecordError::read(folder, e))?;
        let mut paths = found.iter().map(fs::DirEntry::path);
        Ok(paths.find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !known(&name) && !written.contains(&path.as_path())
        }))
    };
    match first(path, &of_run)? {
        None => first(&path.join("checkpoints"), &unfinished),
        found => Ok(found),
    }
}

impl RunDir {
    /// Writes the failed attempts to `run.json`, unless it has them. The caller has the lock.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn note_failed(path: &Path, failed: &[FailedAttempt]) -> Result<(), RecordError> {
        if Seen::of(path)?.failed == failed {
            return Ok(());
        }
        let (dir, _) = Self::open::<serde_json::Value>(path)?;
        dir.note("failed_attempts", &failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_run_writes_is_its_own() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        for folder in ["checkpoints/.step-00000004.tmp", "rank0", "tensorboard"] {
            fs::create_dir_all(path.join(folder)).unwrap();
        }
        for file in ["run.json", "epochs.csv", ".lock", ".step", ".run.json.x.part", "trace.json"] {
            fs::write(path.join(file), "").unwrap();
        }
        let trace = path.join("trace.json");
        assert_eq!(foreign(path, &[&trace]).unwrap(), None);
        assert_eq!(foreign(path, &[]).unwrap(), Some(trace.clone()));
        let aside = path.join("checkpoints/step-00000004.damaged");
        fs::create_dir(&aside).unwrap();
        assert_eq!(foreign(path, &[&trace]).unwrap(), Some(aside));
    }

    #[test]
    fn a_folder_is_seen_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        let nothing = Seen::of(&path.join("none")).unwrap();
        assert!(!nothing.occupied && nothing.run_json.is_none() && nothing.checkpoint.is_none());
        for step in [3, 120] {
            fs::create_dir_all(path.join("checkpoints").join(checkpoint::folder_name(step))).unwrap();
        }
        fs::write(path.join("run.json"), r#"{"status": "stopped"}"#).unwrap();
        fs::write(path.join(".step"), "00121\n").unwrap();
        let seen = Seen::of(path).unwrap();
        assert_eq!((seen.checkpoint, seen.noted, seen.status), (Some(120), Some(121), Some(Status::Stopped)));
    }

    #[test]
    fn a_part_that_cannot_be_read_is_an_error_and_no_empty_folder() {
        let root = tempfile::tempdir().unwrap();
        for name in ["checkpoints", "run.json", ".step"] {
            let path = root.path().join(name);
            std::os::unix::fs::symlink(name, &path).unwrap();
            let error = Seen::of(root.path()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot read {}", path.display())), "{error}");
            assert_eq!(foreign(root.path(), &[]).is_err(), name == "checkpoints");
            fs::remove_file(&path).unwrap();
        }
    }
}
