//! Creates and opens run directories, and names the paths inside.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::checkpoint::Curves;
use super::writer::curve_rank;
use super::{Curve, RecordError, RunRecord, json_problem, replaced};
use crate::files::{self, FolderLock, LOCK, lock, read_regular, refuse_link, replace_json};

pub(super) const RUN_JSON: &str = "run.json";

/// A run directory, on the host of rank 0.
#[derive(Debug, Clone)]
pub struct RunDir {
    path: PathBuf,
    /// Lock of a directory that this process writes to. It is released when the last clone is dropped.
    _lock: Option<Arc<FolderLock>>,
}

/// Returns the entries of a folder except its lock; an empty list if the folder does not exist.
pub(super) fn content(folder: &Path) -> io::Result<Vec<fs::DirEntry>> {
    let mut entries = files::entries(folder)?;
    entries.retain(|entry| entry.file_name() != OsStr::new(LOCK));
    Ok(entries)
}

impl RunDir {
    /// Creates and locks the directory of a new run. If `overwrite` is set, the directory may contain an old
    /// run, which stays there until [`begin`](Self::begin).
    ///
    /// # Errors
    /// If `path` is a file; if the directory cannot be read or written; if another process holds its lock; if
    /// it contains files but no run; if it contains a run and `overwrite` is not set; or if its `run.json`
    /// cannot be parsed.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self, RecordError> {
        Self::create_here(path, overwrite).map_err(RecordError::of_new_run)
    }

    fn create_here(path: &Path, overwrite: bool) -> Result<Self, RecordError> {
        Self::settle(path)?;
        let found = match content(path) {
            Err(error) if error.kind() == ErrorKind::NotADirectory && path.exists() => {
                return Err(RecordError::NoRun(path.to_owned()));
            }
            found => found.map_err(|e| RecordError::write(path, files::naming_file_above(path, e)))?,
        };
        if !found.is_empty() {
            // Only a run is ever replaced. A folder without `run.json` is not a run, and `readable` below
            // rejects the `run.json` of another program.
            let is_run = found.iter().any(|entry| entry.file_name() == OsStr::new(RUN_JSON));
            if !is_run {
                return Err(RecordError::NoRun(path.to_owned()));
            }
            // The error `Exists` offers `--resume` and `--overwrite`. Both reject a damaged run, so check for
            // damage first.
            Self::readable(path)?;
            if !overwrite {
                return Err(RecordError::Exists(path.to_owned()));
            }
        }
        fs::create_dir_all(path).map_err(|e| RecordError::write(path, e))?;
        Ok(Self { path: path.to_owned(), _lock: Some(Arc::new(lock(path)?)) })
    }

    /// Finishes or undoes a replacement (`--overwrite`) that a killed process left unfinished in `path`.
    ///
    /// # Errors
    /// If another process has locked the directory, or a file cannot be moved.
    pub fn settle(path: &Path) -> Result<(), RecordError> {
        if replaced::is_begun(path) {
            let _lock = lock(path)?;
            replaced::settle(path)?;
        }
        Ok(())
    }

    /// Whether the directory contains anything but its lock, such as an old run.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn is_occupied(&self) -> Result<bool, RecordError> {
        let found = content(&self.path).map_err(|e| RecordError::read(&self.path, e))?;
        Ok(!found.is_empty())
    }

    /// Reads the run in `path`, to check that it is a run of this program.
    ///
    /// # Errors
    /// If its `run.json` is damaged, unreadable, or another program's, because nobody then knows what else
    /// the directory contains.
    pub fn readable(path: &Path) -> Result<RunRecord<Value>, RecordError> {
        match Self::open::<Value>(path) {
            Ok((_, record)) => Ok(record),
            Err(error) if error.is_damage() => Err(RecordError::NotReplaced(path.join(RUN_JSON))),
            Err(error) => Err(error),
        }
    }

    /// Begins a run: writes `record` as `run.json`. An old run is moved aside first, and deleted after
    /// `run.json` is written. Files that no run writes stay.
    ///
    /// # Errors
    /// If a file cannot be moved or written; the old run is then put back.
    pub fn begin<C: Serialize>(&self, record: &RunRecord<C>) -> Result<(), RecordError> {
        replaced::set_aside(&self.path)?;
        let checkpoints = self.checkpoints();
        let begun = fs::create_dir(&checkpoints).map_err(|e| RecordError::write(&checkpoints, e));
        if let Err(error) = begun.and_then(|()| self.write_record(record)) {
            let _ = fs::remove_dir(&checkpoints);
            replaced::put_back_or_warn(&self.path);
            return Err(error.of_new_run());
        }
        replaced::remove(&self.path);
        Ok(())
    }

    /// Creates the directory. If the name is taken, for example by a run that was started in the same second,
    /// adds a suffix to the name: -2, -3, …
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create_unique(path: &Path) -> Result<Self, RecordError> {
        let failed = |path: &Path, error| RecordError::write(path, error).of_new_run();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
        }
        for number in 1.. {
            let path = match number {
                1 => path.to_owned(),
                _ => PathBuf::from(format!("{}-{number}", path.display())),
            };
            // Only one of several processes creates the directory. The others get an error and try the next
            // number.
            match fs::create_dir(&path) {
                Ok(()) => return Self::create(&path, false),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(&path, error)),
            }
        }
        unreachable!("there are more numbers than directories")
    }

    /// Opens the directory of an earlier run for reading.
    ///
    /// # Errors
    /// If it contains no `run.json`, or `run.json` cannot be read or parsed.
    pub fn open<C: DeserializeOwned>(path: &Path) -> Result<(Self, RunRecord<C>), RecordError> {
        let file = path.join(RUN_JSON);
        let text = match read_regular(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound && replaced::is_begun(path) => {
                return Err(RecordError::Replaced(path.to_owned()));
            }
            text => text.map_err(|e| RecordError::read(&file, e))?,
        };
        let record =
            serde_json::from_slice(&text).map_err(|e| RecordError::damaged(&file, json_problem(&e)))?;
        Ok((Self { path: path.to_owned(), _lock: None }, record))
    }

    /// Locks the directory, to resume its run.
    ///
    /// # Errors
    /// If another process holds the lock, or the lock file cannot be written.
    pub fn locked(self) -> Result<Self, RecordError> {
        Ok(Self { _lock: Some(Arc::new(lock(&self.path)?)), ..self })
    }

    /// Checks that `run.json`, `epochs.csv`, the curves of `ranks` ranks and of the ranks in `curves`, and the
    /// folders of the run are not symbolic links, pipes or devices.
    ///
    /// # Errors
    /// If there is such a path; the error names the first.
    pub fn refuse_links(&self, ranks: usize, curves: &Curves) -> Result<(), RecordError> {
        let ranks = (0..ranks).chain(curves.keys().filter_map(|name| curve_rank(name)));
        let of_rank = |rank| {
            let curves = Curve::ALL.into_iter().flat_map(Curve::files);
            curves.map(move |name| format!("rank{rank}/{name}")).chain([format!("rank{rank}")])
        };
        let files = ["run.json", "epochs.csv", "checkpoints", "tensorboard"].map(String::from);
        for name in files.into_iter().chain(ranks.flat_map(of_rank)) {
            let path = self.path.join(name);
            refuse_link(&path).map_err(|e| RecordError::write(&path, e))?;
        }
        Ok(())
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of the folder of checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    /// Sets the field `name` of `run.json` to `value` while the run is in progress.
    ///
    /// # Errors
    /// If the file is damaged, or cannot be read or written.
    pub fn note(&self, name: &str, value: &impl Serialize) -> Result<(), RecordError> {
        let file = self.path.join(RUN_JSON);
        let damaged = |e: serde_json::Error| RecordError::damaged(&file, json_problem(&e));
        let text = read_regular(&file).map_err(|e| RecordError::read(&file, e))?;
        let mut record: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(damaged)?;
        record.insert(name.to_owned(), serde_json::to_value(value).map_err(damaged)?);
        replace_json(&self.path, RUN_JSON, &record).map_err(|e| RecordError::write(&file, e))
    }

    /// Replaces `run.json` atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write_record<C: Serialize>(&self, record: &RunRecord<C>) -> Result<(), RecordError> {
        replace_json(&self.path, RUN_JSON, record)
            .map_err(|e| RecordError::write(&self.path.join(RUN_JSON), e))
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
        fs::write(path.join("notes.txt"), "mine").unwrap();
        let error = RunDir::create(&path, true).unwrap_err();
        assert!(matches!(&error, RecordError::NoRun(named) if *named == path), "{error}");
        for other in ["", "{}", "[1, 2]", "{\"status\": \"completed\"}"] {
            fs::write(path.join("run.json"), other).unwrap();
            let run_json = path.join("run.json");
            for overwrite in [false, true] {
                let error = RunDir::create(&path, overwrite).unwrap_err();
                assert!(matches!(&error, RecordError::NotReplaced(named) if *named == run_json), "{error}");
                let error = error.to_string();
                assert!(error.contains(&format!("the folder {} ", path.display())), "{error}");
                assert!(!error.contains("--resume") && !error.contains("--overwrite"), "{error}");
            }
        }
        assert_eq!(fs::read_to_string(path.join("notes.txt")).unwrap(), "mine");
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
        assert!(made.iter().all(|path| path.is_dir()));
    }

    #[test]
    fn a_path_that_cannot_be_made_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let error = RunDir::create(&file.join("run"), false).unwrap_err().to_string();
        let is_named = error.contains(&format!("/file/run: {} is not a folder", file.display()));
        assert!(is_named && !error.contains("os error"), "{error}");
        let error = RunDir::create(&file, true).unwrap_err();
        assert!(matches!(&error, RecordError::NoRun(named) if *named == file), "{error}");
        let looped = root.path().join("loop");
        std::os::unix::fs::symlink("loop", &looped).unwrap();
        let error = RunDir::create(&looped, true).unwrap_err().to_string();
        assert!(error.contains("cannot write") && error.contains("symbolic link"), "{error}");
    }

    #[test]
    fn a_run_that_was_being_replaced_is_named_until_it_is_put_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("it's a run");
        fs::create_dir_all(path.join(".replaced/checkpoints/step-00000001")).unwrap();
        fs::write(path.join(".replaced/run.json"), "{}").unwrap();
        let words = format!("mpiburn train --resume {}", crate::quoted(path.display()));
        let error = RunDir::open::<Value>(&path).unwrap_err();
        assert!(error.to_string().ends_with(&words) && !error.is_missing(), "{error}");
        let newest =
            super::super::Intact::newest(&path.join("checkpoints"), |_| unreachable!("there is none"));
        assert!(newest.unwrap_err().to_string().ends_with(&words));
        RunDir::settle(&path).unwrap();
        assert!(path.join("checkpoints/step-00000001").exists() && path.join("run.json").exists());
    }
}
