//! `run.json`: configuration, hosts and results of a run. `docs/run.json.md` describes each field for readers
//! of the file.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ByClass, FailedAttempt};

/// Status of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The run is in progress, or its process was killed.
    Running,
    /// All epochs are complete.
    Completed,
    /// An error ended the run.
    Failed,
    /// A signal ended the run, after it wrote a checkpoint to resume from.
    Stopped,
}

/// Content of `run.json`. It is written at the start of a run; `results` are added at the end.
///
/// `C` is the configuration: the trainer's options, or a map from names to values. No other field repeats a
/// value of `config`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunRecord<C = Map<String, Value>> {
    /// Status of the run.
    pub status: Status,
    /// Reason why the run failed or stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Command line of rank 0's process.
    pub command_line: Vec<String>,
    /// Value of every option.
    pub config: C,
    /// Number of trainable parameters.
    pub params: usize,
    /// Machines x processes on each, see [`topology`].
    pub topology: String,
    /// Number of ranks.
    pub world_size: usize,
    /// Host name of each rank.
    pub hosts: Vec<String>,
    /// Host, process id and cores of each rank.
    pub places: Vec<RankPlace>,
    /// Processor, memory and kernel of each host.
    pub machines: Vec<Machine>,
    /// SIMD level: the vector instructions, which are the same on all ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simd_level: Option<String>,
    /// How all ranks computed products of bf16 activations: `amx`, `avx512` or `f32`; `None` without bf16
    /// activations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bf16_products: Option<String>,
    /// Launcher: `mpirun`, `srun` or `alone`.
    pub launcher: String,
    /// How rank 0 is connected to the other ranks: gloo's transport, interface and address. `None` if the
    /// backend does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// The samples that the run used.
    pub data: DataRecord,
    /// Whether several ranks shared a core.
    pub oversubscribed: bool,
    /// Whether several host names are the same machine, with shared caches and memory.
    pub shared_machine: bool,
    /// Start of the run's first process, or of the process that resumed the run last: ISO 8601 in UTC.
    pub started_at: String,
    /// Time of completion, failure or stop: ISO 8601 in UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
    /// Commit that the binary was built from.
    pub git: String,
    /// Whether the sources differed from that commit; `None` if built from a source archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub git_dirty: Option<bool>,
    /// Versions of this program and its dependencies.
    pub versions: BTreeMap<String, String>,
    /// The processes of the run in order: the process that began the run, and each process that resumed it.
    pub history: Vec<Attempt>,
    /// The attempts that failed under `mpiburn launch --restart`, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub failed_attempts: Vec<FailedAttempt>,
    /// Checkpoints that could not be written, although the run continued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_checkpoints: Option<FailedCheckpoint>,
    /// Results, once the run has ended.
    #[serde(flatten)]
    pub results: Option<Results>,
    /// Description of each option in `config`.
    #[serde(default = "crate::Schema::of_older_runs")]
    pub schema: crate::Schema,
}

/// Where one rank runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// Rank in the world.
    pub rank: usize,
    /// Name of the rank's host.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Cores that the rank's process may run on, such as `0` or `0-3,8`.
    pub binding: String,
    /// Number of online cores of the host.
    pub cores: usize,
    /// The kernel's boot id. It identifies the machine if host names do not.
    pub boot_id: String,
}

/// Hardware and kernel of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Model of the processor; `unknown` if the kernel does not report it.
    pub cpu: String,
    /// Memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Release of the kernel.
    pub kernel: String,
}

/// One process of a run: it began the run, or resumed it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Start of the process: ISO 8601 in UTC.
    pub started_at: String,
    /// Number of steps of the run that were done before this process.
    pub step: usize,
    /// Options that were changed when this process resumed the run, and the number of ranks if it was
    /// changed.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub changed: Vec<Change>,
}

/// The `field` of a [`Change`] of the number of ranks. Every other `field` is a field of `config`.
pub const WORLD_SIZE: &str = "world_size";

/// An option, or the number of ranks, that was changed when a run was resumed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Name of the field in `config`, or [`WORLD_SIZE`].
    pub field: String,
    /// Value before the resume.
    pub from: serde_json::Value,
    /// Value after the resume.
    pub to: serde_json::Value,
}

/// Checkpoints that could not be written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedCheckpoint {
    /// Number of checkpoints that could not be written since the last process started.
    pub count: usize,
    /// Step of the last checkpoint that could not be written.
    pub step: usize,
    /// Error of this checkpoint: the file that could not be written, and the reason.
    pub error: String,
}

/// The samples of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DataRecord {
    /// SHA-256 over the labels and the bytes of the training samples that the run used, in file order.
    pub train_sha256: String,
    /// Training samples that the run used, of all ranks.
    pub train_samples: usize,
    /// Training samples in the data set.
    pub train_available: usize,
    /// Test samples that the run used, of all ranks.
    pub test_samples: usize,
    /// Test samples in the data set.
    pub test_available: usize,
    /// Of the test samples that the run used, the number in the most frequent class. Divided by
    /// `test_samples`, it is the accuracy of a model that always predicts this class.
    pub test_largest_class: usize,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// Name of each class.
    pub class_names: Vec<String>,
    /// Type of the values in a sample: `u8`, `f16`, `f32` or `f64`.
    pub element: String,
    /// For pictures, the mean of each channel, over bytes scaled to [0, 1]. For tables, the mean of each
    /// feature; empty if features are not normalised.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub mean: Vec<f32>,
    /// Standard deviation of each channel or feature, like `mean`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub std: Vec<f32>,
    /// How pictures were brought to the size of an imported data set: `crop`, `pad` or `stretch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fit: Option<String>,
    /// Names of the features of an imported table.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub features: Vec<String>,
}

/// Results of a run. Accuracies are in percent and times in seconds. If the run was resumed, times include
/// the times of earlier processes. `total_seconds` is within 2% of the sum of start-up, training, tests and
/// checkpoints.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Results {
    /// Optimizer steps.
    pub steps: usize,
    /// Number of epochs that were trained. With `--stop-at-target`, the last one may be incomplete.
    pub epochs_run: usize,
    /// Time from the start of the process to the first step: MPI, data, network, connections. This time and
    /// the following ones are means over ranks.
    pub start_up_seconds: f64,
    /// Wall time of the training loops. It includes data and metrics, and excludes tests.
    pub train_seconds: f64,
    /// Wall time of the tests.
    pub test_seconds: f64,
    /// Wall time of writing checkpoints and curves, and of comparing the ranks' weights.
    pub checkpoint_seconds: f64,
    /// Time from the start of the process to its last line of output.
    pub total_seconds: f64,
    /// `train_seconds` divided by `steps`, in milliseconds.
    pub ms_per_step: f64,
    /// Training samples of all ranks, divided by `train_seconds`.
    pub images_per_second: f64,
    /// Exposed communication: time in which a rank only waited for gradients, mean over ranks. Communication
    /// that overlaps with backward is not included.
    pub comm_seconds: f64,
    /// Time of each phase of a step in milliseconds, mean over ranks and steps. The sum of the phases is
    /// `ms_per_step`.
    pub step_ms: StepMs,
    /// Bytes of gradients, compressed or not, or with local updates of changes of parameters, that a rank
    /// passes to all-reduces in a step: mean over steps and ranks. A reduce-scatter and a gather count as half
    /// an all-reduce each. Includes control values, and excludes tests and checkpoints. `None` in files of older versions.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes_per_step: Option<f64>,
    /// Accuracy over all tested samples.
    pub test_accuracy: f64,
    /// Accuracy of the int8 model over all tested samples; `None` without quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_accuracy: Option<f64>,
    /// Loss of the int8 model, mean over all tested samples; `None` without quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_loss: Option<f64>,
    /// Wall time of the float network's inference in the tests of all epochs, mean over ranks; `None` without
    /// quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub float_inference_seconds: Option<f64>,
    /// Wall time of the int8 models' inference in the tests of all epochs, mean over ranks; `None` without
    /// quantization.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_inference_seconds: Option<f64>,
    /// Loss, mean over all tested samples.
    pub test_loss: f64,
    /// Training accuracy of the last epoch, over all ranks.
    pub train_accuracy: f64,
    /// Training loss of the last epoch, mean over all ranks' samples.
    pub train_loss: f64,
    /// Results of each rank.
    pub per_rank: Vec<RankRecord>,
    /// Results of the last test by class; `None` if nothing was tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_class: Option<ByClass>,
    /// Peak resident memory, on the rank with the highest peak, in MB of 2^20 bytes.
    pub peak_rss_mb: f64,
    /// Peak bytes of live tensors in a training step, on the rank with the highest peak, in MB of 2^20
    /// bytes; `None` if the compute backend has its own allocator.
    pub live_mb: Option<f64>,
    /// With loss scaling: number of steps without an update, because a gradient was NaN or infinite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<usize>,
    /// With loss scaling: the scale after the last step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f32>,
    /// CPU time that other programs used during training and tests, in percent of the machine's CPU time.
    /// With several machines, this is the highest of their values. For a resumed run, only the time since the
    /// last process started counts.
    pub others_cpu_percent: Option<f64>,
    /// `others_cpu_percent` of each host.
    pub others_cpu_percent_by_host: BTreeMap<String, f64>,
    /// SHA-256 over all parameters as little-endian f32, in the order in which Burn visits them.
    pub weights_sha256: String,
    /// With early stopping: the epoch (from 1) of the lowest test loss. Its checkpoint is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_epoch: Option<usize>,
    /// Number of epochs after which early stopping ended the run; `None` if early stopping did not end it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_early_after: Option<usize>,
    /// With `--target-accuracy`: whether a test reached the target.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub target_reached: Option<bool>,
    /// Optimizer steps before the first test that reached the target; `None` if no test did, like the next
    /// two fields.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub steps_to_target: Option<usize>,
    /// Epochs before this test, with a fraction if the test was inside an epoch.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub epochs_to_target: Option<f64>,
    /// Seconds of the training loops before this test, like `train_seconds`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub seconds_to_target: Option<f64>,
}

/// Results of one rank.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RankRecord {
    /// Rank.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Number of training samples in the rank's shard.
    pub train_samples: usize,
    /// Number of test samples in the rank's shard.
    pub test_samples: usize,
    /// Mean training loss of the last epoch; `None` without training samples.
    pub train_loss: Option<f64>,
    /// Training accuracy of the last epoch, in percent; `None` without training samples.
    pub train_accuracy: Option<f64>,
    /// Mean loss over the rank's share of the test set; `None` without test samples.
    pub test_loss: Option<f64>,
    /// Accuracy over the rank's share of the test set, in percent; `None` without test samples.
    pub test_accuracy: Option<f64>,
    /// Mean loss of the int8 model over the rank's share of the test set; `None` without an int8 model or
    /// without test samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_loss: Option<f64>,
    /// Accuracy of the int8 model over the rank's share of the test set, in percent; `None` without an int8
    /// model or without test samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub int8_test_accuracy: Option<f64>,
    /// Time in which the rank only waited for gradients, in seconds.
    pub comm_seconds: f64,
    /// Peak resident memory of the rank, in MB of 2^20 bytes.
    pub peak_rss_mb: f64,
    /// Peak bytes of live tensors in a training step, in MB of 2^20 bytes; `None` if the compute backend has
    /// its own allocator.
    pub live_mb: Option<f64>,
}

/// Returns the topology of the ranks. `hosts` has the host of each rank. The topology is machines x processes
/// on each, such as `2x2`. If hosts differ in their number of ranks, it is `4on3` for 4 ranks on 3 hosts.
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

/// Returns the current time in UTC, as `2026-01-31T23:59:59Z`.
pub fn now() -> String {
    let now: chrono::DateTime<chrono::Utc> = std::time::SystemTime::now().into();
    now.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A value for each phase of a training step, such as its time. Names and order are as in `step_ms` of
/// `run.json`. A phase that a file lacks is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases<T> {
    /// Reading samples, augmentation, and conversion of bytes to normalised tensors.
    pub data: T,
    /// Class scores, loss and metrics.
    pub forward: T,
    /// Backward, without the copying of gradients.
    pub backward: T,
    /// Copying gradients into their buckets.
    pub copy: T,
    /// Waiting for other ranks' gradients.
    pub exposed: T,
    /// Weight update, and writing the new weights into the network.
    pub optimizer: T,
    /// Everything else in the training loop.
    pub rest: T,
}

impl<T> Phases<T> {
    /// Names of the phases in tables.
    pub const TITLES: [&'static str; 7] =
        ["data", "forward", "backward", "copy of gradients", "communication, exposed", "optimizer", "rest"];

    /// Returns the values in the order of [`TITLES`](Self::TITLES).
    pub fn into_array(self) -> [T; 7] {
        [self.data, self.forward, self.backward, self.copy, self.exposed, self.optimizer, self.rest]
    }

    /// Makes phases from values in the order of [`TITLES`](Self::TITLES).
    pub fn from_array([data, forward, backward, copy, exposed, optimizer, rest]: [T; 7]) -> Self {
        Self { data, forward, backward, copy, exposed, optimizer, rest }
    }
}

/// Mean time of each phase in milliseconds.
pub type StepMs = Phases<f64>;

impl<T> Phases<T> {
    /// Applies `with` to each value.
    pub fn map<U>(self, with: impl FnMut(T) -> U) -> Phases<U> {
        Phases::from_array(self.into_array().map(with))
    }
}

impl StepMs {
    /// Returns the mean over ranks of each phase; 0 if `ranks` is empty.
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
