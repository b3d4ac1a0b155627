//! The configuration of a training: clap reads it, `run.json` stores it, and the training uses it.
//!
//! To add an option, add a field with its help here, a line in `schema.rs`, and the code that uses it.

use std::path::PathBuf;
use std::time::Duration;

use burn::tensor::Device;
use burn_fused::conv::Algorithm;
use burn_mpi::{GlooAlgorithm, LrScaling, Reduction, ShardPlan, SyncOptions, Transport, WireType};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{
    BackendKind, CompressionOptions, LocalUpdatesOptions, MixedPrecision, OptimizerKind, Rate, Schedule,
    ScheduleKind,
};
use crate::device::DeviceKind;
use crate::model::{Dimensions, ModelKind, Network, NetworkOptions};
use crate::quant::Quantization;
use crate::values::{
    Above0, Below1, NotNegative, Optional, Percent, Positive, Seconds, Switch, bounded, from_0, named,
    on_off, one_of, or_none, path_or_none, stored_path, up_to,
};
use data::augment::Augmentation;
use data::{Description, SampleSource, Split};

/// Maximum number of threads per rank. It is more than the number of cores of most machines, and every system
/// can start this number of threads.
const MAX_THREADS: usize = 1024;

bounded! {
    /// A number of threads, from 1 to 1024.
    Threads(usize) = up_to(MAX_THREADS, "each thread takes memory and a core");
}

/// The complete configuration of a run. `run.json` stores the fields under `config`, and `--resume` reads
/// them from there.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct RunConfig {
    /// Network to train.
    ///
    /// convnet: images of at least 4x4 pixels. vgg: images of at least 8x8 pixels. mlp: images or tables. The
    /// sizes of the layers follow the data set.
    #[arg(long, default_value = "convnet", value_parser = one_of::<ModelKind>(), help_heading = "Model")]
    pub model: ModelKind,
    #[command(flatten)]
    #[serde(flatten)]
    pub network: NetworkOptions,
    /// Initial weights, with PyTorch's parameter names and layouts.
    #[arg(
        long,
        value_name = "FILE.safetensors",
        default_value = "none",
        value_parser = path_or_none(),
        help_heading = "Model"
    )]
    pub init: Optional<PathBuf>,
    /// Seed of initial weights, shuffling, augmentation and dropout; the same on every rank.
    #[arg(long, default_value_t = 123, value_parser = from_0::<u64>, help_heading = "Model")]
    pub seed: u64,
    /// Fuse convolution, ReLU and pooling into one operator.
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off(), help_heading = "Model")]
    pub fused: Switch,
    /// Algorithm of fused convolutions with 16 or more input channels, on the CPU device flex.
    #[arg(
        long,
        value_name = "HOW",
        default_value = "winograd",
        value_parser = named::<Algorithm, _>(Algorithm::ALL.map(Algorithm::name)),
        help_heading = "Model"
    )]
    pub conv: Algorithm,
    #[command(flatten)]
    #[serde(flatten)]
    pub data: DataOptions,
    /// Number of epochs.
    #[arg(long, value_name = "N", default_value = "3", help_heading = "Training")]
    pub epochs: Positive,
    /// Steps between tests inside an epoch, in addition to the test after each epoch.
    #[arg(
        long,
        value_name = "STEPS",
        default_value = "none",
        value_parser = or_none::<Positive>,
        help_heading = "Training"
    )]
    pub eval_every: Optional<Positive>,
    /// Gradient accumulation: each rank computes K batches in a step, with one all-reduce and one update.
    #[arg(long, value_name = "K", default_value = "1", help_heading = "Training")]
    pub accumulate: Positive,
    /// Data type of activations and matrix products: bf16, fp16 (with loss scaling), or no (f32). Weights,
    /// optimizer, loss and batch norm's statistics stay in f32.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "no",
        value_parser = one_of::<MixedPrecision>(),
        help_heading = "Training"
    )]
    pub precision: MixedPrecision,
    #[command(flatten)]
    #[serde(flatten)]
    pub recipe: Recipe,
    #[command(flatten)]
    #[serde(flatten)]
    pub quantization: Quantization,
    /// Compute device: flex, ndarray, tch, tch-cuda:N, cuda or cuda:N. All except flex need a separate build:
    /// make build DEVICES=ndarray,tch or make build DEVICES=cuda.
    #[arg(long, default_value = "flex", help_heading = "Distribution")]
    pub device: DeviceKind,
    #[command(flatten)]
    #[serde(flatten)]
    pub communication: Communication,
    /// Threads per rank, up to 1024. They change no result, and each needs a core: `mpiburn launch` binds them.
    #[arg(long, value_name = "N", default_value = "1", help_heading = "Distribution")]
    pub threads: Threads,
    /// Steps between log lines of training loss and accuracy. The values are averages over rank 0's samples
    /// since the previous line. At the end of an epoch, another line averages over all ranks' samples of the
    /// epoch.
    #[arg(long, value_name = "STEPS", default_value = "100", help_heading = "Results")]
    pub log_every: Positive,
    /// Steps between checkpoints, in addition to the one after each epoch.
    #[arg(
        long,
        value_name = "STEPS",
        default_value = "none",
        value_parser = or_none::<Positive>,
        help_heading = "Results"
    )]
    pub checkpoint_every: Optional<Positive>,
    /// Keep the newest K checkpoints, and the checkpoint with the highest test accuracy. Without this option,
    /// only the newest 3 are kept.
    #[arg(
        long,
        value_name = "K",
        default_value = "none",
        value_parser = or_none::<Positive>,
        help_heading = "Results"
    )]
    pub keep: Optional<Positive>,
}

/// Which samples a run uses, and in which batches.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Data")]
pub struct DataOptions {
    /// Folder of the data set, present on every host.
    ///
    /// The default depends on --model: data/objects for vgg, data/features for mlp.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "data/digits",
        default_value_ifs = [("model", "vgg", "data/objects"), ("model", "mlp", "data/features")],
        value_parser = stored_path()
    )]
    pub data_root: PathBuf,
    /// Training batch size per rank.
    #[arg(
        long,
        visible_aliases = ["batch-size", "batch"],
        value_name = "N",
        default_value = "32"
    )]
    pub train_batch_size: Positive,
    /// Test batch size per rank.
    #[arg(long, value_name = "N", default_value = "128")]
    pub test_batch_size: Positive,
    /// Shuffle the training samples in every epoch.
    #[arg(long)]
    pub shuffle: bool,
    /// Where a rank keeps its samples.
    ///
    /// With disk, a rank reads its samples from disk in every step. Only imported data sets can stay on disk.
    /// auto means disk if the samples of all ranks of a host need more than half of the host's memory.
    #[arg(long, default_value = "auto", value_parser = one_of::<SamplesIn>())]
    pub samples_in: SamplesIn,
    /// Train on the first N samples only.
    #[arg(long, value_name = "N", default_value = "none", value_parser = or_none::<Positive>)]
    pub train_samples: Optional<Positive>,
    /// Test on the first N samples only.
    #[arg(long, value_name = "N", default_value = "none", value_parser = or_none::<Positive>)]
    pub test_samples: Optional<Positive>,
    /// Expected number of classes; the training fails if the data set has another number.
    #[arg(long, value_name = "N", default_value = "none", value_parser = or_none::<Positive>)]
    pub num_classes: Optional<Positive>,
    /// Ignored; accepted for compatibility with PyTorch programs.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = from_0::<usize>)]
    #[serde(skip)]
    pub num_workers: usize,
}

/// Optimizer, schedule, regularisation and augmentation.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Recipe")]
pub struct Recipe {
    /// Learning rate.
    ///
    /// --schedule onecycle uses --max-lr instead.
    #[arg(long, visible_alias = "optimizer-lr", value_name = "X", default_value = "0.0005")]
    pub lr: NotNegative,
    /// Factor of --lr and --max-lr: the number of ranks (linear), its square root (sqrt), or 1 (none).
    #[arg(
        long,
        value_name = "HOW",
        default_value = "none",
        value_parser = named::<LrScaling, _>(LrScaling::ALL.map(LrScaling::name))
    )]
    pub lr_scaling: LrScaling,
    /// Warmup: over the first N epochs, such as 0.5, the learning rate rises linearly to its schedule.
    #[arg(long, value_name = "N", default_value = "0")]
    pub warmup_epochs: NotNegative,
    /// Weight decay: the optimizer adds X times the weights to the gradient. With adamw, weight decay is
    /// decoupled: each step multiplies the weights by 1 - learning rate * X. With lamb, X times the weights is
    /// added to the update.
    #[arg(long, visible_alias = "optimizer-lr-decay", value_name = "X", default_value = "0.0005")]
    pub weight_decay: NotNegative,
    /// Optimizer. Settings that have no option here are PyTorch's defaults.
    #[arg(long, value_name = "NAME", default_value = "adam", value_parser = one_of::<OptimizerKind>())]
    pub optimizer: OptimizerKind,
    /// Momentum of sgd and rmsprop, from 0 to below 1 [default: 0].
    #[arg(long, value_name = "X", default_value = "none", value_parser = or_none::<Below1>)]
    pub momentum: Optional<Below1>,
    /// Learning rate schedule. step and cosine change the rate after an epoch, onecycle after every training
    /// step.
    #[arg(long, value_name = "NAME", default_value = "constant", value_parser = one_of::<ScheduleKind>())]
    pub schedule: ScheduleKind,
    /// --schedule onecycle: maximum learning rate.
    #[arg(long, value_name = "X", default_value = "none", value_parser = or_none::<Above0>)]
    pub max_lr: Optional<Above0>,
    /// --schedule step: epochs between decays [default: 30% of the epochs, at least 1].
    #[arg(long, value_name = "EPOCHS", default_value = "none", value_parser = or_none::<Positive>)]
    pub step_size: Optional<Positive>,
    /// --schedule step: factor of each decay [default: 0.1].
    #[arg(long, value_name = "X", default_value = "none", value_parser = or_none::<Above0>)]
    pub gamma: Optional<Above0>,
    /// Gradient clipping: maximum norm of the gradients over all parameters.
    #[arg(long, value_name = "X", default_value = "none", value_parser = or_none::<Above0>)]
    pub clip_norm: Optional<Above0>,
    /// L1 penalty: add X times the sum of |w| over all parameters to the objective.
    #[arg(long, value_name = "X", default_value = "0")]
    pub l1: NotNegative,
    /// L2 penalty: add X times the sum of w^2 over all parameters to the objective. Displayed losses exclude
    /// penalties.
    #[arg(long, value_name = "X", default_value = "0")]
    pub l2: NotNegative,
    /// Label smoothing: share of each training label that is distributed over all classes, from 0 to below 1.
    /// The test loss has no label smoothing.
    #[arg(long, value_name = "X", default_value = "0")]
    pub label_smoothing: Below1,
    /// Weights of the classes in the training loss. With balanced, every class has the same total weight;
    /// with none, every sample has the same weight. The test loss has no weights.
    #[arg(long, default_value = "none", value_parser = one_of::<ClassWeights>())]
    pub class_weights: ClassWeights,
    /// Stop after N epochs without a lower test loss, and keep the checkpoint of the best epoch.
    #[arg(long, value_name = "N", default_value = "none", value_parser = or_none::<Positive>)]
    pub early_stopping: Optional<Positive>,
    /// Record when the accuracy on the whole test set, in percent, is first at least P: epoch, step and
    /// seconds of training.
    ///
    /// The tests are those after each epoch, and those of --eval-every.
    #[arg(long, value_name = "P", default_value = "none", value_parser = or_none::<Percent>)]
    pub target_accuracy: Optional<Percent>,
    /// End the training at the test that reaches --target-accuracy.
    #[arg(long)]
    pub stop_at_target: bool,
    /// Augment training images, differently in each epoch: crop, flip, rotate, jitter, or several of them,
    /// such as crop,flip.
    #[arg(
        long,
        value_name = "NAMES",
        default_value = "none",
        value_parser = or_none::<Augmentation>
    )]
    pub augment: Optional<Augmentation>,
}

/// Weights of classes in the training loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClassWeights {
    /// Each weight is 1.
    #[default]
    None,
    /// The weight of a class is inversely proportional to its number of training samples. The mean weight
    /// over the samples is 1.
    Balanced,
}

impl ClassWeights {
    /// Returns the weights of the classes, or `None` if all weights are 1. `samples` has the number of
    /// training samples of each class.
    pub fn for_counts(self, samples: &[usize]) -> Option<Vec<f32>> {
        let all: usize = samples.iter().sum();
        let classes = samples.iter().filter(|&&count| count > 0).count();
        let weight = |&count: &usize| match count {
            0 => 0.0,
            count => (all as f64 / (classes as f64 * count as f64)) as f32,
        };
        (self == Self::Balanced).then(|| samples.iter().map(weight).collect())
    }
}

/// Where samples are kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SamplesIn {
    /// In memory if the samples need at most half of the host's memory, otherwise on disk.
    #[default]
    Auto,
    /// In memory.
    Memory,
    /// On disk.
    Disk,
}

impl SamplesIn {
    /// Returns whether samples stay on disk. `bytes` is the size of the samples of all ranks of a host, and
    /// `memory` the memory of that host, or 0 if it is unknown.
    pub fn on_disk(self, bytes: u64, memory: u64) -> bool {
        match self {
            Self::Auto => memory > 0 && bytes > memory / 2,
            Self::Memory => false,
            Self::Disk => true,
        }
    }
}

/// How ranks communicate.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Distribution")]
pub struct Communication {
    /// Transport of the gradients; nccl is for GPUs.
    #[arg(long, default_value = "mpi", value_parser = one_of::<BackendKind>())]
    pub backend: BackendKind,
    /// Network interface of gloo's connections [default: the one with a route to the other hosts].
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = or_none::<String>)]
    pub interface: Optional<String>,
    /// gloo's all-reduce algorithm.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "ring",
        value_parser = named::<GlooAlgorithm, _>(GlooAlgorithm::ALL.map(GlooAlgorithm::name))
    )]
    pub gloo_algorithm: GlooAlgorithm,
    /// Order of the sums: native (as the backend sums) or ordered (by rank, which gives the same bits on
    /// every backend).
    #[arg(
        long,
        value_name = "HOW",
        default_value = "native",
        value_parser = named::<Reduction, _>(Reduction::ALL.map(Reduction::name))
    )]
    pub reduce: Reduction,
    /// Data type of the gradients in the all-reduce.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        value_parser = named::<WireType, _>(WireType::ALL.map(WireType::name))
    )]
    pub grad_dtype: WireType,
    /// Overlap the all-reduce of gradients with backward.
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off())]
    pub overlap: Switch,
    /// Maximum size of a gradient bucket in MB; the first bucket has at most 1 MB. For small models, the
    /// maximum is an eighth of the gradients' size, but at least 1 MB: small models have several buckets too.
    #[arg(long, value_name = "SIZE", default_value = "25")]
    pub bucket_mb: Above0,
    /// Divide the optimizer's moments among ranks (ZeRO-1): each rank updates its share of the parameters.
    /// Without a value, on.
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        default_value = "off",
        default_missing_value = "on",
        value_parser = on_off()
    )]
    pub shard_optimizer: Switch,
    #[command(flatten)]
    #[serde(flatten)]
    pub compression: CompressionOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub local: LocalUpdatesOptions,
    /// Abort the job if a collective takes longer than this many seconds.
    ///
    /// The error names the missing ranks. Finding them takes up to 6 seconds more.
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    pub comm_timeout: Seconds,
}

impl RunConfig {
    /// Returns how the samples of a split are divided among ranks and steps. The limit on samples and the
    /// batch size come from this configuration.
    pub fn plan(&self, source: &SampleSource, split: Split, world_size: usize) -> ShardPlan {
        let data = &self.data;
        let (limit, batch_size) = match split {
            Split::Train => {
                (data.train_samples, data.train_batch_size.get().saturating_mul(self.accumulate.get()))
            }
            Split::Test => (data.test_samples, data.test_batch_size.get()),
        };
        let all = source.len(split);
        ShardPlan { samples: limit.map_or(all, |n| n.get().min(all)), world_size, batch_size }
    }

    /// Returns a network with initial weights.
    pub fn network(&self, dimensions: Dimensions, device: &Device) -> Network {
        Network::with_options(self.model, &self.network, dimensions, self.seed, device).fused(self.fused)
    }

    /// Returns learning rate and momentum for one rank, before a schedule changes them. With OneCycle, the momentum is 0.95
    /// for any optimizer.
    pub fn base_rate(&self) -> Rate {
        let recipe = &self.recipe;
        let momentum = match recipe.schedule {
            ScheduleKind::OneCycle => 0.95,
            _ => recipe.momentum.map_or(recipe.optimizer.default_momentum(), Below1::get),
        };
        Rate { lr: recipe.lr.get(), momentum }
    }

    /// Returns the schedule of learning rate and momentum, for epochs of `steps` steps of `ranks` ranks.
    pub fn rates(&self, steps: usize, ranks: usize) -> Schedule {
        let recipe = &self.recipe;
        let (base, factor) = (self.base_rate(), recipe.lr_scaling.factor(ranks));
        Schedule {
            kind: recipe.schedule,
            step_size: recipe.step_size.map_or(1, Positive::get),
            gamma: recipe.gamma.unwrap_or(GAMMA).get(),
            max_lr: factor * recipe.max_lr.map_or(recipe.lr.get(), Above0::get),
            base: Rate { lr: factor * base.lr, ..base },
            warmup: recipe.warmup_epochs.get() * steps as f64,
            epochs: self.epochs.get(),
            steps,
        }
    }

    /// Returns the options of the transport.
    pub fn transport(&self) -> Transport {
        let interface = self.communication.interface.clone();
        Transport::default()
            .with_interface(interface)
            .with_gloo_algorithm(self.communication.gloo_algorithm)
            .with_timeout(self.communication.timeout())
    }
}

impl From<&Description> for Dimensions {
    fn from(data: &Description) -> Self {
        Self { input: data.shape, classes: data.classes }
    }
}

impl DataOptions {
    /// Lowers the limits on training and test samples to the number of samples in the data set.
    pub fn clip(&mut self, [train, test]: [usize; 2]) {
        self.train_samples = self.train_samples.map(|limit| limit.at_most(train));
        self.test_samples = self.test_samples.map(|limit| limit.at_most(test));
    }
}

impl Communication {
    /// Returns the deadline of a collective.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.comm_timeout.get())
    }

    /// Returns the options of gradient averaging. A compression begins with random numbers of `seed`.
    pub fn sync_options(&self, seed: u64) -> SyncOptions {
        let mb = |size: f64| (size * f64::from(1 << 20)) as usize;
        SyncOptions::default()
            .with_reduction(self.reduce)
            .with_wire(self.grad_dtype)
            .with_overlap(self.overlap)
            .with_bucket_bytes(mb(self.bucket_mb.get()))
            .with_first_bucket_bytes(mb(self.bucket_mb.get().min(1.0)))
            .with_compression(self.compression.power_sgd(seed))
            .with_shard(self.shard_optimizer)
    }
}

/// Default factor of StepLR: PyTorch's gamma.
pub const GAMMA: Above0 = Above0(0.1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_have_the_mean_1_over_the_samples() {
        assert_eq!(ClassWeights::None.for_counts(&[1, 2]), None);
        let weights = ClassWeights::Balanced.for_counts(&[30, 0, 10, 20]).unwrap();
        assert_eq!(weights, [2.0 / 3.0, 0.0, 2.0, 1.0]);
    }
}
