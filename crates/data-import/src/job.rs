//! One import: its options, the folder that it works in, and how far it is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use run_record::files::{FolderLock, LOCK, entries, lock, place};

use crate::{ImportArgs, ImportError, Progress};

/// Rows between calls of the progress.
const TOGETHER: usize = 256;
/// The data set that is replaced, in the folder of the import.
pub(crate) const OLD: &str = "old";

/// An import that goes on.
pub(crate) struct Job<'a> {
    pub(crate) args: &'a ImportArgs,
    progress: &'a Progress<'a>,
    /// Where the data set will be.
    pub(crate) out: PathBuf,
    /// The folder beside it with all that is unfinished, which goes with the import.
    pub(crate) folder: PathBuf,
    _lock: FolderLock,
}

impl<'a> Job<'a> {
    /// Starts an import, the only one into its folder. What one that was killed has left there goes.
    pub(crate) fn start(args: &'a ImportArgs, progress: &'a Progress<'a>) -> Result<Self, ImportError> {
        // Through a link to where the data set is.
        let out = args.out.canonicalize().or_else(|_| place(&args.out));
        let out = out.map_err(ImportError::write(&args.out))?;
        let parent = out.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(parent).map_err(ImportError::write(parent))?;
        let name = out.file_name().unwrap_or_default().to_string_lossy();
        let folder = parent.join(format!(".{name}.part"));
        let is_left = match fs::create_dir(&folder) {
            Ok(()) => false,
            // A link may be anybody's, and so is a folder that no import has locked.
            Err(_)
                if folder.symlink_metadata().is_ok_and(|found| found.is_dir()) && is_of_import(&folder) =>
            {
                true
            }
            Err(error) => return Err(ImportError::write(&folder)(error)),
        };
        let job = Self { args, progress, _lock: lock(&folder)?, out, folder };
        if is_left {
            job.clear().map_err(ImportError::write(&job.folder))?;
            log::info!("removed what a killed import into {} had left", args.out.display());
        }
        Ok(job)
    }

    /// Removes what an import has left that held the lock and does no longer.
    fn clear(&self) -> io::Result<()> {
        // It was killed between two renames: the data set that it was to replace has no other copy.
        if !self.out.exists() && self.folder.join(OLD).exists() {
            fs::rename(self.folder.join(OLD), &self.out)?;
        }
        let left = entries(&self.folder)?.into_iter().filter(|entry| entry.file_name() != LOCK);
        left.map(|entry| entry.path()).try_for_each(fs::remove_dir_all)
    }

    /// A folder for what is needed while the import runs.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, ImportError> {
        let folder = self.folder.join(name);
        fs::create_dir(&folder).map_err(ImportError::write(&folder))?;
        Ok(folder)
    }

    /// Says how far the import is; an error if it is to stop.
    pub(crate) fn step(&self, done: usize, all: usize) -> Result<(), ImportError> {
        match (self.progress)(done, all).is_break() {
            true => Err(ImportError::Stopped),
            false => Ok(()),
        }
    }

    /// As [`Self::step`], for rows, which are short.
    pub(crate) fn row(&self, done: usize, all: usize) -> Result<(), ImportError> {
        if done.is_multiple_of(TOGETHER) { self.step(done, all) } else { Ok(()) }
    }
}

/// Whether an import has locked this folder, or was killed before.
fn is_of_import(folder: &Path) -> bool {
    folder.join(LOCK).exists() || entries(folder).is_ok_and(|found| found.is_empty())
}

impl Drop for Job<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
