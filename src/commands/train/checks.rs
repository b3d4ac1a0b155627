//! Checks of the options of a training, before any work.

use crate::cli::TrainArgs;
use crate::config::{self, ConfigError, RunConfig};
use crate::data::{self, ShardPlan};
use crate::record::DataRecord;
use burn_mpi::{Launcher, World};

/// Options beside `--resume` have no effect, which a warning says.
pub(super) fn warn_of_ignored_options(args: &TrainArgs, world: &World) {
    let ignored: Vec<String> = args
        .typed
        .iter()
        .filter(|id| {
            !["resume", "set", "quiet", "verbose", "trace", "trace_steps", "stall_warning", "note_steps"]
                .contains(&id.as_str())
        })
        .map(|id| format!("--{}", id.replace('_', "-")))
        .collect();
    if args.resume.is_some() && world.is_root() && !ignored.is_empty() {
        log::warn!(
            "--resume takes everything from the run's own run.json (--set KEY=VALUE changes it); without effect: {}",
            ignored.join(" ")
        );
    }
}

/// More samples than there are: whoever repeats the run on a larger data set gets other figures.
pub(super) fn warn_of_unreached_limits(config: &RunConfig, data: &DataRecord) {
    for (option, typed, available) in [
        ("train-samples", config.train_samples, data.train_available),
        ("test-samples", config.test_samples, data.test_available),
    ] {
        if let Some(typed) = typed.filter(|&typed| typed > available) {
            log::warn!("--{option} {typed}: the data set has {available}; all are used");
        }
    }
}

/// Checks the number of ranks that the options expect.
pub(super) fn check_world_size(args: &TrainArgs, world: &World) -> anyhow::Result<()> {
    match args.world_size {
        Some(n) if n != world.size() && world.size() == 1 && Launcher::detect().is_none() => Err(ConfigError::new(
            "world-size",
            n,
            format!(
                "no launcher started this process, and ranks started by hand form no MPI job; start them together: \
                 mpirun -n {n} --bind-to core mpiburn train …, or mpiburn launch 1x{n} -- train …"
            ),
        )
        .into()),
        Some(n) if n != world.size() => Err(ConfigError::new(
            "world-size",
            n,
            format!(
                "mpirun started {} ranks; leave the option out or start {n} (mpirun -n {n})",
                world.size()
            ),
        )
        .into()),
        _ => Ok(()),
    }
}

/// The network takes samples of one shape.
pub(in crate::commands) fn check_shape(
    config: &RunConfig,
    source: &dyn data::SampleSource,
) -> Result<(), ConfigError> {
    let (shape, expected) = (source.description().shape, config.model.input_shape());
    if shape != expected {
        return Err(ConfigError::new(
            "model",
            config.model,
            format!("takes images of {expected:?}, and {} has {shape:?}", config.data_root.display()),
        ));
    }
    Ok(())
}

/// Checks the options against the data set.
pub(super) fn check_data(
    config: &RunConfig,
    plan: &ShardPlan,
    source: &dyn data::SampleSource,
) -> anyhow::Result<()> {
    check_shape(config, source)?;
    config::check_data(&config.recipe, &config.data_root, source.description())?;
    let classes = source.description().classes;
    if let Some(n) = config.num_classes
        && n != classes
    {
        return Err(ConfigError::new("num-classes", n, format!("the data set has {classes} classes")).into());
    }
    let known = config.train_samples.unwrap_or(usize::MAX).min(source.len(data::Split::Train));
    if let Some(n) = config.quantization.calibration.filter(|&n| n > known) {
        let problem = format!("the run trains on {known} samples; name at most as many");
        return Err(ConfigError::new("calibration", n, problem).into());
    }
    for (split, option) in
        [(data::Split::Train, config.train_samples), (data::Split::Test, config.test_samples)]
    {
        let samples = option.map_or(usize::MAX, |n| n).min(source.len(split));
        if samples < plan.world_size {
            return Err(ConfigError::new(
                "data-root",
                config.data_root.display(),
                format!(
                    "{samples} {} samples for {} ranks; use fewer ranks or more samples",
                    if split == data::Split::Train { "training" } else { "test" },
                    plan.world_size
                ),
            )
            .into());
        }
    }
    Ok(())
}
