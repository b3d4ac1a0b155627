//! Files that are whole or not there.

use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

/// A file being written under a temporary name. It gets its own name when it is
/// finished, so that a file of the right name is never a part of one; before
/// that it goes away when it is dropped.
pub struct WholeFile {
    file: BufWriter<NamedTempFile>,
    target: PathBuf,
}

impl WholeFile {
    /// Starts the file `name` of the folder `out`.
    ///
    /// # Errors
    /// When the folder cannot be written to.
    pub fn create(out: &Path, name: &str) -> io::Result<Self> {
        // Readable for whoever the umask lets, as files are that a program creates;
        // temporary ones are otherwise their owner's alone.
        let file = Builder::new()
            .prefix(&format!(".{name}."))
            .suffix(".part")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(out)?;
        Ok(Self { file: BufWriter::with_capacity(1 << 16, file), target: out.join(name) })
    }

    /// Brings the file to the disk and gives it its name.
    ///
    /// # Errors
    /// When it cannot be written to its end, or not renamed.
    pub fn finish(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.as_file().sync_all()?;
        file.persist(self.target).map_err(|e| e.error)?;
        Ok(())
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
