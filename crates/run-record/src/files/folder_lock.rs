//! An advisory lock on a folder that one process at a time may write to.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

use super::open_here;

/// Name of the file in the folder that is locked. It stays: removing it, a process could lock one
/// that another has just opened.
pub const LOCK: &str = ".lock";

/// The lock, until dropped or until the process ends.
#[derive(Debug)]
pub struct FolderLock {
    /// Dropping it gives the lock back.
    _file: Option<File>,
}

/// Why a folder cannot be locked.
#[derive(Debug)]
pub enum LockError {
    /// Another process has it: which one, and where.
    Held(String),
    /// The lock's file cannot be opened.
    File(io::Error),
}

impl FolderLock {
    /// Locks `folder`, which exists. On a file system without locks this succeeds with a warning.
    pub fn take(folder: &Path) -> Result<Self, LockError> {
        let path = folder.join(LOCK);
        let options = &mut File::options();
        let opened = open_here(&path, options.read(true).write(true).create(true).truncate(false));
        let mut file = opened.map_err(LockError::File)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.take(256).read_to_string(&mut holder);
                let holder = holder.trim();
                return Err(LockError::Held(
                    if holder.is_empty() { "another process" } else { holder }.to_owned(),
                ));
            }
            Err(TryLockError::Error(error)) => {
                log::warn!("{} cannot be locked ({error}): start no second job there", path.display());
                return Ok(Self { _file: None });
            }
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        // What is written only names the holder: a full disk must not keep a run from starting.
        let _ = file.set_len(0);
        let _ = writeln!(file, "process {} on {}", std::process::id(), host.trim());
        Ok(Self { _file: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_holder_until_the_first_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderLock::take(folder.path()).unwrap();
        let LockError::Held(holder) = FolderLock::take(folder.path()).unwrap_err() else {
            panic!("the folder is locked");
        };
        assert!(holder.starts_with(&format!("process {} on ", std::process::id())), "{holder}");
        drop(first);
        assert!(FolderLock::take(folder.path()).is_ok());
        assert!(matches!(FolderLock::take(&folder.path().join("none")), Err(LockError::File(_))));
    }

    #[test]
    fn a_link_in_the_locks_place_is_refused_and_its_target_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, target) = (folder.path().join(LOCK), folder.path().join("target"));
        for name in ["symbolic link", "hard link"] {
            fs::write(&target, "kept").unwrap();
            match name {
                "hard link" => fs::hard_link(&target, &lock).unwrap(),
                _ => std::os::unix::fs::symlink(&target, &lock).unwrap(),
            }
            let LockError::File(error) = FolderLock::take(folder.path()).unwrap_err() else {
                panic!("nobody holds the lock");
            };
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
            fs::remove_file(&lock).unwrap();
        }
    }
}
