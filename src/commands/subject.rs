//! The network and samples that a profile or benchmark measures. They come from a run, or are initial weights
//! and noise.

use std::path::Path;

use burn_mpi::{SampleOrder as Order, ShardPlan, World};
use run_record::INT8_FILE;
use run_record::checkpoint::weights_file;

use super::checkpoint::Opened;
use super::outcome::print_compression;
use super::set_up;
use crate::layout;
use crate::model::Network;
use crate::options::{ConfigError, RunConfig};
use crate::quant::{PostTraining, Quantized, WeightScheme};
use crate::train::{LabelledBytes, Learner};
use data::generate::noise;
use data::{DataError, Normalizer, SampleSource, Shard, Split};

/// A network and its samples, the same on every rank.
pub struct Subject {
    pub config: RunConfig,
    /// The network, on a device without autodiff.
    pub network: Network,
    pub source: SampleSource,
    /// The network's int8 model, if it was requested.
    pub int8: Option<Quantized>,
}

impl Subject {
    /// Makes a network with initial weights and `samples` samples of noise. If `int8` is true, also makes the
    /// network's int8 model, calibrated on these samples.
    pub fn initial(world: &World, config: RunConfig, samples: usize, int8: bool) -> anyhow::Result<Self> {
        set_up(world, &config)?;
        let dimensions = config.model.dimensions();
        let source = noise(dimensions.input, dimensions.classes, samples);
        let network = config.network(dimensions, &config.device.device());
        let post = PostTraining { scheme: WeightScheme::Channel, calibration: samples };
        let int8 = if int8 { Some(world.agree(post.load(&source, None))?.quantize(&network)?) } else { None };
        Ok(Self { config, network, source, int8 })
    }

    /// Takes the network and data set of a run. If `int8` is true, also takes the int8 model in the folder of
    /// its checkpoint.
    pub fn of_run(world: &World, opened: Opened, int8: bool) -> anyhow::Result<Self> {
        let int8 = int8.then(|| opened.int8(world)).transpose()?;
        let Opened { config, source, network, .. } = opened;
        Ok(Self { config, network, source, int8 })
    }

    /// Returns the size in bytes of the file in which a checkpoint stores this network's weights.
    pub fn float_bytes(&self) -> anyhow::Result<usize> {
        let layout = self.network.parameters();
        Ok(weights_file(&layout::stored(&layout), &layout.read(&self.network))?.len())
    }
}

/// Returns the size in bytes of the file of an int8 model.
pub fn int8_bytes(int8: &Quantized) -> anyhow::Result<usize> {
    Ok(int8.file.encode(Path::new(INT8_FILE))?.len())
}

/// Returns a learner for steps that are measured.
pub fn learner<'w>(world: &'w World, config: &RunConfig, network: Network) -> anyhow::Result<Learner<'w>> {
    let layout = network.parameters();
    config.check_compression_of(&layout)?;
    print_compression(world, config, &layout);
    let backend = config.communication.backend;
    let collective = backend.connect(world, &config.transport(), config.device.gpu())?;
    let quantizer = config.quantizer(&network)?;
    Ok(Learner::new(world, config, network, quantizer, collective)?)
}

/// Maximum number of different batches, which are used in turn. A single batch would be memorised in
/// training, and gradients at a loss of 0 are not representative.
pub const BATCHES: usize = 16;

/// Whole batches of this rank's samples, in an endless cycle.
pub struct BatchCycle {
    shard: Shard,
    normalizer: Normalizer,
    size: usize,
    count: usize,
    next: usize,
}

impl BatchCycle {
    /// Makes batches from the first samples of `split`.
    pub fn open(
        world: &World,
        config: &RunConfig,
        source: &SampleSource,
        split: Split,
    ) -> anyhow::Result<Self> {
        let size = config.data.train_batch_size.get();
        let global = size * world.size();
        let count = (source.len(split) / global).min(BATCHES);
        if count == 0 {
            let samples = run_record::count(source.len(split), "sample");
            let problem = format!(
                "requires {global} samples for {} ranks, but the data set has {samples}: choose a smaller batch",
                world.size()
            );
            return Err(ConfigError::new("train-batch-size", size, problem).into());
        }
        let plan = ShardPlan { samples: count * global, world_size: world.size(), batch_size: size };
        let numbers = plan.shard(world.rank(), Order::Sequential);
        let shard = world.agree(Shard::open(source, split, plan.samples, numbers, false))?;
        Ok(Self { shard, normalizer: Normalizer::new(source.description()), size, count, next: 0 })
    }

    /// Returns the next batch. After the last batch, returns the first batch again.
    ///
    /// # Errors
    /// If samples on disk cannot be read.
    pub fn next(&mut self) -> Result<LabelledBytes<'_>, DataError> {
        let from = self.next * self.size;
        self.next = (self.next + 1) % self.count;
        let (bytes, labels) = self.shard.read(from, self.size)?;
        Ok(LabelledBytes { bytes, labels, normalizer: &self.normalizer })
    }
}
