//! Advisory lock on a folder that only one process at a time may write to.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::open_here;
use crate::RecordError;

/// Name of the lock file in the folder. The file stays there when the lock is released. Only the holder of
/// the lock may remove the file, after all other files of the folder.
pub const LOCK: &str = ".lock";

/// A held lock. It is released when this value is dropped or the process ends.
#[derive(Debug)]
pub struct FolderLock {
    /// The locked file; closing it releases the lock. `None` on a file system without locks.
    _file: Option<File>,
}

/// Locks `folder`, which must exist. On a file system without locks, logs a warning and succeeds.
///
/// # Errors
/// [`RecordError::InUse`] if another process holds the lock; another error if the lock file cannot be opened.
pub fn lock(folder: &Path) -> Result<FolderLock, RecordError> {
    let path = folder.join(LOCK);
    let options = &mut File::options();
    let opened = open_here(&path, options.read(true).write(true).create(true).truncate(false));
    let mut file = opened.map_err(|error| RecordError::write(&path, error))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.take(256).read_to_string(&mut holder);
            let holder = holder.trim();
            let holder = if holder.is_empty() { "another process" } else { holder }.to_owned();
            return Err(RecordError::InUse { folder: folder.to_owned(), holder });
        }
        Err(TryLockError::Error(error)) => {
            log::warn!("cannot lock {} ({error}): do not start a second job in this folder", path.display());
            return Ok(FolderLock { _file: None });
        }
    }
    // If the lock file was removed after it was opened here, another process may have created and locked a
    // new lock file. The folder therefore counts as in use.
    if file.metadata().is_ok_and(|found| found.nlink() == 0) {
        return Err(RecordError::InUse { folder: folder.to_owned(), holder: "another process".into() });
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    // Errors are ignored: the file's content only names the holder, and a full disk must not keep a run from
    // starting.
    let _ = file.set_len(0);
    let _ = writeln!(file, "process {} on {}", std::process::id(), host.trim());
    Ok(FolderLock { _file: Some(file) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_holder_until_the_first_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        let RecordError::InUse { holder, .. } = lock(folder.path()).unwrap_err() else {
            panic!("the folder is locked");
        };
        assert!(holder.starts_with(&format!("process {} on ", std::process::id())), "{holder}");
        drop(first);
        assert!(lock(folder.path()).is_ok());
        assert!(matches!(lock(&folder.path().join("none")), Err(RecordError::Write { .. })));
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
            let error = super::lock(folder.path()).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
            fs::remove_file(&lock).unwrap();
        }
    }
}
