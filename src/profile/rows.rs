//! Tables of a profile: operators, kinds and collectives.

use std::fmt;
use std::time::Duration;

use burn_mpi::BucketReport;
use clap::ValueEnum;
use serde::Serialize;

use crate::spans::{Phase, Recorder, Sums, parameters};
use crate::values;

/// Column by which tables are sorted, largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum SortKey {
    /// Self CPU time.
    #[default]
    #[value(name = "self")]
    #[serde(rename = "self")]
    Own,
    /// Total CPU time.
    Total,
    /// Peak memory.
    Memory,
}

impl fmt::Display for SortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&values::name(self))
    }
}

/// One operator in one phase, or all operators of a kind. Sums over all calls, but the peak.
#[derive(Debug, Clone, PartialEq, Serialize)]
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

/// A finished profile.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Time of all batches.
    pub wall_ms: f64,
    /// Operators in the order of their first call, the rest first.
    pub operators: Vec<ProfileRow>,
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

impl Profile {
    /// What `recorder` has measured. `buckets` are those of a training on `ranks` ranks in
    /// `steps` steps.
    pub fn new(recorder: &Recorder, buckets: &[BucketReport], ranks: usize, steps: usize) -> Self {
        let wall_ms = recorder.sums().next().map_or(0.0, |rest| ms(rest.total));
        let mut operators: Vec<ProfileRow> = recorder
            .sums()
            .filter(|sums| sums.phase != Phase::Communication)
            .map(|sums| row(sums, wall_ms))
            .collect();
        for ((sums, hidden), bucket) in recorder.buckets().zip(buckets) {
            // Starting and waiting are calls of the same all-reduce.
            let mut row = row(&Sums { calls: steps, ..sums.clone() }, wall_ms);
            let (hidden, exposed) = (ms(hidden), row.self_cpu_ms);
            let sent = 2.0 * (ranks - 1) as f64 / ranks as f64 * bucket.bytes as f64 * steps as f64;
            row.name = format!("{} ({})", row.name, parameters(&bucket.parameters));
            row.bytes = Some(bucket.bytes);
            row.hidden_ms = Some(hidden);
            row.exposed_ms = Some(exposed);
            row.bandwidth_mb_s = Some(1e-3 * sent / (hidden + exposed).max(f64::MIN_POSITIVE));
            operators.push(row);
        }
        Self { wall_ms, operators }
    }

    /// Share of the wall time inside operators, in percent.
    pub fn accounted_percent(&self) -> f64 {
        let rest = self.operators.iter().filter(|row| row.phase == Phase::Rest);
        100.0 - rest.map(|row| row.self_cpu_percent).sum::<f64>()
    }

    /// The operators, sorted; the rest last.
    pub fn by_operator(&self, key: SortKey) -> Vec<ProfileRow> {
        sorted(self.operators.clone(), key)
    }

    /// Sums over the operators of a kind and phase, sorted; the rest last.
    pub fn by_kind(&self, key: SortKey) -> Vec<ProfileRow> {
        let mut kinds: Vec<ProfileRow> = Vec::new();
        for row in &self.operators {
            match kinds.iter_mut().find(|kind| (&kind.kind, kind.phase) == (&row.kind, row.phase)) {
                Some(kind) => kind.add(row),
                None => kinds.push(ProfileRow { name: row.kind.clone(), ..row.clone() }),
            }
        }
        sorted(kinds, key)
    }

    /// The collectives, in the order in which they start.
    pub fn collectives(&self) -> impl Iterator<Item = &ProfileRow> {
        self.operators.iter().filter(|row| row.bytes.is_some())
    }
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

fn row(sums: &Sums, wall_ms: f64) -> ProfileRow {
    // The rest has nothing inside: it is what remains.
    let (total, total_bytes) = match sums.phase {
        Phase::Rest => (sums.own, sums.own_bytes),
        _ => (sums.total, sums.total_bytes),
    };
    let percent = |time| 100.0 * ms(time) / wall_ms.max(f64::MIN_POSITIVE);
    ProfileRow {
        name: sums.operator.name(),
        kind: sums.operator.kind.clone(),
        phase: sums.phase,
        calls: sums.calls,
        self_cpu_percent: percent(sums.own),
        self_cpu_ms: ms(sums.own),
        cpu_total_percent: percent(total),
        cpu_total_ms: ms(total),
        cpu_time_avg_ms: ms(total) / sums.calls as f64,
        memory_bytes: total_bytes,
        self_memory_bytes: sums.own_bytes,
        peak_memory_bytes: sums.peak_bytes,
        allocated_bytes: sums.allocated_bytes,
        bytes: None,
        hidden_ms: None,
        exposed_ms: None,
        bandwidth_mb_s: None,
    }
}

fn sorted(mut rows: Vec<ProfileRow>, key: SortKey) -> Vec<ProfileRow> {
    let value = |row: &ProfileRow| match key {
        SortKey::Own => row.self_cpu_ms,
        SortKey::Total => row.cpu_total_ms,
        SortKey::Memory => row.peak_memory_bytes as f64,
    };
    let is_rest = |row: &ProfileRow| row.phase == Phase::Rest;
    rows.sort_by(|a, b| is_rest(a).cmp(&is_rest(b)).then(value(b).total_cmp(&value(a))));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spans::Operator;

    fn sums(layer: &str, kind: &str, phase: Phase, own: u64, peak_bytes: i64) -> Sums {
        let own = Duration::from_millis(own);
        let operator = Operator::new(layer, kind);
        let total = if phase == Phase::Rest { Duration::from_millis(100) } else { own };
        let calls = 2;
        Sums {
            operator,
            phase,
            calls,
            own,
            total,
            own_bytes: 8,
            total_bytes: 16,
            peak_bytes,
            allocated_bytes: 5,
        }
    }

    fn profile() -> Profile {
        let sums = [
            sums("rest", "rest", Phase::Rest, 4, 1000),
            sums("linear1", "linear", Phase::Forward, 30, 10),
            sums("relu", "relu", Phase::Forward, 16, 50),
            sums("linear2", "linear", Phase::Forward, 20, 30),
            sums("linear2", "linear", Phase::Backward, 30, 40),
        ];
        Profile { wall_ms: 100.0, operators: sums.iter().map(|sums| row(sums, 100.0)).collect() }
    }

    fn names(rows: &[ProfileRow]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn self_times_sum_to_the_wall_time_and_the_rest_is_a_row() {
        let profile = profile();
        let sum: f64 = profile.operators.iter().map(|row| row.self_cpu_ms).sum();
        assert!((sum - profile.wall_ms).abs() < 1e-9);
        assert!((profile.accounted_percent() - 96.0).abs() < 1e-9);
        let rest = &profile.operators[0];
        assert_eq!((rest.cpu_total_ms, rest.memory_bytes), (rest.self_cpu_ms, rest.self_memory_bytes));
    }

    #[test]
    fn rows_are_sorted_with_the_rest_last() {
        let profile = profile();
        let found = profile.by_operator(SortKey::Own);
        assert_eq!(names(&found), ["linear1 linear", "linear2 linear", "linear2 linear", "relu", "rest"]);
        let found = profile.by_operator(SortKey::Memory);
        assert_eq!(names(&found), ["relu", "linear2 linear", "linear2 linear", "linear1 linear", "rest"]);
    }

    #[test]
    fn kinds_are_summed_in_each_phase() {
        let found = profile().by_kind(SortKey::Total);
        assert_eq!(names(&found), ["linear", "linear", "relu", "rest"]);
        let linear = &found[0];
        assert_eq!((linear.phase, linear.calls, linear.peak_memory_bytes), (Phase::Forward, 4, 30));
        assert!((linear.self_cpu_ms - 50.0).abs() < 1e-9 && (linear.cpu_time_avg_ms - 12.5).abs() < 1e-9);
        assert_eq!((linear.memory_bytes, linear.allocated_bytes), (32, 10));
    }
}
