//! Determines what a training starts from: its run directory, and initial weights or a checkpoint.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Context;
use burn_mpi::{Launcher, ParamLayout, ShardPlan, World};
use run_record::checkpoint::load_weights;
use run_record::{
    Attempt, Checkpoint, Curves, MomentsFile, RankFile, RunDir, RunDirState, Status, count, is_of_run, now,
    quoted,
};

use super::resume::Resumed;
use crate::commands::covered::Samples;
use crate::commands::outcome::default_name;
use crate::commands::program;
use crate::layout::stored;
use crate::options::{ConfigError, RunConfig, RunRecord, TrainArgs};
use crate::train::{Position, SamplesIn};
use data::{Element, SampleSource, Split, size_of_sample};

/// What a training starts from; empty except on rank 0.
#[derive(Default)]
pub struct Begin {
    pub dir: Option<RunDir>,
    /// The weights of `--init` or of the checkpoint.
    pub weights: Option<Vec<f32>>,
    pub checkpoint: Option<Checkpoint<Position>>,
    /// The checkpoint's moments.
    pub moments: Option<MomentsFile>,
    /// The checkpoint's tensors that differ between ranks; `None` if it has none.
    pub ranks: Option<RankFile>,
    /// The curves up to the checkpoint.
    pub curves: Curves,
    /// The samples with which a resumed run must continue.
    pub samples: Samples,
    /// Whether the resumed run is already complete.
    pub complete: bool,
    /// Whether the directory contains an old run. The caller replaces the old run as late as possible, so
    /// that most errors at the start leave it intact.
    pub replaces: bool,
}

/// Creates or opens the run directory and reads what the run starts from. Called on rank 0 only. `steps` is
/// the number of steps per epoch.
pub fn prepare(
    args: &TrainArgs,
    layout: &ParamLayout,
    resumed: Option<Resumed>,
    record: &mut RunRecord,
    steps: usize,
) -> anyhow::Result<Begin> {
    if let Some(resumed) = resumed {
        return resumed.into_begin(record, layout, steps);
    }
    if args.overwrite
        && let Some(out) = &args.out
    {
        check_inputs_stay(out, &record.config)?;
    }
    let init = record.config.init.as_ref();
    let weights = init.map(|file| load_weights(file, &stored(layout)).context("--init")).transpose()?;
    let dir = match &args.out {
        Some(path) => RunDir::create(path, args.overwrite)?,
        None => RunDir::create_unique(&default_name(record))?,
    };
    record.history.push(Attempt { started_at: record.started_at.clone(), step: 0, changed: Vec::new() });
    let replaces = dir.is_occupied()?;
    if !replaces {
        dir.begin(record)?;
    }
    Ok(Begin { dir: Some(dir), weights, replaces, ..Begin::default() })
}

/// Rejects `--overwrite` if it would delete an input of the new run.
fn check_inputs_stay(out: &Path, config: &RunConfig) -> Result<(), ConfigError> {
    let Ok(folder) = out.canonicalize() else { return Ok(()) };
    let inputs = [("data-root", Some(&config.data.data_root)), ("init", config.init.as_ref())];
    for (option, path) in inputs {
        let Some(path) = path else { continue };
        let path_there = path.canonicalize().unwrap_or_default();
        let mut inside = path_there.strip_prefix(&folder).into_iter().flatten();
        if inside.next().and_then(OsStr::to_str).is_some_and(is_of_run) {
            let problem = format!(
                "is part of the run in {}, which --overwrite would delete: choose another --out",
                out.display()
            );
            return Err(ConfigError::new(option, path.display(), problem));
        }
    }
    Ok(())
}

/// Records in the `run.json` of a new run that the run failed before its first step. Does nothing if the
/// training has already recorded its end.
pub fn note_failure(dir: &RunDir, error: &anyhow::Error) {
    if !RunDirState::read(dir.path()).is_ok_and(|seen| seen.status == Some(Status::Running)) {
        return;
    }
    let noted = dir.note("status", &Status::Failed).and_then(|()| dir.note("error", &format!("{error:#}")));
    if let Err(error) = noted.and_then(|()| dir.note("ended_at", &now())) {
        log::debug!("{error}");
    }
}

/// Warns if a limit (`--train-samples` or `--test-samples`) exceeds the number of available samples. If
/// `is_noted` is true, also lowers the limit to this number, which `run.json` then records. If `run.json`
/// recorded the higher limit, a repetition of the run on a larger data set would use more samples. `is_noted`
/// is false for a resumed run without typed changes, whose limits must stay as its checkpoints have them.
pub(super) fn clip_limits(world: &World, config: &mut RunConfig, source: &SampleSource, is_noted: bool) {
    let typed = [("train-samples", config.data.train_samples), ("test-samples", config.data.test_samples)];
    let available = [Split::Train, Split::Test].map(|split| source.len(split));
    for ((option, typed), available) in typed.into_iter().zip(available) {
        if let Some(typed) = typed.filter(|&typed| typed.get() > available && world.is_root()) {
            let noted = if is_noted { " (recorded in run.json)" } else { "" };
            log::warn!(
                "--{option} {typed}: the data set has only {}; using every sample{noted}",
                count(available, "sample")
            );
        }
    }
    if is_noted {
        config.data.clip(available);
    }
}

/// Checks that the job has the number of ranks that `--world-size` expects.
pub(super) fn check_world_size(args: &TrainArgs, world: &World) -> Result<(), ConfigError> {
    let here = world.size();
    let Some(n) = args.world_size.filter(|&n| n != here) else { return Ok(()) };
    let problem = if here == 1 && Launcher::detect().is_none() {
        let program = quoted(program());
        format!(
            "this process was not started by an MPI launcher, so it cannot join other ranks; start all ranks \
             together: mpirun -n {n} --bind-to core {program} train …, or {program} launch 1x{n} -- train …"
        )
    } else if args.resume.is_some() && !args.reshard {
        // Without --reshard, a resumed run keeps its number of ranks, so starting another number of ranks is no remedy.
        format!("the job has {}: leave the option out", count(here, "rank"))
    } else {
        format!(
            "the job has {}: leave the option out, or start {n} ranks (mpirun -n {n})",
            count(here, "rank")
        )
    };
    Err(ConfigError::new("world-size", n, problem))
}

/// Checks that the images are large enough for the network.
pub(in crate::commands) fn check_size(config: &RunConfig, shape: [usize; 3]) -> Result<(), ConfigError> {
    let (least, root) = (config.model.least_side(), config.data.data_root.display());
    let [channels, height, width] = shape;
    if height.min(width) >= least {
        return Ok(());
    }
    let problem = match [channels, height] {
        [1, 1] => {
            format!("requires images, but {root} is a table of {}: use --model mlp", size_of_sample(shape))
        }
        _ => format!(
            "requires images of at least {least}x{least} pixels, but {root} has {height}x{width}: use larger images, or \
             --model mlp"
        ),
    };
    Err(ConfigError::new("model", config.model, problem))
}

/// Checks the options against the data set. Returns the number of steps of the whole run.
pub(super) fn check_data(
    config: &RunConfig,
    plan: &ShardPlan,
    source: &SampleSource,
) -> Result<usize, ConfigError> {
    let data = source.description();
    check_size(config, data.shape)?;
    let has_images = data.element == Element::U8 && data.shape[1] > 1;
    if let Some(augment) = config.recipe.augment.filter(|_| !has_images) {
        let (root, values) = (config.data.data_root.display(), data.shape.iter().product::<usize>());
        let problem = format!(
            "requires images of bytes, but {root} contains {} of {values} values: leave the option out",
            data.kind
        );
        return Err(ConfigError::new("augment", augment, problem));
    }
    let classes = data.classes;
    if let Some(n) = config.data.num_classes.filter(|&n| n.get() != classes) {
        return Err(ConfigError::new(
            "num-classes",
            n,
            format!("the data set has {}", count(classes, "class")),
        ));
    }
    if config.data.samples_in == SamplesIn::Disk && source.imported().is_none() {
        let problem = format!(
            "requires a data set made by `mpiburn data import`, but {} contains {}",
            config.data.data_root.display(),
            data.kind
        );
        return Err(ConfigError::new("samples-in", "disk", problem));
    }
    let splits = [(Split::Train, "train-samples", "training"), (Split::Test, "test-samples", "test")];
    for (split, option, name) in splits {
        let samples = config.plan(source, split, plan.world_size).samples;
        if let Some(n) =
            config.quantization.calibration.filter(|&n| split == Split::Train && n.get() > samples)
        {
            let problem =
                format!("the run trains on only {}: choose at most this number", count(samples, "sample"));
            return Err(ConfigError::new("calibration", n, problem));
        }
        if u32::try_from(samples).is_err() {
            let problem = format!("at most {} samples are supported", u32::MAX);
            return Err(ConfigError::new(option, samples, problem));
        }
        if samples < plan.world_size {
            let (ranks, root, all) = (plan.world_size, config.data.data_root.display(), source.len(split));
            return Err(if samples < all {
                let problem =
                    format!("{ranks} ranks need at least {ranks} {name} samples ({root} has {all})");
                ConfigError::new(option, samples, problem)
            } else {
                let samples = count(samples, &format!("{name} sample"));
                let problem = format!(
                    "has only {samples} for {ranks} ranks: use more samples, or start a new run with fewer ranks"
                );
                ConfigError::new("data-root", root, problem)
            });
        }
    }
    let (steps, epochs) = (plan.steps(), config.epochs.get());
    steps.checked_mul(epochs).ok_or_else(|| {
        let problem = format!(
            "with {steps} steps per epoch, the run would have more than {} steps: choose fewer epochs",
            usize::MAX
        );
        ConfigError::new("epochs", epochs, problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::tells;

    #[test]
    fn sizes_out_of_bounds_are_refused_with_what_to_do() {
        let check = |model: &str, shape| {
            let config = RunConfig::read([format!("--model={model}"), "--data-root=d".into()]).unwrap();
            check_size(&config, shape).map_err(|error| error.to_string())
        };
        for (model, shape, expected) in [
            ("convnet", [1, 3, 64], "4x4 … d has 3x64 … --model mlp"),
            ("vgg", [3, 32, 7], "8x8 … d has 32x7 … --model mlp"),
            ("mlp", [3, 1, 0], "1x1 … d has 1x0 … --model mlp"),
        ] {
            let problem = check(model, shape).unwrap_err();
            assert!(tells(&problem, &format!("--model {model}: … {expected}")), "{problem}");
        }
        for model in ["convnet", "vgg"] {
            let problem = check(model, [1, 1, 2]).unwrap_err();
            let expected = format!("--model {model}: … d is a table of 2 features … --model mlp");
            assert!(tells(&problem, &expected), "{problem}");
        }
        for (model, shape) in [("convnet", [5, 4, 999]), ("vgg", [1, 8, 640]), ("mlp", [1, 1, 1])] {
            assert_eq!(check(model, shape), Ok(()), "{model}");
        }
    }
}
