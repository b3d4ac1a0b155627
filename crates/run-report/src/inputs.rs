//! Finds the inputs of a report: runs, sweeps, profiles and benchmark tables.
//!
//! The inputs are the paths on the command line. A folder among them stands for everything below it. If no
//! paths are given, the inputs are everything below the folder `results`. Each input counts once, even if
//! several paths lead to it: a report must not show a copy or a link as a repeat.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use itertools::Itertools;

use super::ReportError;
use super::benchmarks::is_table;
use super::profiles::{Profiles, files_of};
use super::runs::{Run, Section, failed, file_name, one_line, read_run};
use run_record::{NamedRun, RunState, SweepRecord, count};
use walkdir::{DirEntry, WalkDir};

/// Names of folders that a search skips at its first level, because they usually contain no runs. A folder
/// with such a name is searched if it is a run or a sweep.
const NOT_RUNS: [&str; 2] = ["reference", "report"];
/// Name of the file that describes an imported data set, in its folder.
const DATA_SET: &str = "dataset.json";
/// Maximum number of levels that are searched below a folder.
const DEPTH: usize = 5;

/// The inputs of a report.
#[derive(Debug, Default)]
pub struct Inputs {
    /// One section for each sweep, and one for all other runs.
    pub sections: Vec<Section>,
    /// Profiles, by folder.
    pub profiles: Vec<Profiles>,
    /// Files with benchmark tables.
    pub tables: Vec<PathBuf>,
    /// Paths that cannot be reported, one line each with the reason.
    pub rejected: Vec<String>,
    /// Further paths to inputs that are already reported, one line each.
    pub again: Vec<String>,
}

impl Inputs {
    /// Finds the inputs in `paths`, or below `root` if there are no paths. The folder `written`, which the
    /// report itself writes, is left out.
    ///
    /// # Errors
    /// If there are no paths and `root` cannot be read.
    pub fn find(paths: &[PathBuf], root: &Path, written: &Path) -> Result<Self, ReportError> {
        let single = Section { name: "runs".into(), title: "Runs".into(), ..Section::default() };
        let mut search =
            Search { written, single, found: Self::default(), first: BTreeMap::new(), typed: Vec::new() };
        if paths.is_empty() {
            let failed = |error| format!("{error}: train first, or name a run directory");
            fs::read_dir(root).map_err(|error| ReportError::read(root, failed(error)))?;
            search.add_below(root);
        }
        for path in paths {
            let added = search.add(path);
            search.found.rejected.extend(added.err());
        }
        Ok(search.finish())
    }
}

/// State of a search for inputs.
struct Search<'a> {
    written: &'a Path,
    found: Inputs,
    /// The section of runs outside sweeps.
    single: Section,
    /// Profiles that are given as files.
    typed: Vec<PathBuf>,
    /// For each canonical path, the first path that led to it.
    first: BTreeMap<PathBuf, PathBuf>,
}

impl Search<'_> {
    /// Adds the input at `path`.
    ///
    /// # Errors
    /// If `path` cannot be reported. The message is one line.
    fn add(&mut self, path: &Path) -> Result<(), String> {
        let shown = path.display();
        let found = path.metadata().map_err(|error| match error.kind() {
            ErrorKind::NotFound => format!("{shown}: there is no such file or folder"),
            _ => format!("cannot read {shown}: {error}"),
        })?;
        let ends_in = |ending: &str| path.extension().is_some_and(|found| found == ending);
        if found.is_file() && (path.ends_with("run.json") || path.ends_with("sweep.json")) {
            // `run.json` or `sweep.json` stands for its folder.
            self.add_run(path.parent().filter(|folder| folder != &Path::new("")).unwrap_or(Path::new(".")));
        } else if found.is_dir() {
            // A checkpoint stands for its run.
            let run = NamedRun::at(path).map_or_else(|_| path.to_owned(), |run| run.folder);
            if is_of_runs(&run) {
                self.add_run(&run);
            } else if path.join(DATA_SET).is_file() {
                return Err(is_data_set(path));
            } else if self.is_new(path) {
                fs::read_dir(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
                return self.add_folder(path);
            }
        } else if path.ends_with(DATA_SET) {
            return Err(is_data_set(path));
        } else if ends_in("json") {
            self.typed.push(path.to_owned());
        } else if is_table(path) {
            self.add_table(path);
        } else if ends_in("csv") {
            return Err(format!(
                "{shown}: is not a table of mpiburn bench (fused, collectives or allreduce): leave it out"
            ));
        } else {
            return Err(format!(
                "{shown}: is not a run directory, a sweep, a profile (.json) or a benchmark table (.csv): leave it out"
            ));
        }
        Ok(())
    }

    /// Adds everything in `folder`, which is not itself a run or a sweep.
    fn add_folder(&mut self, folder: &Path) -> Result<(), String> {
        if self.add_below(folder) {
            return Ok(());
        }
        // Nothing in the folder can be reported. Name each .json file with its problem.
        let files = files_of(folder, "json");
        if files.is_empty() {
            return Err(format!(
                "{}: contains no run, sweep, profile or benchmark table, in itself or up to {DEPTH} levels below: \
                 name a folder that contains one",
                folder.display()
            ));
        }
        self.found.profiles.push(Profiles::of_files(folder, &files));
        Ok(())
    }

    /// Adds everything below `folder`, sorted by name, with links last. Returns whether anything was found.
    fn add_below(&mut self, folder: &Path) -> bool {
        let written = self.written;
        let is_entered = |entry: &DirEntry| {
            let name = entry.file_name().to_string_lossy();
            let is_left_out = entry.depth() == 1 && NOT_RUNS.contains(&&*name) || name.starts_with('.');
            entry.depth() == 0 || (entry.path() != written && (!is_left_out || is_of_runs(entry.path())))
        };
        let walk = WalkDir::new(folder).follow_root_links(true).max_depth(DEPTH);
        let walk = walk.sort_by_key(|entry| (entry.path_is_symlink(), entry.file_name().to_owned()));
        let mut entries = walk.into_iter().filter_entry(is_entered);
        let mut has_any = false;
        // Skip folders that cannot be read.
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { continue };
            let path = entry.path();
            let is_folder = entry.file_type().is_dir() || entry.depth() == 0;
            has_any |= if entry.depth() > 0 && is_folder && is_of_runs(path) {
                entries.skip_current_dir();
                self.add_run(path);
                true
            } else if is_folder {
                self.add_profiles(path)
            } else {
                path.is_file() && is_table(path) && self.add_table(path)
            };
        }
        has_any
    }

    /// Adds the profiles of a folder. Returns whether it has any.
    fn add_profiles(&mut self, folder: &Path) -> bool {
        let found = Profiles::of_files(folder, &files_of(folder, "json"));
        let has_any = !found.profiles.is_empty();
        if has_any {
            self.found.profiles.push(found);
        }
        has_any
    }

    fn add_table(&mut self, path: &Path) -> bool {
        if self.is_new(path) {
            self.found.tables.push(path.to_owned());
        }
        true
    }

    /// Adds the run or sweep in `folder`, and the benchmark tables in `folder`.
    fn add_run(&mut self, folder: &Path) {
        let tables = files_of(folder, "csv").into_iter().filter(|path| is_table(path));
        tables.for_each(|path| _ = self.add_table(&path));
        if !self.is_new(folder) {
            // The run was found before, under this path or another one. It must not count as a repeat of
            // itself.
        } else if folder.join("sweep.json").is_file() {
            self.add_sweep(folder)
        } else {
            read_run(folder, None, &mut self.single)
        }
    }

    fn add_sweep(&mut self, folder: &Path) {
        let sweep = match SweepRecord::read(folder) {
            Ok(sweep) => sweep,
            Err(error) => {
                let note = format!("{error}; start the sweep again, which keeps its finished runs");
                self.single.notes.push(note);
                // The list of runs is damaged, but the runs themselves may be intact.
                self.add_below(folder);
                return;
            }
        };
        self.found.sections.push(sweep_section(folder, &sweep));
    }

    /// Whether `path` leads to something that was not found before. If it was found under another path, such
    /// as a link or a path with `..`, a line in `again` names both paths.
    fn is_new(&mut self, path: &Path) -> bool {
        // If `path` does not exist, the code that reads it reports the error.
        let Ok(target) = path.canonicalize() else { return true };
        let first = self.first.get(&target);
        if let Some(first) = first.filter(|first| *first != path) {
            self.found.again.push(same_as(path, first));
        }
        let is_new = first.is_none();
        if is_new {
            self.first.insert(target, path.to_owned());
        }
        is_new
    }

    /// Returns the inputs, without duplicates and in order.
    fn finish(mut self) -> Inputs {
        // If a profile is given as a file, and its folder is given too, the profile is shown with the other
        // profiles of the folder.
        let mut profiles = std::mem::take(&mut self.found.profiles);
        for found in &mut profiles {
            found.profiles.retain(|profile| self.is_new(&profile.path));
        }
        let mut typed = std::mem::take(&mut self.typed);
        typed.retain(|path| self.is_new(path));
        if let Some(folder) = typed.first().and_then(|first| first.parent()) {
            profiles.insert(0, Profiles::of_files(folder, &typed));
        }
        let Self { mut found, single, .. } = self;
        found.profiles = profiles;
        found.tables.sort();
        found.sections.push(single);
        drop_copies(&mut found.sections, &mut found.again);
        found.sections.sort_by_key(place);
        found.sections.retain(|section| {
            !(section.runs.is_empty() && section.notes.is_empty() && section.skipped.is_empty())
        });
        tell_apart(&mut found.sections);
        // Section names become file names, and sweeps in different folders may have the same name.
        let mut taken = BTreeSet::new();
        for section in &mut found.sections {
            let name = section.name.clone();
            let mut numbered = (2..).map(|number| format!("{name}-{number}"));
            while !taken.insert(section.name.clone()) {
                section.name.clone_from(&numbered.next().unwrap_or_default());
            }
        }
        found
    }
}

/// Returns `path` for a title: without `./` at the beginning, and `.` for the current folder.
pub fn shown(path: &Path) -> String {
    match path.strip_prefix(".").unwrap_or(path) {
        here if here.as_os_str().is_empty() => ".".to_owned(),
        path => path.display().to_string(),
    }
}

/// Makes the titles of sections unique. If only one run is outside sweeps, its section is titled by the run's
/// path. If several sections have the same title, their folders are added.
fn tell_apart(sections: &mut [Section]) {
    for section in &mut *sections {
        if let ("runs", [run]) = (section.name.as_str(), &section.runs[..]) {
            section.title = format!("Run {}", shown(&run.path));
        }
    }
    let titles: Vec<String> = sections.iter().map(|section| section.title.clone()).collect();
    for section in sections {
        if titles.iter().filter(|title| **title == section.title).count() > 1 {
            section.title = format!("{} in {}", section.title, shown(&section.folder));
        }
    }
}

/// Makes the section of the sweep in `folder`.
fn sweep_section(folder: &Path, sweep: &SweepRecord) -> Section {
    let scale = if sweep.scale == "full" { String::new() } else { format!(" ({})", sweep.scale) };
    let mut section = Section {
        name: file_name(&sweep.name),
        title: format!("{}{scale}", sweep.title),
        folder: folder.to_owned(),
        scaled: sweep.scaled.clone(),
        reference: sweep.reference.as_ref().map(|name| reference_file(folder, name)),
        ..Section::default()
    };
    let again = match &sweep.command {
        Some(command) => format!("start the sweep again: {command}"),
        None => "start the sweep again".into(),
    };
    for run in &sweep.runs {
        let path = folder.join(&run.name);
        match run.state {
            RunState::Waiting if !is_of_runs(&path) => {
                section.notes.push(format!("{}: not run yet; {again}", path.display()));
            }
            RunState::Failed => {
                let log = folder.join(format!("{}.log", run.name));
                // A run that did not start has no log.
                let see = if log.exists() { format!("see {}, then ", log.display()) } else { String::new() };
                let failure = failed(run.error.as_deref());
                section.notes.push(format!("{}: {failure}; {see}{again}", path.display()));
            }
            // All skipped runs are listed together below.
            RunState::Skipped => {}
            // The run was started, but the sweep has not recorded its end. The command that starts the sweep
            // again also continues the run, so a note about the run names this command too.
            RunState::Waiting => {
                let mut found = Section::default();
                read_run(&path, Some(&sweep.name), &mut found);
                section.runs.append(&mut found.runs);
                section.notes.extend(found.notes.into_iter().map(|note| format!("{note}; or {again}")));
            }
            RunState::Completed if !path.exists() => {
                section.notes.push(format!("{}: the folder is missing: {again}", path.display()));
            }
            RunState::Completed => read_run(&path, Some(&sweep.name), &mut section),
        }
    }
    for (reason, names) in sweep.skipped() {
        let all = count(sweep.runs.len(), "run");
        let runs = format!("{} of {all} of {} ({})", names.len(), sweep.name, names.join(", "));
        section.skipped.push((one_line(reason), runs));
    }
    let others = runs_beside(folder, sweep);
    if !others.is_empty() {
        section.notes.push(format!(
            "{}: contains {} not in the sweep's list: {}; show one with mpiburn report RUN",
            folder.display(),
            count(others.len(), "run"),
            others.join(", ")
        ));
    }
    section
}

/// Makes the error of a path that is an imported data set.
fn is_data_set(path: &Path) -> String {
    format!("{} is a data set: name a run that was trained on it", path.display())
}

/// Returns the sort key of a section. Sweeps of topologies and backends come first, then other sweeps of
/// topologies, then the rest. Sections with equal keys stay in the order in which they were found.
fn place(section: &Section) -> (bool, bool) {
    let differ = |of: fn(&Run) -> &str| section.runs.iter().map(of).unique().count() > 1;
    let topologies = differ(|run| run.record.topology.as_str());
    (!topologies, !(topologies && differ(|run| run.text("backend"))))
}

/// Whether `path` is the folder of a sweep or a run, complete or not.
fn is_of_runs(path: &Path) -> bool {
    path.join("sweep.json").is_file() || path.join("run.json").exists() || path.join("checkpoints").is_dir()
}

/// Makes the line about a second path to an input.
fn same_as(path: &Path, first: &Path) -> String {
    format!("{}: is the same as {}, which is shown once", path.display(), first.display())
}

/// Removes copies of runs, so that a copied folder does not count as a repeat. If a sweep's run is also given
/// by itself, the run stays in the sweep's table.
///
/// Two runs count as copies if their `run.json` files are identical. Two different runs cannot have identical
/// files, because the file contains the start time and the process ids. `again` gets one line for each
/// removed run, or one line for a folder with several removed runs.
fn drop_copies(sections: &mut [Section], again: &mut Vec<String>) {
    let mut first: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut copies: Vec<[PathBuf; 2]> = Vec::new();
    for section in sections {
        section.runs.retain(|run| {
            let Some(first) = first.get(&run.digest) else {
                first.insert(run.digest.clone(), run.path.clone());
                return true;
            };
            if run.path.canonicalize().ok() != first.canonicalize().ok() {
                copies.push([run.path.clone(), first.clone()]);
            } else if run.path != *first {
                again.push(same_as(&run.path, first));
            }
            false
        });
    }
    // A copied sweep gets one line, not one for each run.
    let folders = |paths: &[PathBuf; 2]| paths.each_ref().map(|path| path.parent().map(Path::to_owned));
    for (_, copies) in copies.iter().into_group_map_by(|paths| folders(paths)).into_iter().sorted() {
        let [copy, first] = copies[0];
        again.push(match (copies.len(), copy.parent(), first.parent()) {
            (number @ 2.., Some(copy), Some(first)) => format!(
                "{}: {number} runs are copies of runs in {}, which are shown once",
                copy.display(),
                first.display()
            ),
            _ => format!("{}: is a copy of {}, which is shown once", copy.display(), first.display()),
        });
    }
}

/// Returns `reference/NAME.csv` beside the sweep's folder, or `results/reference/NAME.csv` if there is no
/// such file.
fn reference_file(sweep: &Path, name: &str) -> PathBuf {
    let beside = sweep.join("../reference").join(format!("{name}.csv"));
    if beside.is_file() { beside } else { Path::new("results/reference").join(format!("{name}.csv")) }
}

/// Returns the names of runs in the sweep's folder that are not, or no longer, part of the sweep.
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
#[path = "inputs_tests.rs"]
mod tests;
