//! Finds run directories and sweeps, each once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::runs::{Section, file_name, one_line, read_run};
use super::seen::{Seen, same_as};
use run_record::count;
use run_record::{RunState, SweepRecord};
use walkdir::{DirEntry, WalkDir};

/// Whether this is a run directory, complete or not.
fn is_run(path: &Path) -> bool {
    path.join("run.json").exists() || path.join("checkpoints").is_dir()
}

/// Whether this is the folder of a run or a sweep.
pub(crate) fn is_of_runs(path: &Path) -> bool {
    path.join("sweep.json").is_file() || is_run(path)
}

/// Folders below `results/` without runs.
const NOT_RUNS: [&str; 2] = ["reference", "report"];
/// Maximum depth of nested folders.
pub(crate) const DEPTH: usize = 5;

/// The folders below `root` down to `depth`, in the order of their names; none is in a run or a sweep.
pub(crate) fn folders(root: &Path, depth: usize) -> Vec<PathBuf> {
    let is_entered = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        let is_left_out = entry.depth() == 1 && NOT_RUNS.contains(&&*name) || name.starts_with('.');
        entry.depth() == 0 || (entry.file_type().is_dir() && (!is_left_out || is_of_runs(entry.path())))
    };
    let walk = WalkDir::new(root).follow_root_links(true).max_depth(depth).sort_by_file_name();
    let mut entries = walk.into_iter().filter_entry(is_entered);
    let mut found = Vec::new();
    // An unreadable folder has nothing to show.
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else { continue };
        if entry.depth() > 0 {
            if is_of_runs(entry.path()) {
                entries.skip_current_dir();
            }
            found.push(entry.into_path());
        }
    }
    found
}

/// Removes all but the first of runs that have the same run.json, which holds the time of their start
/// and their processes: a copied folder is no repeat. Each copy gets a line in `again`.
fn drop_copies(sections: &mut [Section], again: &mut Vec<String>) {
    let mut first: BTreeMap<String, PathBuf> = BTreeMap::new();
    for section in sections {
        section.runs.retain(|run| match first.entry(run.digest.clone()) {
            Entry::Vacant(entry) => {
                entry.insert(run.path.clone());
                true
            }
            Entry::Occupied(entry) => {
                let (copy, first) = (run.path.display(), entry.get().display());
                again.push(format!("{copy}: a copy of {first}, which counts once"));
                false
            }
        });
    }
}

/// `reference/NAME.csv` beside the sweep's folder, or else below `results/`.
fn reference_file(sweep: &Path, name: &str) -> PathBuf {
    let beside = sweep.join("../reference").join(format!("{name}.csv"));
    if beside.is_file() { beside } else { Path::new("results/reference").join(format!("{name}.csv")) }
}

/// Runs and sweeps that have been found, each once.
#[derive(Debug)]
pub struct Finder {
    sweeps: Vec<Section>,
    single: Section,
    seen: Seen,
}

impl Default for Finder {
    fn default() -> Self {
        let single = Section { name: "runs".into(), title: "Runs".into(), ..Section::default() };
        Self { sweeps: Vec::new(), single, seen: Seen::default() }
    }
}

impl Finder {
    /// Adds a run directory or a sweep's folder; whether it is one.
    pub fn add(&mut self, path: &Path) -> bool {
        let is_sweep = path.join("sweep.json").is_file();
        if !is_sweep && !is_run(path) {
            return false;
        }
        // A run that is named again, or is below a folder that is named as well, is no repeat of itself.
        let is_new = self.seen.is_new(path);
        match is_sweep {
            _ if !is_new => {}
            true => self.add_sweep(path),
            false => read_run(path, None, &mut self.single),
        }
        true
    }

    /// Adds the runs and sweeps below `folder`; whether there are any.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn add_below(&mut self, folder: &Path) -> std::io::Result<bool> {
        fs::read_dir(folder)?;
        Ok(folders(folder, DEPTH).iter().filter(|path| self.add(path)).count() > 0)
    }

    /// What was found, a section for each sweep and one for all other runs; and a line for each other
    /// path to it.
    pub fn sections(mut self) -> (Vec<Section>, Vec<String>) {
        let filled = |section: &Section| {
            !(section.runs.is_empty() && section.notes.is_empty() && section.skipped.is_empty())
        };
        let mut again = self.seen.again;
        let mut sweeps = self.sweeps;
        // A run of a sweep that is named as well is in the sweep's table.
        let of_sweeps: BTreeMap<PathBuf, &Path> = sweeps
            .iter()
            .flat_map(|sweep| &sweep.runs)
            .filter_map(|run| Some((run.path.canonicalize().ok()?, run.path.as_path())))
            .collect();
        self.single.runs.retain(|run| {
            let first = run.path.canonicalize().ok().and_then(|path| of_sweeps.get(&path));
            again.extend(first.filter(|first| **first != run.path).map(|first| same_as(&run.path, first)));
            first.is_none()
        });
        sweeps.push(self.single);
        drop_copies(&mut sweeps, &mut again);
        sweeps.retain(filled);
        // Names become file names, and sweeps in two folders may have the same name.
        let mut taken = BTreeSet::new();
        for section in &mut sweeps {
            let name = section.name.clone();
            let mut number = 2;
            while !taken.insert(section.name.clone()) {
                section.name = format!("{name}-{number}");
                number += 1;
            }
        }
        (sweeps, again)
    }

    fn add_sweep(&mut self, folder: &Path) {
        let sweep = match SweepRecord::read(folder) {
            Ok(sweep) => sweep,
            Err(error) => {
                self.single
                    .notes
                    .push(format!("{error}; start the sweep again, which keeps its finished runs"));
                // Its runs may be intact.
                folders(folder, 1).iter().for_each(|path| _ = self.add(path));
                return;
            }
        };
        let scale = if sweep.scale == "full" { String::new() } else { format!(" ({})", sweep.scale) };
        let mut section = Section {
            name: file_name(&sweep.name),
            title: format!("{}{scale}", sweep.title),
            scaled: sweep.scaled.clone(),
            reference: sweep.reference.as_ref().map(|name| reference_file(folder, name)),
            ..Section::default()
        };
        for run in &sweep.runs {
            let path = folder.join(&run.name);
            let log = folder.join(format!("{}.log", run.name));
            match run.state {
                RunState::Waiting if !is_run(&path) => {
                    section.notes.push(format!("{}: not run yet; start the sweep again", path.display()));
                }
                RunState::Failed => section.notes.push(format!(
                    "{}: failed: {}; see {}, then start the sweep again",
                    path.display(),
                    one_line(run.error.as_deref()),
                    log.display()
                )),
                // Listed together below.
                RunState::Skipped => {}
                RunState::Waiting | RunState::Completed => read_run(&path, Some(&sweep.name), &mut section),
            }
        }
        for (reason, names) in sweep.skipped() {
            section.skipped.push(format!(
                "{} of {} skipped ({}): {}",
                names.len(),
                count(sweep.runs.len(), "run"),
                names.join(", "),
                one_line(Some(reason))
            ));
        }
        let others = runs_beside(folder, &sweep);
        if !others.is_empty() {
            section.notes.push(format!(
                "{}: {} not in the sweep as it was last started: {}; mpiburn report RUN shows one",
                folder.display(),
                count(others.len(), "run"),
                others.join(", ")
            ));
        }
        self.sweeps.push(section);
    }
}

/// Runs in the sweep's folder that it does not have (any more).
fn runs_beside(folder: &Path, sweep: &SweepRecord) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let runs = entries.filter(|path| path.join("run.json").is_file() && !path.is_symlink());
    let names = runs.filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let mut others: Vec<String> =
        names.filter(|name| !sweep.runs.iter().any(|run| run.name == *name)).collect();
    others.sort();
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use run_record::SweepRun;

    fn sweep(folder: &Path, name: &str) {
        let run = SweepRun {
            name: "2x2".into(),
            repeat: 1,
            varied: Default::default(),
            state: RunState::Failed,
            error: Some("no\n  ssh".into()),
        };
        let (title, scale) = ("T".into(), "quick".into());
        let scaled = BTreeMap::new();
        let sweep = SweepRecord { name: name.into(), title, reference: None, scale, scaled, runs: vec![run] };
        sweep.write(folder).unwrap();
    }

    #[test]
    fn sweeps_of_the_same_name_have_different_file_names() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["a", "deep/b"] {
            sweep(&root.path().join(folder), "../t");
        }
        let mut found = Finder::default();
        assert!(found.add_below(root.path()).unwrap());
        let (sections, _) = found.sections();
        let names: Vec<&str> = sections.iter().map(|section| section.name.as_str()).collect();
        assert_eq!(names, ["---t", "---t-2"]);
        assert_eq!(sections[0].title, "T (quick)");
        let note = &sections[0].notes[0];
        assert!(
            note.contains("a/2x2: failed: no ssh; see ") && note.contains("a/2x2.log, then start"),
            "{note}"
        );
    }

    #[test]
    fn runs_of_a_damaged_sweep_are_found() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("s/run/checkpoints")).unwrap();
        std::fs::write(root.path().join("s/sweep.json"), "{").unwrap();
        let mut found = Finder::default();
        assert!(found.add(&root.path().join("s")) && found.add_below(root.path()).unwrap());
        assert!(!found.add(root.path()), "it is a folder of sweeps");
        let (sections, _) = found.sections();
        assert_eq!(sections[0].notes.len(), 2);
        assert!(
            sections[0].notes[0].contains("s/sweep.json: ")
                && sections[0].notes[1].contains("s/run: no run.json")
        );
    }
}
