//! `config` of `run.json`: every option by its name, and those that reports compute with.

use run_record::Method;
use serde::Deserialize;
use serde_json::{Map, Value};

/// `run.json`, whose options are values by their names.
pub type RunRecord = run_record::RunRecord<Map<String, Value>>;

/// The options that reports compute with, as `run.json` has them.
#[derive(Debug, Clone, Deserialize)]
pub struct Config {
    /// Name of the network.
    pub model: String,
    /// Transport of the gradients.
    pub backend: String,
    /// Passes over the training set.
    pub epochs: usize,
    /// Seed of weights and shuffling.
    pub seed: u64,
    /// Samples of one rank's training batch.
    pub train_batch_size: usize,
    /// Batches of one rank whose gradients make one step.
    pub accumulate: usize,
    /// First test samples to use; all if none.
    pub test_samples: Option<usize>,
    /// Expected number of classes.
    pub num_classes: Option<usize>,
    /// Epochs without a lower test loss after which a training ends.
    pub early_stopping: Option<usize>,
    /// How the network is quantized.
    pub quantize: Option<Method>,
    /// Type in which gradients are sent.
    pub grad_dtype: String,
    /// Whether gradients are reduced during backward.
    pub overlap: bool,
    /// Size of a bucket of gradients in MB of 2^20 bytes.
    pub bucket_mb: f64,
}

impl Config {
    /// The options in `config`.
    ///
    /// # Errors
    /// If one is missing, or of another type.
    pub fn of(config: &Map<String, Value>) -> Result<Self, serde_json::Error> {
        serde_json::from_value(Value::Object(config.clone()))
    }
}

/// Values of options that are not in `run.json` unless they are typed, and mean the same typed.
pub const DEFAULTS: [(&str, &str); 3] = [("calibration", "1024"), ("hidden", "32"), ("momentum", "0")];
/// gloo's all-reduce algorithm that is not typed.
pub const GLOO_ALGORITHM: &str = "ring";
