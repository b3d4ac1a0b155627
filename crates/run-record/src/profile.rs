//! One profile: the file of `mpiburn profile --json`, as it is written and read.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{count, json_problem};

/// Larger files are not profiles, which have a few KB.
const LARGEST: u64 = 16 << 20;
/// Longest time in milliseconds, 11 days: a longer one was not measured.
const LONGEST_MS: f64 = 1e9;

/// A profile of inference or training, with a configuration of type `C`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Profile<C = serde_json::Value> {
    /// Its file.
    #[serde(skip)]
    pub path: PathBuf,
    /// Network.
    pub model: String,
    /// Whether training steps were profiled.
    pub train: bool,
    /// Whether the network is an integer model.
    pub int8: bool,
    /// Number of batches that the sums of `operators` are of.
    pub batches: usize,
    /// Samples of a batch.
    pub batch: usize,
    /// Ranks of the job.
    pub ranks: usize,
    /// Compute device, by its option value.
    pub device: String,
    /// Type of activations, by its option value.
    pub precision: String,
    /// Whether operators are fused.
    pub fused: bool,
    /// Threads of a rank.
    pub threads: usize,
    /// SIMD level.
    pub simd: String,
    /// The run or checkpoint whose network and samples were taken.
    pub checkpoint: Option<String>,
    /// Bytes of a checkpoint's file of the weights.
    pub checkpoint_bytes: u64,
    /// Processor.
    pub cpu: String,
    /// Options, by name.
    pub config: C,
    /// Milliseconds of all batches.
    pub wall_ms: f64,
    /// Time in operators, in percent of it.
    pub accounted_percent: f64,
    /// Median of a batch with profiling, in milliseconds.
    pub batch_ms: f64,
    /// Median of a batch without profiling, in milliseconds.
    pub batch_ms_without_profiling: f64,
    /// The operators.
    pub operators: Vec<ProfileRow>,
}

impl Profile {
    /// Reads a file.
    ///
    /// # Errors
    /// One line: the file, what is wrong with it, and what to do.
    pub fn read(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let unreadable = |error: std::io::Error| format!("cannot read {shown}: {error}");
        let found = std::fs::metadata(path).map_err(unreadable)?;
        // Reading a FIFO would wait for a writer.
        if !found.is_file() || found.len() > LARGEST {
            return Err(format!("{shown}: not a profile, which is a file of a few KB; leave it out"));
        }
        let bytes = std::fs::read(path).map_err(unreadable)?;
        let damaged = |what: &str| {
            format!(
                "{shown}: damaged ({what}); write it again with mpiburn profile --json FILE, or leave it out"
            )
        };
        let value: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|error| damaged(&json_problem(&error)))?;
        if value.get("operators").is_none() || value.get("wall_ms").is_none() {
            return Err(format!("{shown}: not a profile of mpiburn profile --json; leave it out"));
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
            Some("no batch")
        } else if !is_time(self.wall_ms) {
            Some("no time")
        } else if !is_time(self.batch_ms_without_profiling) || self.batch_ms_without_profiling == 0.0 {
            // Ratios are of it.
            Some("no time of a batch")
        } else if self.operators.iter().any(|row| row.calls == 0 || !is_time(row.self_cpu_ms)) {
            Some("an operator without calls or time")
        } else if self.computing().next().is_none() {
            Some("no operator")
        } else {
            None
        }
    }

    /// Operators of forward, backward and weight update, without the conversion of samples and the
    /// time that no operator accounts for.
    pub fn computing(&self) -> impl Iterator<Item = &ProfileRow> {
        self.operators.iter().filter(|row| !matches!(row.phase, Phase::Data | Phase::Rest))
    }

    /// The activation function.
    pub fn activation(&self) -> &str {
        self.config.get("activation").and_then(serde_json::Value::as_str).unwrap_or("relu")
    }

    /// Name of the file, without the extension.
    pub fn stem(&self) -> String {
        self.path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// What was profiled: `100 inferences at batch 32`.
    pub fn amount(&self) -> String {
        let what = if self.train { "training step" } else { "inference" };
        format!("{} at batch {}", count(self.batches, what), self.batch)
    }

    /// Processor, instructions and threads.
    pub fn machine(&self) -> String {
        format!("{}, {} code, {}", self.cpu, self.simd, count(self.threads, "thread"))
    }

    /// Everything that affects times, as text, but what is named in `except`: `activation`, `fused`
    /// or `int8`.
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

/// Part of a batch that an operator belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// From bytes to a batch.
    Data,
    /// Forward pass and loss.
    Forward,
    /// Backward pass.
    Backward,
    /// Collecting gradients after backward, and copying them into buckets and out of messages.
    Copy,
    /// All-reduce of gradients.
    Communication,
    /// Weight update.
    Optimizer,
    /// Time of a batch outside all operators.
    #[default]
    Rest,
    /// Test after an epoch, on a time line alone.
    Evaluation,
    /// Writing a checkpoint, on a time line alone.
    Checkpoint,
}

/// The name in tables and files.
impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One operator in one phase, or all operators of a kind. Sums over all calls, but the peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// Name of the operator; the kind in a table by kind.
    pub name: String,
    /// What it computes.
    pub kind: String,
    /// Part of the batch.
    pub phase: Phase,
    /// Number of calls.
    pub calls: usize,
    /// Self time in percent of the wall time.
    pub self_cpu_percent: f64,
    /// Time without operators inside.
    pub self_cpu_ms: f64,
    /// Total time in percent of the wall time.
    pub cpu_total_percent: f64,
    /// Time with operators inside.
    pub cpu_total_ms: f64,
    /// Total time of a call.
    pub cpu_time_avg_ms: f64,
    /// Bytes allocated less bytes freed, with operators inside.
    pub memory_bytes: i64,
    /// The same without them.
    pub self_memory_bytes: i64,
    /// Largest increase of the live bytes during a call.
    pub peak_memory_bytes: i64,
    /// Bytes allocated, freed or not, without operators inside.
    pub allocated_bytes: u64,
    /// Bytes that a rank sends in a call; collectives alone, as the following.
    pub bytes: Option<usize>,
    /// Time in flight while backward ran.
    pub hidden_ms: Option<f64>,
    /// Time that the rank waited.
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

/// Sums over the operators of a kind and phase, sorted by `value`.
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

/// The rows with the highest `value` first, and the rest last.
pub fn sorted(mut rows: Vec<ProfileRow>, value: impl Fn(&ProfileRow) -> f64) -> Vec<ProfileRow> {
    let is_rest = |row: &ProfileRow| row.phase == Phase::Rest;
    rows.sort_by(|a, b| is_rest(a).cmp(&is_rest(b)).then(value(b).total_cmp(&value(a))));
    rows
}
