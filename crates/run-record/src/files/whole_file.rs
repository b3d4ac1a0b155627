//! Atomic file replacement: a reader sees the old file or the complete new file.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tempfile::{Builder, TempPath};

/// A file that is written under a temporary name and renamed when it is finished. A file with the final name
/// is therefore always complete. If a `WholeFile` is dropped before it is finished, the temporary file is
/// removed.
pub struct WholeFile {
    // A `NamedTempFile` would name the temporary file in its errors.
    file: BufWriter<File>,
    temporary: TempPath,
    target: PathBuf,
}

impl WholeFile {
    /// Creates the file `name` in the folder `out`, under a temporary name.
    ///
    /// # Errors
    /// If the folder cannot be written to, or `name` exists and is not a regular file: the rename would
    /// replace a device, a pipe or a link.
    pub fn create(out: &Path, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let target = out.join(name);
        super::refuse_link(&target)?;
        if target.is_dir() {
            let what = "it is a folder, not a regular file: name a file in it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
        }
        // The prefix is an `OsString`, because `name` need not be UTF-8.
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".");
        // Like other files that a program creates, this file must be readable by everybody whom the umask
        // allows. By default, the crate `tempfile` makes temporary files readable by their owner only.
        let open = |path: &Path| File::options().write(true).create_new(true).open(path);
        let file = Builder::new().prefix(&prefix).suffix(".part").make_in(out, open)?;
        let (file, temporary) = file.into_parts();
        Ok(Self { file: BufWriter::with_capacity(1 << 16, file), temporary, target })
    }

    /// Creates the file `path`, like [`create`](Self::create).
    ///
    /// # Errors
    /// If [`create`](Self::create) returns an error, or the folder does not exist.
    pub fn at(path: &Path) -> io::Result<Self> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        // `file_name` returns a name for `file/` and `file/.`, although both paths mean a folder.
        let text = path.as_os_str().as_encoded_bytes();
        let is_folder = text.ends_with(b"/") || text.ends_with(b"/.");
        let name = path
            .file_name()
            .filter(|_| !is_folder)
            .ok_or_else(|| invalid("it does not end in a file name".into()))?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        match fs::metadata(folder) {
            Ok(found) if found.is_dir() => Self::create(folder, name),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Err(invalid(format!("the folder {} does not exist", folder.display()))),
        }
    }

    /// Syncs the file to disk and renames it.
    ///
    /// # Errors
    /// If it cannot be written or renamed.
    pub fn finish(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        self.temporary.persist(&self.target).map_err(|e| e.error)?;
        sync_folder(self.target.parent().unwrap_or(Path::new(".")))
    }
}

/// Atomically replaces the file `name` in `folder` by `value` as JSON. A reader sees either the old file or
/// the new one.
///
/// # Errors
/// If it cannot be written.
pub fn replace_json(folder: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let mut file = WholeFile::create(folder, name)?;
    serde_json::to_writer_pretty(&mut file, value)?;
    file.write_all(b"\n")?;
    file.finish()
}

/// Atomically replaces the file `path` by `bytes`.
///
/// # Errors
/// If it cannot be written.
pub fn replace_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = WholeFile::at(path)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Syncs the entries of `folder` to disk, so that a rename survives a power failure. Does nothing on a file
/// system that cannot sync folders.
///
/// # Errors
/// If the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    // The parent of a bare name is empty, which means the current folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(folder)?.sync_all() {
        // Folders shared by VirtualBox and WSL, and old CIFS, do not support it (fsync(2): EINVAL).
        Err(error) if [io::ErrorKind::InvalidInput, io::ErrorKind::Unsupported].contains(&error.kind()) => {
            Ok(())
        }
        synced => synced,
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_is_not_a_regular_file_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for name in ["target/", "target/.", "new/"] {
            let error = replace_file(&folder.path().join(name), b"lost").unwrap_err().to_string();
            assert_eq!(error, "it does not end in a file name", "{name}");
        }
        for name in ["link", "folder"] {
            if name == "folder" {
                fs::create_dir(folder.path().join(name)).unwrap();
            }
            let error = WholeFile::create(folder.path(), name).err().expect("an error");
            let expected = if name == "link" { "symbolic link" } else { "not a regular file" };
            assert!(error.to_string().contains(expected), "{error}");
        }
        let error = replace_file(Path::new("/proc/new"), b"").unwrap_err().to_string();
        assert!(!error.contains(".part"), "{error}");
        assert_eq!(fs::read_to_string(&link).unwrap(), "kept");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    }

    #[test]
    fn a_file_is_replaced_only_when_finished() {
        let folder = tempfile::tempdir().unwrap();
        let read = || std::fs::read_to_string(folder.path().join("a.json")).unwrap();
        replace_json(folder.path(), "a.json", &[1]).unwrap();
        let mut file = WholeFile::create(folder.path(), "a.json").unwrap();
        file.write_all(b"2").unwrap();
        assert_eq!(read(), "[\n  1\n]\n");
        drop(file);
        assert_eq!(read(), "[\n  1\n]\n");
        replace_json(folder.path(), "a.json", &3).unwrap();
        assert_eq!(read(), "3\n");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
    }

    #[test]
    fn a_folder_without_fsync_is_no_error() {
        let proc = Path::new("/proc");
        assert_eq!(File::open(proc).unwrap().sync_all().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        sync_folder(proc).unwrap();
        assert!(sync_folder(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn permissions_follow_the_umask() {
        let folder = tempfile::tempdir().unwrap();
        replace_json(folder.path(), "ours", &1).unwrap();
        std::fs::write(folder.path().join("usual"), "1").unwrap();
        let mode = |name| folder.path().join(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode("ours"), mode("usual"));
    }
}
