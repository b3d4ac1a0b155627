//! `mpiburn eval`: a checkpoint's loss and accuracy on the test set.

use anyhow::Context;
use burn::module::Module;
use burn::tensor::Tensor;

use super::checkpoint::{self, Initial};
use super::covered::Samples;
use super::logits;
use crate::data::Split;
use crate::device::DeviceKind;
use crate::model::Model;
use crate::options::{ConfigError, EvalArgs, RunConfig};
use crate::train::{DataOptions, Evaluation, Samples as _, Tally};
use burn_mpi::World;

pub fn run(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    check(args)?;
    logits::check(world, args.logits.as_ref())?;
    let stored = world.agree(configure(world, args))?;
    let (config, samples) = world.broadcast(&stored)?.context("rank 0 sent no configuration")?;
    super::set_up(world, &config)?;
    let Initial { source, network, layout, classes } = Initial::open(world, &config)?;
    let evaluation = Evaluation::load(world, source.as_ref(), &config)?;
    if args.data_root.is_none() {
        let (root, remedy) = (&config.data.data_root, checkpoint::NAME_IT);
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

/// The options that need nothing else to be checked.
fn check(args: &EvalArgs) -> Result<(), ConfigError> {
    let device = args.device;
    if args.int8 && device != DeviceKind::Flex {
        return Err(ConfigError::new("device", device, "int8 models run on flex alone"));
    }
    device.check_built().map_err(|problem| ConfigError::new("device", device, problem))
}

/// The run's own configuration, with what was typed instead. Read by rank 0,
/// whose disk the run directory is on; nothing on the others.
fn configure(world: &World, args: &EvalArgs) -> anyhow::Result<Option<(RunConfig, Samples)>> {
    if !world.is_root() {
        return Ok(None);
    }
    let (config, samples) = checkpoint::stored(&args.checkpoint)?;
    let data = DataOptions {
        data_root: args.data_root.clone().unwrap_or(config.data.data_root),
        test_batch_size: args.test_batch_size,
        test_samples: args.test_samples.or(config.data.test_samples),
        ..config.data
    };
    let config = RunConfig { data, device: args.device, ..config };
    Ok(Some((config, samples)))
}
