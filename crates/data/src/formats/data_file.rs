//! Reads data files at given offsets, with `pread`.
//!
//! The files are not memory-mapped. While Rust code borrows the bytes of a memory map, another process could
//! change or truncate the file. This would be undefined behaviour, so memory maps need `unsafe` code, which
//! this crate forbids. With `pread`, each byte is copied once from the page cache, which all processes of a
//! host share. If the file is truncated, `pread` returns an error, while an access to a memory map raises
//! SIGBUS.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use run_record::files::open_regular;

use crate::DataError;

/// Approximate size of one read in bytes: large enough for few system calls, and small enough for the CPU's
/// cache.
const BLOCK: usize = 1 << 18;

/// An open file of known length.
#[derive(Debug)]
pub struct DataFile {
    /// Path of the file.
    pub path: PathBuf,
    file: File,
    /// Modification time when the file was opened.
    modified: Option<SystemTime>,
    /// Length in bytes when the file was opened.
    pub len: usize,
}

impl DataFile {
    /// Opens the file `path`.
    ///
    /// # Errors
    /// When the file cannot be opened or is not a regular file.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = open_regular(path).map_err(DataError::read(path))?;
        let kind = file.metadata().map_err(DataError::read(path))?;
        if !kind.is_file() {
            return Err(DataError::read(path)(std::io::Error::other("not a regular file")));
        }
        let modified = kind.modified().ok();
        Ok(Self { path: path.to_owned(), file, modified, len: kind.len() as usize })
    }

    /// Fills `buffer` with the bytes that begin at offset `from`.
    ///
    /// # Errors
    /// When the file ends before `buffer` is full, or cannot be read.
    pub fn read(&self, from: usize, buffer: &mut [u8]) -> Result<(), DataError> {
        self.file.read_exact_at(buffer, from as u64).map_err(DataError::unpack(&self.path))
    }

    /// Checks that the length and the modification time of the file have not changed since it was opened.
    ///
    /// # Errors
    /// When the length or the modification time has changed, or cannot be read.
    pub fn check_unchanged(&self) -> Result<(), DataError> {
        let now = self.file.metadata().map_err(DataError::read(&self.path))?;
        if now.len() as usize != self.len || now.modified().ok() != self.modified {
            bail!(&self.path, "was changed after it was opened: restore the file");
        }
        Ok(())
    }

    /// Returns the first `most` bytes, or the whole file if it is shorter.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn beginning(&self, most: usize) -> Result<Vec<u8>, DataError> {
        let mut bytes = vec![0; most.min(self.len)];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Calls `visit` with the index and the bytes of each of `count` consecutive records of `size` bytes. The
    /// first record is at offset `from`.
    ///
    /// # Errors
    /// When the file ends before the last record does, when the file cannot be read, or when `visit` returns
    /// an error.
    pub fn for_each_record(
        &self,
        from: usize,
        [count, size]: [usize; 2],
        mut visit: impl FnMut(usize, &[u8]) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let most = (BLOCK / size.max(1)).max(1);
        let mut block = vec![0; most.min(count) * size];
        for first in (0..count).step_by(most) {
            let block = &mut block[..most.min(count - first) * size];
            self.read(from + first * size, block)?;
            let records = block.chunks_exact(size.max(1)).enumerate();
            records.into_iter().try_for_each(|(record, bytes)| visit(first + record, bytes))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_in_order_and_a_truncated_file_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("records");
        let bytes: Vec<u8> = (0..300_001u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = DataFile::open(&path).unwrap();
        for (from, size) in [(1, 3), (1, 100_000), (1, 300_000)] {
            let mut found = Vec::new();
            let visit = |number: usize, record: &[u8]| -> Result<(), DataError> {
                assert_eq!((number * size, record.len()), (found.len(), size));
                found.extend_from_slice(record);
                Ok(())
            };
            file.for_each_record(from, [300_000 / size, size], visit).unwrap();
            assert!(found == bytes[from..], "records of {size}");
        }
        assert_eq!(file.beginning(2).unwrap(), bytes[..2]);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10).unwrap();
        let found = file.for_each_record(0, [4, 5], |_, _| Ok::<(), DataError>(()));
        assert!(matches!(found.unwrap_err(), DataError::Damaged { path: named, .. } if named == path));
        assert!(DataFile::open(root.path()).is_err(), "a folder");
    }
}
