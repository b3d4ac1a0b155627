//! Checks `run.json` and the data set against a checkpoint's manifest.
//!
//! The manifest (`manifest.json`) contains the configuration and the digests of the samples with which the
//! checkpoint was written. The history in `run.json` lists the attempts of the run (its start and each
//! `--resume`), and the options that each attempt changed. The manifest's configuration, changed as the
//! history says, must equal the configuration in `run.json`. Any other difference means that a file was
//! edited or exchanged.

use std::path::Path;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::options::{ConfigError, RunConfig, RunRecord, as_typed};
use crate::train::spec;
use burn_mpi::World;
use data::{Description, Element, SampleSource, Split, shard};
use run_record::{Attempt, Change, DataRecord, Manifest, WORLD_SIZE, count, quoted};

/// Checks the configuration in `record`, which is the `run.json` of the run directory `run`. This
/// configuration must equal the configuration with which the checkpoint `folder` was written, plus the
/// changes that the history has recorded since then.
pub fn check(run: &Path, record: &RunRecord, folder: &Path, manifest: &Manifest) -> anyhow::Result<()> {
    let file = run.join("run.json");
    ensure!(
        record.history.len() > manifest.attempt,
        "{}: `history` has {}, but {} was written by attempt {}: run.json was edited or belongs to \
         another run; restore the run's own run.json",
        file.display(),
        count(record.history.len(), "attempt"),
        folder.display(),
        manifest.attempt + 1
    );
    let stored: RunConfig = serde_json::from_value(manifest.config.clone())
        .with_context(|| format!("{}/manifest.json: `config`", folder.display()))?;
    let mut expected = stored.fields();
    for Change { field, to, .. } in changes_since(manifest, &record.history, &[]) {
        if field != WORLD_SIZE {
            expected.insert(field.clone(), to.clone());
        }
    }
    let differences = differences(&expected, &record.config.fields());
    let Some(first) = differences.first() else { return Ok(()) };
    let option = first.field.replace('_', "-");
    let more = match differences.len() - 1 {
        0 => String::new(),
        more => format!(" ({more} more options differ)"),
    };
    let remedy = match spec(&option).map_or(Err("it is not an option of stored runs"), |spec| spec.change) {
        Ok(()) => {
            let (run, value) = (quoted(run.display()), quoted(as_typed(&first.to)));
            format!("then change it with train --resume {run} --{option} {value}")
        }
        Err(reason) => format!("it cannot change: {reason}"),
    };
    bail!(
        "{}: `config.{}` is {}, but was {} when {} was written{more}: restore the old value; {remedy}",
        file.display(),
        first.field,
        shown(&first.to),
        shown(&first.from),
        folder.display()
    );
}

/// Returns the number of ranks that the run has after the `changes` since a checkpoint of `ranks` ranks.
pub fn ranks_after<'a>(ranks: usize, changes: impl Iterator<Item = &'a Change>) -> usize {
    let last = changes.filter(|change| change.field == WORLD_SIZE).last();
    last.and_then(|change| change.to.as_u64()).map_or(ranks, |ranks| ranks as usize)
}

/// The samples with which a run must continue, for the training and the test split. Both are `None` if there
/// is no checkpoint, or if the run has changed its data set since the checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Samples([Option<Covered>; 2]);

/// The samples of one split with which a checkpoint was written.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Covered {
    digest: String,
    /// Number of samples; all samples if `None`.
    samples: Option<usize>,
}

impl Samples {
    /// Returns the samples of the checkpoint with this `manifest`. Both splits are `None` if the run has
    /// changed its data set since then: in an earlier attempt (listed in `history`) or in this attempt
    /// (`changed`).
    pub fn of_checkpoint(manifest: &Manifest, history: &[Attempt], changed: &[Change]) -> Self {
        if changes_since(manifest, history, changed).any(|change| change.field == "data_root") {
            return Self::default();
        }
        let Manifest { config, data, .. } = manifest;
        let covered = |digest: &String, limit: &str| {
            let samples = config[limit].as_u64().map(|samples| samples as usize);
            Some(Covered { digest: digest.clone(), samples })
        };
        Self([covered(&data.train, "train_samples"), covered(&data.test, "test_samples")])
    }

    /// Returns the digest of the training samples and their normalisation, or `None` if the digest is
    /// unknown.
    pub fn train_digest(&self) -> Option<&str> {
        self.0[0].as_ref().map(|covered| &*covered.digest)
    }

    /// Checks that the samples of `split` in the data set `root` have not changed. `noted` is the run's
    /// description of its data set, with which the error explains the difference. `remedy` says how to go on
    /// with other samples.
    ///
    /// # Errors
    /// If the samples have changed, or some rank cannot read them.
    pub fn check(
        &self,
        world: &World,
        source: &SampleSource,
        noted: &DataRecord,
        split: Split,
        root: &Path,
        remedy: &str,
    ) -> anyhow::Result<()> {
        let (covered, what) = match split {
            Split::Train => (&self.0[0], "training"),
            Split::Test => (&self.0[1], "test"),
        };
        let Some(Covered { digest, samples }) = covered else { return Ok(()) };
        let available = source.len(split);
        let samples = samples.map_or(available, |samples| samples.min(available));
        let found = world.agree(shard::digest(source, split, samples))?;
        let found = source.description().digest(&found);
        if *digest == found {
            return Ok(());
        }
        let of_samples = || format!("its {what} samples have changed since the checkpoint was written");
        let differs = differs(noted, source.description()).unwrap_or_else(of_samples);
        let root = root.display();
        Err(ConfigError::Message(format!("{root}: {differs}: restore the original data set, or {remedy}"))
            .into())
    }
}

/// Compares a data set's class names and normalisation with the names and normalisation that the run recorded
/// in `noted`. Describes the first difference, or returns `None` if they are equal.
fn differs(noted: &DataRecord, data: &Description) -> Option<String> {
    let first = |found: &[String], noted: &[String]| {
        let at = found.iter().zip(noted).position(|(found, noted)| found != noted)?;
        Some((at, found[at].clone(), noted[at].clone()))
    };
    let values = |mean: &[f32], std: &[f32]| -> Vec<String> {
        mean.iter().zip(std).map(|(mean, std)| format!("mean {mean} and standard deviation {std}")).collect()
    };
    let (found, of_run) = (values(&data.mean, &data.std), values(&noted.mean, &noted.std));
    if let Some((class, found, noted)) = first(&data.class_names, &noted.class_names) {
        return Some(format!("its class {class} is {found}, but was {noted} in training"));
    }
    if let Some((at, found, noted)) = first(&found, &of_run) {
        let what = if data.element == Element::U8 { "channel" } else { "feature" };
        return Some(format!("it normalises {what} {at} by {found}, but training used {noted}"));
    }
    let normalised = |values: &[String]| if values.is_empty() { "not normalised" } else { "normalised" };
    (found.len() != of_run.len()).then(|| {
        format!("its samples are {}, but were {} in training", normalised(&found), normalised(&of_run))
    })
}

/// Returns the changes since the checkpoint with this `manifest`: the changes that earlier attempts recorded
/// in `history`, then `changed`, the changes of this attempt.
pub fn changes_since<'a>(
    manifest: &Manifest,
    history: &'a [Attempt],
    changed: &'a [Change],
) -> impl Iterator<Item = &'a Change> {
    history.iter().skip(manifest.attempt + 1).flat_map(|attempt| &attempt.changed).chain(changed)
}

/// Returns the fields with different values in `from` and `to`.
pub fn differences(from: &Map<String, Value>, to: &Map<String, Value>) -> Vec<Change> {
    let different = from.iter().filter(|(field, value)| to[field.as_str()] != **value);
    let change = |(field, value): (&String, &Value)| Change {
        field: field.clone(),
        from: value.clone(),
        to: to[field.as_str()].clone(),
    };
    different.map(change).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "not given".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
