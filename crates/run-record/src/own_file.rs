//! Which files of a folder are those of a run or a sweep.

use std::path::{Path, PathBuf};

use super::checkpoint::{FILES, STATE};
use super::run_dir::RUN_JSON;
use super::step_file::STEP;
use crate::files::{LOCK, place};

/// Whether a run writes something of this name in its directory itself.
pub fn is_of_run(name: &str) -> bool {
    let number = name.strip_prefix("rank").and_then(|rank| rank.parse::<usize>().ok());
    let rank = number.is_some_and(|number| name == format!("rank{number}"));
    [RUN_JSON, "epochs.csv", LOCK, STEP, "checkpoints", "tensorboard"].contains(&name) || rank
}

/// Whether `path` is, or would be, something that a run or a sweep writes in its directory, or is a file in a
/// folder of a run, or of a checkpoint that was copied elsewhere: other output must not replace it.
pub fn is_own_file(path: &Path) -> bool {
    let Ok(path) = place(path) else { return false };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    // What cannot be looked at may be one.
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
        // RUN/checkpoints/step-00000001/state.json is the deepest.
        || parent.ancestors().take(3).any(is_part)
}

/// The run directory that `path` is or is in.
pub fn run_around(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().or_else(|_| place(path)).ok()?;
    path.ancestors().find(|folder| folder.join(RUN_JSON).exists()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
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
