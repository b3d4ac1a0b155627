//! Validation of command line options, once, before any work.

mod bounds;
mod changes;
mod network;
mod paths;
mod precision;
mod quantization;
mod recipe;
mod stored;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cli::TrainArgs;
use crate::device::DeviceKind;
use crate::model::{ModelKind, NetworkOptions};
use crate::quant::Quantization;
use crate::record;
use crate::train::{Precision, Recipe, TrainOptions};
use burn_fused::conv::Algorithm;
use burn_mpi::{Backend, Reduction, SyncOptions, Transport, WireType};

pub use bounds::{at_most, more_than_0, not_negative, seconds};
use bounds::{gloo_algorithm, parse, positive, threads, timeout};
pub use changes::change_of;
pub use recipe::check_data;

/// `run.json`, whose `config` is a [`RunConfig`].
pub type RunRecord = record::RunRecord<RunConfig>;

/// The complete configuration of a run: `config` in `run.json`, sufficient for
/// `--resume`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Network.
    pub model: ModelKind,
    /// Options of the network; flattened into `run.json`.
    #[serde(flatten)]
    pub network: NetworkOptions,
    /// File of initial weights.
    pub init: Option<PathBuf>,
    /// Seed of weights and shuffling.
    pub seed: u64,
    /// Folder of the data set.
    pub data_root: PathBuf,
    /// Samples of one rank's training batch.
    pub train_batch_size: usize,
    /// Samples of one rank's test batch.
    pub test_batch_size: usize,
    /// Whether samples are shuffled in each epoch.
    pub shuffle: bool,
    /// First training samples to use; all if none.
    pub train_samples: Option<usize>,
    /// First test samples to use; all if none.
    pub test_samples: Option<usize>,
    /// Expected number of classes.
    pub num_classes: Option<usize>,
    /// Passes over the training set.
    pub epochs: usize,
    /// Step size.
    pub lr: f64,
    /// L2 penalty.
    pub weight_decay: f64,
    /// Optimizer, schedule, regularisation and augmentation; flattened into
    /// `run.json`.
    #[serde(flatten)]
    pub recipe: Recipe,
    /// Quantization; flattened into `run.json`.
    #[serde(flatten)]
    pub quantization: Quantization,
    /// Type of activations and products; f32 in runs from before the option existed.
    #[serde(default)]
    pub precision: Precision,
    /// Compute device of the tensors.
    pub device: DeviceKind,
    /// Whether convolution, ReLU and pooling are one operator.
    pub fused: bool,
    /// Algorithm of convolutions with many channels. Runs of before it was an option resume
    /// with the one that they had.
    #[serde(default = "earlier_algorithm")]
    pub conv: Algorithm,
    /// Batches of one rank whose gradients make one step.
    pub accumulate: usize,
    /// Transport of the gradients.
    pub backend: Backend,
    /// Network interface of gloo's connections; detected if `None`.
    pub interface: Option<String>,
    /// gloo's all-reduce algorithm.
    pub gloo_algorithm: String,
    /// Summation order over ranks.
    pub reduce: Reduction,
    /// Type in which gradients are sent.
    pub grad_dtype: WireType,
    /// Whether gradients are reduced during backward.
    pub overlap: bool,
    /// Size of a bucket of gradients in MB of 2^20 bytes.
    pub bucket_mb: f64,
    /// Seconds that a collective may take before the job is aborted.
    pub comm_timeout: f64,
    /// Threads of one rank.
    pub threads: usize,
    /// Steps between two lines of training metrics.
    pub log_every: usize,
    /// Steps between two checkpoints inside an epoch.
    pub checkpoint_every: Option<usize>,
    /// Number of the newest checkpoints to keep, with the most accurate one.
    pub keep: Option<usize>,
}

/// An invalid option, with its value and the valid ones.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("--{option}{value}: {problem}")]
pub struct ConfigError {
    option: &'static str,
    /// With a leading space; empty for an option without a value.
    value: String,
    problem: String,
}

impl ConfigError {
    /// An error of `option`.
    pub fn new(option: &'static str, value: impl ToString, problem: impl Into<String>) -> Self {
        let value = value.to_string();
        let value = if value.is_empty() { value } else { format!(" {value}") };
        Self { option, value, problem: problem.into() }
    }
}

impl TryFrom<&TrainArgs> for RunConfig {
    type Error = ConfigError;

    /// The configuration, whose device and backend this build includes.
    fn try_from(args: &TrainArgs) -> Result<Self, ConfigError> {
        let config = Self::of_any_build(args)?;
        config.check_built()?;
        Ok(config)
    }
}

impl RunConfig {
    /// The configuration, whether or not this build includes its device and backend.
    ///
    /// # Errors
    /// The first option that is invalid, or does not fit the others.
    pub fn of_any_build(args: &TrainArgs) -> Result<Self, ConfigError> {
        let model = parse("model", &args.model)?;
        seconds("stall-warning", args.stall_warning)?;
        let config = Self {
            model,
            network: network::network_options(&args.network, model)?,
            init: args.init.as_deref().map(|path| paths::utf8("init", path)).transpose()?,
            seed: args.seed,
            data_root: paths::utf8("data-root", &args.data_root)?,
            train_batch_size: positive("train-batch-size", args.train_batch_size)?,
            test_batch_size: positive("test-batch-size", args.test_batch_size)?,
            shuffle: args.shuffle,
            train_samples: args.train_samples.map(|n| positive("train-samples", n)).transpose()?,
            test_samples: args.test_samples.map(|n| positive("test-samples", n)).transpose()?,
            num_classes: args.num_classes,
            epochs: positive("epochs", args.epochs)?,
            lr: not_negative("lr", args.recipe.lr)?,
            weight_decay: not_negative("weight-decay", args.recipe.weight_decay)?,
            recipe: recipe::recipe(&args.recipe, args.epochs)?,
            quantization: quantization::quantization(&args.quantization)?,
            precision: parse("precision", &args.precision)?,
            device: parse("device", &args.device)?,
            fused: args.fused.is_on(),
            conv: parse("conv", &args.conv)?,
            accumulate: positive("accumulate", args.accumulate)?,
            backend: parse("backend", &args.backend)?,
            interface: args.interface.clone(),
            gloo_algorithm: gloo_algorithm(&args.gloo_algorithm)?,
            reduce: parse("reduce", &args.reduce)?,
            grad_dtype: parse("grad-dtype", &args.grad_dtype)?,
            overlap: args.overlap.is_on(),
            bucket_mb: more_than_0("bucket-mb", args.bucket_mb)?,
            comm_timeout: timeout(args.comm_timeout)?,
            threads: threads(args.threads)?,
            log_every: positive("log-every", args.log_every)?,
            checkpoint_every: args.checkpoint_every.map(|n| positive("checkpoint-every", n)).transpose()?,
            keep: args.keep.map(|n| positive("keep", n)).transpose()?,
        };
        config.check_samples_of_a_step()?;
        precision::check(&config)?;
        config.check_backend()?;
        quantization::check(&config)?;
        Ok(config)
    }

    /// Lowers `train_samples` and `test_samples` to what the data set has of each.
    pub fn clip_limits(&mut self, [train, test]: [usize; 2]) {
        self.train_samples = self.train_samples.map(|limit| limit.min(train));
        self.test_samples = self.test_samples.map(|limit| limit.min(test));
    }

    /// Checks that the samples of a rank's step can be counted.
    fn check_samples_of_a_step(&self) -> Result<(), ConfigError> {
        let (batch, batches) = (self.train_batch_size, self.accumulate);
        match batch.checked_mul(batches) {
            Some(_) => Ok(()),
            None => {
                let problem =
                    format!("times --train-batch-size {batch} is more than {}; lower one", usize::MAX);
                Err(ConfigError::new("accumulate", batches, problem))
            }
        }
    }

    /// Checks that the backend moves the memory of the device.
    fn check_backend(&self) -> Result<(), ConfigError> {
        if self.backend == Backend::Nccl && self.device.is_cpu() {
            let problem = format!(
                "{} is a CPU device, and NCCL moves GPU memory; choose --backend mpi or gloo, or --device cuda or \
                 tch-cuda:N",
                self.device
            );
            return Err(ConfigError::new("backend", self.backend, problem));
        }
        Ok(())
    }

    /// Checks that this build includes the device and the backend.
    ///
    /// # Errors
    /// How to build with the one that is missing.
    pub fn check_built(&self) -> Result<(), ConfigError> {
        let refused = |option, value: String| move |problem| ConfigError::new(option, value, problem);
        self.device.check_built().map_err(refused("device", self.device.to_string()))?;
        self.backend.check_built().map_err(refused("backend", self.backend.to_string()))
    }

    /// The options of the training.
    pub fn train_options(&self) -> TrainOptions {
        TrainOptions {
            model: self.model.to_string(),
            seed: self.seed,
            train_batch_size: self.train_batch_size,
            test_batch_size: self.test_batch_size,
            accumulate: self.accumulate,
            shuffle: self.shuffle,
            train_samples: self.train_samples,
            test_samples: self.test_samples,
            epochs: self.epochs,
            lr: self.lr,
            weight_decay: self.weight_decay,
            recipe: self.recipe.clone(),
            post_training: self.quantization.post_training(),
            precision: self.precision,
            device: self.device,
            sync: self.sync_options(),
            log_every: self.log_every,
            checkpoint_every: self.checkpoint_every,
        }
    }

    /// The options of the transport.
    pub fn transport(&self) -> Transport {
        Transport {
            interface: self.interface.clone(),
            gloo_algorithm: self.gloo_algorithm.clone(),
            gpu: self.device.gpu(),
            timeout: Duration::from_secs_f64(self.comm_timeout),
        }
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

fn earlier_algorithm() -> Algorithm {
    Algorithm::Gemm
}

#[cfg(test)]
mod tests;
