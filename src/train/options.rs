//! Options of a training, typed once: what clap reads, `run.json` stores, and the training works with.
//!
//! A new option is a field with its help here, a line in `options/rules.rs`, and the place that uses it.

use std::path::PathBuf;
use std::time::Duration;

use burn::tensor::Device;
use burn_fused::conv::Algorithm;
use burn_mpi::{Reduction, ShardPlan, SyncOptions, Transport, WireType};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{BackendKind, OptimizerKind, Precision, Rate, Schedule, ScheduleKind};
use crate::device::DeviceKind;
use crate::model::{Dimensions, ModelKind, Network, NetworkOptions};
use crate::quant::Quantization;
use crate::values::{
    Optional, Switch, above_0, below_1, from_0, named, not_negative, on_off, one_of, optional, path_or_none,
    positive, seconds, text, up_to,
};
use data::augment::Augmentation;
use data::{Description, SampleSource, Split};

/// gloo's all-reduce algorithms, also for builds without gloo.
pub const GLOO_ALGORITHMS: [&str; 3] = ["ring", "bcube", "halving-doubling"];

/// Maximum number of threads: more than the cores of any machine, and what every system starts.
const MAX_THREADS: usize = 1024;

/// The complete configuration of a run: `config` in `run.json`, sufficient for `--resume`.
#[derive(Debug, Clone, PartialEq, Args, Serialize, Deserialize)]
#[serde(try_from = "Map<String, Value>")]
pub struct RunConfig {
    /// Network to train.
    ///
    /// convnet takes images of at least 4x4 pixels, vgg images of at least 8x8, and mlp tables as well as images.
    /// The sizes of its layers follow the data set.
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
    /// Seed of initial weights, shuffling, augmentation and dropout, the same on every rank.
    #[arg(long, default_value_t = 123, value_parser = from_0::<u64>, help_heading = "Model")]
    pub seed: u64,
    /// Fuse convolution, ReLU and pooling into one operator.
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off(), help_heading = "Model")]
    pub fused: Switch,
    /// Algorithm of convolutions with many channels on flex, where operators are fused.
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
    #[arg(long, value_name = "N", default_value = "3", value_parser = positive, help_heading = "Training")]
    pub epochs: usize,
    /// Gradient accumulation: batches per rank and step, with one all-reduce.
    #[arg(long, value_name = "K", default_value = "1", value_parser = positive, help_heading = "Training")]
    pub accumulate: usize,
    /// Type of activations and products: f32 (no), bf16, or fp16 with loss scaling. Weights,
    /// optimizer, loss and batch norm's statistics stay in f32.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "no",
        value_parser = one_of::<Precision>(),
        help_heading = "Training"
    )]
    pub precision: Precision,
    #[command(flatten)]
    #[serde(flatten)]
    pub recipe: Recipe,
    #[command(flatten)]
    #[serde(flatten)]
    pub quantization: Quantization,
    /// Compute device: flex, ndarray, tch, tch-cuda:N, cuda or cuda:N. All but flex need a build of their
    /// own: make build DEVICES=ndarray,tch, or DEVICES=cuda.
    #[arg(long, default_value = "flex", help_heading = "Distribution")]
    pub device: DeviceKind,
    #[command(flatten)]
    #[serde(flatten)]
    pub communication: Communication,
    /// Number of threads per rank.
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        value_parser = up_to(MAX_THREADS, "each takes memory and a core"),
        help_heading = "Distribution"
    )]
    pub threads: usize,
    /// Steps between log lines of training loss and accuracy. A line is the mean over rank 0's samples of the steps
    /// since the last line, of this epoch; lines of whole epochs are over all ranks.
    #[arg(long, value_name = "STEPS", default_value = "100", value_parser = positive, help_heading = "Results")]
    pub log_every: usize,
    /// Steps between checkpoints, in addition to the one after each epoch.
    #[arg(
        long,
        value_name = "STEPS",
        default_value = "none",
        value_parser = optional(positive),
        help_heading = "Results"
    )]
    pub checkpoint_every: Optional<usize>,
    /// Checkpoints to keep: the newest K, and the one with the highest test accuracy [default: the
    /// newest 3].
    #[arg(
        long,
        value_name = "K",
        default_value = "none",
        value_parser = optional(positive),
        help_heading = "Results"
    )]
    pub keep: Optional<usize>,
}

/// The samples of a run.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Data")]
pub struct DataOptions {
    /// Folder of the data set, present on every host.
    ///
    /// With --model vgg the default is data/objects, with --model mlp data/features.
    #[arg(
        long,
        value_name = "DIR",
        default_value = "data/digits",
        default_value_ifs = [("model", "vgg", "data/objects"), ("model", "mlp", "data/features")]
    )]
    pub data_root: PathBuf,
    /// Training batch size per rank.
    #[arg(
        long,
        visible_aliases = ["batch-size", "batch"],
        value_name = "N",
        default_value = "32",
        value_parser = positive
    )]
    pub train_batch_size: usize,
    /// Test batch size per rank.
    #[arg(long, value_name = "N", default_value = "128", value_parser = positive)]
    pub test_batch_size: usize,
    /// Shuffle the training samples in every epoch.
    #[arg(long)]
    pub shuffle: bool,
    /// Where a rank's samples are.
    ///
    /// disk reads the samples of an imported data set again for each step. auto reads from disk if the samples need
    /// more than half of a host's memory.
    #[arg(long, default_value = "auto", value_parser = one_of::<SamplesIn>())]
    pub samples_in: SamplesIn,
    /// Train on the first N samples only.
    #[arg(long, value_name = "N", default_value = "none", value_parser = optional(positive))]
    pub train_samples: Optional<usize>,
    /// Test on the first N samples only.
    #[arg(long, value_name = "N", default_value = "none", value_parser = optional(positive))]
    pub test_samples: Optional<usize>,
    /// Expected number of classes; an error if the data set has another number.
    #[arg(long, value_name = "N", default_value = "none", value_parser = optional(positive))]
    pub num_classes: Optional<usize>,
    /// Number of data loader workers: accepted for programs of PyTorch, and without effect.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = from_0::<usize>)]
    #[serde(skip)]
    pub num_workers: usize,
}

/// Optimizer, schedule, regularisation and augmentation.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Recipe")]
pub struct Recipe {
    /// Learning rate.
    ///
    /// --schedule onecycle uses --max-lr instead.
    #[arg(
        long,
        visible_alias = "optimizer-lr",
        value_name = "X",
        default_value = "0.0005",
        value_parser = not_negative
    )]
    pub lr: f64,
    /// Weight decay: L2 penalty, added to the gradient inside the optimizer; adamw instead
    /// decays weights by learning rate times X (decoupled).
    #[arg(
        long,
        visible_alias = "optimizer-lr-decay",
        value_name = "X",
        default_value = "0.0005",
        value_parser = not_negative
    )]
    pub weight_decay: f64,
    /// Optimizer, with PyTorch's defaults.
    #[arg(long, value_name = "NAME", default_value = "adam", value_parser = one_of::<OptimizerKind>())]
    pub optimizer: OptimizerKind,
    /// Momentum of sgd and rmsprop, from 0 to below 1 [default: 0].
    #[arg(long, value_name = "X", default_value = "none", value_parser = optional(below_1))]
    pub momentum: Optional<f64>,
    /// Learning rate schedule: step and cosine change it by epoch, onecycle by step.
    #[arg(long, value_name = "NAME", default_value = "constant", value_parser = one_of::<ScheduleKind>())]
    pub schedule: ScheduleKind,
    /// OneCycle: maximum learning rate.
    #[arg(long, value_name = "X", default_value = "none", value_parser = optional(above_0))]
    pub max_lr: Optional<f64>,
    /// StepLR: epochs between decays [default: 30% of the epochs, at least 1].
    #[arg(long, value_name = "EPOCHS", default_value = "none", value_parser = optional(positive))]
    pub step_size: Optional<usize>,
    /// StepLR: factor of each decay [default: 0.1].
    #[arg(long, value_name = "X", default_value = "none", value_parser = optional(above_0))]
    pub gamma: Optional<f64>,
    /// Gradient clipping: maximum norm of the gradients over all parameters.
    #[arg(long, value_name = "X", default_value = "none", value_parser = optional(above_0))]
    pub clip_norm: Optional<f64>,
    /// L1 penalty: add X times the sum of |w| over all parameters to the objective.
    #[arg(long, value_name = "X", default_value = "0", value_parser = not_negative)]
    pub l1: f64,
    /// L2 penalty: add X times the sum of w^2 over all parameters to the objective; displayed
    /// losses exclude penalties.
    #[arg(long, value_name = "X", default_value = "0", value_parser = not_negative)]
    pub l2: f64,
    /// Label smoothing: share of each training label that is distributed over all classes, from 0
    /// to below 1. The test loss is computed without it.
    #[arg(long, value_name = "X", default_value = "0", value_parser = below_1)]
    pub label_smoothing: f64,
    /// Weights of the classes in the training loss. balanced gives each class the same weight in total, however many
    /// training samples it has. The test loss is computed without them.
    #[arg(long, default_value = "none", value_parser = one_of::<ClassWeights>())]
    pub class_weights: ClassWeights,
    /// Stop after N epochs without a lower test loss, and keep the best epoch's checkpoint.
    #[arg(long, value_name = "N", default_value = "none", value_parser = optional(positive))]
    pub early_stopping: Optional<usize>,
    /// Augment training images, differently in each epoch: crop, flip, rotate or jitter; several as crop,flip.
    #[arg(
        long,
        value_name = "NAMES",
        default_value = "none",
        value_parser = optional(str::parse::<Augmentation>)
    )]
    pub augment: Optional<Augmentation>,
}

/// Weights of classes in the training loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClassWeights {
    /// All 1.
    #[default]
    None,
    /// Inverse to the number of training samples; their mean over the samples is 1.
    Balanced,
}

impl ClassWeights {
    /// The weights of classes with these numbers of training samples.
    pub fn of(self, samples: &[usize]) -> Option<Vec<f32>> {
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
    /// In memory, if they take at most half of it.
    #[default]
    Auto,
    /// In memory.
    Memory,
    /// On disk.
    Disk,
}

impl SamplesIn {
    /// Whether samples stay on disk, of which the ranks of a host have so many bytes and which has so much memory; 0 if
    /// that is unknown.
    pub fn on_disk(self, bytes: u64, memory: u64) -> bool {
        match self {
            Self::Auto => memory > 0 && bytes > memory / 2,
            Self::Memory => false,
            Self::Disk => true,
        }
    }
}

/// How gradients are averaged over all ranks.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Distribution")]
pub struct Communication {
    /// Transport of the gradients; nccl between GPUs.
    #[arg(long, default_value = "mpi", value_parser = one_of::<BackendKind>())]
    pub backend: BackendKind,
    /// Network interface of gloo's connections [default: the one with a route to the other hosts].
    #[arg(long, value_name = "NAME", default_value = "none", value_parser = optional(text))]
    pub interface: Optional<String>,
    /// gloo's all-reduce algorithm.
    #[arg(
        long,
        value_name = "NAME",
        default_value = "ring",
        value_parser = clap::builder::PossibleValuesParser::new(GLOO_ALGORITHMS)
    )]
    pub gloo_algorithm: String,
    /// Order of summation: native (the backend's) or ordered (by rank, the same bits everywhere).
    #[arg(
        long,
        value_name = "HOW",
        default_value = "native",
        value_parser = named::<Reduction, _>(Reduction::ALL.map(Reduction::name))
    )]
    pub reduce: Reduction,
    /// Data type of the gradients' all-reduce.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        value_parser = named::<WireType, _>(WireType::ALL.map(WireType::name))
    )]
    pub grad_dtype: WireType,
    /// Overlap the gradients' all-reduce with backward.
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_off())]
    pub overlap: Switch,
    /// Maximum size of a gradient bucket in MB; the first has at most 1 MB, and a network smaller
    /// than eight buckets is split into eight of at least 1 MB.
    #[arg(long, value_name = "MB", default_value = "25", value_parser = above_0)]
    pub bucket_mb: f64,
    /// Abort the job if a collective takes longer than this many seconds.
    ///
    /// The error names the missing ranks; finding them takes up to 6 seconds more.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    pub comm_timeout: f64,
}

impl RunConfig {
    /// Sharding of the first samples of a split, and the batch size.
    pub fn plan(&self, source: &SampleSource, split: Split, world_size: usize) -> ShardPlan {
        let data = &self.data;
        let (limit, batch_size) = match split {
            Split::Train => (data.train_samples, data.train_batch_size.saturating_mul(self.accumulate)),
            Split::Test => (data.test_samples, data.test_batch_size),
        };
        let all = source.len(split);
        ShardPlan { samples: limit.map_or(all, |n| n.min(all)), world_size, batch_size }
    }

    /// The network with initial weights.
    pub fn network(&self, dimensions: Dimensions, device: &Device) -> Network {
        Network::with_options(self.model, &self.network, dimensions, self.seed, device).fused(self.fused)
    }

    /// Learning rate and momentum without a schedule. OneCycle's momentum is never 0, with any optimizer.
    pub fn base_rate(&self) -> Rate {
        let recipe = &self.recipe;
        let momentum = match recipe.schedule {
            ScheduleKind::OneCycle => 0.95,
            _ => recipe.momentum.unwrap_or(recipe.optimizer.default_momentum()),
        };
        Rate { lr: recipe.lr, momentum }
    }

    /// The schedule's values for each step, with `steps` steps in an epoch.
    pub fn rates(&self, steps: usize) -> Schedule {
        let recipe = &self.recipe;
        Schedule {
            kind: recipe.schedule,
            step_size: recipe.step_size.unwrap_or(1),
            gamma: recipe.gamma.unwrap_or(GAMMA),
            max_lr: recipe.max_lr.unwrap_or(recipe.lr),
            base: self.base_rate(),
            epochs: self.epochs,
            steps,
        }
    }

    /// The options of the transport.
    pub fn transport(&self) -> Transport {
        Transport {
            interface: self.communication.interface.clone(),
            gloo_algorithm: self.communication.gloo_algorithm.clone(),
            timeout: self.communication.timeout(),
        }
    }
}

impl From<&Description> for Dimensions {
    fn from(data: &Description) -> Self {
        Self { input: data.shape, classes: data.classes }
    }
}

impl DataOptions {
    /// Lowers the limits to what the data set has of training and test samples.
    pub fn clip(&mut self, [train, test]: [usize; 2]) {
        self.train_samples = self.train_samples.map(|limit| limit.min(train));
        self.test_samples = self.test_samples.map(|limit| limit.min(test));
    }
}

impl Communication {
    /// The longest that a collective may take.
    pub fn timeout(&self) -> Duration {
        Duration::from_secs_f64(self.comm_timeout)
    }

    /// The options of gradient averaging.
    pub fn sync_options(&self) -> SyncOptions {
        let mb = |size: f64| (size * f64::from(1 << 20)) as usize;
        SyncOptions {
            reduction: self.reduce,
            wire: self.grad_dtype,
            overlap: self.overlap,
            bucket_bytes: mb(self.bucket_mb),
            first_bucket_bytes: mb(self.bucket_mb.min(1.0)),
        }
    }
}

/// Default factor of StepLR: PyTorch's gamma.
pub const GAMMA: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balanced_weights_have_the_mean_1_over_the_samples() {
        assert_eq!(ClassWeights::None.of(&[1, 2]), None);
        let weights = ClassWeights::Balanced.of(&[30, 0, 10, 20]).unwrap();
        assert_eq!(weights, [2.0 / 3.0, 0.0, 2.0, 1.0]);
    }
}
