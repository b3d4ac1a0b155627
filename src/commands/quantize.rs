//! `mpiburn quantize`: an int8 model of a trained network, without training it again.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use burn::module::Module;

use super::checkpoint;
use super::train::check_shape;
use crate::cli::{QuantKind, QuantizeArgs};
use crate::config::{ConfigError, RunConfig};
use crate::data::shard::Order;
use crate::data::{self, Normalizer, SampleSource, Shard, ShardPlan, Split};
use crate::device::DeviceKind;
use crate::files::WholeFile;
use crate::model::Network;
use crate::quant::{Calibration, DynamicModel, QuantError, Quantized, WeightScheme, integer_model};
use crate::record::{INT8_FILE, Int8File, Method};
use crate::train::{Evaluation, Tally};
use burn_mpi::{ParamLayout, World, sha256};

/// Calibration samples unless another number is asked for.
const CALIBRATION: usize = 1024;
/// Samples that go through the network at once.
const BATCH: usize = 128;

/// How to quantize, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// Static: ranges from so many training samples.
    Ptq { calibration: usize, scheme: WeightScheme },
    /// Weights alone.
    Dynamic { scheme: WeightScheme },
    /// Static: ranges of a quantization-aware training, with the run's own weight scheme.
    Qat,
}

pub fn run(world: &World, args: &QuantizeArgs) -> anyhow::Result<()> {
    let plan = Plan::try_from(args)?;
    for (option, value) in [
        ("RUN", serde_json::to_string(&args.run)?),
        ("--data-root", serde_json::to_string(&args.data_root)?),
        ("the way to quantize", format!("{plan:?}")),
    ] {
        world.check_equal(option, &value)?;
    }
    let config = match world.is_root() {
        true => checkpoint::config_of(&args.run).map(Some),
        false => Ok(None),
    };
    let config = checkpoint::agree_or_refuse(world, config)?;
    let config = world.broadcast(&config)?.context("rank 0 sent no configuration")?;
    let data_root = args.data_root.clone().unwrap_or(config.data_root);
    let config = RunConfig { data_root, device: DeviceKind::Flex, ..config };
    super::use_threads(config.threads)?;
    config.conv.use_algorithm();
    let source = world.agree(data::open(&config.data_root))?;
    check_shape(&config, source.as_ref())?;
    let (classes, device) = (source.description().classes, config.device.device());
    let network = Network::with_options(config.model, &config.network, classes, config.seed, &device)
        .fused(config.fused);
    let layout = ParamLayout::of(&network);
    let loaded = match world.is_root() {
        true => checkpoint::load(&args.run, &layout),
        false => {
            Ok(checkpoint::Weights { values: vec![0.0; layout.len()], folder: PathBuf::new(), ranges: None })
        }
    };
    let mut weights = checkpoint::agree_or_refuse(world, loaded)?;
    world.broadcast_f32(&mut weights.values)?;
    let network = layout.write(network, &weights.values).valid();
    let mut quantized = checkpoint::share_int8(world, || {
        let quantized = match plan {
            Plan::Qat => trained(&network, &weights, config.quantization.weight_scheme)?,
            plan => quantize(&network, source.as_ref(), plan, config.train_samples)?,
        };
        let file = quantized.to_file(&config.model.to_string(), &sha256(&weights.values));
        write(&file, &weights.folder)
    })?;
    let evaluation = Evaluation::load(world, source.as_ref(), &config.train_options())?;
    let float = Tally::total(&evaluation.run(world, &network)?);
    let int8 = Tally::total(&evaluation.run_int8(world, &mut quantized)?);
    if world.is_root() {
        print(&weights.folder, &float, &int8)?;
    }
    Ok(())
}

impl TryFrom<&QuantizeArgs> for Plan {
    type Error = ConfigError;

    fn try_from(args: &QuantizeArgs) -> Result<Self, ConfigError> {
        let typed = args.weight_scheme.as_deref().unwrap_or("channel");
        let scheme =
            typed.parse().map_err(|problem: String| ConfigError::new("weight-scheme", typed, problem))?;
        if args.kind == QuantKind::Qat && args.weight_scheme.is_some() {
            return Err(ConfigError::new("weight-scheme", typed, "was chosen in the training; leave it out"));
        }
        match (args.kind, args.calibration) {
            (_, Some(0)) => Err(ConfigError::new("calibration", 0, "must be at least 1")),
            (QuantKind::Dynamic | QuantKind::Qat, Some(samples)) => {
                Err(ConfigError::new("calibration", samples, "requires --kind ptq"))
            }
            (QuantKind::Qat, None) => Ok(Self::Qat),
            (QuantKind::Dynamic, None) => Ok(Self::Dynamic { scheme }),
            (QuantKind::Ptq, samples) => {
                Ok(Self::Ptq { calibration: samples.unwrap_or(CALIBRATION), scheme })
            }
        }
    }
}

/// The integer model of a quantization-aware training.
fn trained(
    network: &Network,
    weights: &checkpoint::Weights,
    scheme: WeightScheme,
) -> Result<Quantized, QuantError> {
    let never = || QuantError::NotCalibrated { of: "the input (the run had no --quantize qat)".into() };
    let ranges = weights.ranges.as_ref().ok_or_else(never)?;
    Quantized::of_model(network, integer_model(network, ranges, scheme)?, Method::Qat)
}

/// The quantized `network`, which is on a device without gradients.
///
/// # Errors
/// A layer that cannot be quantized, and samples that cannot be read.
pub fn quantize(
    network: &Network,
    source: &dyn SampleSource,
    plan: Plan,
    train_samples: Option<usize>,
) -> anyhow::Result<Quantized> {
    Ok(match plan {
        Plan::Qat => return Err(QuantError::NotCalibrated { of: "the input".into() }.into()),
        Plan::Dynamic { scheme } => Quantized::Dynamic(DynamicModel::of(network, scheme)?),
        Plan::Ptq { calibration, scheme } => {
            let mut ranges = Calibration::new(network)?;
            // Those that the run trained on.
            let known = train_samples.unwrap_or(usize::MAX).min(source.len(Split::Train));
            let samples = calibration.min(known);
            if samples < calibration {
                log::warn!("--calibration {calibration}: the run trained on {known} samples; all are used");
            }
            log::info!("calibrating on {samples} training samples");
            let plan = ShardPlan { samples, world_size: 1, batch_size: BATCH };
            let shard = Shard::load(source, Split::Train, &plan, 0, Order::File)?;
            let normalizer = Normalizer::new(source.description());
            let device = DeviceKind::Flex.device();
            for from in (0..shard.len()).step_by(BATCH) {
                ranges.observe(normalizer.images(shard.samples(from, BATCH).0, &device))?;
            }
            let model = integer_model(network, &ranges.into_ranges(), scheme)?;
            Quantized::of_model(network, model, Method::Ptq)?
        }
    })
}

/// Writes the file into a checkpoint's folder.
pub fn write(file: &Int8File, folder: &Path) -> anyhow::Result<(Int8File, PathBuf)> {
    let path = folder.join(INT8_FILE);
    let bytes = file.encode(&path)?;
    let write = || {
        let mut whole = WholeFile::create(folder, INT8_FILE)?;
        whole.write_all(&bytes)?;
        whole.finish()
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok((file.clone(), path))
}

fn print(folder: &Path, float: &Tally, int8: &Tally) -> anyhow::Result<()> {
    let bytes = |name: &str| -> anyhow::Result<u64> {
        let path = folder.join(name);
        Ok(fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?.len())
    };
    let (of_float, of_int8) = (bytes("model.safetensors")?, bytes(INT8_FILE)?);
    for (name, tally, bytes) in [("float", float, of_float), ("int8", int8, of_int8)] {
        println!(
            "{name:5}  test loss {:.6}  test accuracy {:.2}%  ({} of {} samples)  {bytes} bytes",
            tally.mean_loss(),
            tally.accuracy(),
            tally.correct,
            tally.samples
        );
    }
    let ratio = of_float as f64 / of_int8.max(1) as f64;
    println!("{}: {ratio:.2} times smaller", folder.join(INT8_FILE).display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn plan(options: &[&str]) -> Result<Plan, ConfigError> {
        let words = ["mpiburn", "quantize", "run"].iter().chain(options);
        match Cli::try_parse_from(words).expect("options that clap knows").command {
            Command::Quantize(args) => Plan::try_from(&args),
            _ => unreachable!(),
        }
    }

    #[test]
    fn senseless_options_are_refused_by_name() {
        let channel = WeightScheme::Channel;
        assert_eq!(plan(&[]), Ok(Plan::Ptq { calibration: CALIBRATION, scheme: channel }));
        assert_eq!(plan(&["--kind", "dynamic"]), Ok(Plan::Dynamic { scheme: channel }));
        for (options, expected) in [
            (&["--calibration", "0"][..], "--calibration 0: must be at least 1"),
            (&["--kind", "dynamic", "--calibration", "9"], "--calibration 9: requires --kind ptq"),
            (&["--kind", "qat", "--weight-scheme", "tensor"], "--weight-scheme tensor: was chosen"),
            (&["--weight-scheme", "row"], "--weight-scheme row: unknown weight scheme row"),
        ] {
            let error = plan(options).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
