//! `mpiburn eval`: a checkpoint's loss and accuracy on the test set.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::train::check_shape;
use crate::cli::EvalArgs;
use crate::config::{ConfigError, RunConfig};
use crate::data;
use crate::device::DeviceKind;
use crate::model::Network;
use crate::record::{Checkpoint, RunDir};
use crate::train::{Evaluation, Position, Tally};
use burn_mpi::{ParamLayout, World};

pub fn run(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    let device = check(args)?;
    check_same_options(world, args)?;
    let config = world.agree(configure(world, args, device))?;
    let config = world.broadcast(&config)?.context("rank 0 sent no configuration")?;
    super::use_threads(config.threads)?;
    let source = world.agree(data::open(&config.data_root))?;
    check_shape(&config, source.as_ref())?;
    let (classes, device) = (source.description().classes, config.device.device());
    let network = Network::with_options(config.model, &config.network, classes, config.seed, &device)
        .fused(config.fused);
    let layout = ParamLayout::of(&network);
    let loaded = match world.is_root() {
        true => load(&args.checkpoint, &layout),
        false => Ok(vec![0.0; layout.len()]),
    };
    let mut params = world.agree(loaded)?;
    world.broadcast_f32(&mut params)?;
    let network = layout.write(network, &params);
    let tallies = Evaluation::load(world, source.as_ref(), &config.train_options())?.run(world, &network)?;
    if world.is_root() {
        let total = Tally::total(&tallies);
        println!(
            "test loss {:.6}  test accuracy {:.2}%  ({} of {} samples)",
            total.mean_loss(),
            total.accuracy(),
            total.correct,
            total.samples
        );
    }
    Ok(())
}

/// The options that need nothing else to be checked; returns the device.
fn check(args: &EvalArgs) -> Result<DeviceKind, ConfigError> {
    for (option, value) in
        [("test-batch-size", Some(args.test_batch_size)), ("test-samples", args.test_samples)]
    {
        if value == Some(0) {
            return Err(ConfigError::new(option, 0, "must be at least 1"));
        }
    }
    let device: DeviceKind =
        args.device.parse().map_err(|problem: String| ConfigError::new("device", &args.device, problem))?;
    device.check_built().map_err(|problem| ConfigError::new("device", device, problem))?;
    Ok(device)
}

/// Rank 0's options are every rank's, so different ones must not go unnoticed.
fn check_same_options(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    let EvalArgs { checkpoint, data_root, test_batch_size, test_samples, device } = args;
    for (option, value) in [
        ("--checkpoint", serde_json::to_string(checkpoint)?),
        ("--data-root", serde_json::to_string(data_root)?),
        ("--test-batch-size", serde_json::to_string(test_batch_size)?),
        ("--test-samples", serde_json::to_string(test_samples)?),
        ("--device", serde_json::to_string(device)?),
    ] {
        world.check_equal(option, &value)?;
    }
    Ok(())
}

/// The run's own configuration, with what was typed instead. Read by rank 0,
/// whose disk the run directory is on; nothing on the others.
fn configure(world: &World, args: &EvalArgs, device: DeviceKind) -> anyhow::Result<Option<RunConfig>> {
    if !world.is_root() {
        return Ok(None);
    }
    let run = run_of(&args.checkpoint);
    let (_, record) = RunDir::open::<RunConfig>(&run).with_context(|| {
        format!("{} is neither a run directory nor a checkpoint in one", args.checkpoint.display())
    })?;
    Ok(Some(RunConfig {
        data_root: args.data_root.clone().unwrap_or(record.config.data_root),
        test_batch_size: args.test_batch_size,
        test_samples: args.test_samples.or(record.config.test_samples),
        device,
        ..record.config
    }))
}

/// The run directory of `path`, which is one or is `RUN/checkpoints/step-N`.
fn run_of(path: &Path) -> PathBuf {
    match path.join("state.json").exists() {
        true => path.join("../.."),
        false => path.to_owned(),
    }
}

fn load(path: &Path, layout: &ParamLayout) -> anyhow::Result<Vec<f32>> {
    if path.join("state.json").exists() {
        return Ok(Checkpoint::<Position>::load(path, layout)?.params);
    }
    let folder = path.join("checkpoints");
    let last = Checkpoint::<Position>::load_last(&folder, layout)?;
    let (stops_early, epochs) = (last.position.best_step.is_some(), last.position.history.len());
    let checkpoint = last.load_best(&folder, layout)?;
    if stops_early {
        let epoch = checkpoint.position.epoch;
        log::info!("early stopping: taking epoch {epoch} of {epochs}, which had the lowest test loss");
    }
    Ok(checkpoint.params)
}
