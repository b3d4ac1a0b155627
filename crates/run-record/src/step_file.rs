//! The last step of a process, for whoever starts it again: a killed process leaves no other trace
//! of the steps after its last checkpoint.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::{RecordError, RunDir};
use crate::files::{create_here, read_regular};

/// Its name in the run directory.
pub(super) const STEP: &str = ".step";

/// A file that rank 0 writes the number of done steps to, at every step: a microsecond. It is not
/// synced, so it is lost with the machine, and the last checkpoint counts.
#[derive(Debug)]
pub struct StepFile {
    path: PathBuf,
    file: File,
}

impl StepFile {
    /// Creates the file, for a process that goes on after `step`.
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

    /// Notes that `step` steps are done. On a full disk nothing is noted: no training ends for it.
    pub fn note(&self, step: usize) {
        let _ = self.file.write_all_at(format!("{step:020}\n").as_bytes(), 0);
    }

    /// Removes the file.
    pub fn remove(self) {
        let _ = fs::remove_file(&self.path);
    }

    /// The last step that was noted in the run directory `dir`.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub fn read(dir: &Path) -> Result<Option<usize>, RecordError> {
        let path = dir.join(STEP);
        match read_regular(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).trim().parse().ok()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(RecordError::read(&path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
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
