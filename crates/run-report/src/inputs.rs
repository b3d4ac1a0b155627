//! What a report is of: runs and sweeps, profiles, and tables of benchmarks, among the paths that
//! were typed or below the folder of results.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::ReportError;
use super::benchmarks::{Tables, is_table};
use super::finder::{DEPTH, Finder, folders, is_of_runs};
use super::profiles::{Profiles, has_profiles, json_files};
use super::runs::Section;
use super::seen::Seen;

/// The inputs of a report.
#[derive(Debug, Default)]
pub struct Inputs {
    /// Runs and sweeps.
    pub sections: Vec<Section>,
    /// Folders of profiles.
    pub profiles: Vec<Profiles>,
    /// Files and folders in which tables of benchmarks are looked for.
    pub roots: Vec<PathBuf>,
    /// Paths that are nothing to report, a line for each with the reason.
    pub rejected: Vec<String>,
    /// Other paths to what is reported, a line each.
    pub again: Vec<String>,
}

impl Inputs {
    /// Those of `paths`, and of folders among them all that is below; all below `root` if there are no
    /// paths.
    ///
    /// # Errors
    /// When there are no paths, and `root` cannot be read.
    pub fn find(paths: &[PathBuf], root: &Path) -> Result<Self, ReportError> {
        let (mut inputs, mut finder) = (Self::default(), Finder::default());
        if paths.is_empty() {
            let failed = |error| format!("{error}; train first, or name a run directory");
            finder.add_below(root).map_err(|error| ReportError::read(root, failed(error)))?;
            inputs.profiles = profiles_below(root);
            inputs.roots.push(root.to_owned());
        }
        let mut files = Vec::new();
        let mut seen = Seen::default();
        for path in paths.iter().filter(|path| seen.is_new(path)) {
            match inputs.add(path, &mut finder, &mut files) {
                Ok(()) => inputs.roots.push(path.clone()),
                Err(reason) => inputs.rejected.push(reason),
            }
        }
        inputs.again = std::mem::take(&mut seen.again);
        if let Some(first) = files.first() {
            let folder = first.parent().unwrap_or(Path::new("")).to_owned();
            inputs.profiles.push(Profiles::of_files(&folder, &files));
        }
        // A folder shows its files, whether they were typed as well or not.
        let mut seen = Seen::default();
        for found in &mut inputs.profiles {
            found.keep(|path| seen.is_new(path));
        }
        if !files.is_empty() {
            inputs.profiles.rotate_right(1);
        }
        inputs.again.append(&mut seen.again);
        let (sections, again) = finder.sections();
        inputs.again.extend(again);
        inputs.sections = sections;
        Ok(inputs)
    }

    /// Adds what `path` is; a file of a profile goes to `files`.
    fn add(&mut self, path: &Path, finder: &mut Finder, files: &mut Vec<PathBuf>) -> Result<(), String> {
        let shown = path.display();
        let found = path.metadata().map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{shown}: there is no such file or folder"),
            _ => format!("cannot read {shown}: {error}"),
        })?;
        let ends_in = |ending: &str| path.extension().is_some_and(|found| found == ending);
        if found.is_file() && (path.ends_with("run.json") || path.ends_with("sweep.json")) {
            // The file is its folder's.
            let folder = path.parent().filter(|folder| folder != &Path::new("")).unwrap_or(Path::new("."));
            finder.add(folder);
            return Ok(());
        }
        match found.is_dir() {
            true if finder.add(path) => Ok(()),
            true => self.add_folder(path, finder),
            false if ends_in("json") => {
                files.push(path.to_owned());
                Ok(())
            }
            false if ends_in("csv") && is_table(path) => Ok(()),
            false if ends_in("csv") => Err(format!(
                "cannot read {shown}: not a table of mpiburn bench fused, collectives or allreduce; leave it out"
            )),
            false => Err(format!(
                "cannot read {shown}: not a run directory, a sweep, a profile (.json) or a table of a benchmark \
                 (.csv); leave it out"
            )),
        }
    }

    /// Adds all that is in a folder which is no run and no sweep.
    fn add_folder(&mut self, path: &Path, finder: &mut Finder) -> Result<(), String> {
        let has_runs =
            finder.add_below(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        let profiles = profiles_below(path);
        let has_tables = || !Tables::find(&[path.to_owned()], Path::new("")).files.is_empty();
        let has_profiles = !profiles.is_empty();
        self.profiles.extend(profiles);
        match has_runs || has_profiles || has_tables() {
            true => Ok(()),
            // Its files are named one by one.
            false if !json_files(path).is_empty() => {
                self.profiles.push(Profiles::of_folder(path));
                Ok(())
            }
            false => Err(format!(
                "cannot read {}: not a run or sweep, and the folders below it, down to the {}th level, have no \
                 run, sweep, profile or table of a benchmark",
                path.display(),
                DEPTH
            )),
        }
    }
}

/// Folders of profiles at and below `folder`, which are not runs.
fn profiles_below(folder: &Path) -> Vec<Profiles> {
    let all = [folder.to_owned()].into_iter().chain(folders(folder, DEPTH));
    all.filter(|path| !is_of_runs(path) && has_profiles(path))
        .map(|path| Profiles::of_folder(&path))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::profiles::testing::{json, operator};

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
    fn other_paths_are_rejected_by_name_and_the_rest_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("t.csv"), "a,b\n1,2\n").unwrap();
        fs::write(path("t.txt"), "").unwrap();
        fs::create_dir_all(path("empty")).unwrap();
        fs::create_dir_all(path("run/checkpoints")).unwrap();
        let names = ["t.csv", "none.csv", "none", "none.json", "t.txt", "empty", "run"];
        let found = Inputs::find(&names.map(path), root.path()).unwrap();
        assert_eq!((found.sections.len(), found.roots, found.rejected.len()), (1, vec![path("run")], 6));
        for (line, (name, expected)) in found.rejected.iter().zip([
            ("t.csv", "not a table of mpiburn bench"),
            ("none.csv", "none.csv: there is no such file or folder"),
            ("none", "none: there is no such file or folder"),
            ("none.json", "none.json: there is no such file or folder"),
            ("t.txt", "not a run directory"),
            ("empty", "not a run or sweep, and the folders below it"),
        ]) {
            assert!(line.contains(expected) && line.contains(name), "{line}");
        }
    }

    #[test]
    fn a_folder_is_all_that_is_below_it_and_each_run_counts_once() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let profile = json("mlp", "relu", false, &[operator("linear", 100, 1.0, 0)]).to_string();
        for folder in ["all/run/checkpoints", "all/a/b/c/d/deep/checkpoints", "all/a/b/c/d/e/no/checkpoints"]
        {
            fs::create_dir_all(path(folder)).unwrap();
        }
        fs::create_dir_all(path("all/profiles")).unwrap();
        fs::write(path("all/profiles/p.json"), &profile).unwrap();
        let found = Inputs::find(&["all", "all/run", "all/../all"].map(path), root.path()).unwrap();
        assert_eq!(found.rejected, [""; 0]);
        assert_eq!(found.sections[0].notes.len(), 2, "{:?}", found.sections[0].notes);
        assert_eq!(found.profiles.len(), 1);
        fs::create_dir_all(path("tables")).unwrap();
        let table = "operation,backend,topology,bytes,median_us,result\nsend,mpi,1x2,1024,1.5,correct\n";
        fs::write(path("tables/c.csv"), table).unwrap();
        let found = Inputs::find(&[path("tables")], root.path()).unwrap();
        assert_eq!((found.roots, found.rejected.len()), (vec![path("tables")], 0));
    }
}
