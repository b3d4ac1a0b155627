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
pub(super) fn check_world_size(args: &TrainArgs, world: &World) -> Result<(), ConfigError> {
    let here = world.size();
    let Some(n) = args.world_size.filter(|&n| n != here) else { return Ok(()) };
    let problem = match here == 1 && Launcher::detect().is_none() {
        true => format!(
            "no launcher started this process, and ranks started by hand form no MPI job; start them together: \
             mpirun -n {n} --bind-to core mpiburn train …, or mpiburn launch 1x{n} -- train …"
        ),
        false => {
            format!("mpirun started {here} ranks; leave the option out or start {n} (mpirun -n {n})")
        }
    };
    Err(ConfigError::new("world-size", n, problem))
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
) -> Result<(), ConfigError> {
    check_shape(config, source)?;
    check_augmentation(config, source.description())?;
    let classes = source.description().classes;
    if let Some(n) = config.data.num_classes.filter(|&n| n != classes) {
        return Err(ConfigError::new("num-classes", n, format!("the data set has {classes} classes")));
    }
    let splits = [(Split::Train, "train-samples", "training"), (Split::Test, "test-samples", "test")];
    for (split, option, name) in splits {
        let samples = config.plan(source, split, plan.world_size).samples;
        if let Some(n) = config.quantization.calibration.filter(|&n| split == Split::Train && n > samples) {
            let problem = format!("the run trains on {samples} samples; name at most as many");
            return Err(ConfigError::new("calibration", n, problem));
        }
        if u32::try_from(samples).is_err() {
            let problem = format!("at most {} samples are supported", u32::MAX);
            return Err(ConfigError::new(option, samples, problem));
        }
        if samples < plan.world_size {
            let ranks = plan.world_size;
            let problem =
                format!("{samples} {name} samples for {ranks} ranks; use fewer ranks or more samples");
            return Err(ConfigError::new("data-root", config.data.data_root.display(), problem));
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
