//! `mpiburn eval`: a checkpoint's loss and accuracy on the test set.

use burn::tensor::Tensor;

use super::checkpoint::Opened;
use super::logits;
use crate::data::Split;
use crate::device::DeviceKind;
use crate::model::Model;
use crate::options::{ConfigError, EvalArgs, RunConfig};
use crate::train::{DataOptions, Evaluation, Samples, Tally};
use burn_mpi::World;

pub fn run(world: &World, args: &EvalArgs) -> anyhow::Result<()> {
    check(args)?;
    logits::check(world, args.logits.as_ref())?;
    let checked: &[Split] = if args.data_root.is_some() { &[] } else { &[Split::Test] };
    let opened = Opened::open(world, &args.checkpoint, checked, |config| Ok(adapted(config, args)))?;
    let (source, device) = (opened.source.as_ref(), opened.config.device.device());
    let evaluation = Evaluation::load(world, source, &opened.config)?;
    let mut logits = Vec::new();
    let mut keep = |scores: &Tensor<2>| {
        if args.logits.is_some() {
            logits.extend(scores.to_data().iter::<f32>());
        }
    };
    let tested = if args.int8 {
        let mut quantized = opened.int8(world, &args.checkpoint)?;
        evaluation
            .run_with(world, |samples| evaluation.int8_scores(&mut quantized, samples).inspect(&mut keep))?
    } else {
        let network = opened.float(world, &args.checkpoint)?;
        evaluation.run_with(world, |samples| {
            let scores = network.forward(samples.batch(0..samples.count(), &device).0);
            keep(&scores);
            Ok(scores)
        })?
    };
    if let Some(file) = &args.logits {
        logits::write(world, file, &logits, source.description().classes)?;
    }
    if world.is_root() {
        println!("{}", shown(&Tally::total(&tested.tallies)));
    }
    Ok(())
}

/// Loss and accuracy of a test.
pub fn shown(test: &Tally) -> String {
    format!(
        "test loss {:.6}  test accuracy {:.2}%  ({} of {} samples)",
        test.mean_loss(),
        test.accuracy(),
        test.correct,
        test.samples
    )
}

/// The options that need nothing else to be checked.
fn check(args: &EvalArgs) -> Result<(), ConfigError> {
    let device = args.device;
    if args.int8 && device != DeviceKind::Flex {
        return Err(ConfigError::new("device", device, "int8 models run on flex alone"));
    }
    device.check_built().map_err(|problem| ConfigError::new("device", device, problem))
}

/// The run's own configuration, with what was typed instead.
fn adapted(config: RunConfig, args: &EvalArgs) -> RunConfig {
    let data = DataOptions {
        data_root: args.data_root.clone().unwrap_or(config.data.data_root),
        test_batch_size: args.test_batch_size,
        test_samples: args.test_samples.or(config.data.test_samples),
        ..config.data
    };
    RunConfig { data, device: args.device, ..config }
}
