//! Rows of a profile: operators, and their sums by kind.

use serde::{Deserialize, Serialize};

use super::Phase;

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
