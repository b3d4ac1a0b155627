//! Attempts of a run that failed, and the run directory as the process that starts it again sees it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::run_dir::entries;
use super::step_file::STEP;
use super::{RunDir, Status, StepFile, checkpoint};
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
    pub fn of(path: &Path) -> Self {
        let run_json = read_regular(&path.join("run.json")).ok();
        let record: serde_json::Value =
            run_json.as_deref().and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        let step = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok();
        Self {
            occupied: entries(path).next().is_some(),
            status: serde_json::from_value(record["status"].clone()).ok(),
            failed: serde_json::from_value(record["failed_attempts"].clone()).unwrap_or_default(),
            run_json,
            checkpoint: checkpoint::list(&path.join("checkpoints")).last().and_then(step),
            noted: StepFile::read(path),
        }
    }
}

/// The first thing in the run directory `path` that no run without a checkpoint writes, which
/// replacing the directory would delete. `written` are more of the run's files.
pub fn foreign(path: &Path, written: &[&Path]) -> Option<PathBuf> {
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
        let mut paths = entries(folder).map(|entry| entry.path());
        paths.find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !known(&name) && !written.contains(&path.as_path())
        })
    };
    first(path, &of_run).or_else(|| first(&path.join("checkpoints"), &unfinished))
}

impl RunDir {
    /// Writes the failed attempts to `run.json`, unless it has them. The caller has the lock.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn note_failed(path: &Path, failed: &[FailedAttempt]) -> Result<(), super::RecordError> {
        if Seen::of(path).failed == failed {
            return Ok(());
        }
        let (dir, _) = Self::open::<serde_json::Value>(path)?;
        dir.note("failed_attempts", &failed)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        assert_eq!(foreign(path, &[&trace]), None);
        assert_eq!(foreign(path, &[]), Some(trace.clone()));
        let aside = path.join("checkpoints/step-00000004.damaged");
        fs::create_dir(&aside).unwrap();
        assert_eq!(foreign(path, &[&trace]), Some(aside));
    }

    #[test]
    fn a_folder_is_seen_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        let nothing = Seen::of(&path.join("none"));
        assert!(!nothing.occupied && nothing.run_json.is_none() && nothing.checkpoint.is_none());
        for step in [3, 120] {
            fs::create_dir_all(path.join("checkpoints").join(checkpoint::folder_name(step))).unwrap();
        }
        fs::write(path.join("run.json"), r#"{"status": "stopped"}"#).unwrap();
        fs::write(path.join(".step"), "00121\n").unwrap();
        let seen = Seen::of(path);
        assert_eq!((seen.checkpoint, seen.noted, seen.status), (Some(120), Some(121), Some(Status::Stopped)));
    }
}
