//! One import while it runs: its options, its temporary folder, and its progress.
//!
//! An import into `DIR` works in the folder `.DIR.part` beside `DIR`. `.DIR.part` contains everything
//! temporary: unpacked archives, the new data set until it is complete, and the old data set while it is
//! replaced. While an import runs, a lock file keeps other imports into `DIR` from starting. If an import is
//! killed, the next import into `DIR` first moves back an old data set that has not been replaced, and then
//! removes the other contents of `.DIR.part`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use run_record::files::{FolderLock, LOCK, entries, lock, place};

use crate::DataError;
use crate::formats::data_set::FILE;
use crate::import::{ImportArgs, ImportProgress};

/// Returns whether a folder comes from an unpacked archive: it is the folder [`UNPACKED`] of an import, or it
/// is inside that folder.
pub(crate) fn is_unpacked(folder: &Path) -> bool {
    folder.ancestors().any(|folder| {
        let parent = folder.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        folder.ends_with(UNPACKED) && parent.starts_with('.') && parent.ends_with(".part")
    })
}

/// Number of rows between two reports of the progress.
const TOGETHER: usize = 256;
/// Name of the folder for an unpacked archive, in the import's folder `.DIR.part`.
pub(crate) const UNPACKED: &str = "unpacked";
/// Name of the folder for the data set that is being replaced, in the import's folder.
pub(crate) const OLD: &str = "old";
/// All names that an import creates in its folder, except for the lock file.
const PARTS: [&str; 5] = [OLD, "set", UNPACKED, "pictures", crate::import::arrays::FOLDER];

/// A running import.
pub(crate) struct Job<'a> {
    pub(crate) args: &'a ImportArgs,
    progress: &'a ImportProgress<'a>,
    /// The folder of the data set. It contains the new data set only after the import.
    pub(crate) out: PathBuf,
    /// The import's folder beside `out`. It is removed when the import ends, unless it contains the only copy
    /// of the old data set.
    pub(crate) folder: PathBuf,
    _lock: FolderLock,
}

impl<'a> Job<'a> {
    /// Starts an import and locks its folder, so that only one import at a time writes to `out`. First moves
    /// an old data set that a killed import has left in the folder back to `out`. Then removes everything
    /// else from the folder.
    pub(crate) fn start(args: &'a ImportArgs, progress: &'a ImportProgress<'a>) -> Result<Self, DataError> {
        // If `--out` is a link, replace the folder that the link points to.
        let out = args.out.canonicalize().or_else(|_| place(&args.out));
        let out = out.map_err(DataError::write(&args.out))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if mounts.lines().any(|mount| mount.split(' ').nth(4).map(Path::new) == Some(&out)) {
            let what = "is a mount point, which an import cannot replace: name a folder in it";
            return Err(DataError::option("out", args.out.display(), what));
        }
        let parent = out.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(DataError::write(parent))?;
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let folder = parent.join(format!(".{name}.part"));
        let is_left = match fs::create_dir(&folder) {
            Ok(()) => false,
            // Take over a folder only if it is a real folder and contains only files of an import. A link, or
            // a folder with other files, may belong to the user.
            Err(_)
                if folder.symlink_metadata().is_ok_and(|found| found.is_dir()) && is_of_import(&folder) =>
            {
                true
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let what = format!(
                    "the import needs the folder {}, which contains other files: move them, or choose \
                     another --out",
                    folder.display()
                );
                return Err(DataError::option("out", args.out.display(), what));
            }
            Err(error) => return Err(DataError::write(&folder)(error)),
        };
        let lock = lock(&folder)?;
        if is_left {
            put_back(args, &out, &folder.join(OLD))?;
            clear(&folder).map_err(DataError::write(&folder))?;
            log::info!("removed unfinished files of a killed import into {}", args.out.display());
        }
        Ok(Self { args, progress, _lock: lock, out, folder })
    }

    /// Creates a folder for files that are needed while the import runs. `name` must be one of `PARTS`.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, DataError> {
        assert!(PARTS.contains(&name), "{name}");
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(DataError::write(&folder))?;
        Ok(folder)
    }

    /// Reports the progress. Returns [`DataError::Stopped`] if the caller wants the import to stop.
    pub(crate) fn step(&self, done: usize, all: usize) -> Result<(), DataError> {
        if (self.progress)(done, all).is_break() { Err(DataError::Stopped) } else { Ok(()) }
    }

    /// Reports the progress as [`Self::step`] does, but only after every [`TOGETHER`] rows, because a row
    /// takes little time.
    pub(crate) fn row(&self, done: usize, all: usize) -> Result<(), DataError> {
        if done.is_multiple_of(TOGETHER) { self.step(done, all) } else { Ok(()) }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        // Keep the folder if it contains the only copy of the old data set.
        let has_one = !self.folder.join(OLD).exists() || self.out.join(FILE).exists();
        // Remove the lock file last. Once it is gone, another import may lock the folder, and this import
        // must not remove anything from it.
        if has_one && clear(&self.folder).is_ok() && fs::remove_file(self.folder.join(LOCK)).is_ok() {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Returns whether a folder contains only files and folders with names that an import creates.
fn is_of_import(folder: &Path) -> bool {
    let is_known = |name: &OsStr| name == LOCK || PARTS.iter().any(|part| name == *part);
    entries(folder).is_ok_and(|found| found.iter().all(|entry| is_known(&entry.file_name())))
}

/// Moves an old data set back. An import replaces a data set with two renames: the old one to `old`, and the
/// new one to `out`. If the import was killed between the two renames, `old` is the only data set.
fn put_back(args: &ImportArgs, out: &Path, old: &Path) -> Result<(), DataError> {
    if !old.exists() || out.join(FILE).exists() {
        return Ok(());
    }
    // If `out` is an empty folder, the rename replaces it.
    fs::rename(old, out).map_err(|error| {
        let what = format!(
            "cannot restore the data set that a killed import left in {} ({error}): move it to another folder",
            old.display()
        );
        DataError::option("out", args.out.display(), what)
    })
}

/// Removes everything that an import has left in its folder, except for the lock file.
fn clear(folder: &Path) -> io::Result<()> {
    let left = entries(folder)?.into_iter().filter(|entry| entry.file_name() != LOCK);
    left.map(|entry| entry.path()).try_for_each(fs::remove_dir_all)
}
