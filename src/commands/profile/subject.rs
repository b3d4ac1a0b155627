//! The network and the samples of a profile: of a checkpoint, or initial weights and noise.

use anyhow::Context;
use burn::tensor::Device;
use burn_mpi::{ParamLayout, World};

use crate::cli::ProfileArgs;
use crate::commands::checkpoint::{self, Initial};
use crate::commands::warn_of_ignored;
use crate::config::{ConfigError, RunConfig};
use crate::data::generate::Synthetic;
use crate::data::shard::Order;
use crate::data::{Normalizer, SampleSource, Shard, ShardPlan, Split};
use crate::device::DeviceKind;
use crate::model::Network;
use crate::quant::{PostTraining, Quantized, WeightScheme};
use crate::train::{LabelledBytes, Precision};

/// Number of different batches, used in turn: a single one would be memorised in training.
const BATCHES: usize = 16;

/// Options of `mpiburn train` that change nothing in inference.
const OF_TRAINING: [&str; 9] =
    ["optimizer", "lr", "weight_decay", "momentum", "clip_norm", "l1", "l2", "label_smoothing", "reduce"];

/// Maximum of `--batches`: the times of each are kept.
const MAX_BATCHES: usize = 1_000_000;

/// What is profiled, on which samples.
pub struct Subject {
    pub config: RunConfig,
    /// On a device without autodiff.
    pub network: Network,
    pub classes: usize,
    /// With `--int8`.
    pub int8: Option<Quantized>,
    pub batches: Batches,
}

/// Samples of this rank, in whole batches.
pub struct Batches {
    shard: Shard,
    normalizer: Normalizer,
    size: usize,
    count: usize,
    next: usize,
}

impl Subject {
    /// The network and samples that the options name, the same on every rank; `typed` are
    /// those of training.
    pub fn open(world: &World, args: &ProfileArgs, typed: RunConfig) -> anyhow::Result<Self> {
        check(&typed, args)?;
        let mut ignored = if args.checkpoint.is_some() { Vec::new() } else { vec!["data_root"] };
        if !args.train {
            ignored.extend(OF_TRAINING);
        }
        let does = match (&args.checkpoint, args.train) {
            (None, _) => "profile takes initial weights and random samples",
            (Some(_), false) => "profile takes the checkpoint's network and infers",
            (Some(_), true) => "profile takes the checkpoint's network, and options as typed",
        };
        warn_of_ignored(world, does, &args.options, &ignored);
        let split = if args.train { Split::Train } else { Split::Test };
        let Some(run) = &args.checkpoint else {
            let classes = typed.model.classes();
            let samples = BATCHES * typed.train_batch_size * world.size();
            let source = Synthetic::new(typed.model.input_shape(), classes, samples);
            let network = checkpoint::initial_network(&typed, classes);
            let post = PostTraining::Static { calibration: samples, scheme: WeightScheme::Channel };
            let int8 = match args.int8 {
                true => Some(world.agree(post.load(&source, None))?.quantize(&network)?),
                false => None,
            };
            let batches = Batches::open(world, &typed, &source, split)?;
            return Ok(Self { config: typed, network, classes, int8, batches });
        };
        // The run directory is on rank 0's disk.
        let stored = match world.is_root() {
            true => checkpoint::config_of(run).map(Some),
            false => Ok(None),
        };
        let stored = checkpoint::agree_or_refuse(world, stored)?;
        let stored = world.broadcast(&stored)?.context("rank 0 sent no configuration")?;
        let config = of_run(stored, typed, &args.options.typed)?;
        let Initial { source, network, layout, classes } = Initial::open(world, &config)?;
        let int8 = match args.int8 {
            true => {
                let made = || {
                    let weights = checkpoint::load(run, &layout)?;
                    Ok(checkpoint::load_int8(&weights, &config, &network)?)
                };
                Some(checkpoint::share_int8(world, made)?)
            }
            false => None,
        };
        let weights = checkpoint::share(world, run, &layout)?;
        let network = layout.write(network, &weights.values);
        let batches = Batches::open(world, &config, source.as_ref(), split)?;
        Ok(Self { config, network, classes, int8, batches })
    }

    /// The network on `device`, with the same weights.
    pub fn network_on(&self, device: &Device) -> Network {
        let layout = ParamLayout::of(&self.network);
        let values = layout.read(&self.network);
        let Self { config, classes, .. } = self;
        let fresh = Network::with_options(config.model, &config.network, *classes, config.seed, device);
        ParamLayout::of(&fresh).write(fresh, &values).fused(config.fused)
    }
}

/// Checks options against each other.
fn check(config: &RunConfig, args: &ProfileArgs) -> Result<(), ConfigError> {
    if let Some(kind) = config.quantization.quantize {
        return Err(ConfigError::new("quantize", kind, "training is profiled in floats; leave it out"));
    }
    if args.batches > MAX_BATCHES {
        let problem = format!("must be at most {MAX_BATCHES}: the times of each are kept");
        return Err(ConfigError::new("batches", args.batches, problem));
    }
    if config.precision != Precision::No && !args.train {
        return Err(ConfigError::new("precision", config.precision, "requires --train"));
    }
    if !args.int8 {
        return Ok(());
    }
    let problem = match () {
        () if args.train => "profiles inference; leave out --train".to_owned(),
        () if config.device != DeviceKind::Flex => format!("runs on flex alone, not on {}", config.device),
        () if !config.fused => "has no --fused off; leave that out".to_owned(),
        () => return Ok(()),
    };
    Err(ConfigError::new("int8", "", problem))
}

/// `typed` with the network and the data set of a run.
fn of_run(stored: RunConfig, typed: RunConfig, names: &[String]) -> Result<RunConfig, ConfigError> {
    let is_typed = |name: &str| names.iter().any(|typed| typed == name);
    if is_typed("model") && typed.model != stored.model {
        let problem = format!("the checkpoint is of a {}; leave the option out", stored.model);
        return Err(ConfigError::new("model", typed.model, problem));
    }
    let own = &typed.network;
    for (name, value, other) in [
        ("activation", own.activation.to_string(), stored.network.activation.to_string()),
        ("batch_norm", own.batch_norm.to_string(), stored.network.batch_norm.to_string()),
        ("dropout", own.dropout.to_string(), stored.network.dropout.to_string()),
        ("hidden", format!("{:?}", own.hidden), format!("{:?}", stored.network.hidden)),
    ] {
        if is_typed(name) && value != other {
            let (option, value) = match name {
                "batch_norm" => ("batch-norm", String::new()),
                "hidden" => ("hidden", own.hidden.unwrap_or_default().to_string()),
                "dropout" => ("dropout", value),
                _ => ("activation", value),
            };
            let problem = "the checkpoint's network has another; leave the option out";
            return Err(ConfigError::new(option, value, problem));
        }
    }
    Ok(RunConfig {
        model: stored.model,
        network: stored.network,
        num_classes: stored.num_classes,
        data_root: if is_typed("data_root") { typed.data_root.clone() } else { stored.data_root },
        ..typed
    })
}

impl Batches {
    fn open(
        world: &World,
        config: &RunConfig,
        source: &dyn SampleSource,
        split: Split,
    ) -> anyhow::Result<Self> {
        let size = config.train_batch_size;
        let global = size * world.size();
        let count = (source.len(split) / global).min(BATCHES);
        if count == 0 {
            let problem =
                format!("the data set has {} samples for {} ranks", source.len(split), world.size());
            return Err(ConfigError::new("train-batch-size", size, problem).into());
        }
        let plan = ShardPlan { samples: count * global, world_size: world.size(), batch_size: size };
        let shard = world.agree(Shard::load(source, split, &plan, world.rank(), Order::File))?;
        Ok(Self { shard, normalizer: Normalizer::new(source.description()), size, count, next: 0 })
    }

    /// The next batch; after the last, the first.
    pub fn next(&mut self) -> LabelledBytes<'_> {
        let from = self.next * self.size;
        self.next = (self.next + 1) % self.count;
        let (bytes, labels) = self.shard.samples(from, self.size);
        LabelledBytes { bytes, labels, normalizer: &self.normalizer }
    }
}
