//! Finds and reads run directories and sweeps; runs that cannot be shown become
//! notes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::ReportError;
use crate::config::RunRecord;
use crate::record::{Results, RunDir, RunState, Status, SweepRecord};

/// A finished run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its directory.
    pub path: PathBuf,
    /// Name of its sweep.
    pub sweep: Option<String>,
    /// Its record.
    pub record: RunRecord,
    /// Its results.
    pub results: Results,
}

impl Run {
    /// Every option and other property that distinguishes runs, by name, as text.
    /// Options that were not given are omitted.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let config = serde_json::to_value(&self.record.config).unwrap_or_default();
        let mut settings: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in config.as_object().into_iter().flatten() {
            let text = match value {
                serde_json::Value::Null => continue,
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            settings.insert(name.clone(), text);
        }
        // The deadline and the log do not affect the results.
        settings.remove("comm_timeout");
        let quantize = settings.remove("quantize").unwrap_or_else(|| "no".into());
        settings.insert("quantized".into(), quantize);
        settings.insert("launcher".into(), self.record.launcher.clone());
        settings.insert("topology".into(), self.record.topology.clone());
        settings.insert("oversubscribed".into(), self.oversubscribed().into());
        if let Some(sweep) = &self.sweep {
            settings.insert("sweep".into(), sweep.clone());
        }
        let mpi = self.record.versions.get("mpi").cloned().unwrap_or_default();
        settings.insert("mpi".into(), mpi.split(',').next().unwrap_or_default().trim().into());
        settings
    }

    /// Epochs that were trained, which early stopping may have reduced.
    pub fn epochs_done(&self) -> usize {
        self.results.stopped_early_after.unwrap_or(self.record.config.epochs)
    }

    /// Whether its ranks shared cores, and its hosts a machine.
    pub fn oversubscribed(&self) -> &'static str {
        match (self.record.oversubscribed, self.record.shared_machine) {
            (false, false) => "no",
            (true, false) => "yes",
            (false, true) => "shared",
            (true, true) => "yes, shared",
        }
    }
}

/// Runs of one set of tables: a sweep, or the runs outside sweeps.
#[derive(Debug, Default)]
pub struct Section {
    /// Short name for file names.
    pub name: String,
    /// Title.
    pub title: String,
    /// File of published figures that the sweep names.
    pub reference: Option<PathBuf>,
    /// Finished runs.
    pub runs: Vec<Run>,
    /// Runs that are impossible on the machine of the sweep, a line for each reason.
    pub skipped: Vec<String>,
    /// Everything else, one line each: where, what happened, what to do.
    pub notes: Vec<String>,
    /// Options that the sweep's scale changes, with their values here and at full scale.
    pub scaled: BTreeMap<String, (String, String)>,
}

/// Reads the runs and sweeps `paths`; all below `root` if there are none.
///
/// # Errors
/// When a path is neither run nor sweep, or `root` cannot be read.
pub fn find(paths: &[PathBuf], root: &Path) -> Result<Vec<Section>, ReportError> {
    let mut sweeps: Vec<Section> = Vec::new();
    let mut single = Section { name: "runs".into(), title: "Runs".into(), ..Section::default() };
    if paths.is_empty() {
        walk(root, 0, &mut sweeps, &mut single).map_err(|error| {
            ReportError::read(root, format!("{error}; train first, or name a run directory"))
        })?;
    }
    for path in paths {
        if path.join("sweep.json").is_file() {
            add_sweep(path, &mut sweeps, &mut single);
        } else if is_run(path) {
            read_run(path, None, &mut single);
        } else {
            let problem = "not a run or sweep: it has neither run.json nor sweep.json, and no profile either";
            return Err(ReportError::read(path, problem));
        }
    }
    let filled = |section: &Section| {
        !(section.runs.is_empty() && section.notes.is_empty() && section.skipped.is_empty())
    };
    sweeps.push(single);
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
    Ok(sweeps)
}

/// The name, with characters that are valid in a file name.
pub(super) fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

/// Joins the lines of an error, because a note is one line.
fn one_line(text: Option<&str>) -> String {
    text.map_or("no error message".into(), |text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Whether this is a run directory, complete or not.
pub(super) fn is_run(path: &Path) -> bool {
    path.join("run.json").exists() || path.join("checkpoints").is_dir()
}

/// Folders below `results/` without runs.
pub(super) const NOT_RUNS: [&str; 2] = ["reference", "report"];
/// Maximum depth of nested folders.
pub(super) const DEPTH: usize = 4;

fn walk(folder: &Path, depth: usize, sweeps: &mut Vec<Section>, single: &mut Section) -> std::io::Result<()> {
    let mut below: Vec<PathBuf> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    below.retain(|path| path.is_dir() && !path.is_symlink());
    below.sort();
    for path in below {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.join("sweep.json").is_file() {
            add_sweep(&path, sweeps, single);
        } else if is_run(&path) {
            read_run(&path, None, single);
        } else if depth < DEPTH && !(depth == 0 && NOT_RUNS.contains(&name)) && !name.starts_with('.') {
            // An unreadable folder has nothing to show.
            let _ = walk(&path, depth + 1, sweeps, single);
        }
    }
    Ok(())
}

fn add_sweep(folder: &Path, sweeps: &mut Vec<Section>, single: &mut Section) {
    let sweep = match SweepRecord::read(folder) {
        Ok(sweep) => sweep,
        Err(error) => {
            single.notes.push(format!("{error}; start the sweep again, which keeps its finished runs"));
            // Its runs may be intact; the folder depth bounds the recursion.
            let _ = walk(folder, DEPTH, sweeps, single);
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
            "{} of {} runs skipped ({}): {}",
            names.len(),
            sweep.runs.len(),
            names.join(", "),
            one_line(Some(reason))
        ));
    }
    sweeps.push(section);
}

/// `reference/NAME.csv` beside the sweep's folder, or else below `results/`.
fn reference_file(sweep: &Path, name: &str) -> PathBuf {
    let beside = sweep.join("../reference").join(format!("{name}.csv"));
    if beside.is_file() { beside } else { Path::new("results/reference").join(format!("{name}.csv")) }
}

fn read_run(path: &Path, sweep: Option<&str>, section: &mut Section) {
    match finished(path) {
        Ok((record, results)) => {
            section.runs.push(Run { path: path.to_owned(), sweep: sweep.map(Into::into), record, results });
        }
        Err(note) => section.notes.push(note),
    }
}

fn finished(path: &Path) -> Result<(RunRecord, Results), String> {
    let shown = path.display();
    if !path.join("run.json").exists() {
        return Err(format!(
            "{shown}: no run.json: the run was killed at its start; remove it or run it again"
        ));
    }
    let (_, mut record) = RunDir::open(path).map_err(|error| {
        format!("{error}; not written by this version, or damaged: remove {shown} or run it again")
    })?;
    let resume = format!("continue with mpirun -n {} ... mpiburn train --resume {shown}", record.world_size);
    let why = one_line(record.error.as_deref());
    match (record.status, record.results.take()) {
        (Status::Completed, Some(results)) if results.train_seconds > 0.0 => Ok((record, results)),
        (Status::Completed, _) => Err(format!("{shown}: completed, but has no results; run it again")),
        (Status::Running, _) => Err(format!("{shown}: still running, or killed; if killed, {resume}")),
        (Status::Failed, _) => Err(format!("{shown}: failed: {why}; fix the cause, then {resume}")),
        // The message itself names the command to continue.
        (Status::Stopped, _) => Err(format!("{shown}: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SweepRun;

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
        let sections = find(&[], root.path()).unwrap();
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
        let sections = find(&[root.path().join("s")], root.path()).unwrap();
        assert_eq!(sections[0].notes.len(), 2);
        assert!(
            sections[0].notes[0].contains("s/sweep.json: ")
                && sections[0].notes[1].contains("s/run: no run.json")
        );
    }
}
