//! `--overwrite`: replaces a run so that at every moment the old run or the new run is complete.
//!
//! 1. Move the old run's files into `.replaced/`, `run.json` last.
//! 2. Write the new run's `run.json`.
//! 3. Rename `.replaced/` to `.replaced.part/` and delete it.
//!
//! If the process is killed before the rename of step 3, the next start looks for the new run's `run.json`.
//! If this file is missing, the start puts the old run back; if it exists, the start does step 3. After the
//! rename, the new run is complete, and the remains of the old run stay until the next `--overwrite`.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::folders::is_of_run;
use super::run_dir::{RUN_JSON, content};
use super::{RecordError, quoted};
use crate::files;

const REPLACED: &str = ".replaced";
/// Name of the old run's folder while it is deleted. If the process is killed before the folder is deleted,
/// the ending `.part` marks it as unfinished, and the next `--overwrite` removes it.
const REMOVED: &str = ".replaced.part";

/// Whether this is the name of a file or folder that a killed process left unfinished.
fn is_unfinished(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(".part")
}

/// Whether a file or folder of this name is replaced together with the run.
fn is_replaced(name: &str) -> bool {
    is_of_run(name) || is_unfinished(name)
}

/// Step 1: moves the old run's files into `.replaced/`. Files that no run writes stay.
///
/// # Errors
/// If a file cannot be moved; the files moved so far are then moved back.
pub fn set_aside(run: &Path) -> Result<(), RecordError> {
    let found = content(run).map_err(|e| RecordError::read(run, e))?;
    let names = found.iter().map(fs::DirEntry::file_name);
    let (own, others): (Vec<OsString>, Vec<OsString>) =
        names.partition(|name| name.to_str().is_some_and(is_replaced));
    if own.is_empty() {
        return Ok(());
    }
    let folder = run.join(REPLACED);
    fs::create_dir(&folder).map_err(|e| RecordError::write(&folder, e))?;
    if let Err(error) = move_all(run, &folder, own) {
        put_back_or_warn(run);
        return Err(error);
    }
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(|name| name.to_string_lossy()).collect();
        log::info!("{}: keeping files that are not part of the run: {}", run.display(), names.join(", "));
    }
    Ok(())
}

/// Moves the entries `names` from one folder to another, `run.json` last.
fn move_all(from: &Path, to: &Path, mut names: Vec<OsString>) -> Result<(), RecordError> {
    names.sort_by_key(|name| name == RUN_JSON);
    names.iter().try_for_each(|name| {
        let path = from.join(name);
        fs::rename(&path, to.join(name)).map_err(|e| RecordError::write(&path, e))
    })
}

/// Calls [`put_back`], and only logs its error: this function is called after another error, which the caller
/// reports.
pub fn put_back_or_warn(run: &Path) {
    if let Err(error) = put_back(run) {
        log::warn!(
            "{error}: restore the rest of the run with mpiburn train --resume {}",
            quoted(run.display())
        );
    }
}

/// Moves everything in `.replaced/` back into the run directory.
///
/// # Errors
/// If a file cannot be moved.
fn put_back(run: &Path) -> Result<(), RecordError> {
    let folder = run.join(REPLACED);
    let found = files::entries(&folder).map_err(|e| RecordError::read(&folder, e))?;
    move_all(&folder, run, found.iter().map(fs::DirEntry::file_name).collect())?;
    let _ = fs::remove_dir(folder);
    Ok(())
}

/// Step 3: deletes the old run, once the new `run.json` is written. Logs a warning if the old run cannot be
/// deleted.
pub fn remove(run: &Path) {
    let (folder, removed) = (run.join(REPLACED), run.join(REMOVED));
    let gone = match fs::rename(&folder, &removed) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| fs::remove_dir_all(&removed)),
    };
    if let Err(error) = gone {
        log::warn!("cannot delete the replaced run in {}: {error}", run.display());
    }
}

/// Whether a killed process may have left a replacement unfinished.
pub fn is_begun(run: &Path) -> bool {
    run.join(REPLACED).is_dir()
}

/// Finishes or undoes a replacement that a killed process left unfinished. The caller must hold the
/// directory's lock.
///
/// # Errors
/// If `.replaced/` cannot be read, or the old run cannot be put back.
pub fn settle(run: &Path) -> Result<(), RecordError> {
    let folder = run.join(REPLACED);
    let found = files::entries(&folder).map_err(|e| RecordError::read(&folder, e))?;
    let is_own = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(is_replaced);
    if !found.iter().any(is_own) {
        // The process was killed before it moved a file of the run. If the folder contains other files,
        // `remove_dir` fails and keeps them.
        let _ = fs::remove_dir(&folder);
        return Ok(());
    }
    if run.join(RUN_JSON).exists() && folder.join(RUN_JSON).exists() {
        remove(run);
        return Ok(());
    }
    // If the new run created this folder, it is still empty. If it contains checkpoints of the old run,
    // `remove_dir` fails and keeps them.
    let _ = fs::remove_dir(run.join("checkpoints"));
    put_back(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a process that is killed after each of its steps in turn.
    #[test]
    fn one_of_the_two_runs_is_whole_after_every_step() {
        let steps = [
            ".curve.part",
            "rank0",
            "epochs.csv",
            "checkpoints",
            RUN_JSON,
            "new checkpoints",
            "new run.json",
            "renamed",
        ];
        for done in 0..=steps.len() {
            let root = tempfile::tempdir().unwrap();
            let path = |name: &str| root.path().join(name);
            fs::create_dir_all(path("checkpoints/step-00000001")).unwrap();
            fs::create_dir(path("rank0")).unwrap();
            for name in [".curve.part", "epochs.csv", RUN_JSON, "notes.txt"] {
                fs::write(path(name), "old").unwrap();
            }
            fs::create_dir(path(REPLACED)).unwrap();
            for step in &steps[..done] {
                match *step {
                    "new checkpoints" => fs::create_dir(path("checkpoints")).unwrap(),
                    "new run.json" => fs::write(path(RUN_JSON), "new").unwrap(),
                    "renamed" => fs::rename(path(REPLACED), path(REMOVED)).unwrap(),
                    name => fs::rename(path(name), path(REPLACED).join(name)).unwrap(),
                }
            }
            settle(root.path()).unwrap();
            let is_old = fs::read_to_string(path(RUN_JSON)).unwrap() == "old";
            assert_eq!(is_old, done < 7, "after {done} steps");
            assert_eq!(path("checkpoints/step-00000001").exists(), is_old, "after {done} steps");
            assert_eq!((path("rank0").exists(), path("epochs.csv").exists()), (is_old, is_old));
            assert!(path("notes.txt").exists() && !path(REPLACED).exists(), "after {done} steps");
        }
    }

    #[test]
    fn a_folder_of_that_name_with_something_else_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(REPLACED)).unwrap();
        fs::write(root.path().join(REPLACED).join("mine"), "").unwrap();
        fs::write(root.path().join(RUN_JSON), "").unwrap();
        settle(root.path()).unwrap();
        let error = set_aside(root.path()).unwrap_err().to_string();
        assert!(error.contains(".replaced: File exists"), "{error}");
        assert!(root.path().join(RUN_JSON).exists() && root.path().join(REPLACED).join("mine").exists());
    }
}
