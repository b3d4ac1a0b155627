//! The run that a training resumes, as it is on rank 0's disk.

use std::path::Path;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::commands::covered::{self, Samples};
use crate::config::{ConfigError, RunConfig, RunRecord};
use crate::quant::QuantizeKind;
use crate::record::checkpoint::verify;
use crate::record::{
    Attempt, Change, Checkpoint, Curves, FailedAttempt, Intact, RecordError, RunDir, Status, check_curves,
};
use crate::train::{Bounds, Position};
use burn_mpi::{ParamLayout, World};

/// A run that can be resumed.
pub struct Resumed {
    dir: RunDir,
    intact: Intact,
    /// Earlier attempts of the run.
    history: Vec<Attempt>,
    /// Attempts that failed under a launch with restarts.
    failed_attempts: Vec<FailedAttempt>,
    /// What `--set` was given, and the configuration before.
    set: Vec<String>,
    before: Value,
    /// Steps of a run that was completed.
    completed: Option<usize>,
}

/// What a resumed run starts from.
pub struct Restart {
    pub dir: RunDir,
    pub checkpoint: Checkpoint<Position>,
    pub curves: Option<Curves>,
    /// What the run has to go on with.
    pub samples: Samples,
    /// Whether there is nothing to do.
    pub complete: bool,
}

impl Resumed {
    /// Opens the run `path` and checks its files; returns its configuration with the changes `sets`.
    /// Changes no file.
    pub fn open(path: &Path, sets: &[String], world: &World) -> anyhow::Result<(RunConfig, Self)> {
        let opened = RunDir::open::<RunConfig>(path).map_err(|error| match error {
            RecordError::Damaged { path, what } => RecordError::Damaged {
                path,
                what: format!("{what}: put a copy back; `config` is also in each checkpoint's manifest.json"),
            },
            other => other,
        });
        let (dir, record) = match opened {
            Err(error) if error.is_missing() => {
                Err(error).with_context(|| format!("--resume {}: not a run directory", path.display()))?
            }
            opened => opened?,
        };
        // A run that still goes on would look like a damaged one.
        let dir = dir.locked()?;
        let (ranks, here) = (record.world_size, world.size());
        if ranks != here {
            let problem =
                format!("the run has {ranks} ranks and this job {here}; start it with mpirun -n {ranks}");
            return Err(ConfigError::new("resume", path.display(), problem).into());
        }
        record.config.check_stored().with_context(|| path.join("run.json").display().to_string())?;
        let intact = Intact::newest(&dir.checkpoints(), verify)?;
        if !covered::check(path, &record, &intact.path, intact.manifest.as_ref())? {
            log::warn!(
                "{} is of an earlier version and has no manifest.json: nothing covers the configuration in \
                 run.json",
                intact.path.display()
            );
        }
        let RunRecord { config, history, failed_attempts, status, results, .. } = record;
        let completed = results.filter(|_| status == Status::Completed).map(|results| results.steps);
        let new = config.changed(sets)?;
        let (set, before) = (sets.to_vec(), serde_json::to_value(&config)?);
        Ok((new, Self { dir, intact, history, failed_attempts, set, before, completed }))
    }

    /// Reads the checkpoint and checks it against the run, sets damaged newer ones aside, and
    /// notes this attempt in `record`, which is written when nothing can be refused any more.
    pub fn restart(
        self,
        record: &mut RunRecord,
        layout: &ParamLayout,
        steps: usize,
    ) -> anyhow::Result<Restart> {
        let Self { dir, intact, history, failed_attempts, set, before, completed } = self;
        let path = dir.path();
        let config = &record.config;
        let mut changed = covered::differences(&before, &serde_json::to_value(config)?);
        let root = &before["data_root"];
        let names_data = set.iter().any(|set| set.starts_with("data-root="));
        if names_data && !changed.iter().any(|change| change.field == "data_root") {
            // The same folder with other samples, which the history notes.
            changed.push(Change { field: "data_root".into(), from: root.clone(), to: root.clone() });
        }
        let checkpoint = Checkpoint::<Position>::load(&intact.path, layout)?;
        ensure!(
            checkpoint.model == config.model.to_string() && checkpoint.world_size == record.world_size,
            "{}: its checkpoint is of {} at {} ranks, its run.json says {} at {}",
            path.display(),
            checkpoint.model,
            checkpoint.world_size,
            config.model,
            record.world_size
        );
        let Position { epoch, step, .. } = checkpoint.position;
        if epoch > config.epochs && changed.iter().any(|change| change.field == "epochs") {
            let problem = format!("{epoch} epochs are done");
            return Err(ConfigError::new("set", format!("epochs={}", config.epochs), problem).into());
        }
        if !changed.is_empty() && completed == Some(step) && epoch == config.epochs {
            let problem = format!("the run is complete after {step} steps; to go on, add --set epochs=N");
            return Err(ConfigError::new("set", set.join(" --set "), problem).into());
        }
        let bounds = Bounds {
            ranks: record.world_size,
            epochs: config.epochs,
            steps,
            updates: checkpoint.updates,
            scales_loss: config.precision.scales_loss(),
            has_ranges: config.quantization.quantize == Some(QuantizeKind::Qat),
        };
        let file = intact.path.join("state.json");
        let fits = checkpoint.position.check(&bounds);
        fits.map_err(|what| anyhow::anyhow!("{} is damaged: {what}", file.display()))?;
        let manifest = intact.manifest.as_ref();
        if manifest.is_none_or(|manifest| manifest.data.is_none()) {
            log::warn!(
                "{} is of an earlier version and has no digests of the samples: nothing covers the data set",
                intact.path.display()
            );
        }
        let samples = Samples::of(manifest, &history, &changed);
        let curves = manifest.map(|manifest| manifest.curves.clone());
        if let Some(curves) = &curves {
            check_curves(path, curves, &intact.path)?;
        }
        dir.refuse_links(record.world_size)?;
        intact.set_aside()?;
        for Change { field, from, to } in &changed {
            let shown = |value: &Value| if value.is_null() { "none".to_owned() } else { value.to_string() };
            let (from, to) = (shown(from), shown(to));
            log::info!("--set: {} is {to} from here on, and was {from}", field.replace('_', "-"));
        }
        record.history = history;
        record.failed_attempts = failed_attempts;
        let complete = completed == Some(step) && changed.is_empty();
        record.history.push(Attempt { started_at: record.started_at.clone(), step, changed });
        Ok(Restart { dir, checkpoint, curves, samples, complete })
    }
}
