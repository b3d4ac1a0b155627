//! What is in a folder, where "cannot be read" is never taken for "nothing there".

use std::fs::{self, DirEntry};
use std::io::{self, ErrorKind};
use std::path::Path;

/// The entries of a folder; none of one that does not exist.
///
/// # Errors
/// If the folder cannot be read, or is none.
pub fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
