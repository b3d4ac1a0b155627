//! Folders of checkpoints: their names, which checkpoint is the newest intact one, and which are kept.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tempfile::{Builder, TempDir};

use super::checkpoint::{FILES, STATE};
use super::failed_attempt::{HOSTS, STEP};
use super::run_dir::RUN_JSON;
use super::{Manifest, RecordError, replaced};
use crate::files;
use crate::files::{LOCK, place};

/// Number of the newest checkpoints that a run without `--keep` keeps.
const KEEP: usize = 3;
/// Extension that a resumed run gives to the folder of a damaged checkpoint.
const DAMAGED: &str = "damaged";

/// Returns the name of the folder of the checkpoint after `step` steps.
pub fn folder_name(step: usize) -> String {
    format!("step-{step:08}")
}

/// Creates the file `name`, which the checkpoint in the folder `checkpoint` takes when it is written, in a
/// temporary folder beside it. The folder is removed with its [`TempDir`]. If the process is killed, the next
/// start removes it, as it removes those of checkpoints.
///
/// # Errors
/// If the folder of checkpoints is a symbolic link, or the file cannot be created.
pub(super) fn file_before(checkpoint: &Path, name: &str) -> io::Result<(TempDir, File)> {
    let checkpoints = checkpoint.parent().unwrap_or(checkpoint);
    files::refuse_link(checkpoints)?;
    fs::create_dir_all(checkpoints)?;
    let folder = Builder::new().prefix(".step-").suffix(".tmp").tempdir_in(checkpoints)?;
    let file = File::create_new(folder.path().join(name))?;
    Ok((folder, file))
}

/// Checks that the folder `path` is named after the step in its `state`. Without this check, an old
/// checkpoint that was renamed to a higher step would count as the newest one.
pub(super) fn check_name(path: &Path, state: &[u8]) -> Result<(), RecordError> {
    let state: serde_json::Value = serde_json::from_slice(state).unwrap_or_default();
    let Some(step) = state["position"]["step"].as_u64() else { return Ok(()) };
    let (name, expected) = (path.file_name().unwrap_or_default(), folder_name(step as usize));
    if name.to_string_lossy().starts_with("step-") && name != expected.as_str() {
        Err(RecordError::Misnamed { path: path.to_owned(), name: expected })
    } else {
        Ok(())
    }
}

/// Returns the folders of complete checkpoints, sorted by step; an empty list if `folder` does not exist.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<PathBuf>, RecordError> {
    let entries = files::entries(folder).map_err(|e| RecordError::read(folder, e))?;
    let mut steps: Vec<(usize, PathBuf)> = entries
        .into_iter()
        .filter_map(|entry| {
            let digits = entry.file_name().to_str()?.strip_prefix("step-")?.to_owned();
            let step = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
            Some((step, entry.path()))
        })
        .collect();
    steps.sort();
    Ok(steps.into_iter().map(|(_, path)| path).collect())
}

/// The newest undamaged checkpoint of a run.
#[derive(Debug)]
pub struct Intact {
    /// Folder of the checkpoint.
    pub path: PathBuf,
    /// Manifest of the checkpoint, which contains the digests of its files.
    pub manifest: Manifest,
    /// Newer checkpoints that are damaged, with the reasons.
    pub damaged: Vec<(PathBuf, RecordError)>,
}

impl Intact {
    /// Finds the newest intact checkpoint in `folder`. `verify` checks a checkpoint and returns its manifest.
    ///
    /// # Errors
    /// If there is no intact checkpoint, or a checkpoint cannot be read for a reason other than damage.
    pub fn newest(
        folder: &Path,
        verify: impl Fn(&Path) -> Result<Manifest, RecordError>,
    ) -> Result<Self, RecordError> {
        let mut damaged = Vec::new();
        for path in list(folder)?.into_iter().rev() {
            match verify(&path) {
                Ok(manifest) => return Ok(Self { path, manifest, damaged }),
                Err(error) if error.is_damage() => damaged.push((path, error)),
                Err(error) => return Err(error),
            }
        }
        let newest = damaged.into_iter().next().map(|(_, error)| RecordError::NoneIntact(error.into()));
        let run = folder.parent().filter(|run| replaced::is_begun(run));
        let none = run.map_or_else(
            || RecordError::NoCheckpoint(folder.to_owned()),
            |run| RecordError::Replaced(run.to_owned()),
        );
        Err(newest.unwrap_or(none))
    }

    /// Warns of the damaged checkpoints.
    pub fn warn(&self) {
        self.damaged.iter().for_each(|(_, error)| log::warn!("{error}"));
        if !self.damaged.is_empty() {
            log::warn!("using the previous checkpoint, {}", self.path.display());
        }
    }

    /// Renames the damaged checkpoints, so that nothing reads or removes them. Warns of each.
    ///
    /// # Errors
    /// If a checkpoint cannot be renamed.
    pub fn set_aside(&self) -> Result<(), RecordError> {
        for (path, error) in &self.damaged {
            let aside = unused(path)?;
            fs::rename(path, &aside).map_err(|e| RecordError::write(path, e))?;
            log::warn!(
                "{error}; renamed to {}; continuing from the previous checkpoint, {}",
                aside.display(),
                self.path.display()
            );
        }
        Ok(())
    }
}

/// Returns an unused path to which the damaged checkpoint `path` can be renamed.
fn unused(path: &Path) -> Result<PathBuf, RecordError> {
    let mut aside = path.with_extension(DAMAGED);
    for number in 2.. {
        match fs::symlink_metadata(&aside) {
            Ok(_) => aside = path.with_extension(format!("{DAMAGED}-{number}")),
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(RecordError::read(&aside, error)),
        }
    }
    Ok(aside)
}

/// Renames the complete checkpoint `written` to `path`. Replaces an older checkpoint of this step.
pub(super) fn publish(written: &Path, path: &Path) -> Result<(), RecordError> {
    let failed = |e| RecordError::write(path, e);
    let old = hidden(path, "old");
    if path.exists() {
        fs::rename(path, &old).map_err(failed)?;
    }
    fs::rename(written, path).map_err(failed)?;
    files::sync_folder(path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
    // If parts of the old checkpoint remain, the next resume removes them.
    let _ = fs::remove_dir_all(&old);
    Ok(())
}

/// Returns the path of the hidden file or folder `.NAME.ending` beside `path`. NAME is the last name in
/// `path`.
pub(super) fn hidden(path: &Path, ending: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{ending}"))
}

/// Removes all checkpoints except the `keep` newest ones (three if `None`), the checkpoints of `steps`, and
/// the checkpoint `written`.
pub(super) fn prune(
    folder: &Path,
    written: &Path,
    keep: Option<usize>,
    steps: &[usize],
) -> Result<(), RecordError> {
    let mut result = Ok(());
    let kept: Vec<PathBuf> = steps.iter().map(|&step| folder.join(folder_name(step))).collect();
    for path in list(folder)?.into_iter().rev().skip(keep.unwrap_or(KEEP)) {
        if path == written || kept.contains(&path) {
            continue;
        }
        // Rename the checkpoint first: if it were only partly removed, it would look like a damaged one.
        let old = hidden(&path, "old");
        let remove = || {
            fs::rename(&path, &old)?;
            // Somebody may have given a file the name of a checkpoint.
            if old.symlink_metadata()?.is_dir() { fs::remove_dir_all(&old) } else { fs::remove_file(&old) }
        };
        // Continue after an error: other checkpoints can perhaps be removed.
        result = result.and(remove().map_err(|e| RecordError::write(&path, e)));
    }
    result
}

/// Removes temporary folders of a killed process. Errors are ignored, because the folders do no harm.
pub(super) fn remove_leftovers(folder: &Path) {
    for entry in files::entries(folder).unwrap_or_default() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.starts_with(".step-") && (name.ends_with(".tmp") || name.ends_with(".old"));
        if ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a run writes an entry of this name at the top of its directory.
pub fn is_of_run(name: &str) -> bool {
    let number = name.strip_prefix("rank").and_then(|rank| rank.parse::<usize>().ok());
    let rank = number.is_some_and(|number| name == format!("rank{number}"));
    [RUN_JSON, "epochs.csv", LOCK, STEP, HOSTS, "checkpoints", "tensorboard"].contains(&name) || rank
}

/// Whether `path` belongs to a run or a sweep, so that other output must not replace it. This includes files
/// that a run has yet to write at the top of its directory, and the files of a copied checkpoint.
pub fn is_own_file(path: &Path) -> bool {
    let Ok(path) = place(path) else { return false };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    // If it cannot be determined whether a file exists, treat it as existing.
    let is_there = |path: &Path| path.try_exists().unwrap_or(true);
    let is_part = |of: &Path| {
        let mut inside = path.strip_prefix(of).into_iter().flatten();
        let is_of_run = inside.next().and_then(|name| name.to_str()).is_some_and(is_of_run);
        is_of_run && (inside.next().is_none() || is_there(&path)) && is_there(&of.join(RUN_JSON))
    };
    let is_checkpoints = || FILES.iter().any(|file| name == *file) && is_there(&parent.join(STATE));
    let of_sweep = || {
        let is_log = path.extension().is_some_and(|end| end == "log");
        name == "sweep.json" || ((name == LOCK || is_log) && is_there(&parent.join("sweep.json")))
    };
    (is_there(&path) && (of_sweep() || is_checkpoints()))
        // The deepest file of a run is RUN/checkpoints/step-00000001/state.json.
        || parent.ancestors().take(3).any(is_part)
}

/// Returns the run directory that contains `path`. If `path` is itself a run directory, returns `path`.
/// `None` if `path` belongs to no run.
pub fn run_around(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().or_else(|_| place(path)).ok()?;
    path.ancestors().find(|folder| folder.join(RUN_JSON).exists()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let name = |path: PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        list(folder).unwrap().into_iter().map(name).collect()
    }

    #[test]
    fn checkpoints_are_listed_by_step_and_others_left_alone() {
        let root = tempfile::tempdir().unwrap();
        for name in
            ["step-100000000", "step-00000009", "step-00000001.damaged", ".step-00000002.tmp", "step-x"]
        {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        assert_eq!(names(root.path()), ["step-00000009", "step-100000000"]);
        fs::write(root.path().join(".step-00000003.tmp"), "not ours").unwrap();
        remove_leftovers(root.path());
        assert!(!root.path().join(".step-00000002.tmp").exists());
        assert!(root.path().join(".step-00000003.tmp").exists());
    }

    #[test]
    fn a_checkpoint_that_cannot_be_read_is_no_damaged_one() {
        let root = tempfile::tempdir().unwrap();
        for step in [1, 2] {
            fs::create_dir(root.path().join(folder_name(step))).unwrap();
        }
        fn newest(root: &Path, of_second: io::Error) -> Result<PathBuf, String> {
            let reasons = std::cell::RefCell::new(Some(of_second));
            let verify = |path: &Path| match reasons.take() {
                Some(reason) => Err(RecordError::read(path, reason)),
                None => Ok(Manifest::new(Default::default(), Default::default(), &Default::default())),
            };
            Intact::newest(root, verify).map(|intact| intact.path).map_err(|error| error.to_string())
        }
        for damage in [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP] {
            assert_eq!(newest(root.path(), damage.into()), Ok(root.path().join(folder_name(1))));
        }
        for reason in [Errno::ACCESS, Errno::IO, Errno::STALE, Errno::MFILE] {
            let error = newest(root.path(), reason.into()).unwrap_err();
            let reason = io::Error::from(reason).to_string();
            assert!(error.contains("step-00000002") && error.contains(&reason), "{error}");
        }
    }

    #[test]
    fn a_checkpoint_under_another_name_is_neither_used_nor_set_aside() {
        let root = tempfile::tempdir().unwrap();
        for step in [1, 2] {
            fs::create_dir(root.path().join(folder_name(step))).unwrap();
        }
        let state = br#"{"position": {"step": 1}}"#;
        let manifest = Manifest::new(Default::default(), Default::default(), &Default::default());
        let verify = |path: &Path| check_name(path, state).map(|()| manifest.clone());
        let error = Intact::newest(root.path(), verify).unwrap_err();
        assert!(
            matches!(&error, RecordError::Misnamed { path, name }
                if path.ends_with("step-00000002") && name == "step-00000001"),
            "{error}"
        );
    }

    #[test]
    fn the_newest_and_the_named_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let make = || {
            for step in 1..=6 {
                let _ = fs::create_dir(root.path().join(folder_name(step)));
            }
        };
        for (keep, steps, written, expected) in [
            (None, &[][..], 6, &[4, 5, 6][..]),
            (None, &[2], 6, &[2, 4, 5, 6]),
            (Some(1), &[], 6, &[6]),
            (Some(1), &[3, 3], 6, &[3, 6]),
            (Some(1), &[], 2, &[2, 6]),
            (Some(9), &[], 6, &[1, 2, 3, 4, 5, 6]),
        ] {
            make();
            prune(root.path(), &root.path().join(folder_name(written)), keep, steps).unwrap();
            let expected: Vec<String> = expected.iter().map(|&step| folder_name(step)).collect();
            assert_eq!(names(root.path()), expected, "{keep:?} {steps:?} {written}");
        }
    }
}

#[cfg(test)]
mod own_file_tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_of_a_run_are_known_at_every_depth_and_others_beside_them_are_not() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("run/checkpoints/step-1")).unwrap();
        fs::create_dir_all(path("other/checkpoints")).unwrap();
        fs::write(path("run/run.json"), "").unwrap();
        fs::write(path("run/checkpoints/step-1/state.json"), "").unwrap();
        for name in ["sweep.json", ".lock", "lr-1.log"] {
            fs::write(path(name), "").unwrap();
        }
        for own in [
            "run/run.json",
            "run/./epochs.csv",
            "run/checkpoints/../run.json",
            "run/checkpoints/step-1/state.json",
            "run/.lock",
            "sweep.json",
            ".lock",
            "lr-1.log",
        ] {
            assert!(is_own_file(&path(own)), "{own}");
        }
        let run = path("run").canonicalize().unwrap();
        for inside in ["run", "run/data", "run/checkpoints/step-1"] {
            assert_eq!(run_around(&path(inside)), Some(run.clone()), "{inside}");
        }
        assert_eq!(run_around(&path("other")), None);
        for other in [
            "run/profile.json",
            "run/ranking.csv",
            "run/rank07",
            "new.log",
            "run/checkpoints/x.json",
            "run.json",
            "other/checkpoints/a.csv",
            "other/sweep.json",
            "none/run.json",
        ] {
            assert!(!is_own_file(&path(other)), "{other}");
        }
    }
}
