//! Reading files that have to be regular ones: opening a FIFO waits for a writer, for ever if there
//! is none.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file, or a link to one.
///
/// # Errors
/// When it is something else, or cannot be opened.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // A folder is the system's own error.
    let kind = fs::metadata(path)?.file_type();
    match kind.is_file() || kind.is_dir() {
        true => File::open(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// The bytes of a regular file.
///
/// # Errors
/// As [`open_regular`]'s, and when it cannot be read.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a regular file.
///
/// # Errors
/// As [`read_regular`]'s, and when it is no UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read_regular(path)?).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(read_regular(&fifo).unwrap_err().to_string(), "not a regular file");
        assert_eq!(open_regular(Path::new("/dev/zero")).unwrap_err().to_string(), "not a regular file");
        assert!(read_regular(folder.path()).is_err());
        assert_eq!(read_regular(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
