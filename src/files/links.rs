//! Files of a run directory are written where they are, never where a link leads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Checks that `path` is no symbolic link, where what is written changes a file elsewhere, and no pipe
/// or device.
///
/// # Errors
/// If it is one.
pub fn refuse_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => Err(io::Error::new(
            ErrorKind::AlreadyExists,
            "it is a symbolic link, and nothing is written through one: remove the link",
        )),
        Ok(found) if !found.is_file() && !found.is_dir() => {
            Err(io::Error::new(ErrorKind::AlreadyExists, "it is not a regular file: remove it"))
        }
        _ => Ok(()),
    }
}

/// Replaces the content of `path`, which is no link.
///
/// # Errors
/// If it cannot be written.
pub fn write_here(path: &Path, bytes: &[u8]) -> io::Result<()> {
    refuse_link(path)?;
    fs::write(path, bytes)
}

/// Appends to `path`, which is no link; creates it if it is missing.
///
/// # Errors
/// If it cannot be written.
pub fn append_here(path: &Path, bytes: &[u8]) -> io::Result<()> {
    refuse_link(path)?;
    OpenOptions::new().create(true).append(true).open(path)?.write_all(bytes)
}

/// Writes a new file and syncs it to disk.
///
/// # Errors
/// If it cannot be written.
pub fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    refuse_link(path)?;
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_through_a_link() {
        let root = tempfile::tempdir().unwrap();
        let (target, link) = (root.path().join("target"), root.path().join("link"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for write in [write_here, append_here, write_synced] {
            let error = write(&link, b"lost").unwrap_err().to_string();
            assert!(error.contains("symbolic link"), "{error}");
            write(&root.path().join("new"), b"x").unwrap();
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
    }
}
