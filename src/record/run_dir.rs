//! Creating a run directory, and the paths inside one.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{RecordError, RunRecord};
use crate::files::{FolderLock, LOCK, LockError, read_regular, refuse_link, replace_json};

/// A run's directory on rank 0's host.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
    /// Of a directory that this process writes to, until the last copy is dropped.
    _lock: Option<Arc<FolderLock>>,
}

/// Locks a folder of results.
///
/// # Errors
/// [`RecordError::InUse`] if another process has locked it.
pub fn lock(folder: &Path) -> Result<FolderLock, RecordError> {
    FolderLock::take(folder).map_err(|error| match error {
        LockError::Held(holder) => RecordError::InUse { folder: folder.to_owned(), holder },
        LockError::File(error) => RecordError::write(&folder.join(LOCK), error),
    })
}

/// Entries of a folder besides its lock; none of one that cannot be read.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = fs::DirEntry> {
    let is_lock = |entry: &fs::DirEntry| entry.file_name() == OsStr::new(LOCK);
    fs::read_dir(folder).into_iter().flatten().flatten().filter(move |entry| !is_lock(entry))
}

/// Removes what is in a folder, besides its lock.
fn clear(folder: &Path) -> io::Result<()> {
    entries(folder).try_for_each(|entry| match entry.file_type()?.is_dir() {
        true => fs::remove_dir_all(entry.path()),
        false => fs::remove_file(entry.path()),
    })
}

impl RunDir {
    /// Creates the directory, with its folders for checkpoints and ranks, and locks it.
    ///
    /// # Errors
    /// If it cannot be written, is locked by another process, or exists and `overwrite` is not
    /// given.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, RecordError> {
        let is_run = path.join("run.json").exists();
        let is_empty = path.is_dir() && entries(path).next().is_none();
        if path.exists() && !is_empty {
            // Only a run directory is ever removed, so that a mistyped path
            // cannot delete a home directory.
            match (is_run, overwrite) {
                (false, _) => return Err(RecordError::NoRun(path.to_owned())),
                (true, false) => return Err(RecordError::Exists(path.to_owned())),
                (true, true) => {}
            }
        }
        fs::create_dir_all(path).map_err(|e| RecordError::write(path, e))?;
        let dir = Self { path: path.to_owned(), _lock: Some(Arc::new(lock(path)?)) };
        clear(path).map_err(|e| RecordError::write(path, e))?;
        fs::create_dir_all(dir.checkpoints()).map_err(|e| RecordError::write(path, e))?;
        Ok(dir)
    }

    /// Creates the directory, or one with the suffix -2, -3, … if it exists:
    /// from a run that was started in the same second.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create_unique(path: &Path) -> Result<Self, RecordError> {
        let failed = |path: &Path, error| RecordError::write(path, error);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
        }
        for number in 1.. {
            let path = match number {
                1 => path.to_owned(),
                _ => PathBuf::from(format!("{}-{number}", path.display())),
            };
            // Only one of several processes creates the directory; the others
            // get an error.
            match fs::create_dir(&path) {
                Ok(()) => return Self::create(&path, false),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        unreachable!("there are more numbers than directories")
    }

    /// The directory of an earlier run, to read from.
    ///
    /// # Errors
    /// If it contains no readable `run.json`.
    pub fn open<C: DeserializeOwned>(path: &Path) -> Result<(Self, RunRecord<C>), RecordError> {
        let file = path.join("run.json");
        let text = read_regular(&file).map_err(|e| RecordError::read(&file, e))?;
        let record = serde_json::from_slice(&text).map_err(|e| RecordError::damaged(&file, e.to_string()))?;
        Ok((Self { path: path.to_owned(), _lock: None }, record))
    }

    /// The same, locked, to go on with the run.
    ///
    /// # Errors
    /// If another process has locked it, or its lock cannot be written.
    pub fn locked(self) -> Result<Self, RecordError> {
        Ok(Self { _lock: Some(Arc::new(lock(&self.path)?)), ..self })
    }

    /// Checks that nothing that a run of `ranks` ranks writes is a symbolic link.
    ///
    /// # Errors
    /// The first link.
    pub fn refuse_links(&self, ranks: usize) -> Result<(), RecordError> {
        let of_rank = |rank| {
            let names = ["", "/train.loss", "/train.acc", "/test.loss", "/test.acc"];
            names.map(|name| format!("rank{rank}{name}"))
        };
        let files = ["run.json", "epochs.csv", "checkpoints", "tensorboard"].map(String::from);
        for name in files.into_iter().chain((0..ranks).flat_map(of_rank)) {
            let path = self.path.join(name);
            refuse_link(&path).map_err(|e| RecordError::write(&path, e))?;
        }
        Ok(())
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Sets the field `name` of `run.json` to `value`, while the run goes on.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn note(&self, name: &str, value: &impl Serialize) -> Result<(), RecordError> {
        let file = self.path.join("run.json");
        let damaged = |e: serde_json::Error| RecordError::damaged(&file, e.to_string());
        let text = read_regular(&file).map_err(|e| RecordError::read(&file, e))?;
        let mut record: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(damaged)?;
        record.insert(name.to_owned(), serde_json::to_value(value).map_err(damaged)?);
        replace_json(&self.path, "run.json", &record).map_err(|e| RecordError::write(&file, e))
    }

    /// Replaces `run.json` atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_record<C: Serialize>(&self, record: &RunRecord<C>) -> Result<(), RecordError> {
        let name = "run.json";
        replace_json(&self.path, name, record).map_err(|e| RecordError::write(&self.path.join(name), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_run_is_replaced_only_when_asked_and_nothing_else_ever() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        RunDir::create(&path, false).unwrap();
        let error = RunDir::create(&path, true).unwrap_err().to_string();
        assert!(error.contains("is no run directory"), "{error}");
        fs::write(path.join("run.json"), "{}").unwrap();
        let error = RunDir::create(&path, false).unwrap_err().to_string();
        assert!(error.contains("--resume") && error.contains("--overwrite"), "{error}");
        fs::write(path.join("epochs.csv"), "old").unwrap();
        RunDir::create(&path, true).unwrap();
        assert!(!path.join("epochs.csv").exists());
    }

    #[test]
    fn runs_of_one_second_have_directories_of_their_own() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("results/run");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || RunDir::create_unique(&path).unwrap().path().to_owned())
            })
            .collect();
        let mut made: Vec<PathBuf> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        made.sort();
        let name = |name: &str| root.path().join("results").join(name);
        assert_eq!(made, [name("run"), name("run-2"), name("run-3"), name("run-4")]);
        assert!(made.iter().all(|path| path.join("checkpoints").is_dir()));
    }

    #[test]
    fn a_path_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = RunDir::create(&file.join("run"), false).unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("file/run"), "{error}");
    }
}
