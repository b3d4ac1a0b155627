//! `mpiburn eval`: a checkpoint's loss and accuracy on the test set.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use crate::cli::EvalArgs;
use crate::comm::World;
use crate::config::{ConfigError, RunConfig};
use crate::data;
use crate::device::DeviceKind;
use crate::model::{Network, ParamLayout};
use crate::record::{Checkpoint, RunDir, Tally};
use crate::train::Evaluation;

pub fn run(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    let config = world.agree(configure(args))?;
    let source = world.agree(data::open(&config.data_root))?;
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
    let tallies = Evaluation::load(world, source.as_ref(), &config)?.run(world, &network)?;
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

/// The run's own configuration, with what was typed instead.
fn configure(args: &EvalArgs) -> anyhow::Result<RunConfig> {
    let run = run_of(&args.checkpoint);
    let (_, record) = RunDir::open(&run).with_context(|| {
        format!("{} is neither a run directory nor a checkpoint in one", args.checkpoint.display())
    })?;
    let device: DeviceKind = args.device.parse().map_err(|problem: String| anyhow!("--device: {problem}"))?;
    device.check_built().map_err(|problem| anyhow!("--device {device}: {problem}"))?;
    if args.test_batch_size == 0 {
        return Err(ConfigError::new("test-batch-size", 0, "must be at least 1").into());
    }
    Ok(RunConfig {
        data_root: args.data_root.clone().unwrap_or(record.config.data_root),
        test_batch_size: args.test_batch_size,
        test_samples: args.test_samples.or(record.config.test_samples),
        device,
        ..record.config
    })
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
        return Ok(Checkpoint::load(path, layout)?.params);
    }
    let folder = path.join("checkpoints");
    let last = Checkpoint::load_last(&folder, layout)?;
    let (stops_early, epochs) = (last.position.best_step.is_some(), last.position.history.len());
    let checkpoint = last.load_best(&folder, layout)?;
    if stops_early {
        let epoch = checkpoint.position.epoch;
        log::info!("early stopping: taking epoch {epoch} of {epochs}, which had the lowest test loss");
    }
    Ok(checkpoint.params)
}
