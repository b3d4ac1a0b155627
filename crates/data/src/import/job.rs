//! One import: its options, the folder that it works in, and how far it is.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use run_record::files::{FolderLock, LOCK, entries, lock, place};

use crate::DataError;
use crate::formats::data_set::FILE;
use crate::import::{ImportArgs, ImportProgress};

/// Rows between calls of the progress.
const TOGETHER: usize = 256;
/// The data set that is replaced, in the folder of the import.
pub(crate) const OLD: &str = "old";
/// All that an import makes in its folder.
const PARTS: [&str; 5] = [OLD, "set", "unpacked", "pictures", crate::import::arrays::FOLDER];

/// An import that goes on.
pub(crate) struct Job<'a> {
    pub(crate) args: &'a ImportArgs,
    progress: &'a ImportProgress<'a>,
    /// Where the data set will be.
    pub(crate) out: PathBuf,
    /// The folder beside it with all that is unfinished, which goes with the import.
    pub(crate) folder: PathBuf,
    _lock: FolderLock,
}

impl<'a> Job<'a> {
    /// Starts an import, the only one into its folder. What one that was killed has left there goes.
    pub(crate) fn start(args: &'a ImportArgs, progress: &'a ImportProgress<'a>) -> Result<Self, DataError> {
        // Through a link to where the data set is.
        let out = args.out.canonicalize().or_else(|_| place(&args.out));
        let out = out.map_err(DataError::write(&args.out))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        if mounts.lines().any(|mount| mount.split(' ').nth(4).map(Path::new) == Some(&out)) {
            let what = "is a mount point, which no folder can take the place of: name a folder in it";
            return Err(DataError::option("out", args.out.display(), what));
        }
        let parent = out.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(DataError::write(parent))?;
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let folder = parent.join(format!(".{name}.part"));
        let is_left = match fs::create_dir(&folder) {
            Ok(()) => false,
            // A link may be anybody's, and so is a folder with anything else in it.
            Err(_)
                if folder.symlink_metadata().is_ok_and(|found| found.is_dir()) && is_of_import(&folder) =>
            {
                true
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let what =
                    format!("an import works in {}: move what is there, or choose another", folder.display());
                return Err(DataError::option("out", args.out.display(), what));
            }
            Err(error) => return Err(DataError::write(&folder)(error)),
        };
        let lock = lock(&folder)?;
        if is_left {
            put_back(args, &out, &folder.join(OLD))?;
            clear(&folder).map_err(DataError::write(&folder))?;
            log::info!("removed what a killed import into {} had left", args.out.display());
        }
        Ok(Self { args, progress, _lock: lock, out, folder })
    }

    /// A folder for what is needed while the import runs.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, DataError> {
        assert!(PARTS.contains(&name), "{name}");
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(DataError::write(&folder))?;
        Ok(folder)
    }

    /// Says how far the import is; an error if it is to stop.
    pub(crate) fn step(&self, done: usize, all: usize) -> Result<(), DataError> {
        if (self.progress)(done, all).is_break() { Err(DataError::Stopped) } else { Ok(()) }
    }

    /// As [`Self::step`], for rows, which are short.
    pub(crate) fn row(&self, done: usize, all: usize) -> Result<(), DataError> {
        if done.is_multiple_of(TOGETHER) { self.step(done, all) } else { Ok(()) }
    }
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let has_one = !self.folder.join(OLD).exists() || self.out.join(FILE).exists();
        // The lock's file is last: who makes the next one has a folder that nobody else removes from.
        if has_one && clear(&self.folder).is_ok() && fs::remove_file(self.folder.join(LOCK)).is_ok() {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// Whether all that is in this folder is of an import.
fn is_of_import(folder: &Path) -> bool {
    let is_known = |name: &OsStr| name == LOCK || PARTS.iter().any(|part| name == *part);
    entries(folder).is_ok_and(|found| found.iter().all(|entry| is_known(&entry.file_name())))
}

/// An import that was killed between two renames has left the data set that it was to replace as the only one.
fn put_back(args: &ImportArgs, out: &Path, old: &Path) -> Result<(), DataError> {
    if !old.exists() || out.join(FILE).exists() {
        return Ok(());
    }
    // In the place of an empty folder too.
    fs::rename(old, out).map_err(|error| {
        let what =
            format!("cannot take back the data set that a killed import left in {} ({error})", old.display());
        DataError::option("out", args.out.display(), what)
    })
}

/// Removes what an import has left but its lock.
fn clear(folder: &Path) -> io::Result<()> {
    let left = entries(folder)?.into_iter().filter(|entry| entry.file_name() != LOCK);
    left.map(|entry| entry.path()).try_for_each(fs::remove_dir_all)
}
