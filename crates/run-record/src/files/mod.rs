//! Files: atomic replacement, locks, digests, links, and safe reading.
//!
//! Reading differs from the standard library in two ways. Opening a FIFO fails at once and does not wait for
//! a writer. A file that cannot be read is never treated as a missing file.

mod file_kind;
mod folder_lock;
mod links;
mod whole_file;

use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use file_kind::{BEGINNING, FileKind, foreign, foreign_file};
pub use folder_lock::{FolderLock, LOCK, lock};
pub use links::{append_here, append_in, create_here, open_here, refuse_link, write_here, write_synced};
pub use whole_file::{WholeFile, replace_file, replace_json, sync_folder};

/// Placeholder for a digest inside a file while that digest is computed.
pub const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Returns `digest` in hexadecimal, as `sha256sum` writes it.
pub fn hex(digest: impl AsRef<[u8]>) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the SHA-256 of `bytes`, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// Returns the SHA-256 of `bytes` followed by everything that `rest` reads, in hexadecimal.
///
/// # Errors
/// If `rest` cannot be read.
pub fn sha256_with(bytes: &[u8], mut rest: impl Read) -> io::Result<String> {
    let (mut digest, mut block) = (Sha256::new_with_prefix(bytes), vec![0; 1 << 20]);
    loop {
        match rest.read(&mut block)? {
            0 => return Ok(hex(digest.finalize())),
            read => digest.update(&block[..read]),
        }
    }
}

/// Returns the SHA-256 of `values` as little-endian f32, in hexadecimal.
pub fn sha256_of_f32(values: &[f32]) -> String {
    sha256(bytemuck::cast_slice(values))
}

/// Returns the entries of a folder; an empty list if the folder does not exist.
///
/// # Errors
/// If it cannot be read or is not a folder.
pub fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    if_there(fs::read_dir(folder))?.into_iter().flatten().collect()
}

/// Turns the error `NotFound` into `None`.
///
/// # Errors
/// All other errors.
pub fn if_there<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Improves the error of reading or creating a folder at `path`. If a part of `path` is a file instead of a
/// folder, the new error names this file, which the system's error does not.
pub fn naming_file_above(path: &Path, error: io::Error) -> io::Error {
    let is_file = |above: &&Path| above.exists() && !above.is_dir();
    match path.ancestors().find(is_file) {
        Some(file) if matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::AlreadyExists) => {
            io::Error::new(ErrorKind::NotADirectory, format!("{} is not a folder", file.display()))
        }
        _ => error,
    }
}

/// Returns the free bytes of the file system that `path` is on; `None` if the system does not report them.
/// `path` need not exist.
pub fn free_bytes(path: &Path) -> Option<u128> {
    let there = std::path::absolute(path).ok()?;
    let disk = there.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok())?;
    // A file system without blocks, such as /proc, is not a disk.
    (disk.f_blocks > 0).then(|| u128::from(disk.f_bavail) * u128::from(disk.f_frsize))
}

/// Opens a regular file, directly or through a link.
///
/// # Errors
/// If it is a pipe, a socket or a device, cannot be opened, or is a Git LFS pointer instead of the file.
/// Opening a folder is not an error; reading it is.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let found = fs::metadata(path)?;
    let kind = found.file_type();
    let wrong = |what: String| Err(io::Error::new(ErrorKind::InvalidInput, what));
    if kind.is_fifo() {
        return wrong("not a regular file but a pipe".into());
    }
    // Reading a folder fails with the system's own error.
    if !kind.is_file() && !kind.is_dir() {
        return wrong("not a regular file".into());
    }
    let file = File::open(path)?;
    if kind.is_file() && found.len() <= file_kind::MOST_OF_POINTER {
        let mut beginning = vec![0; found.len() as usize];
        let read = file.read_at(&mut beginning, 0)?;
        if file_kind::is_pointer(&beginning[..read]) {
            return wrong(format!("it is {}", file_kind::POINTER));
        }
    }
    Ok(file)
}

/// Reads a regular file.
///
/// # Errors
/// If [`open_regular`] returns an error, or the file cannot be read.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file as text.
///
/// # Errors
/// If [`read_regular`] returns an error, or the file is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_regular(path)?)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Whether writing to `a` would replace what was written to `b`. This is so if both paths are the same name
/// in the same folder, or lead to the same file through links.
///
/// # Errors
/// If there is no working directory.
pub fn same_file(a: &Path, b: &Path) -> io::Result<bool> {
    if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
        return Ok((a.dev(), a.ino()) == (b.dev(), b.ino()));
    }
    Ok(place(a)? == place(b)?)
}

/// Returns the absolute path, with the links of its folder resolved if the folder exists.
///
/// # Errors
/// If the path is empty, or relative and there is no working directory.
pub fn place(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    Ok(folder.canonicalize().map_or(absolute.clone(), |folder| folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digest is from FIPS 180-2, appendix B.1.
    #[test]
    fn the_digest_of_abc_is_that_of_the_standard() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), expected);
        assert_eq!(hex([0, 10, 255]), "000aff");
        assert_eq!(sha256_with(b"a", &b"bc"[..]).unwrap(), expected);
    }

    #[test]
    fn only_a_missing_folder_has_no_entries() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("file"), "").unwrap();
        std::os::unix::fs::symlink("loop", path("loop")).unwrap();
        assert!(entries(&path("none")).unwrap().is_empty());
        assert_eq!(entries(root.path()).unwrap().len(), 2);
        assert_eq!(entries(&path("file")).unwrap_err().kind(), ErrorKind::NotADirectory);
        assert!(entries(&path("loop")).is_err());
    }

    #[test]
    fn only_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "text").unwrap();
        std::os::unix::fs::symlink(&file, folder.path().join("link")).unwrap();
        assert_eq!(read_regular(&folder.path().join("link")).unwrap(), b"text");
        assert_eq!(read_text(&file).unwrap(), "text");
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let pipe = read_regular(&fifo).unwrap_err().to_string();
        assert!(pipe == "not a regular file but a pipe", "{pipe}");
        assert_eq!(open_regular(Path::new("/dev/zero")).unwrap_err().to_string(), "not a regular file");
        assert!(read_regular(folder.path()).is_err());
        assert_eq!(read_regular(&folder.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_pointer_of_git_lfs_is_not_read_in_place_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        let pointer =
            format!("version https://git-lfs.github.com/spec/v1\noid sha256:{NO_DIGEST}\nsize 48321094\n");
        fs::write(&file, pointer).unwrap();
        let error = open_regular(&file).unwrap_err().to_string();
        assert!(error.contains("Git LFS") && error.contains("git lfs pull"), "{error}");
        assert_eq!(foreign_file(&file), None, "the pointer cannot be opened");
    }

    #[test]
    fn names_and_links_of_one_file_are_the_same() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("folder")).unwrap();
        fs::write(path("file"), "").unwrap();
        fs::write(path("other"), "").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        fs::hard_link(path("file"), path("hard")).unwrap();
        for (a, b, same) in [
            ("new", "new", true),
            ("new", "./new", true),
            ("new", "folder/../new", true),
            ("new", "other", false),
            ("new", "folder/new", false),
            ("file", "link", true),
            ("file", "hard", true),
            ("file", "folder/../file", true),
            ("file", "other", false),
            ("none/new", "none/new", true),
        ] {
            assert_eq!(same_file(&path(a), &path(b)).unwrap(), same, "{a} {b}");
        }
    }
}
