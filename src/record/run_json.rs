//! `run.json`: configuration, hosts and results of a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::StepMs;
use burn_mpi::Place;

/// Status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Running, or killed.
    Running,
    /// All epochs are complete.
    Completed,
    /// Ended by an error.
    Failed,
    /// Ended by a signal, after a checkpoint to resume from.
    Stopped,
}

/// `run.json`, with a configuration of type `C`. It is written at the start;
/// `results` are added at the end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord<C> {
    /// Status of the run.
    pub status: Status,
    /// Reason of a failure or stop.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
    /// Every option.
    pub config: C,
    /// Network.
    pub model: String,
    /// Trainable parameters.
    pub params: usize,
    /// Machines x processes.
    pub topology: String,
    /// Number of ranks.
    pub world_size: usize,
    /// One host name per rank.
    pub hosts: Vec<String>,
    /// Host, process id and cores of each rank.
    pub places: Vec<Place>,
    /// Launcher: `mpirun`, `srun` or `alone`.
    pub launcher: String,
    /// Transport of the gradients.
    pub backend: String,
    /// Compute backend.
    pub device: String,
    /// Samples of one rank's training batch.
    pub train_batch_size: usize,
    /// Requested epochs.
    pub epochs: usize,
    /// Whether ranks shared cores.
    pub oversubscribed: bool,
    /// Whether several host names were one machine with shared caches and
    /// memory.
    pub shared_machine: bool,
    /// Start, in seconds since 1970.
    pub started_at: u64,
    /// Commit that the binary was built from.
    pub git: String,
    /// Versions of this program and its dependencies.
    pub versions: BTreeMap<String, String>,
    /// Results of the run.
    #[serde(flatten)]
    pub results: Option<Results>,
}

/// Results of a run. Accuracies in percent, times in seconds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Optimizer steps.
    pub steps: usize,
    /// Wall time of the training loops, with data and metrics, without tests.
    pub train_seconds: f64,
    /// Wall time of the tests.
    pub test_seconds: f64,
    /// From the start of the process to its last line.
    pub total_seconds: f64,
    /// `train_seconds` over the steps, in milliseconds.
    pub ms_per_step: f64,
    /// Training samples of all ranks over `train_seconds`.
    pub images_per_second: f64,
    /// Time in which a rank only waited for gradients, mean over ranks.
    pub comm_seconds: f64,
    /// Time of each phase of a step, mean over ranks and steps.
    pub step_ms: StepMs,
    /// Over the whole test set.
    pub test_accuracy: f64,
    /// The integer model's, over the whole test set; only with quantization.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub int8_test_accuracy: Option<f64>,
    /// Mean over the whole test set.
    pub test_loss: f64,
    /// Of the last epoch, over all ranks.
    pub train_accuracy: f64,
    /// Of the last epoch, over all ranks.
    pub train_loss: f64,
    /// The same by rank.
    pub per_rank: Vec<RankRecord>,
    /// Peak resident memory of a rank, in MB of 2^20 bytes.
    pub peak_rss_mb: f64,
    /// Peak bytes of live tensors in a training step of a rank, in MB of 2^20
    /// bytes; `None` if the compute backend has its own allocator.
    #[serde(default)]
    pub live_mb: Option<f64>,
    /// With loss scaling: steps without an update, because a gradient was NaN or
    /// infinite.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub skipped_steps: Option<usize>,
    /// With loss scaling: the scale after the last step.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub loss_scale: Option<f32>,
    /// SHA-256 over all parameters in visit order, little-endian f32.
    pub weights_sha256: String,
    /// With early stopping: the epoch (from 1) of the lowest test loss, whose
    /// checkpoint is kept.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub best_epoch: Option<usize>,
    /// Epochs after which early stopping ended the run, if it did.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stopped_early_after: Option<usize>,
}

/// One rank's share of the results.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankRecord {
    /// Rank.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Training samples of its shard.
    pub train_samples: usize,
    /// Test samples of its shard.
    pub test_samples: usize,
    /// Mean of the last epoch.
    pub train_loss: f64,
    /// Percent, of the last epoch.
    pub train_accuracy: f64,
    /// Mean over its share of the test set.
    pub test_loss: f64,
    /// Percent, over its share of the test set.
    pub test_accuracy: f64,
    /// Seconds in which it only waited for gradients.
    pub comm_seconds: f64,
    /// Peak resident memory, in MB of 2^20 bytes.
    pub peak_rss_mb: f64,
    /// Peak bytes of live tensors in a training step, in MB of 2^20 bytes;
    /// `None` if the compute backend has its own allocator.
    #[serde(default)]
    pub live_mb: Option<f64>,
}

/// Versions of this program, of Burn, of the MPI library and of the compiler.
pub fn versions(mpi_library: &str) -> BTreeMap<String, String> {
    let entries = [
        ("mpiburn", env!("CARGO_PKG_VERSION")),
        ("burn", "0.22.1"),
        ("mpi", mpi_library),
        ("rustc", env!("MPIBURN_RUSTC")),
    ];
    entries.map(|(name, version)| (name.to_owned(), version.to_owned())).into()
}
