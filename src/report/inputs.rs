//! What a report is of: runs and sweeps, profiles, and tables of benchmarks, among the paths that
//! were typed or below the folder of results.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::ReportError;
use super::benchmarks::is_table;
use super::profiles::{Profiles, has_profiles, json_files};
use super::runs::{self, DEPTH, NOT_RUNS, Section, is_run};

/// The inputs of a report.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Runs and sweeps.
    pub sections: Vec<Section>,
    /// Folders of profiles.
    pub profiles: Vec<Profiles>,
    /// Files and folders in which tables of benchmarks are looked for.
    pub roots: Vec<PathBuf>,
}

impl Inputs {
    /// Those of `paths`; all below `root` if there are none.
    ///
    /// # Errors
    /// When a path is none of them, or `root` cannot be read.
    pub fn find(paths: &[PathBuf], root: &Path) -> Result<Self, ReportError> {
        if paths.is_empty() {
            let mut profiles = Vec::new();
            let sections = runs::find(paths, root)?;
            walk(root, 0, &mut profiles);
            return Ok(Self { sections, profiles, roots: vec![root.to_owned()] });
        }
        let (mut of_runs, mut files) = (Vec::new(), Vec::new());
        let mut inputs = Self { roots: paths.to_vec(), ..Self::default() };
        let mut seen = BTreeSet::new();
        // A run that is named twice, or by a link as well, is no repeat of itself.
        let is_new = |path: &&PathBuf| path.canonicalize().is_err() || seen.insert(path.canonicalize().ok());
        for path in paths.iter().filter(is_new) {
            let ends_in =
                |ending: &str| path.extension().is_some_and(|found| found == ending) && !path.is_dir();
            if ends_in("json") && path.exists() {
                files.push(path.clone());
            } else if ends_in("csv") && path.exists() {
                if !is_table(path) {
                    let problem =
                        "not a table of mpiburn bench fused, collectives or allreduce; leave it out";
                    return Err(ReportError::read(path, problem));
                }
            } else if !is_of_runs(path) && !json_files(path).is_empty() {
                inputs.profiles.push(Profiles::of_folder(path));
            } else {
                of_runs.push(path.clone());
            }
        }
        if let Some(first) = files.first() {
            let folder = first.parent().unwrap_or(Path::new("")).to_owned();
            inputs.profiles.insert(0, Profiles::of_files(&folder, &files));
        }
        if !of_runs.is_empty() {
            inputs.sections = runs::find(&of_runs, root)?;
        }
        Ok(inputs)
    }
}

fn is_of_runs(path: &Path) -> bool {
    path.join("sweep.json").is_file() || is_run(path)
}

/// Folders of profiles below `folder`, which are not runs.
fn walk(folder: &Path, depth: usize, found: &mut Vec<Profiles>) {
    if has_profiles(folder) {
        found.push(Profiles::of_folder(folder));
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut below: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    below.retain(|path| path.is_dir() && !path.is_symlink() && !is_of_runs(path));
    below.sort();
    for path in below {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if depth < DEPTH && !(depth == 0 && NOT_RUNS.contains(&name)) && !name.starts_with('.') {
            walk(&path, depth + 1, found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::profiles::testing::{json, operator};

    #[test]
    fn profiles_are_found_below_the_results_and_among_typed_paths() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let profile = json("mlp", "relu", false, &[operator("linear", 100, 1.0, 0)]).to_string();
        for folder in ["profiles", "run/checkpoints", "other"] {
            fs::create_dir_all(path(folder)).unwrap();
        }
        fs::write(path("profiles/a.json"), &profile).unwrap();
        fs::write(path("run/profile.json"), &profile).unwrap();
        fs::write(path("other/x.json"), "{}").unwrap();
        let found = Inputs::find(&[], root.path()).unwrap();
        let folders: Vec<&Path> = found.profiles.iter().map(|found| found.folder.as_path()).collect();
        assert_eq!(folders, [path("profiles")], "a run's folder and a foreign one are left out");
        let typed = Inputs::find(&[path("profiles"), path("run/profile.json")], root.path()).unwrap();
        assert_eq!(typed.profiles.iter().map(|found| found.profiles.len()).collect::<Vec<_>>(), [1, 1]);
        assert!(typed.sections.is_empty(), "other runs are not those that were typed");
        let foreign = Inputs::find(&[path("other")], root.path()).unwrap();
        assert!(foreign.profiles[0].notes[0].contains("other/x.json: not a profile"));
    }

    #[test]
    fn other_paths_are_rejected_by_name() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("t.csv"), "a,b\n1,2\n").unwrap();
        for (name, expected) in
            [("t.csv", "not a table of mpiburn bench"), ("none.csv", "not a run"), ("", "not a run")]
        {
            let error = Inputs::find(&[path(name)], root.path()).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains(name), "{error}");
        }
    }
}
