//! Run directories that a report reads; runs that cannot be shown become notes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::config::{Config, DEFAULTS, GLOO_ALGORITHM, RunRecord};
use super::csv_table::{damaged, problem};
use super::footnotes::changed_setting;
use super::history;
use super::rows::compare;
use run_record::EpochRow;
use run_record::files::{read_regular, sha256};
use run_record::{RecordError, Results, RunDir, Status};
use serde_json::Value;

/// A finished run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its directory.
    pub path: PathBuf,
    /// Name of its sweep.
    pub sweep: Option<String>,
    /// Its record.
    pub record: RunRecord,
    /// Its options.
    pub config: Config,
    /// Its results.
    pub results: Results,
    /// The digest of its run.json; no two runs have the same.
    pub digest: String,
}

impl Run {
    /// Every option and other property that distinguishes runs, by name, as text.
    /// Options that were not given are omitted.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let mut settings: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in &self.record.config {
            let text = match value {
                Value::Null => continue,
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            settings.insert(name.clone(), text);
        }
        // A limit that the data set does not reach is none.
        if let Some(data) = &self.record.data {
            for (name, used, available) in [
                ("train_samples", data.train_samples, data.train_available),
                ("test_samples", data.test_samples, data.test_available),
            ] {
                if used == available {
                    settings.remove(name);
                }
            }
        }
        // An option that is typed at its default is as one that is not typed, and the number of classes is checked
        // only.
        for (name, default) in DEFAULTS {
            if settings.get(name).is_some_and(|value| compare(value, default).is_eq()) {
                settings.remove(name);
            }
        }
        // What does not affect the results.
        for name in ["checkpoint_every", "comm_timeout", "keep", "num_classes"] {
            settings.remove(name);
        }
        if self.config.backend != "gloo" {
            settings.remove("interface");
            settings.insert("gloo_algorithm".into(), GLOO_ALGORITHM.into());
        }
        let quantize = settings.remove("quantize").unwrap_or_else(|| "no".into());
        settings.insert("quantized".into(), quantize);
        // Its values so far were others.
        settings.extend(changed_setting(self).map(|lines| ("changed".into(), lines)));
        settings.insert("launcher".into(), self.record.launcher.clone());
        settings.insert("topology".into(), self.record.topology.clone());
        settings.insert("oversubscribed".into(), self.oversubscribed().into());
        if let Some(sweep) = &self.sweep {
            settings.insert("sweep".into(), sweep.clone());
        }
        // Of another machine times do not compare, of other samples nothing does.
        settings.insert("processor".into(), self.processors());
        settings.extend(self.record.simd_level.clone().map(|level| ("simd_level".into(), level)));
        let data = self.record.data.as_ref().and_then(|data| data.train_sha256.get(..8));
        settings.extend(data.map(|digest| ("data".into(), digest.into())));
        // Early stopping makes trainings of different lengths.
        if self.config.early_stopping.is_some() {
            settings.insert("epochs_run".into(), self.epochs_done().to_string());
        }
        let mpi = self.record.versions.get("mpi").cloned().unwrap_or_default();
        settings.insert("mpi".into(), mpi.split(',').next().unwrap_or_default().trim().into());
        settings
    }

    /// The processors of its machines.
    pub fn processors(&self) -> String {
        let names: BTreeSet<&str> = self.record.machines.iter().map(|machine| machine.cpu.as_str()).collect();
        match names.is_empty() {
            true => "unknown".into(),
            false => names.into_iter().collect::<Vec<_>>().join(" and "),
        }
    }

    /// Epochs that were trained, which early stopping may have reduced.
    pub fn epochs_done(&self) -> usize {
        self.results.stopped_early_after.unwrap_or(self.config.epochs)
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

/// The name, with characters that are valid in a file name.
pub(crate) fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

/// Joins the lines of an error, because a note is one line.
pub(crate) fn one_line(text: Option<&str>) -> String {
    text.map_or("no error message".into(), |text| text.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Adds the run in the folder `path` to `section`, or a note about it.
pub(crate) fn read_run(path: &Path, sweep: Option<&str>, section: &mut Section) {
    match finished(path) {
        Ok(run) => section.runs.push(Run { sweep: sweep.map(Into::into), ..run }),
        Err(note) => section.notes.push(note),
    }
}

fn finished(path: &Path) -> Result<Run, String> {
    let shown = path.display();
    if !path.join("run.json").exists() {
        if let Err(error @ RecordError::Replaced(_)) = RunDir::open::<Value>(path) {
            return Err(error.to_string());
        }
        return Err(format!(
            "{shown}: no run.json: the run was killed at its start; remove it or run it again"
        ));
    }
    // Before its types are, whose errors name no field.
    let file = path.join("run.json");
    let text = read_regular(&file).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    if json.is_object() {
        check(&json).map_err(|problem| damaged::<EpochRow>(&file, &problem))?;
    }
    let other =
        |error| format!("{error}; not written by this version, or damaged: remove {shown} or run it again");
    let (_, mut record): (_, RunRecord) = RunDir::open(path).map_err(other)?;
    let config =
        Config::of(&record.config).map_err(|error| other(RecordError::damaged(&file, error.to_string())))?;
    let resume = format!("continue with mpirun -n {} ... mpiburn train --resume {shown}", record.world_size);
    let why = one_line(record.error.as_deref());
    match (record.status, record.results.take()) {
        (Status::Completed, Some(results)) => {
            let epochs = results.stopped_early_after.unwrap_or(config.epochs);
            history::check(path, &results, epochs)?;
            Ok(Run { path: path.to_owned(), sweep: None, record, config, results, digest: sha256(&text) })
        }
        (Status::Completed, None) => {
            let why = serde_json::from_value::<Results>(json).err().map(|error| error.to_string());
            Err(damaged::<EpochRow>(&file, why.as_deref().unwrap_or("no results")))
        }
        (Status::Running, _) => Err(format!("{shown}: still running, or killed; if killed, {resume}")),
        (Status::Failed, _) => Err(format!("{shown}: failed: {why}; fix the cause, then {resume}")),
        // The message itself names the command to continue.
        (Status::Stopped, _) => Err(format!("{shown}: {why}")),
    }
}

/// Checks what tables compute with in `run.json`: somebody may have edited the file.
///
/// # Errors
/// The field and what is wrong with it.
fn check(run: &Value) -> Result<(), String> {
    check_numbers("", "", run)?;
    if run["status"] == "completed" {
        serde_path_to_error::deserialize::<_, Results>(run).map_err(|error| {
            match error.path().to_string() {
                path if path == "." => error.into_inner().to_string(),
                path => format!("{path}: {}", error.into_inner()),
            }
        })?;
    }
    let hosts = run["hosts"].as_array().map_or(0, Vec::len);
    match run["world_size"].as_u64() {
        Some(ranks) if ranks != hosts as u64 => {
            Err(format!("world_size: {ranks}, and {hosts} of them in hosts"))
        }
        _ => Ok(()),
    }
}

/// Checks each number below `path`, by the name of its field.
fn check_numbers(path: &str, name: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(field, value)| {
            let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
            check_numbers(&path, field, value)
        }),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .try_for_each(|(at, value)| check_numbers(&format!("{path}[{at}]"), name, value)),
        Value::Number(number) => {
            problem(name, &number.to_string()).map_or(Ok(()), |problem| Err(format!("{path}: {problem}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    fn json() -> Value {
        let run = run((1, 2), &[], 4.0);
        let record = crate::config::RunRecord { results: Some(run.results), ..run.record };
        let mut json = serde_json::to_value(record).expect("a record is JSON");
        let of_rank = |rank| {
            serde_json::json!({
                "rank": rank, "host": "a", "train_samples": 5, "test_samples": 5, "comm_seconds": 0.1,
                "peak_rss_mb": 50.0,
            })
        };
        json["per_rank"] = [0, 1].map(of_rank).to_vec().into();
        json
    }

    #[test]
    fn a_run_as_it_is_written_passes() {
        assert_eq!(check(&json()), Ok(()));
        let mut waiting = json();
        waiting.as_object_mut().unwrap().remove("steps");
        assert_eq!(check(&waiting).unwrap_err(), "missing field `steps`");
        waiting["status"] = "running".into();
        assert_eq!(check(&waiting), Ok(()));
    }

    #[test]
    fn absurd_values_are_named_with_their_field() {
        for (path, value, expected) in [
            ("/steps", "0", "steps: 0 is not above 0"),
            ("/steps", "-5", "steps: -5 is not from 0 to 1e30"),
            ("/steps", "\"many\"", "steps: invalid type: string \"many\", expected usize"),
            ("/ms_per_step", "0", "ms_per_step: 0 is not above 0"),
            ("/ms_per_step", "null", "ms_per_step: invalid type: null, expected f64"),
            ("/world_size", "0", "world_size: 0 is not above 0"),
            ("/world_size", "1000000000000", "world_size: 1000000000000, and 2 of them in hosts"),
            ("/hosts", "[\"a\",\"b\",\"c\"]", "world_size: 2, and 3 of them in hosts"),
            ("/per_rank", "[{\"rank\":0}]", "per_rank[0]: missing field `host`"),
            ("/train_seconds", "-1.5", "train_seconds: -1.5 is not from 0 to 1e30"),
            ("/train_seconds", "0.0", "train_seconds: 0.0 is not above 0"),
            ("/checkpoint_seconds", "-1", "checkpoint_seconds: -1 is not from 0 to 1e30"),
            ("/test_accuracy", "140", "test_accuracy: 140 is not from 0 to 1e2"),
            ("/step_ms/forward", "-1", "step_ms.forward: -1 is not from 0"),
            ("/config/epochs", "0", "config.epochs: 0 is not above 0"),
            ("/per_rank/1/train_samples", "-1", "per_rank[1].train_samples: -1 is not from 0"),
        ] {
            let mut json = json();
            match (path, json.pointer_mut(path)) {
                (_, Some(field)) => *field = serde_json::from_str(value).unwrap(),
                (path, None) => json[&path[1..]] = serde_json::from_str(value).unwrap(),
            }
            let found = check(&json).unwrap_err();
            assert!(found.starts_with(expected), "{path} {value}: {found}");
        }
    }
}
