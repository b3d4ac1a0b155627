//! Whether two paths are one file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Whether what is written to one of the paths replaces what was written to the other: both are
/// one name in one folder, or lead to one file by links.
///
/// # Errors
/// If there is no working directory.
pub fn same_file(a: &Path, b: &Path) -> io::Result<bool> {
    if let (Ok(a), Ok(b)) = (a.metadata(), b.metadata()) {
        return Ok((a.dev(), a.ino()) == (b.dev(), b.ino()));
    }
    Ok(place(a)? == place(b)?)
}

/// The path with its folder's links resolved, if the folder exists.
pub fn place(path: &Path) -> io::Result<PathBuf> {
    let absolute = std::path::absolute(path)?;
    let (Some(folder), Some(name)) = (absolute.parent(), absolute.file_name()) else { return Ok(absolute) };
    Ok(folder.canonicalize().map_or(absolute.clone(), |folder| folder.join(name)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
