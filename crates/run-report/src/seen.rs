//! Files and folders that a report has read, known by where their paths lead: a link, or a path with
//! `..`, is no second measurement.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Paths by the file or folder that they lead to.
#[derive(Debug, Default)]
pub struct Seen {
    first: BTreeMap<PathBuf, PathBuf>,
    /// Paths that lead to one before them, a line each.
    pub again: Vec<String>,
}

impl Seen {
    /// Whether `path` leads to something new. A path that is written otherwise than the first one to the
    /// same gets a line.
    pub fn is_new(&mut self, path: &Path) -> bool {
        // What does not exist is named where it is read.
        let Ok(target) = path.canonicalize() else { return true };
        match self.first.get(&target) {
            None => {
                self.first.insert(target, path.to_owned());
                true
            }
            Some(first) => {
                if first != path {
                    self.again.push(same_as(path, first));
                }
                false
            }
        }
    }
}

/// That `path` leads to what `first` has shown.
pub fn same_as(path: &Path, first: &Path) -> String {
    format!("{}: the same as {}, which counts once", path.display(), first.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_paths_to_the_same_file_are_named_and_repeated_ones_are_not() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        std::fs::create_dir(path("a")).unwrap();
        std::fs::write(path("a/x.csv"), "").unwrap();
        std::os::unix::fs::symlink(path("a/x.csv"), path("link.csv")).unwrap();
        let mut seen = Seen::default();
        let found =
            ["a/x.csv", "a/x.csv", "a/../a/x.csv", "link.csv", "none"].map(|name| seen.is_new(&path(name)));
        assert_eq!(found, [true, false, false, false, true]);
        assert_eq!(seen.again.len(), 2, "{:?}", seen.again);
        let line = &seen.again[1];
        assert!(
            line.contains("link.csv: the same as ") && line.contains("a/x.csv, which counts once"),
            "{line}"
        );
    }
}
