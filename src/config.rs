//! What was typed becomes what is meant: checked once, before any work.

mod network;
mod quantization;
mod recipe;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cli::TrainArgs;
use crate::device::DeviceKind;
use crate::model::{ModelKind, NetworkOptions};
use crate::quant::Quantization;
use crate::record;
use crate::train::{Recipe, TrainOptions};
use burn_mpi::{Backend, Reduction, SyncOptions, Transport, WireType};

pub use recipe::check_data;

/// `run.json`, whose `config` is a [`RunConfig`].
pub type RunRecord = record::RunRecord<RunConfig>;

/// Everything that decides what a run computes and how. It is `config` in
/// `run.json`, and all that `--resume` needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// Network.
    pub model: ModelKind,
    /// What is chosen about it; beside the other fields in `run.json`.
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
    /// Whether each epoch has an order of its own.
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
    /// Optimizer, schedule, regularisation and augmentation; beside the others in
    /// `run.json`.
    #[serde(flatten)]
    pub recipe: Recipe,
    /// Quantization; beside the others in `run.json`.
    #[serde(flatten)]
    pub quantization: Quantization,
    /// Where tensors live.
    pub device: DeviceKind,
    /// Whether convolution, ReLU and pooling are one operator.
    pub fused: bool,
    /// Batches of one rank whose gradients make one step.
    pub accumulate: usize,
    /// Transport of the gradients.
    pub backend: Backend,
    /// Network interface of gloo's connections; chosen by itself if none.
    pub interface: Option<String>,
    /// gloo's all-reduce algorithm.
    pub gloo_algorithm: String,
    /// In which order ranks are added up.
    pub reduce: Reduction,
    /// How gradients travel.
    pub grad_dtype: WireType,
    /// Whether gradients travel while backward goes on.
    pub overlap: bool,
    /// Size of a bucket of gradients in MB of 2^20 bytes.
    pub bucket_mb: f64,
    /// Seconds after which a collective ends the job.
    pub comm_timeout: f64,
    /// Threads of one rank.
    pub threads: usize,
    /// Steps between two lines of training metrics.
    pub log_every: usize,
    /// Steps between two checkpoints inside an epoch.
    pub checkpoint_every: Option<usize>,
}

/// An option that makes no sense, with the value and what would.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("--{option}{value}: {problem}")]
pub struct ConfigError {
    option: &'static str,
    /// With a space before it; nothing for an option without a value.
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

    fn try_from(args: &TrainArgs) -> Result<Self, ConfigError> {
        let model = parse("model", &args.model)?;
        let config = Self {
            model,
            network: network::network_options(&args.network, model)?,
            init: args.init.clone(),
            seed: args.seed,
            data_root: args.data_root.clone(),
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
            device: parse("device", &args.device)?,
            fused: args.fused.is_on(),
            accumulate: positive("accumulate", args.accumulate)?,
            backend: parse("backend", &args.backend)?,
            interface: args.interface.clone(),
            gloo_algorithm: args.gloo_algorithm.clone(),
            reduce: parse("reduce", &args.reduce)?,
            grad_dtype: parse("grad-dtype", &args.grad_dtype)?,
            overlap: args.overlap.is_on(),
            bucket_mb: more_than_0("bucket-mb", args.bucket_mb)?,
            comm_timeout: more_than_0("comm-timeout", args.comm_timeout)?,
            threads: positive("threads", args.threads)?,
            log_every: positive("log-every", args.log_every)?,
            checkpoint_every: args.checkpoint_every.map(|n| positive("checkpoint-every", n)).transpose()?,
        };
        config.check_built()?;
        quantization::check(&config)?;
        Ok(config)
    }
}

impl RunConfig {
    /// Checks that this build has the device and the backend.
    ///
    /// # Errors
    /// When one is missing: how to build it in.
    pub fn check_built(&self) -> Result<(), ConfigError> {
        let refused = |option, value: String| move |problem| ConfigError::new(option, value, problem);
        self.device.check_built().map_err(refused("device", self.device.to_string()))?;
        self.backend.check_built().map_err(refused("backend", self.backend.to_string()))
    }

    /// What the training is told.
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
            device: self.device,
            sync: self.sync_options(),
            log_every: self.log_every,
            checkpoint_every: self.checkpoint_every,
        }
    }

    /// What the transport is told.
    pub fn transport(&self) -> Transport {
        Transport {
            interface: self.interface.clone(),
            gloo_algorithm: self.gloo_algorithm.clone(),
            timeout: Duration::from_secs_f64(self.comm_timeout),
        }
    }

    /// How gradients are averaged.
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

fn parse<T: std::str::FromStr<Err = String>>(option: &'static str, text: &str) -> Result<T, ConfigError> {
    text.parse().map_err(|problem: String| ConfigError::new(option, text, problem))
}

fn positive(option: &'static str, value: usize) -> Result<usize, ConfigError> {
    match value {
        0 => Err(ConfigError::new(option, 0, "must be at least 1")),
        _ => Ok(value),
    }
}

fn more_than_0(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    match value.is_finite() && value > 0.0 {
        true => Ok(value),
        false => Err(ConfigError::new(option, value, "must be a finite number above 0")),
    }
}

fn not_negative(option: &'static str, value: f64) -> Result<f64, ConfigError> {
    match value.is_finite() && value >= 0.0 {
        true => Ok(value),
        false => Err(ConfigError::new(option, value, "must be a finite number, 0 or more")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    /// What `mpiburn train` with these options is configured to do.
    pub(super) fn train(options: &str) -> Result<RunConfig, ConfigError> {
        let words = ["mpiburn", "train"].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(words).expect("options that clap knows").command {
            Command::Train(args) => RunConfig::try_from(args.as_ref()),
            _ => unreachable!(),
        }
    }

    #[test]
    fn the_defaults_are_the_reports() {
        let config = train("").unwrap();
        assert_eq!((config.epochs, config.train_batch_size, config.test_batch_size), (3, 32, 128));
        assert_eq!((config.lr, config.weight_decay, config.seed), (5e-4, 5e-4, 123));
        assert_eq!((config.shuffle, config.log_every), (false, 100));
    }

    #[test]
    fn the_reports_own_option_names_are_known() {
        let options =
            "--optimizer-lr 1e-3 --optimizer-lr-decay 0 --log-path x --num-workers 2 --num-classes 10";
        let config = train(options).unwrap();
        assert_eq!((config.lr, config.weight_decay, config.num_classes), (1e-3, 0.0, Some(10)));
    }

    #[test]
    fn the_last_of_repeated_options_wins() {
        assert_eq!(train("--lr 1 --epochs 2 --optimizer-lr 2").unwrap().lr, 2.0);
    }

    #[test]
    fn senseless_values_are_refused_by_option_and_value() {
        for (options, expected) in [
            ("--train-batch-size 0", "--train-batch-size 0: must be at least 1"),
            ("--lr NaN", "--lr NaN: must be a finite number, 0 or more"),
            ("--lr -1", "--lr -1: must be a finite number, 0 or more"),
            ("--model resnet", "--model resnet: unknown model resnet"),
            ("--device tpu", "--device tpu: unknown device tpu"),
        ] {
            let message = train(options).unwrap_err().to_string();
            assert!(message.starts_with(expected), "{message}");
        }
    }

    #[test]
    fn a_configuration_survives_run_json() {
        let config = train("--lr 0.1 --train-samples 100").unwrap();
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<RunConfig>(&text).unwrap(), config);
    }
}
