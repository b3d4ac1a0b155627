//! Reads run directories for a report. A run that cannot be shown becomes a note, one line of text.

use itertools::Itertools;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use run_record::files::{open_regular, read_regular, sha256};
use run_record::{
    Affects, Change, EpochRow, Method, OptionSchema, RecordError, Results, RunDir, RunRecord, Status,
    WORLD_SIZE, checkpoint, json_problem, overfits_after, quoted, restore_or_train,
};
use serde::Deserialize;
use serde_json::Value;

use super::checks;
use super::csv_table::{self, TableRow, damaged};
use super::remarks::{changed_setting, shown, step_samples};
use super::rows::compare;
use super::sheet::significant;

/// A finished run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The run directory.
    pub path: PathBuf,
    /// Name of the sweep that the run belongs to.
    pub sweep: Option<String>,
    /// Content of `run.json` without the results.
    pub record: RunRecord,
    /// Results of the run.
    pub results: Results,
    /// SHA-256 of `run.json`. Only copies of a run have the same digest.
    pub digest: String,
}

impl Run {
    /// Returns every option and other property that distinguishes runs, by name, as text. Options that were
    /// not given, or that have no effect, are omitted.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let RunRecord { config, schema, .. } = &self.record;
        let mut settings: BTreeMap<String, String> = BTreeMap::new();
        for (field, value) in config {
            let row = schema.row(field);
            // An option without effect counts as not given, for example gloo's algorithm with another
            // backend.
            let is_met = schema.has_effect(config, field);
            let value = row.filter(|_| !is_met).map_or(value, |row| &row.default);
            // An option that is given with its default value counts as not given.
            let is_unset = |row: &OptionSchema| {
                let is_default = !row.unset.is_null() && compare(&shown(value), &shown(&row.unset)).is_eq();
                row.affects == Affects::Nothing || is_default
            };
            if !value.is_null() && !row.is_some_and(is_unset) {
                settings.insert(field.clone(), shown(value));
            }
        }
        // A limit that the data set does not reach has no effect.
        let data = &self.record.data;
        for (name, used, available) in [
            ("train_samples", data.train_samples, data.train_available),
            ("test_samples", data.test_samples, data.test_available),
        ] {
            if used == available {
                settings.remove(name);
            }
        }
        let quantize = settings.remove("quantize").unwrap_or_else(|| "no".into());
        settings.insert(QUANTIZED.into(), quantize);
        // A run whose options were changed by a resume is not a repeat of a run that had these values from
        // the start.
        settings.extend(changed_setting(self).map(|lines| ("changed".into(), lines)));
        settings.insert("launcher".into(), self.record.launcher.clone());
        settings.insert("topology".into(), self.record.topology.clone());
        settings.insert("oversubscribed".into(), self.oversubscribed().into());
        if let Some(sweep) = &self.sweep {
            settings.insert("sweep".into(), sweep.clone());
        }
        // Times on different machines cannot be compared. Between runs on different samples, nothing can be
        // compared.
        settings.insert("processor".into(), self.processors());
        settings.extend(self.record.simd_level.clone().map(|level| ("simd_level".into(), level)));
        settings.extend(data.train_sha256.get(..8).map(|digest| ("data".into(), digest.into())));
        // Runs on different test sets are not repeats. The digest above only covers the training samples.
        if data.test_available > 0 {
            settings.insert("test_available".into(), data.test_available.to_string());
        }
        // Early stopping and --stop-at-target make trainings of different lengths. A training that they did not
        // end has the same length as a training without them.
        let trained = self.results.epochs_run.to_string();
        if self.stopped_at_target() {
            settings.insert("epochs_run".into(), significant(self.epochs_trained(), 3));
        } else if !self.option("early_stopping").is_null() && settings.get("epochs") != Some(&trained) {
            settings.insert("epochs_run".into(), trained);
        }
        let mpi = self.record.versions.get("mpi").cloned().unwrap_or_default();
        settings.insert("mpi".into(), mpi.split(',').next().unwrap_or_default().trim().into());
        settings
    }

    /// Returns the value of an option; null if it was not given.
    pub fn option(&self, field: &str) -> &Value {
        self.record.config.get(field).unwrap_or(&Value::Null)
    }

    /// Returns the number of steps in an epoch, at least 1.
    pub fn steps_of_epoch(&self) -> usize {
        let Results { steps, epochs_run, .. } = self.results;
        let steps = if self.stopped_at_target() {
            let batch = step_samples(|field| self.option(field)).max(1);
            self.record.data.train_samples.div_ceil(self.record.world_size.max(1)).div_ceil(batch)
        } else {
            steps / epochs_run.max(1)
        };
        steps.max(1)
    }

    /// Returns the numbers of ranks that the run had, in order, each with the number of steps that were done
    /// before it. A resume may have changed the number.
    pub fn rank_counts(&self) -> Vec<(u64, usize)> {
        let RunRecord { history, world_size, .. } = &self.record;
        let is_of_ranks = |change: &&Change| change.field == WORLD_SIZE;
        let number = |value: &Value| value.as_u64().unwrap_or_default() as usize;
        let first = history.iter().flat_map(|attempt| &attempt.changed).find(is_of_ranks);
        let mut ranks = first.map_or(*world_size, |change| number(&change.from));
        let mut counts = vec![(0, ranks)];
        for attempt in history {
            ranks = attempt.changed.iter().rfind(is_of_ranks).map_or(ranks, |change| number(&change.to));
            // A resume from an older checkpoint repeats the steps after it.
            counts.retain(|(step, _)| *step == 0 || *step < attempt.step as u64);
            if counts.last().is_none_or(|(_, before)| *before != ranks) {
                counts.push((attempt.step as u64, ranks));
            }
        }
        counts
    }

    /// Returns the number of epochs that were trained. It has a fraction if the last one is incomplete.
    pub fn epochs_trained(&self) -> f64 {
        if self.stopped_at_target() {
            self.results.steps as f64 / self.steps_of_epoch() as f64
        } else {
            self.results.epochs_run.max(1) as f64
        }
    }

    /// Whether `--stop-at-target` ended the run. Its last epoch may be incomplete.
    pub fn stopped_at_target(&self) -> bool {
        *self.option("stop_at_target") == true && self.results.steps_to_target == Some(self.results.steps)
    }

    /// Returns the text of an option; empty if the option has another type.
    pub fn text(&self, field: &str) -> &str {
        self.option(field).as_str().unwrap_or_default()
    }

    /// Returns the seed of weights and shuffling.
    pub fn seed(&self) -> u64 {
        self.option("seed").as_u64().unwrap_or_default()
    }

    /// Returns the names of the processors of the run's machines.
    pub fn processors(&self) -> String {
        let names = self.record.machines.iter().map(|machine| &machine.cpu).sorted().dedup().join(" and ");
        if names.is_empty() { "unknown".into() } else { names }
    }

    /// Returns whether ranks shared cores, and whether several hosts are the same machine, as text.
    pub fn oversubscribed(&self) -> &'static str {
        match (self.record.oversubscribed, self.record.shared_machine) {
            (false, false) => "no",
            (true, false) => "yes",
            (false, true) => "shared",
            (true, true) => "yes, shared",
        }
    }
}

/// The runs of one set of tables: a sweep, or all runs outside sweeps.
#[derive(Debug, Default)]
pub struct Section {
    /// Short name, which file names begin with.
    pub name: String,
    /// Title of the tables.
    pub title: String,
    /// Folder of the sweep.
    pub folder: PathBuf,
    /// File of the published figures that the sweep names.
    pub reference: Option<PathBuf>,
    /// Finished runs.
    pub runs: Vec<Run>,
    /// Runs that are impossible on the machine of the sweep: each reason, and the runs.
    pub skipped: Vec<(String, String)>,
    /// Runs and files that are not shown, one line each: where, what happened, what to do.
    pub notes: Vec<String>,
    /// Options that the sweep's scale changes: for each, the value at this scale and the value at full scale.
    pub scaled: BTreeMap<String, (String, String)>,
}

/// Replaces the characters of `name` that may not be valid in a file name.
pub(crate) fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() || c == '_' { c } else { '-' }).collect()
}

/// Joins the lines of an error message, because a note is a single line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().join(" ")
}

/// Says that a run failed, and why if the reason is recorded.
pub(crate) fn failed(error: Option<&str>) -> String {
    error.map_or("failed, and recorded no reason".into(), |error| format!("failed: {}", one_line(error)))
}

/// Reads the run in the folder `path`, and adds it, or a note about it, to `section`.
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
        // A run that was killed at its start has no checkpoint.
        let has_checkpoint =
            checkpoint::list(&path.join("checkpoints")).map_or(true, |steps| !steps.is_empty());
        return Err(if has_checkpoint {
            format!("{shown}: has no run.json: {}", restore_or_train(path))
        } else {
            format!(
                "{shown}: has no run.json, because the run was killed at its start: remove the folder {shown} and run \
                 the training again"
            )
        });
    }
    // Check the JSON before it is read as a `RunRecord`: errors of the record's types do not name the field.
    let file = path.join("run.json");
    let text = read_regular(&file).unwrap_or_default();
    let json: Value = serde_json::from_slice(&text).unwrap_or_default();
    if json.is_object() {
        checks::check(&json).map_err(|problem| damaged_record(path, &problem))?;
    }
    let other = |error| match error {
        RecordError::Damaged { what, .. } => damaged_record(path, &what),
        error if error.is_damage() => format!("{error}: {}", restore_or_train(path)),
        error => error.to_string(),
    };
    let (_, mut record): (_, RunRecord) = RunDir::open(path).map_err(other)?;
    complete(&mut record).map_err(|problem| other(RecordError::damaged(&file, problem)))?;
    let (ranks, named) = (record.world_size, quoted(&shown));
    let resume = match checkpoint::list(&path.join("checkpoints")) {
        Ok(steps) if steps.is_empty() => {
            "run it again with --overwrite, because it has no checkpoint".to_owned()
        }
        _ => format!("continue with mpirun -n {ranks} ... mpiburn train --resume {named}"),
    };
    let why = record.error.as_deref().map(one_line);
    match (record.status, record.results.take()) {
        (Status::Completed, Some(results)) => {
            check_history(path, &results)?;
            Ok(Run { path: path.to_owned(), sweep: None, record, results, digest: sha256(&text) })
        }
        (Status::Running, _) => Err(format!("{shown}: still running, or killed; if killed, {resume}")),
        (Status::Failed, _) => {
            Err(format!("{shown}: {}; fix the cause, then {resume}", failed(record.error.as_deref())))
        }
        // A recorded reason itself names the command to continue. A completed run with results was handled
        // above.
        (Status::Stopped | Status::Completed, _) => {
            Err(format!("{shown}: {}", why.unwrap_or_else(|| format!("stopped; {resume}"))))
        }
    }
}

/// Makes the message about a damaged `run.json` in `folder`.
fn damaged_record(folder: &Path, problem: &str) -> String {
    let file = folder.join("run.json");
    format!("{}: is damaged ({problem}): {}", file.display(), restore_or_train(folder))
}

/// Adds options that an older version did not have, and checks the types of all options: somebody may have
/// edited the file.
fn complete(record: &mut RunRecord) -> Result<(), String> {
    let RunRecord { config, schema, .. } = record;
    schema.complete(config);
    let named = |field: &str, error: serde_json::Error| format!("config.{field}: {}", json_problem(&error));
    // The defaults of these options are null, which has no type that `check` could compare with.
    Option::<Method>::deserialize(&config["quantize"]).map_err(|error| named("quantize", error))?;
    Option::<usize>::deserialize(&config["early_stopping"])
        .map_err(|error| named("early_stopping", error))?;
    schema.check(config)
}

impl TableRow for EpochRow {
    const REPAIR: &'static str = "restore the file, or run the training again";

    fn problem(&self, before: &[Self]) -> Option<(&'static str, String)> {
        let next = before.len() + 1;
        (self.epoch != next).then(|| ("epoch", format!("expected epoch {next}, found {}", self.epoch)))
    }
}

/// Checks that the results in the `run.json` of `folder` agree with its `epochs.csv`: somebody may have
/// edited the files. If `epochs.csv` was removed, only `run.json` is checked.
///
/// # Errors
/// A message of one line: the file, the value and what to do.
fn check_history(folder: &Path, results: &Results) -> Result<(), String> {
    let wrong = |problem: String| damaged_record(folder, &problem);
    let (waits, training) = (wait_seconds(results), results.train_seconds);
    if waits > 1.05 * training + 0.1 {
        return Err(wrong(format!("comm_seconds is {waits}, but the training took {training} s")));
    }
    let file = folder.join("epochs.csv");
    let rows = match csv_table::read::<EpochRow>(&file)? {
        Some(rows) => rows,
        None if file.symlink_metadata().is_err() => return Ok(()),
        None => {
            let unread = open_regular(&file).err().map(|error| error.to_string());
            let problem = unread.as_deref().unwrap_or(match file.metadata() {
                Ok(found) if found.len() == 0 => "it is empty",
                _ => "it has other columns than a run writes",
            });
            return Err(damaged::<EpochRow>(&file, problem));
        }
    };
    let Some(last) = rows.last().filter(|last| last.epoch == results.epochs_run) else {
        let problem = format!(
            "it ends after epoch {}, but epochs_run in run.json is {}",
            rows.len(),
            results.epochs_run
        );
        return Err(damaged::<EpochRow>(&file, &problem));
    };
    for (name, result, of_epoch) in [
        ("train_loss", Some(results.train_loss), Some(last.train_loss)),
        ("train_accuracy", Some(results.train_accuracy), Some(last.train_accuracy)),
        ("test_loss", Some(results.test_loss), Some(last.test_loss)),
        ("test_accuracy", Some(results.test_accuracy), Some(last.test_accuracy)),
        ("int8_test_loss", results.int8_test_loss, last.int8_test_loss),
        ("int8_test_accuracy", results.int8_test_accuracy, last.int8_test_accuracy),
    ] {
        // A run without an int8 model has only the first four values.
        let (Some(result), Some(of_epoch)) = (result, of_epoch) else { continue };
        if (result - of_epoch).abs() > 1e-6 * of_epoch.abs().max(1.0) {
            return Err(wrong(format!("{name} is {result}, but {of_epoch} in the last line of epochs.csv")));
        }
    }
    Ok(())
}

/// Returns the time of waiting for gradients in seconds, on the ranks that `train_seconds` is from.
///
/// The wait and the training time are means over ranks. In runs of older versions, whose steps have no
/// `rest`, `train_seconds` is the time of rank 0. The wait of rank 0 is therefore returned if the mean wait
/// is longer than `train_seconds`, or if, without `rest`, the mean phases of a step are longer than the step.
pub fn wait_seconds(results: &Results) -> f64 {
    let phases: f64 = results.step_ms.into_array().iter().sum();
    let is_older = results.step_ms.rest == 0.0;
    let exceeds = results.comm_seconds > results.train_seconds;
    match results.per_rank.first() {
        // If an older version began the run, the times up to the resume are times of rank 0.
        Some(first) if exceeds || (is_older && phases > results.ms_per_step) => first.comm_seconds,
        _ => results.comm_seconds,
    }
}

/// Returns the lines of the run's `epochs.csv`; an empty list if the file is missing or damaged.
pub fn epochs(run: &Run) -> Vec<EpochRow> {
    csv_table::read(&run.path.join("epochs.csv")).ok().flatten().unwrap_or_default()
}

/// Returns the epoch after which the run overfits, see [`overfits_after`].
pub fn overfitting_epoch(run: &Run) -> Option<usize> {
    overfits_after(&epochs(run))
}

/// Returns the epochs after which repeats overfit, as text. If all repeats agree, the text is a single
/// number. If not, it has a number for each repeat, or `–` for a repeat that does not overfit. `None` if no
/// repeat overfits.
pub fn overfitting_epochs(runs: &[&Run]) -> Option<String> {
    let epochs: Vec<Option<usize>> = runs.iter().map(|run| overfitting_epoch(run)).collect();
    epochs.iter().any(Option::is_some).then(|| {
        let equal = epochs.iter().all(|epoch| *epoch == epochs[0]);
        let shown = if equal { &epochs[..1] } else { &epochs[..] };
        let word = |epoch: &Option<usize>| epoch.map_or_else(|| "–".into(), |epoch| epoch.to_string());
        shown.iter().map(word).join(", ")
    })
}

/// Name of the setting that stands for the option `quantize`. Its value is `no` without quantization.
pub const QUANTIZED: &str = "quantized";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run, tells};

    #[test]
    fn the_command_that_continues_a_run_can_be_pasted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("it's a run");
        std::fs::create_dir(&path).unwrap();
        let mut json = serde_json::to_value(run((1, 2), &[], 4.0).record).unwrap();
        (json["status"], json["error"]) = ("failed".into(), "no\n space".into());
        let note_of = |json: &Value| {
            std::fs::write(path.join("run.json"), json.to_string()).unwrap();
            finished(&path).unwrap_err()
        };
        let note = note_of(&json);
        assert!(tells(&note, &["failed: no space; ", "--overwrite"]), "{note}");
        std::fs::create_dir_all(path.join("checkpoints/step-00000010")).unwrap();
        let name = format!("'{}/it'\\''s a run'", folder.path().display());
        let command = format!("mpirun -n 2 ... mpiburn train --resume {name}");
        let note = note_of(&json);
        assert!(note.ends_with(&command), "{note}");
        json.as_object_mut().unwrap().remove("error");
        let note = note_of(&json);
        assert!(tells(&note, &["failed, ", "reason; ", &command]), "{note}");
        json["status"] = "stopped".into();
        let note = note_of(&json);
        assert!(tells(&note, &["stopped; ", &command]), "{note}");
    }

    #[test]
    fn a_run_json_that_is_missing_or_cut_is_restored_or_its_folder_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        std::fs::create_dir_all(path.join("checkpoints")).unwrap();
        let removal = format!("remove the folder {} ", path.display());
        let note = finished(&path).unwrap_err();
        assert!(tells(&note, &["run.json", "killed", &removal]) && !note.contains("restore"), "{note}");
        std::fs::create_dir(path.join("checkpoints/step-00000010")).unwrap();
        let note = finished(&path).unwrap_err();
        assert!(tells(&note, &["run.json", "restore", &removal]) && !note.contains("killed"), "{note}");
        let whole = serde_json::to_value(run((1, 2), &[], 4.0).record).unwrap();
        let mut numbered = whole.clone();
        numbered["machines"] = serde_json::json!([{"host": 5}]);
        for (text, problem) in [
            ("{".to_owned(), "ends too early"),
            ("[]".to_owned(), "found a list"),
            (numbered.to_string(), "machines[0].host: expected text, found 5"),
        ] {
            std::fs::write(path.join("run.json"), &text).unwrap();
            let note = finished(&path).unwrap_err();
            assert!(tells(&note, &["run.json: is damaged (", problem, "restore", &removal]), "{note}");
        }
    }
}

#[cfg(test)]
mod config_tests {
    use super::*;
    use crate::testing::run;

    #[test]
    fn options_that_are_missing_are_at_their_defaults_and_others_have_their_types() {
        let edited = |field: &str, value: Option<Value>| {
            let mut record = run((1, 2), &[], 4.0).record;
            record.config.remove(field);
            record.config.extend(value.map(|value| (field.to_owned(), value)));
            complete(&mut record).map(|()| record.config[field].clone())
        };
        for (field, default) in
            [("backend", Value::from("mpi")), ("bucket_mb", 25.0.into()), ("seed", 123.into())]
        {
            assert_eq!(edited(field, None), Ok(default));
        }
        for (field, value, expected) in [
            ("quantize", Value::from(5), "config.quantize: "),
            ("quantize", "none".into(), "config.quantize: \"none\" is unknown; known: qat or ptq"),
            (
                "early_stopping",
                "x".into(),
                "config.early_stopping: expected a whole number from 0, found \"x\"",
            ),
            ("seed", (-1).into(), "config.seed: expected a whole number from 0, found -1"),
        ] {
            let problem = edited(field, Some(value)).unwrap_err();
            assert!(problem.starts_with(expected), "{problem}");
        }
    }
}

#[cfg(test)]
mod history_tests {
    use super::*;
    use crate::testing::{run, with_test_losses};

    #[test]
    fn repeats_that_agree_are_one_number() {
        let folder = tempfile::tempdir().unwrap();
        let run_of = |name: &str, losses: &[f64]| {
            with_test_losses(run((1, 1), &[], 4.0), &folder.path().join(name), losses)
        };
        let up = run_of("up", &[2.0, 1.5, 1.6, 1.7]);
        let down = run_of("down", &[2.0, 1.5, 1.4, 1.3]);
        assert_eq!(
            (overfitting_epoch(&up), overfitting_epoch(&down), epochs(&down).len()),
            (Some(2), None, 4)
        );
        assert_eq!(overfitting_epochs(&[&up, &up]).as_deref(), Some("2"));
        assert_eq!(overfitting_epochs(&[&up, &down]).as_deref(), Some("2, –"));
        assert_eq!(overfitting_epochs(&[&down, &down]), None);
        assert!(epochs(&run((1, 1), &[], 4.0)).is_empty(), "the file does not exist");
    }

    #[test]
    fn edited_results_are_named_with_the_file_and_the_value() {
        let folder = tempfile::tempdir().unwrap();
        let mut run = with_test_losses(run((1, 1), &[], 4.0), folder.path(), &[2.0, 1.5, 1.25]);
        let results = &mut run.results;
        (results.train_loss, results.train_accuracy) = (1.0 / 3.0, 50.0);
        (results.test_loss, results.test_accuracy) = (1.25, 50.0);
        let file = folder.path().join("epochs.csv");
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(",,\n", ",60,1.5\n")).unwrap();
        let found = |edit: fn(&mut Results)| {
            let mut results = run.results.clone();
            edit(&mut results);
            check_history(folder.path(), &results).err().unwrap_or_default()
        };
        assert_eq!(found(|_| {}), "");
        assert!(found(|r| r.comm_seconds = 4.5).contains("(comm_seconds is 4.5, but the training took 4 s)"));
        for (edit, expected) in [
            (
                (|r| r.test_accuracy = 99.0) as fn(&mut Results),
                "run.json: is damaged (test_accuracy is 99, but 50 in",
            ),
            (|r| r.int8_test_accuracy = Some(99.0), "(int8_test_accuracy is 99, but 60 in"),
            (|r| r.int8_test_loss = Some(9.0), "(int8_test_loss is 9, but 1.5 in"),
        ] {
            let line = found(edit);
            assert!(line.contains(expected) && line.ends_with("run the training again"), "{line}");
        }
        assert!(
            found(|r| r.epochs_run = 4)
                .contains("epochs.csv: is damaged (it ends after epoch 3, but epochs_run in run.json is 4)")
        );
        std::fs::write(folder.path().join("epochs.csv"), "\0\0\0").unwrap();
        assert!(found(|_| {}).contains("epochs.csv: is damaged (it has other columns "));
        std::fs::write(folder.path().join("epochs.csv"), "").unwrap();
        assert!(found(|_| {}).contains("epochs.csv: is damaged (it is empty)"));
        std::fs::remove_file(folder.path().join("epochs.csv")).unwrap();
        assert_eq!(found(|_| {}), "", "a removed file is no error");
    }
}

#[cfg(test)]
mod wait_tests {
    use super::*;
    use crate::testing::{ranks, run};

    #[test]
    fn an_older_run_whose_ranks_waited_longer_than_rank_0_trained_has_the_wait_of_rank_0() {
        // Rank 1 began the training loop long before rank 0.
        let mut results = run((1, 2), &[], 1.0).results;
        results.per_rank = ranks(&[5, 5]);
        (results.per_rank[0].comm_seconds, results.per_rank[1].comm_seconds) = (0.25, 4.35);
        results.comm_seconds = 2.3;
        results.step_ms.exposed = 1e3 * 2.3 / results.steps as f64;
        assert_eq!(wait_seconds(&results), 0.25);
        results.comm_seconds = 0.9;
        assert_eq!(wait_seconds(&results), 0.25, "phases are longer than the step");
        results.step_ms.exposed = 0.0;
        assert_eq!(wait_seconds(&results), 0.9);
        results.step_ms = run_record::StepMs { exposed: 1e9, rest: 1e-3, ..results.step_ms };
        assert_eq!(wait_seconds(&results), 0.9, "both are means over ranks");
    }
}
