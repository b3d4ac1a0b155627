//! Files that are whole or not there.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// A file being written under a temporary name. It gets its own name when it is
/// finished, so that a file of the right name is never a part of one; before
/// that it goes away when it is dropped.
pub struct WholeFile {
    file: BufWriter<File>,
    temporary: PathBuf,
    target: PathBuf,
}

impl WholeFile {
    /// Starts the file `name` of the folder `out`.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn create(out: &Path, name: &str) -> io::Result<Self> {
        let temporary = out.join(format!(".{name}.{}.part", std::process::id()));
        let file = BufWriter::with_capacity(1 << 16, File::create(&temporary)?);
        Ok(Self { file, temporary, target: out.join(name) })
    }

    /// Brings the file to the disk and gives it its name.
    ///
    /// # Errors
    /// When it cannot be written to its end, or not renamed.
    pub fn finish(mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()?;
        fs::rename(&self.temporary, &self.target)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // After a rename there is nothing left to remove, and that is fine.
        let _ = fs::remove_file(&self.temporary);
    }
}
