//! The network and the samples of a profile: of a checkpoint, or initial weights and noise.

use std::path::Path;

use anyhow::Context;
use burn::tensor::Device;
use burn_mpi::{ParamLayout, World};
use run_record::files::sha256_of_f32;

use super::of_run::of_run;
use crate::commands::checkpoint::{self, Initial};
use crate::commands::{check_random_batch, set_up, warn_of_ignored};
use crate::data::generate::Synthetic;
use crate::data::shard::Order;
use crate::data::{Normalizer, SampleSource, Shard, ShardPlan, Split};
use crate::device::DeviceKind;
use crate::layout;
use crate::model::Network;
use crate::options::{ConfigError, Part, ProfileArgs, RunConfig, part};
use crate::quant::{PostTraining, Quantized, WeightScheme};
use crate::train::{LabelledBytes, Precision};
use run_record::INT8_FILE;
use run_record::checkpoint::weights_file;

/// Number of different batches, used in turn: a single one would be memorised in training.
const BATCHES: usize = 16;

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
    /// The network and samples that the options name, the same on every rank.
    pub fn open(world: &World, args: &ProfileArgs) -> anyhow::Result<Self> {
        let is_ignored = |option: &str| match part(option) {
            Part::Run => option != "data-root" || args.checkpoint.is_none(),
            Part::Recipe | Part::Transport => !args.train,
            _ => false,
        };
        let does = match (&args.checkpoint, args.train) {
            (None, _) => "profile takes initial weights and random samples",
            (Some(_), false) => "profile takes the run's network and infers",
            (Some(_), true) => "profile takes the run's network, and its options where none are typed",
        };
        warn_of_ignored(world, does, &args.typed, is_ignored);
        let split = if args.train { Split::Train } else { Split::Test };
        let Some(run) = &args.checkpoint else {
            let typed = args.config.clone().completed()?;
            check(&typed, args)?;
            check_random_batch(&typed)?;
            let classes = typed.model.classes();
            let samples = BATCHES * typed.data.train_batch_size * world.size();
            let source = Synthetic::new(typed.model.input_shape(), classes, samples);
            set_up(world, &typed)?;
            let network = typed.network(classes, &typed.device.device());
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
            true => checkpoint::stored(run).map(Some),
            false => Ok(None),
        };
        let stored = checkpoint::agree_or_refuse(world, stored)?;
        let (stored, samples) = world.broadcast(&stored)?.context("rank 0 sent no configuration")?;
        let config = of_run(&stored, &args.typed, args.train)?;
        check(&config, args)?;
        set_up(world, &config)?;
        let Initial { source, network, layout, classes } = Initial::open(world, &config)?;
        if !args.typed.has("data-root") {
            let (root, remedy) = (&stored.data.data_root, checkpoint::NAME_IT);
            checkpoint::check_samples(world, &samples, split, source.as_ref(), root, remedy)?;
        }
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

    /// Bytes of a checkpoint's file of these weights, of integers where those are profiled.
    pub fn stored_bytes(&self) -> anyhow::Result<usize> {
        let layout = ParamLayout::of(&self.network);
        let values = layout.read(&self.network);
        let Some(quantized) = &self.int8 else {
            return Ok(weights_file(&layout::stored(&layout), &values)?.len());
        };
        let file = quantized.to_file(&self.config.model.to_string(), &sha256_of_f32(&values));
        Ok(file.encode(Path::new(INT8_FILE))?.len())
    }

    /// The network on `device`, with the same weights.
    pub fn network_on(&self, device: &Device) -> Network {
        let layout = ParamLayout::of(&self.network);
        let values = layout.read(&self.network);
        let Self { config, classes, .. } = self;
        let fresh = config.network(*classes, device);
        ParamLayout::of(&fresh).write(fresh, &values)
    }
}

/// Checks options against each other.
fn check(config: &RunConfig, args: &ProfileArgs) -> Result<(), ConfigError> {
    if let Some(kind) = config.quantization.quantize {
        return Err(ConfigError::new("quantize", kind, "training is profiled in floats; leave it out"));
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

impl Batches {
    fn open(
        world: &World,
        config: &RunConfig,
        source: &dyn SampleSource,
        split: Split,
    ) -> anyhow::Result<Self> {
        let size = config.data.train_batch_size;
        let global = size * world.size();
        let count = (source.len(split) / global).min(BATCHES);
        if count == 0 {
            let problem =
                format!("the data set has {} samples for {} ranks", source.len(split), world.size());
            return Err(ConfigError::new("train-batch-size", size, problem).into());
        }
        let plan = ShardPlan { samples: count * global, world_size: world.size(), batch_size: size };
        let shard = world.agree(Shard::load(source, split, &plan, world.rank(), Order::Sequential))?;
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
