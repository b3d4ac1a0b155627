//! `run.json`: configuration, hosts and results of a run. `docs/run.json.md` describes each
//! field for readers of the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ByClass, FailedAttempt};

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

/// `run.json`, with a configuration of type `C`: values by their names, or the options of a program. It is written at the start;
/// `results` are added at the end. What `config` has is in no other field.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord<C = Map<String, Value>> {
    /// Status of the run.
    pub status: Status,
    /// Reason of a failure or stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Arguments of rank 0's process.
    pub command_line: Vec<String>,
    /// Every option.
    pub config: C,
    /// Trainable parameters.
    pub params: usize,
    /// Machines x processes.
    pub topology: String,
    /// Number of ranks.
    pub world_size: usize,
    /// One host name per rank.
    pub hosts: Vec<String>,
    /// Host, process id and cores of each rank.
    pub places: Vec<RankPlace>,
    /// Processor, memory and kernel of each host.
    pub machines: Vec<Machine>,
    /// SIMD level that all ranks used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simd_level: Option<String>,
    /// How all ranks computed products of bf16 activations: `amx`, `avx512` or `f32`; none without
    /// them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_products: Option<String>,
    /// Launcher: `mpirun`, `srun` or `alone`.
    pub launcher: String,
    /// How rank 0 is connected to the others, where the backend knows: gloo's transport,
    /// interface and address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// Data set.
    pub data: DataRecord,
    /// Whether ranks shared cores.
    pub oversubscribed: bool,
    /// Whether several host names were one machine with shared caches and
    /// memory.
    pub shared_machine: bool,
    /// Start of the process, or of the resumed one: ISO 8601 in UTC.
    pub started_at: String,
    /// End: completion, failure or stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Commit that the binary was built from.
    pub git: String,
    /// Whether its sources differed from that commit; unknown for a source archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_dirty: Option<bool>,
    /// Versions of this program and its dependencies.
    pub versions: BTreeMap<String, String>,
    /// Its processes, the first and each resumed one, in order.
    pub history: Vec<Attempt>,
    /// Its attempts that failed under `mpiburn launch --restart`, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed_attempts: Vec<FailedAttempt>,
    /// Checkpoints that could not be written, while the run went on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_checkpoints: Option<FailedCheckpoint>,
    /// Results of the run.
    #[serde(flatten)]
    pub results: Option<Results>,
    /// What each option of `config` is.
    #[serde(default = "crate::Schema::of_older_runs")]
    pub schema: crate::Schema,
}

/// Where one rank runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Rank in the world.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Cores that its process may run on, such as `0` or `0-3,8`.
    pub binding: String,
    /// Online cores of the host.
    pub cores: usize,
    /// Identifies the machine if host names do not.
    pub boot_id: String,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Model of the processor; `unknown` if the kernel does not name it.
    pub cpu: String,
    /// Memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
}

/// One process of a run, which began it or resumed it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Start of the process: ISO 8601 in UTC.
    pub started_at: String,
    /// Steps that were done before.
    pub step: usize,
    /// Options that the resume changed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub changed: Vec<Change>,
}

/// An option that was changed when a run was resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Its field of `config`.
    pub field: String,
    /// Value before.
    pub from: serde_json::Value,
    /// Value since then.
    pub to: serde_json::Value,
}

/// Checkpoints that could not be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCheckpoint {
    /// Their number, in this process.
    pub count: usize,
    /// Step of the last of them.
    pub step: usize,
    /// Its file and the reason.
    pub error: String,
}

/// Samples of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataRecord {
    /// SHA-256 over labels and samples of the training set that the run used, in file order.
    pub train_sha256: String,
    /// Training samples that the run used, of all ranks.
    pub train_samples: usize,
    /// Training samples in the data set.
    pub train_available: usize,
    /// Test samples that the run used, of all ranks.
    pub test_samples: usize,
    /// Test samples in the data set.
    pub test_available: usize,
    /// Those of the most frequent class among the test samples that the run used: the share of right answers of
    /// a model that has learned nothing.
    pub test_largest_class: usize,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// Name of each class.
    pub class_names: Vec<String>,
    /// Type of a sample's numbers: `u8`, `f16`, `f32` or `f64`.
    pub element: String,
    /// Mean of each channel, of bytes scaled to [0, 1], or of each feature; none of features that are not normalised.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub mean: Vec<f32>,
    /// Standard deviation of each.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub std: Vec<f32>,
    /// How the pictures of an imported data set got their size: `crop`, `pad` or `stretch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<String>,
    /// Names of the features of an imported table.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub features: Vec<String>,
}

/// Results of a run. Accuracies in percent, times in seconds, also those of the processes that
/// the run resumed from. `total_seconds` is the sum of start-up, training, tests and checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Optimizer steps.
    pub steps: usize,
    /// Epochs that were trained.
    pub epochs_run: usize,
    /// From the start of the process to the first step: MPI, data, network, connections. This time and the
    /// following ones are means over ranks.
    pub start_up_seconds: f64,
    /// Wall time of the training loops, with data and metrics, without tests.
    pub train_seconds: f64,
    /// Wall time of the tests.
    pub test_seconds: f64,
    /// Wall time of checkpoints, curves and comparisons of the ranks' weights.
    pub checkpoint_seconds: f64,
    /// From the start of the process to its last line.
    pub total_seconds: f64,
    /// `train_seconds` over the steps, in milliseconds.
    pub ms_per_step: f64,
    /// Training samples of all ranks over `train_seconds`.
    pub images_per_second: f64,
    /// Exposed communication: time in which a rank only waited for gradients, mean over ranks.
    /// Communication that backward hides is not in it.
    pub comm_seconds: f64,
    /// Time of each phase of a step, mean over ranks and steps. The sum is `ms_per_step`.
    pub step_ms: StepMs,
    /// Over all tested samples.
    pub test_accuracy: f64,
    /// The integer model's, over all tested samples; only with quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_accuracy: Option<f64>,
    /// Of the integer model, mean over all tested samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_loss: Option<f64>,
    /// Wall time of the float network's inference in the tests of all epochs, mean over ranks; only with
    /// quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_inference_seconds: Option<f64>,
    /// The same of the integer models.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_inference_seconds: Option<f64>,
    /// Mean over all tested samples.
    pub test_loss: f64,
    /// Of the last epoch, over all ranks.
    pub train_accuracy: f64,
    /// Of the last epoch, over all ranks.
    pub train_loss: f64,
    /// The same by rank.
    pub per_rank: Vec<RankRecord>,
    /// The last test by class; none where nothing was tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_class: Option<ByClass>,
    /// Peak resident memory of a rank, in MB of 2^20 bytes.
    pub peak_rss_mb: f64,
    /// Peak bytes of live tensors in a training step of a rank, in MB of 2^20
    /// bytes; `None` if the compute backend has its own allocator.
    pub live_mb: Option<f64>,
    /// With loss scaling: steps without an update, because a gradient was NaN or
    /// infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<usize>,
    /// With loss scaling: the scale after the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f32>,
    /// Percent of a machine's CPU time that other programs used during training and tests, on the
    /// machine with most; for a resumed run since the process started.
    pub others_cpu_percent: Option<f64>,
    /// The same by host.
    pub others_cpu_percent_by_host: BTreeMap<String, f64>,
    /// SHA-256 over all parameters in visit order, little-endian f32.
    pub weights_sha256: String,
    /// With early stopping: the epoch (from 1) of the lowest test loss, whose
    /// checkpoint is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<usize>,
    /// Epochs after which early stopping ended the run, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// Mean of the last epoch; `None` without training samples.
    pub train_loss: Option<f64>,
    /// Percent, of the last epoch.
    pub train_accuracy: Option<f64>,
    /// Mean over its share of the test set; `None` without test samples.
    pub test_loss: Option<f64>,
    /// Percent, over its share of the test set.
    pub test_accuracy: Option<f64>,
    /// The integer model's loss over its share of the test set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_loss: Option<f64>,
    /// The integer model's accuracy over its share of the test set, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_accuracy: Option<f64>,
    /// Seconds in which it only waited for gradients.
    pub comm_seconds: f64,
    /// Peak resident memory, in MB of 2^20 bytes.
    pub peak_rss_mb: f64,
    /// Peak bytes of live tensors in a training step, in MB of 2^20 bytes;
    /// `None` if the compute backend has its own allocator.
    pub live_mb: Option<f64>,
}

/// The topology of ranks on these hosts, one for each rank: machines x processes on each (`2x2`), or `4on3` if hosts have
/// different numbers of ranks.
pub fn topology<'a>(hosts: impl Iterator<Item = &'a str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    hosts.for_each(|host| *counts.entry(host).or_default() += 1);
    let per_host = counts.values().next().copied().unwrap_or(0);
    if counts.values().all(|count| *count == per_host) {
        format!("{}x{per_host}", counts.len())
    } else {
        format!("{}on{}", counts.values().sum::<usize>(), counts.len())
    }
}

/// The present in UTC, as `2026-01-31T23:59:59Z`.
pub fn now() -> String {
    let now: chrono::DateTime<chrono::Utc> = std::time::SystemTime::now().into();
    now.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A value for each phase of a training step, under the names and in the
/// order of `step_ms` in `run.json`. A phase that is missing in a file
/// is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases<T> {
    /// Reading of samples, augmentation, and conversion of bytes to normalised tensors.
    pub data: T,
    /// Class scores, loss and metrics.
    pub forward: T,
    /// Backward, without copying gradients.
    pub backward: T,
    /// Copying gradients into their buckets.
    pub copy: T,
    /// Waiting for gradients of other ranks.
    pub exposed: T,
    /// Weight update, including the network that holds the weights.
    pub optimizer: T,
    /// Everything else in the training loop.
    pub rest: T,
}

impl<T> Phases<T> {
    /// The phases' names in tables.
    pub const TITLES: [&'static str; 7] =
        ["data", "forward", "backward", "copy of gradients", "communication, exposed", "optimizer", "rest"];

    /// The values in the order of [`TITLES`](Self::TITLES).
    pub fn into_array(self) -> [T; 7] {
        [self.data, self.forward, self.backward, self.copy, self.exposed, self.optimizer, self.rest]
    }

    /// Values in the order of [`TITLES`](Self::TITLES).
    pub fn from_array([data, forward, backward, copy, exposed, optimizer, rest]: [T; 7]) -> Self {
        Self { data, forward, backward, copy, exposed, optimizer, rest }
    }
}

/// Mean milliseconds of each phase.
pub type StepMs = Phases<f64>;

impl<T> Phases<T> {
    /// Applies `with` to each value.
    pub fn map<U>(self, with: impl FnMut(T) -> U) -> Phases<U> {
        Phases::from_array(self.into_array().map(with))
    }
}

impl StepMs {
    /// The mean of several ranks' values; 0 if there are none.
    pub fn mean(ranks: &[Self]) -> Self {
        let sum = |phase: usize| ranks.iter().fold(0.0, |sum, rank| sum + rank.into_array()[phase]);
        Self::from_array(std::array::from_fn(sum)).map(|ms| ms / ranks.len().max(1) as f64)
    }
}

#[cfg(test)]
mod phases_tests {
    use super::*;

    #[test]
    fn the_fields_of_run_json_stay_in_their_order() {
        let json = serde_json::to_string(&StepMs::from_array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])).unwrap();
        assert_eq!(
            json,
            r#"{"data":1.0,"forward":2.0,"backward":3.0,"copy":4.0,"exposed":5.0,"optimizer":6.0,"rest":7.0}"#
        );
    }

    #[test]
    fn a_file_from_before_a_phase_is_read() {
        let read: StepMs = serde_json::from_str(r#"{"data":1.0,"exposed":5.0}"#).unwrap();
        assert_eq!(read, StepMs { data: 1.0, exposed: 5.0, ..StepMs::default() });
    }

    #[test]
    fn ranks_are_averaged_phase_by_phase() {
        let one = StepMs { data: 1.0, optimizer: 3.0, ..StepMs::default() };
        let two = StepMs { data: 2.0, exposed: 1.0, ..StepMs::default() };
        let mean = StepMs { data: 1.5, exposed: 0.5, optimizer: 1.5, ..StepMs::default() };
        assert_eq!(StepMs::mean(&[one, two]), mean);
        assert_eq!(StepMs::mean(&[]), StepMs::default());
    }
}
