//! Which files of a folder are those of a run or a sweep.

use std::path::Path;

use crate::files::{LOCK, place};

/// Whether a run writes something of this name in its directory itself.
pub fn is_of_run(name: &str) -> bool {
    ["run.json", "epochs.csv", LOCK, "checkpoints", "tensorboard"].contains(&name) || name.starts_with("rank")
}

/// Whether `path` is, or would be, a file that a run in one of the folders above it writes, or the
/// record of a sweep: other output must not replace it.
pub fn is_own_file(path: &Path) -> bool {
    let Ok(path) = place(path) else { return false };
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return false };
    let is_part = |of: &Path| {
        let inside = path.strip_prefix(of).ok().and_then(|inside| inside.iter().next());
        inside.and_then(|name| name.to_str()).is_some_and(is_of_run)
    };
    // RUN/checkpoints/step-00000001/state.json is the deepest.
    // What cannot be looked at may be one.
    let is_there = |path: &Path| path.try_exists().unwrap_or(true);
    (name == "sweep.json" && is_there(&path))
        || parent.ancestors().take(3).any(|folder| is_part(folder) && is_there(&folder.join("run.json")))
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
        fs::write(path("sweep.json"), "").unwrap();
        for own in [
            "run/run.json",
            "run/./epochs.csv",
            "run/checkpoints/../run.json",
            "run/checkpoints/x.json",
            "run/checkpoints/step-1/state.json",
            "run/.lock",
            "sweep.json",
        ] {
            assert!(is_own_file(&path(own)), "{own}");
        }
        for other in
            ["run/profile.json", "run.json", "other/checkpoints/a.csv", "other/sweep.json", "none/run.json"]
        {
            assert!(!is_own_file(&path(other)), "{other}");
        }
    }
}
