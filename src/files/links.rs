//! Files of a run directory are written where they are, never where a link leads.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::hex;

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

/// Writes `value` as JSON to a new file, syncs it to disk and returns its SHA-256; the text is never
/// in memory as a whole.
///
/// # Errors
/// If it cannot be written.
pub fn write_json_synced(path: &Path, value: &impl Serialize) -> io::Result<String> {
    refuse_link(path)?;
    let file = Hashed { file: File::create(path)?, sha256: Sha256::new() };
    let mut file = BufWriter::with_capacity(1 << 16, file);
    serde_json::to_writer_pretty(&mut file, value)?;
    let Hashed { file, sha256 } = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    Ok(hex(sha256.finalize()))
}

/// A file, with the digest of what was written to it.
struct Hashed {
    file: File,
    sha256: Sha256,
}

impl Write for Hashed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.sha256.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_json_is_that_of_the_file() {
        let root = tempfile::tempdir().unwrap();
        let (file, values) = (root.path().join("a.json"), vec![0.1; 20_000]);
        let digest = write_json_synced(&file, &values).unwrap();
        let written = fs::read(&file).unwrap();
        assert!(written.len() > 1 << 16, "more than one buffer");
        assert_eq!(digest, super::super::sha256(&written));
        assert_eq!(serde_json::from_slice::<Vec<f64>>(&written).unwrap(), values);
    }

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
