//! `mpiburn eval`: a checkpoint's loss and accuracy on the test set.

use anyhow::Context;
use burn::module::Module;
use burn::tensor::Tensor;

use super::checkpoint::{self, Initial};
use super::covered::Samples;
use super::{logits, path_text};
use crate::cli::EvalArgs;
use crate::config::{ConfigError, RunConfig};
use crate::data::Split;
use crate::device::DeviceKind;
use crate::model::Model;
use crate::train::{Evaluation, Samples as _, Tally};
use burn_mpi::World;

pub fn run(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    let device = check(args)?;
    check_same_options(world, args)?;
    logits::check(world, args.logits.as_ref())?;
    let stored = world.agree(configure(world, args, device))?;
    let (config, samples) = world.broadcast(&stored)?.context("rank 0 sent no configuration")?;
    super::gpu::choose(world, config.device)?;
    super::use_threads(config.threads)?;
    config.conv.use_algorithm();
    let Initial { source, network, layout, classes } = Initial::open(world, &config)?;
    let evaluation = Evaluation::load(world, source.as_ref(), &config.train_options())?;
    if args.data_root.is_none() {
        let (root, remedy) = (&config.data_root, checkpoint::NAME_IT);
        checkpoint::check_samples(world, &samples, Split::Test, source.as_ref(), root, remedy)?;
    }
    let mut logits = Vec::new();
    let mut keep = |scores: &Tensor<2>| {
        if args.logits.is_some() {
            logits.extend(scores.to_data().iter::<f32>());
        }
    };
    let tested = if args.int8 {
        let made = || {
            let weights = checkpoint::load(&args.checkpoint, &layout)?;
            Ok(checkpoint::load_int8(&weights, &config, &network)?)
        };
        let mut quantized = checkpoint::share_int8(world, made)?;
        evaluation
            .run_with(world, |samples| evaluation.int8_scores(&mut quantized, samples).inspect(&mut keep))?
    } else {
        let weights = checkpoint::share(world, &args.checkpoint, &layout)?;
        let network = layout.write(network, &weights.values).valid();
        let device = config.device.device();
        evaluation.run_with(world, |samples| {
            let scores = network.forward(samples.batch(0..samples.count(), &device).0);
            keep(&scores);
            Ok(scores)
        })?
    };
    if let Some(file) = &args.logits {
        logits::write(world, file, &logits, classes)?;
    }
    if world.is_root() {
        let total = Tally::total(&tested.tallies);
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
    if args.int8 && device != DeviceKind::Flex {
        return Err(ConfigError::new("device", device, "int8 models run on flex alone"));
    }
    device.check_built().map_err(|problem| ConfigError::new("device", device, problem))?;
    Ok(device)
}

/// Rank 0's options are every rank's, so different ones must not go unnoticed.
fn check_same_options(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    let EvalArgs { checkpoint, data_root, test_batch_size, test_samples, device, int8, logits } = args;
    for (option, value) in [
        ("--checkpoint", path_text(Some(checkpoint))),
        ("--data-root", path_text(data_root.as_deref())),
        ("--test-batch-size", serde_json::to_string(test_batch_size)?),
        ("--test-samples", serde_json::to_string(test_samples)?),
        ("--device", serde_json::to_string(device)?),
        ("--int8", serde_json::to_string(int8)?),
        ("--logits", path_text(logits.as_deref())),
    ] {
        world.check_equal(option, &value)?;
    }
    Ok(())
}

/// The run's own configuration, with what was typed instead. Read by rank 0,
/// whose disk the run directory is on; nothing on the others.
fn configure(
    world: &World,
    args: &EvalArgs,
    device: DeviceKind,
) -> anyhow::Result<Option<(RunConfig, Samples)>> {
    if !world.is_root() {
        return Ok(None);
    }
    let (config, samples) = checkpoint::stored(&args.checkpoint)?;
    let config = RunConfig {
        data_root: args.data_root.clone().unwrap_or(config.data_root),
        test_batch_size: args.test_batch_size,
        test_samples: args.test_samples.or(config.test_samples),
        device,
        ..config
    };
    Ok(Some((config, samples)))
}
