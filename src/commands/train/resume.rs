//! Opens, checks and continues the run of `--resume`, on rank 0.
//!
//! A wrong resume would silently give other results. Therefore the number of ranks and the samples must be
//! those of the run, and `run.json` must agree with the configuration in the checkpoint's manifest. With
//! `--reshard`, the number of ranks may change; each step then has the same samples as before. `run.json` is
//! not written until all checks have passed.

use std::path::Path;

use anyhow::{Context, ensure};

use super::prepare::Begin;
use crate::commands::checkpoint::{Noted, open_record};
use crate::commands::covered::{self, Samples};
use crate::commands::progress::learning_rate;
use crate::layout::stored;
use crate::model::{HIDDEN, ModelKind};
use crate::options::{ConfigError, RunConfig, RunRecord, TrainArgs, Words, as_typed};
use crate::train::{Communication, Position, Schedule, ScheduleKind};
use crate::values::Positive;
use burn_mpi::{ParamLayout, ShardPlan, World};
use run_record::checkpoint::{MODEL, verify};
use run_record::files::same_file;
use run_record::{
    Attempt, Change, Checkpoint, Intact, MomentsFile, NamedRun, RankFile, RunDir, Status, WORLD_SIZE,
    check_curves, count,
};

/// A run that can be resumed.
pub struct Resumed {
    dir: RunDir,
    intact: Intact,
    /// `run.json` as the previous attempt (the start of the run, or a `--resume`) left it.
    record: RunRecord,
    /// The options typed in addition to `--resume`.
    typed: Words,
}

impl Resumed {
    /// Opens the run at `named` and checks its files. Returns its configuration with the typed options of
    /// `args` applied, and what it recorded about its data set. With `--reshard`, the configuration has the
    /// batch size for this job's number of ranks.
    ///
    /// Changes no file, with one exception: if a process was killed while it replaced the run, the run is
    /// restored.
    pub fn open(named: &Path, args: &TrainArgs, world: &World) -> anyhow::Result<((RunConfig, Noted), Self)> {
        let NamedRun { folder, checkpoint } = NamedRun::at(named)?;
        let path = folder.as_path();
        RunDir::settle(path)?;
        let (dir, record) = match open_record(path) {
            Err(error) if error.is_missing() => Err(NamedRun::none_at(named)).context("--resume")?,
            opened => opened?,
        };
        // Lock first: a run that is still being written would look damaged.
        let dir = dir.locked()?;
        let (ranks, here) = (record.world_size, world.size());
        ensure!(
            record.hosts.len() == ranks,
            "{}: world_size of run.json is {ranks}, but hosts names {}: restore run.json",
            path.display(),
            record.hosts.len()
        );
        if ranks != here && !args.reshard {
            let problem = format!(
                "the run has {}, but this job has {here}: start it with mpirun -n {ranks}, or add --reshard to \
                 continue on {}",
                count(ranks, "rank"),
                count(here, "rank")
            );
            return Err(ConfigError::new("resume", path.display(), problem).into());
        }
        let intact = Intact::newest(&dir.checkpoints(), verify)?;
        // Resuming from an older checkpoint would overwrite what was trained after it.
        if checkpoint.is_some_and(|checkpoint| !same_file(&checkpoint, &intact.path).unwrap_or(false)) {
            let newest = intact.path.display();
            let problem = format!(
                "only the newest complete checkpoint can be resumed: name {newest}, or the run directory"
            );
            return Err(ConfigError::new("resume", named.display(), problem).into());
        }
        covered::check(path, &record, &intact.path, &intact.manifest)?;
        let noted = Noted::from_record(path, &record)?;
        let typed = unmet(&args.typed, &record)?;
        let config = resharded(&record, here)?.changed(&typed)?;
        Ok(((config, noted), Self { dir, intact, record, typed }))
    }

    /// Reads the checkpoint and checks it against the run, moves damaged newer checkpoints aside, and adds
    /// this attempt to `record`. The caller writes `record` after all checks have passed.
    pub fn into_begin(
        self,
        record: &mut RunRecord,
        layout: &ParamLayout,
        steps: usize,
    ) -> anyhow::Result<Begin> {
        let changed = self.changed(record);
        let mut checkpoint = self.checkpoint(record, layout, &changed)?;
        let completed = self.completed_steps();
        if let Some(problem) = ends_wrongly(&checkpoint.position, &record.config, completed, &changed) {
            let typed = self.typed.of_runs().to_string();
            let typed = if typed.is_empty() { "--reshard" } else { &typed };
            return Err(ConfigError::Message(format!("{typed}: {problem}")).into());
        }
        check_position(&checkpoint.position, &record.config, steps)?;
        let Self { dir, intact, record: old, typed } = self;
        let samples = Samples::of_checkpoint(&intact.manifest, &old.history, &changed);
        let curves = intact.manifest.curves.clone();
        check_curves(dir.path(), &curves, &intact.path)?;
        dir.refuse_links(record.world_size, &curves)?;
        intact.set_aside()?;
        let step = checkpoint.position.step;
        let complete = completed == Some(step) && is_only_of_ranks(&changed);
        if !complete {
            say_changes(&changed, &typed);
        }
        if let Some(steps) = completed.filter(|&steps| steps > step) {
            log::warn!(
                "run.json records {steps} steps, but the newest checkpoint is {}: resuming from this checkpoint",
                intact.path.display()
            );
        }
        let ranks = checkpoint.position.first_ranks.unwrap_or(checkpoint.world_size);
        say_learning_rate(&checkpoint.position, [&old.config, &record.config], steps, ranks);
        record.history = old.history;
        record.failed_attempts = old.failed_attempts;
        let ranks = RankFile::open(&intact.path, old.world_size)?;
        let moments = Some(MomentsFile::open(&intact.path, &stored(layout), &checkpoint.moments)?);
        record.history.push(Attempt { started_at: record.started_at.clone(), step, changed });
        let weights = Some(std::mem::take(&mut checkpoint.params));
        let (dir, checkpoint) = (Some(dir), Some(checkpoint));
        Ok(Begin { dir, weights, checkpoint, moments, ranks, curves, samples, complete, ..Begin::default() })
    }

    /// Returns the number of steps of the run, or `None` if earlier attempts did not complete the run.
    fn completed_steps(&self) -> Option<usize> {
        let RunRecord { results, status, .. } = &self.record;
        results.as_ref().filter(|_| *status == Status::Completed).map(|results| results.steps)
    }

    /// Returns the options of the run that this attempt changes, and the number of ranks if it changes.
    fn changed(&self, record: &RunRecord) -> Vec<Change> {
        let before = self.record.config.fields();
        let mut changed = covered::differences(&before, &record.config.fields());
        let (from, to) = (self.record.world_size, record.world_size);
        if from != to {
            changed.push(Change { field: WORLD_SIZE.into(), from: from.into(), to: to.into() });
        }
        let root = &before["data_root"];
        if self.typed.has("data-root") && !changed.iter().any(|change| change.field == "data_root") {
            // The folder has the same name but may contain other samples, so the history records it.
            changed.push(Change { field: "data_root".into(), from: root.clone(), to: root.clone() });
        }
        changed
    }

    /// Reads the checkpoint, and checks that the run has the same network and number of ranks.
    fn checkpoint(
        &self,
        record: &RunRecord,
        layout: &ParamLayout,
        changed: &[Change],
    ) -> anyhow::Result<Checkpoint<Position>> {
        let (path, Intact { path: folder, manifest, .. }) = (self.dir.path(), &self.intact);
        if !manifest.has_moments() {
            let problem = format!(
                "the run is complete and cannot be resumed: its sweep kept only the weights of its checkpoints, without \
                 the optimizer's moments; train a new run with more --epochs, or start from these weights with --init {}",
                folder.join(MODEL).display()
            );
            return Err(ConfigError::new("resume", path.display(), problem).into());
        }
        let mut checkpoint = Checkpoint::<Position>::load(folder, &stored(layout))?;
        // The history also has the changes of attempts that were killed before they wrote a checkpoint.
        let changes = || covered::changes_since(manifest, &self.record.history, changed);
        if changes().any(makes_another_test) {
            checkpoint.position.compare_anew();
        }
        if let Some(target) = checkpoint.position.target.as_mut().filter(|_| changes().any(is_of_test_set)) {
            if target.reached().is_some() {
                log::warn!(
                    "--target-accuracy was reached on another test set: only tests from here on count for it"
                );
            }
            target.reset();
        }
        let earlier = covered::changes_since(manifest, &self.record.history, &[]);
        let ranks = covered::ranks_after(checkpoint.world_size, earlier);
        ensure!(
            checkpoint.model == record.config.model.to_string() && ranks == self.record.world_size,
            "{}: the checkpoint has a {} on {ranks} ranks, but run.json says {} on {} ranks: restore run.json",
            path.display(),
            checkpoint.model,
            record.config.model,
            self.record.world_size
        );
        Ok(checkpoint)
    }
}

/// Returns the run's configuration on `ranks` ranks. The batch size changes, so that the samples of a step
/// stay the same.
fn resharded(record: &RunRecord, ranks: usize) -> Result<RunConfig, ConfigError> {
    let mut config = record.config.clone();
    let Communication { local, compression, .. } = &config.communication;
    let own = [
        ("--sync-every", local.sync_every.is_some(), "parameters"),
        ("--compress", compression.compress_rank.is_some(), "error memory"),
    ];
    if let Some((option, _, what)) = own.into_iter().find(|own| own.1 && ranks != record.world_size) {
        let problem = format!("cannot continue a run with {option}: each of its ranks has its own {what}");
        return Err(ConfigError::new("reshard", "", problem));
    }
    let batch_size = &mut config.data.train_batch_size;
    let plan = ShardPlan { samples: 0, world_size: record.world_size, batch_size: batch_size.get() };
    let plan =
        plan.with_ranks(ranks).map_err(|uneven| ConfigError::new("reshard", "", uneven.to_string()))?;
    *batch_size = batch_size.share(plan.batch_size, batch_size.get());
    Ok(config)
}

/// Checks that the checkpoint's position fits epochs of `steps` steps.
fn check_position(position: &Position, config: &RunConfig, steps: usize) -> Result<(), ConfigError> {
    let Position { epoch, step_in_epoch, step, .. } = *position;
    if epoch * steps + step_in_epoch == step {
        return Ok(());
    }
    let problem = format!(
        "gives {} per epoch, which does not fit the checkpoint (step {step} is in epoch {}): use a data set with as many \
         training samples as the run's",
        count(steps, "step"),
        epoch + 1
    );
    Err(ConfigError::new("data-root", config.data.data_root.display(), problem))
}

/// Logs which options change from here on, with their values as `typed`, and the number of ranks.
fn say_changes(changed: &[Change], typed: &Words) {
    for Change { field, from, to } in changed {
        if field == WORLD_SIZE {
            log::info!("{} from here on (was {from}): the samples of each step stay the same", ranks(to));
            continue;
        }
        let option = field.replace('_', "-");
        let as_written = typed.0.get(&option).and_then(|value| value.as_ref()?.to_str());
        if from == to {
            log::info!(
                "--{option} {}: the samples have changed; continuing with the new samples",
                as_typed(to)
            );
            continue;
        }
        let to = as_written.map_or_else(|| as_typed(to), ToOwned::to_owned);
        log::info!("--{option} {to} from here on (was {})", as_typed(from));
    }
}

fn ranks(number: &serde_json::Value) -> String {
    count(number.as_u64().unwrap_or_default() as usize, "rank")
}

/// Returns the typed options. Leaves out `--num-classes`, `--train-samples` or `--hidden` if the option only
/// confirms what the run already has. Otherwise, such an option would look like a change, because `run.json`
/// may have no value for the option, or another limit.
///
/// # Errors
/// If `--num-classes` differs from the run's number of classes.
fn unmet(typed: &Words, record: &RunRecord) -> Result<Words, ConfigError> {
    let (config, data) = (&record.config, &record.data);
    let mut typed = typed.clone();
    let number = |option: &str| -> Option<usize> { typed.0.get(option)?.as_ref()?.to_str()?.parse().ok() };
    if let Some(classes) = number("num-classes").filter(|&classes| classes != data.classes) {
        return Err(ConfigError::new(
            "num-classes",
            classes,
            format!("the run has {}", count(data.classes, "class")),
        ));
    }
    let all = data.train_available;
    let limit = config.data.train_samples.map_or(all, Positive::get);
    let takes = |samples: usize| all > 0 && samples.min(all) == limit.min(all);
    let is_default_mlp = config.model == ModelKind::Mlp && config.network.hidden.is_none();
    let is_met = [
        ("num-classes", config.data.num_classes.is_none() && number("num-classes").is_some()),
        ("train-samples", number("train-samples").is_some_and(takes)),
        ("hidden", is_default_mlp && number("hidden") == Some(HIDDEN)),
    ];
    for (option, _) in is_met.into_iter().filter(|(_, is_met)| *is_met) {
        typed.0.remove(option);
    }
    Ok(typed)
}

/// Whether the epochs before this change no longer count in the search for the best epoch: the test of these
/// epochs was different, or the checkpoints of these epochs may not have been kept.
fn makes_another_test(change: &Change) -> bool {
    let Change { field, from, to } = change;
    field == "early_stopping" && from.is_null() != to.is_null() || is_of_test_set(change)
}

/// Whether the test set is another one after this change.
fn is_of_test_set(change: &Change) -> bool {
    ["data_root", "test_samples"].contains(&change.field.as_str())
}

/// Whether nothing changes except the number of ranks, and with it the batch size of a rank.
fn is_only_of_ranks(changed: &[Change]) -> bool {
    changed.iter().all(|change| ["train_batch_size", WORLD_SIZE].contains(&change.field.as_str()))
}

/// Returns an error text if the run is already done with the changed options. No step would use the changed
/// options, but `run.json` would list them beside the results.
fn ends_wrongly(
    position: &Position,
    config: &RunConfig,
    completed: Option<usize>,
    changed: &[Change],
) -> Option<String> {
    let Position { epoch, step_in_epoch, step, .. } = *position;
    let patience = config.recipe.early_stopping;
    let stays_complete = completed == Some(step) && is_only_of_ranks(changed);
    if changed.is_empty()
        || stays_complete
        || !position.is_done(config.epochs.get(), patience.map(Positive::get))
    {
        return None;
    }
    if position.stopped_at_target {
        let target =
            config.recipe.target_accuracy.map_or_else(String::new, |target| format!(" of {target}%"));
        return Some(format!(
            "--stop-at-target has ended the run after {step} steps, at its target accuracy{target}: start a new run"
        ));
    }
    if step_in_epoch > 0 {
        let begun = epoch + 1;
        let remedy = if epoch >= config.epochs.get() {
            format!("choose at least {begun}")
        } else {
            "choose a larger --early-stopping".to_owned()
        };
        return Some(format!(
            "the run has completed {} and a part of epoch {begun}: {remedy}",
            count(epoch, "epoch")
        ));
    }
    if epoch > config.epochs.get() {
        return Some(format!("the run has already completed {epoch} epochs: choose at least {epoch}"));
    }
    let more = if epoch >= config.epochs.get() {
        format!("--epochs {}", epoch + 1)
    } else {
        "--early-stopping none".to_owned()
    };
    if completed == Some(step) {
        return Some(format!("the run is complete after {step} steps; to continue, add {more}"));
    }
    // If the run was killed after its last checkpoint, another number of ranks may still write the results.
    let is_fitting = |change: &Change| {
        ["epochs", "early_stopping", "train_batch_size", WORLD_SIZE].contains(&change.field.as_str())
    };
    let other = changed.iter().find(|change| !is_fitting(change))?.field.replace('_', "-");
    Some(format!(
        "the run has ended after {epoch} epochs, so a change of --{other} would have no effect; to continue, add {more}"
    ))
}

/// Logs how the learning rate continues, if an option of the schedule has changed. The number of epochs is
/// such an option, because cosine and onecycle end with the last epoch.
fn say_learning_rate(position: &Position, configs: [&RunConfig; 2], steps: usize, ranks: usize) {
    let [before, after] = configs.map(|config| config.rates(steps, ranks));
    let is_constant = |schedule: &Schedule| schedule.kind == ScheduleKind::Constant && schedule.warmup == 0.0;
    let same = before.base == after.base && is_constant(&before) && is_constant(&after);
    if same || before == after || position.is_done(after.epochs, None) {
        return;
    }
    let lr = |schedule: &Schedule, epoch, step| learning_rate(schedule.rate(epoch, step).lr);
    let last = match (position.epoch, position.step_in_epoch) {
        (0, 0) => lr(&before, 0, 0),
        (epoch, 0) => lr(&before, epoch - 1, steps.saturating_sub(1)),
        (epoch, step) => lr(&before, epoch, step - 1),
    };
    log::info!(
        "the learning rate was {last}; it is {} in the next step, and {} in the last step of epoch {}",
        lr(&after, position.epoch, position.step_in_epoch),
        lr(&after, after.epochs - 1, steps.saturating_sub(1)),
        after.epochs
    );
}
