//! `sweep.json`: the list of a sweep's runs, in the folder that contains the directories of the runs. A sweep
//! makes several runs that differ in options or topology.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{RecordError, json_problem};
use crate::files::{read_regular, replace_json};

/// Content of `sweep.json` in a sweep's folder, `results/<name>/`. The folder contains a directory `<run>/`
/// and a log `<run>.log` for each run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SweepRecord {
    /// File name of the sweep's definition, without its extension.
    pub name: String,
    /// Title of the table in reports.
    pub title: String,
    /// Name of the table of published figures to compare with: `results/reference/<name>.csv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// `full`, or the name of a smaller variant of the sweep.
    pub scale: String,
    /// Options that this scale changes: for each, the value at this scale and the value at full scale.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub scaled: BTreeMap<String, (String, String)>,
    /// The command that starts the runs that are not completed yet.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub command: Option<String>,
    /// The runs, in the order in which they are made.
    pub runs: Vec<SweepRun>,
}

/// One run of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepRun {
    /// Name of the run's directory.
    pub name: String,
    /// Index of the repeat, from 1.
    pub repeat: usize,
    /// The parameters that the sweep varies, with their values in this run: `topology` and options of
    /// `train`.
    pub varied: BTreeMap<String, String>,
    /// Status of the run.
    pub state: RunState,
    /// Why the run failed or was skipped. For a skipped run, also what the run would need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Status of a run of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RunState {
    /// Not started yet.
    Waiting,
    /// The run has ended, with results.
    Completed,
    /// The run ended with an error.
    Failed,
    /// The run is impossible on this machine. This was found before any run was started.
    Skipped,
}

impl SweepRun {
    /// Returns the error. If it ends with the path of the run's log in parentheses, this end is left out: the
    /// path differs between runs, so errors that contain it could not be grouped.
    fn reason(&self) -> &str {
        let error = self.error.as_deref().unwrap_or("no reason is recorded");
        match error.rsplit_once(" (") {
            Some((reason, log)) if log.ends_with(&format!("{}.log)", self.name)) => reason,
            _ => error,
        }
    }
}

impl SweepRecord {
    /// Returns each reason for which runs were skipped, with the names of these runs, in the order of the
    /// sweep.
    pub fn skipped(&self) -> Vec<(&str, Vec<&str>)> {
        let groups = self.by_reason(RunState::Skipped).into_iter();
        groups.map(|(reason, runs)| (reason, runs.iter().map(|run| run.name.as_str()).collect())).collect()
    }

    /// Returns the failed runs in the order of the sweep, grouped by the reason of the failure.
    pub fn failed(&self) -> Vec<Vec<&SweepRun>> {
        self.by_reason(RunState::Failed).into_iter().map(|(_, runs)| runs).collect()
    }

    fn by_reason(&self, state: RunState) -> Vec<(&str, Vec<&SweepRun>)> {
        let mut reasons: Vec<(&str, Vec<&SweepRun>)> = Vec::new();
        for run in self.runs.iter().filter(|run| run.state == state) {
            match reasons.iter_mut().find(|(known, _)| *known == run.reason()) {
                Some((_, runs)) => runs.push(run),
                None => reasons.push((run.reason(), vec![run])),
            }
        }
        reasons
    }

    /// Reads `folder/sweep.json`.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn read(folder: &Path) -> Result<Self, RecordError> {
        let file = folder.join("sweep.json");
        let text = read_regular(&file).map_err(|e| RecordError::read(&file, e))?;
        serde_json::from_slice(&text).map_err(|e| RecordError::damaged(&file, json_problem(&e)))
    }

    /// Replaces `folder/sweep.json` atomically.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), RecordError> {
        let name = "sweep.json";
        fs::create_dir_all(folder)
            .and_then(|()| replace_json(folder, name, self))
            .map_err(|e| RecordError::write(&folder.join(name), e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_that_differ_by_their_logs_alone_are_together() {
        let run = |name: &str, error: &str| SweepRun {
            name: name.into(),
            repeat: 1,
            varied: [].into(),
            state: RunState::Failed,
            error: Some(error.into()),
        };
        let runs = vec![
            run("a-1", "no data (fast) set (out/a-1.log)"),
            run("b-1", "no ssh (see b)"),
            run("a-2", "no data (fast) set (out/a-2.log)"),
            run("b-2", "no ssh (see a)"),
        ];
        let sweep = SweepRecord { runs, ..SweepRecord::default() };
        let names: Vec<Vec<&str>> =
            sweep.failed().iter().map(|runs| runs.iter().map(|run| run.name.as_str()).collect()).collect();
        assert_eq!(names, [vec!["a-1", "a-2"], vec!["b-1"], vec!["b-2"]]);
    }

    #[test]
    fn what_is_written_is_read() {
        let root = tempfile::tempdir().unwrap();
        let run = SweepRun {
            name: "2x1-mpi-1".into(),
            repeat: 1,
            varied: [("topology".to_owned(), "2x1".to_owned())].into(),
            state: RunState::Failed,
            error: Some("no ssh".into()),
        };
        let sweep = SweepRecord {
            name: "topologies".into(),
            title: "Topologies".into(),
            reference: None,
            scale: "full".into(),
            scaled: Default::default(),
            command: Some("mpiburn sweep topologies.toml".into()),
            runs: vec![run],
        };
        sweep.write(&root.path().join("topologies")).unwrap();
        assert_eq!(SweepRecord::read(&root.path().join("topologies")).unwrap(), sweep);
        let error = SweepRecord::read(root.path()).unwrap_err().to_string();
        assert!(error.contains("sweep.json"), "{error}");
    }
}
