//! Checks of the options of a training, before any work.

use crate::data::{Description, Element, SampleSource, ShardPlan, Split};
use crate::options::{ConfigError, RunConfig, TrainArgs};
use burn_mpi::{Launcher, World};

/// Limits above the samples that there are become those in a new run: whoever repeats it on a larger data set
/// would get other figures. Those of a resumed run are covered by its checkpoints, unless it notes changes.
pub(super) fn clip_limits(world: &World, config: &mut RunConfig, source: &dyn SampleSource, is_noted: bool) {
    let typed = [("train-samples", config.data.train_samples), ("test-samples", config.data.test_samples)];
    let available = [Split::Train, Split::Test].map(|split| source.len(split));
    for ((option, typed), available) in typed.into_iter().zip(available) {
        if let Some(typed) = typed.filter(|&typed| typed > available && world.is_root()) {
            let noted = if is_noted { ", which run.json notes" } else { "" };
            log::warn!("--{option} {typed}: the data set has {available}; all are used{noted}");
        }
    }
    if is_noted {
        config.data.clip(available);
    }
}

/// Steps of the whole run.
pub(super) fn steps(config: &RunConfig, plan: &ShardPlan) -> Result<usize, ConfigError> {
    let (steps, epochs) = (plan.steps(), config.epochs);
    steps.checked_mul(epochs).ok_or_else(|| {
        let problem = format!("of {steps} steps are more than {} steps; lower it", usize::MAX);
        ConfigError::new("epochs", epochs, problem)
    })
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
    source: &dyn SampleSource,
) -> Result<(), ConfigError> {
    let (shape, expected) = (source.description().shape, config.model.input_shape());
    if shape != expected {
        return Err(ConfigError::new(
            "model",
            config.model,
            format!("takes images of {expected:?}, and {} has {shape:?}", config.data.data_root.display()),
        ));
    }
    Ok(())
}

/// Checks the options against the data set.
pub(super) fn check_data(
    config: &RunConfig,
    plan: &ShardPlan,
    source: &dyn SampleSource,
) -> anyhow::Result<()> {
    check_shape(config, source)?;
    check_augmentation(config, source.description())?;
    let classes = source.description().classes;
    if let Some(n) = config.data.num_classes
        && n != classes
    {
        return Err(ConfigError::new("num-classes", n, format!("the data set has {classes} classes")).into());
    }
    let known = config.data.train_samples.unwrap_or(usize::MAX).min(source.len(Split::Train));
    if let Some(n) = config.quantization.calibration.filter(|&n| n > known) {
        let problem = format!("the run trains on {known} samples; name at most as many");
        return Err(ConfigError::new("calibration", n, problem).into());
    }
    for (split, option) in
        [(Split::Train, config.data.train_samples), (Split::Test, config.data.test_samples)]
    {
        let samples = option.map_or(usize::MAX, |n| n).min(source.len(split));
        if u32::try_from(samples).is_err() {
            let problem = format!("at most {} samples are supported", u32::MAX);
            let option = if split == Split::Train { "train-samples" } else { "test-samples" };
            return Err(ConfigError::new(option, samples, problem).into());
        }
        if samples < plan.world_size {
            return Err(ConfigError::new(
                "data-root",
                config.data.data_root.display(),
                format!(
                    "{samples} {} samples for {} ranks; use fewer ranks or more samples",
                    if split == Split::Train { "training" } else { "test" },
                    plan.world_size
                ),
            )
            .into());
        }
    }
    Ok(())
}

/// Checks that the requested augmentation is possible on the data set.
fn check_augmentation(config: &RunConfig, data: &Description) -> Result<(), ConfigError> {
    let images = data.element == Element::U8 && data.shape[1] > 1;
    match &config.recipe.augment {
        Some(augment) if !images => {
            let (root, values) = (config.data.data_root.display(), data.shape.iter().product::<usize>());
            let problem = format!(
                "changes images of bytes, and {root} holds {} of {values} values: leave it out",
                data.kind
            );
            Err(ConfigError::new("augment", augment, problem))
        }
        _ => Ok(()),
    }
}
