//! A profile: the time and memory of each operator of a network. `mpiburn profile --json` writes it to a
//! file, and `run-report` reads this file.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{count, json_problem};

/// Maximum size in bytes. A profile has a few KB, so a larger file is not one.
const LARGEST: u64 = 16 << 20;
/// Longest plausible time in milliseconds: 11 days. A longer time cannot be a measurement.
const LONGEST_MS: f64 = 1e9;

/// A profile of inference or training, with a configuration of type `C`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Profile<C = serde_json::Value> {
    /// Path of the file.
    #[serde(skip)]
    pub path: PathBuf,
    /// Name of the network.
    pub model: String,
    /// Whether training steps were profiled.
    pub train: bool,
    /// Whether the network is an int8 model.
    pub int8: bool,
    /// Number of profiled batches. The values in `operators` are sums over these batches.
    pub batches: usize,
    /// Number of samples in a batch.
    pub batch: usize,
    /// Number of ranks of the job.
    pub ranks: usize,
    /// Compute device: the value of `--device`.
    pub device: String,
    /// Type of activations: the value of `--precision`.
    pub precision: String,
    /// Whether operators are fused.
    pub fused: bool,
    /// Threads of each rank.
    pub threads: usize,
    /// SIMD level.
    pub simd: String,
    /// The run or checkpoint that network and samples are from; `None` if none was given.
    pub checkpoint: Option<String>,
    /// Size in bytes that the profiled network has as a file in a checkpoint: float weights or an int8 model.
    pub checkpoint_bytes: u64,
    /// Name of the processor.
    pub cpu: String,
    /// Options by name, like `config` in `run.json`.
    pub config: C,
    /// Wall time of all batches, in milliseconds.
    pub wall_ms: f64,
    /// Share of `wall_ms` that is spent in operators, in percent.
    pub accounted_percent: f64,
    /// Median time of a batch with profiling, in milliseconds.
    pub batch_ms: f64,
    /// Median time of a batch without profiling, in milliseconds.
    pub batch_ms_without_profiling: f64,
    /// The operators.
    pub operators: Vec<ProfileRow>,
}

impl Profile {
    /// Reads the profile `path`.
    ///
    /// # Errors
    /// A message of one line: the file, what is wrong with it, and what to do.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let unreadable = |error: std::io::Error| format!("cannot read {shown}: {error}");
        let found = std::fs::metadata(path).map_err(unreadable)?;
        // Reading a FIFO would wait for a writer.
        if !found.is_file() || found.len() > LARGEST {
            return Err(format!("{shown}: is not a profile, which is a JSON file of a few KB: leave it out"));
        }
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let damaged = |what: &str| {
            format!(
                "{shown}: is damaged ({what}): create it again with mpiburn profile --json FILE, or leave it out"
            )
        };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&json_problem(&error)))?;
        if value.get("operators").is_none() || value.get("wall_ms").is_none() {
            return Err(format!("{shown}: is not from mpiburn profile --json: leave it out"));
        }
        let profile: Self = serde_json::from_value(value).map_err(|error| damaged(&json_problem(&error)))?;
        match profile.problem() {
            Some(problem) => Err(damaged(problem)),
            None => Ok(Self { path: path.to_owned(), ..profile }),
        }
    }

    fn problem(&self) -> Option<&'static str> {
        let is_time = |ms: f64| (0.0..=LONGEST_MS).contains(&ms);
        if self.batches == 0 {
            Some("batches is 0")
        } else if !is_time(self.wall_ms) {
            Some("wall_ms is out of range")
        } else if !is_time(self.batch_ms_without_profiling) || self.batch_ms_without_profiling == 0.0 {
            // Reports divide by this time.
            Some("batch_ms_without_profiling is 0 or out of range")
        } else if self.operators.iter().any(|row| row.calls == 0 || !is_time(row.self_cpu_ms)) {
            Some("an operator has 0 calls, or its self_cpu_ms is out of range")
        } else if self.computing().next().is_none() {
            Some("operators has no row of a phase other than data and rest")
        } else {
            None
        }
    }

    /// Returns the operators of forward, backward, gradient exchange and weight update: all rows except the
    /// conversion of samples and the time outside operators.
    pub fn computing(&self) -> impl Iterator<Item = &ProfileRow> {
        self.operators.iter().filter(|row| !matches!(row.phase, Phase::Data | Phase::Rest))
    }

    /// Returns the name of the activation function.
    pub fn activation(&self) -> &str {
        self.config.get("activation").and_then(serde_json::Value::as_str).unwrap_or("relu")
    }

    /// Returns the file name without its extension.
    pub fn stem(&self) -> String {
        self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Says what was profiled: `100 inferences at batch 32`.
    pub fn amount(&self) -> String {
        let what = if self.train { "training step" } else { "inference" };
        format!("{} at batch {}", count(self.batches, what), self.batch)
    }

    /// Returns processor, SIMD level and number of threads, as text.
    pub fn machine(&self) -> String {
        format!("{}, {} code, {}", self.cpu, self.simd, count(self.threads, "thread"))
    }

    /// Returns everything that affects times, as text, except the settings that `except` names. `except` may
    /// name `activation`, `fused` and `int8`.
    pub fn settings_except(&self, except: &[&str]) -> String {
        let option = |name: &str| self.config.get(name).map(ToString::to_string).unwrap_or_default();
        let mut settings = vec![
            ("model", self.model.clone()),
            ("work", format!("{} on {} ranks", self.amount(), self.ranks)),
            ("device", format!("{}, {}, {}", self.device, self.precision, self.machine())),
            ("fused", self.fused.to_string()),
            ("int8", self.int8.to_string()),
            ("activation", self.activation().to_owned()),
        ];
        settings.extend(["batch_norm", "dropout", "hidden", "conv"].map(|name| (name, option(name))));
        settings.retain(|(name, _)| !except.contains(name));
        settings.into_iter().map(|(name, value)| format!("{name} {value}; ")).collect()
    }
}

/// Part of the time of a batch. Each operator belongs to one part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Conversion of bytes to a batch.
    Data,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// Collecting gradients after backward, copying them into buckets, and copying averaged gradients out of
    /// received messages.
    Copy,
    /// All-reduce of gradients.
    Communication,
    /// Weight update.
    Optimizer,
    /// Time of a batch outside all operators.
    #[default]
    Rest,
    /// Test after an epoch. Occurs only in the time line of a training, not in a profile.
    Evaluation,
    /// Writing a checkpoint. Occurs only in the time line of a training, not in a profile.
    Checkpoint,
}

/// Writes the name that the phase has in tables and files.
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One operator in one phase, or all operators of a kind. Values are sums over all calls, except the peak and
/// the averages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// Name of the operator; in a table by kind, name of the kind.
    pub name: String,
    /// Kind of operator: what it computes.
    pub kind: String,
    /// Part of the batch's time.
    pub phase: Phase,
    /// Number of calls.
    pub calls: usize,
    /// Self time in percent of the wall time. Self time excludes the operators that this operator calls.
    pub self_cpu_percent: f64,
    /// Self time in milliseconds.
    pub self_cpu_ms: f64,
    /// Total time in percent of the wall time. Total time includes the operators that this operator calls.
    pub cpu_total_percent: f64,
    /// Total time in milliseconds.
    pub cpu_total_ms: f64,
    /// Mean total time of a call, in milliseconds.
    pub cpu_time_avg_ms: f64,
    /// Bytes allocated minus bytes freed, by the operator and the operators that it calls.
    pub memory_bytes: i64,
    /// Bytes allocated minus bytes freed, by the operator itself.
    pub self_memory_bytes: i64,
    /// Largest increase of live bytes during a call.
    pub peak_memory_bytes: i64,
    /// Bytes that the operator itself allocated, whether or not they were freed.
    pub allocated_bytes: u64,
    /// Bytes that a rank sends in a call. This and the following fields are set for collectives only.
    pub bytes: Option<usize>,
    /// Time that the collective was in flight while backward ran, in milliseconds.
    pub hidden_ms: Option<f64>,
    /// Time that the rank only waited, in milliseconds.
    pub exposed_ms: Option<f64>,
    /// Bus bandwidth over hidden and exposed time, in MB/s of 10^6 bytes.
    pub bandwidth_mb_s: Option<f64>,
}

impl ProfileRow {
    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.self_cpu_percent += other.self_cpu_percent;
        self.self_cpu_ms += other.self_cpu_ms;
        self.cpu_total_percent += other.cpu_total_percent;
        self.cpu_total_ms += other.cpu_total_ms;
        self.cpu_time_avg_ms = self.cpu_total_ms / self.calls as f64;
        self.memory_bytes += other.memory_bytes;
        self.self_memory_bytes += other.self_memory_bytes;
        self.peak_memory_bytes = self.peak_memory_bytes.max(other.peak_memory_bytes);
        self.allocated_bytes += other.allocated_bytes;
    }
}

/// Sums operators of the same kind and phase. The sums are sorted by `value`, see [`sorted`].
pub fn by_kind(operators: &[ProfileRow], value: impl Fn(&ProfileRow) -> f64) -> Vec<ProfileRow> {
    let mut kinds: Vec<ProfileRow> = Vec::new();
    for row in operators {
        match kinds.iter_mut().find(|kind| (&kind.kind, kind.phase) == (&row.kind, row.phase)) {
            Some(kind) => kind.add(row),
            None => kinds.push(ProfileRow { name: row.kind.clone(), ..row.clone() }),
        }
    }
    sorted(kinds, value)
}

/// Sorts rows by descending `value`, with the time outside operators last.
pub fn sorted(mut rows: Vec<ProfileRow>, value: impl Fn(&ProfileRow) -> f64) -> Vec<ProfileRow> {
    let is_rest = |row: &ProfileRow| row.phase == Phase::Rest;
    rows.sort_by(|a, b| is_rest(a).cmp(&is_rest(b)).then(value(b).total_cmp(&value(a))));
    rows
}
