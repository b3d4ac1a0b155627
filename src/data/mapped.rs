//! Files as memory: only the pages that are looked at are ever read, and all
//! ranks of a host share them.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::DataError;
use crate::ops::file_map;

/// A file, mapped to be read.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    map: Mmap,
}

impl Mapped {
    /// Maps `path`.
    ///
    /// # Errors
    /// When it cannot be opened or is no plain file.
    pub fn open(path: &Path) -> Result<Self, DataError> {
        let file = File::open(path).map_err(DataError::read(path))?;
        let kind = file.metadata().map_err(DataError::read(path))?;
        if !kind.is_file() {
            return Err(DataError::read(path)(std::io::Error::other("not a plain file")));
        }
        let map = file_map::map(&file).map_err(DataError::read(path))?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// Where the file lies.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}
