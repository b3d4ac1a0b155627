//! Makes the rows of a profile's tables: operators, kinds of operators, and collectives.
//!
//! While a collective is in flight during backward, it takes no additional wall time. A collective therefore
//! has two times: hidden (in flight during backward) and exposed (in the calls that start it and wait for
//! it).

use std::time::Duration;

use burn_mpi::BucketReport;
use clap::ValueEnum;

use crate::spans::{SpanRecorder, Sums, parameters};
use run_record::profile::{Phase, ProfileRow, by_kind, sorted};

/// Column by which tables are sorted, largest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SortKey {
    /// Self CPU time.
    #[value(name = "self")]
    Own,
    /// Total CPU time.
    Total,
    /// Peak memory.
    Memory,
}

impl SortKey {
    fn value(self, row: &ProfileRow) -> f64 {
        match self {
            Self::Own => row.self_cpu_ms,
            Self::Total => row.cpu_total_ms,
            Self::Memory => row.peak_memory_bytes as f64,
        }
    }
}

/// The rows of a finished profile.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredProfile {
    /// Time of all batches, in ms.
    pub wall_ms: f64,
    /// First the row `rest`, the time of batches outside of operators. Then operators, in the order in which
    /// the recorder first met them. Then collectives.
    pub operators: Vec<ProfileRow>,
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

impl MeasuredProfile {
    /// Makes the rows from the sums of `recorder`. For a training on `ranks` ranks with `steps` steps,
    /// `buckets` are its buckets (buffers of gradients, each with its own all-reduce). For an inference,
    /// `buckets` is empty.
    pub fn new(recorder: &SpanRecorder, buckets: &[BucketReport], ranks: usize, steps: usize) -> Self {
        let wall_ms = recorder.sums().next().map_or(0.0, |rest| ms(rest.total));
        let mut operators: Vec<ProfileRow> = recorder
            .sums()
            .filter(|sums| sums.phase != Phase::Communication)
            .map(|sums| row(sums, wall_ms))
            .collect();
        for ((sums, hidden), bucket) in recorder.buckets().zip(buckets) {
            // Starting an all-reduce and waiting for it are two spans, but count as one call.
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

    /// Returns the operators and collectives, sorted by `key`. The row `rest` is last.
    pub fn by_operator(&self, key: SortKey) -> Vec<ProfileRow> {
        sorted(self.operators.clone(), |row| key.value(row))
    }

    /// Returns one row for each kind and phase, sorted by `key`. A row has the sums over the operators of its
    /// kind and phase, except `peak_memory_bytes`, which is their maximum. The row `rest` is last.
    pub fn by_kind(&self, key: SortKey) -> Vec<ProfileRow> {
        by_kind(&self.operators, |row| key.value(row))
    }

    /// Returns the collectives, in the order in which they start.
    pub fn collectives(&self) -> impl Iterator<Item = &ProfileRow> {
        self.operators.iter().filter(|row| row.bytes.is_some())
    }
}

fn row(sums: &Sums, wall_ms: f64) -> ProfileRow {
    // The recorder's total for `rest` is the time of whole batches, which includes all operators. The table
    // shows the self time instead: the time outside of operators.
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

    fn profile() -> MeasuredProfile {
        let sums = [
            sums("rest", "rest", Phase::Rest, 4, 1000),
            sums("linear1", "linear", Phase::Forward, 30, 10),
            sums("relu", "relu", Phase::Forward, 16, 50),
            sums("linear2", "linear", Phase::Forward, 20, 30),
            sums("linear2", "linear", Phase::Backward, 30, 40),
        ];
        MeasuredProfile { wall_ms: 100.0, operators: sums.iter().map(|sums| row(sums, 100.0)).collect() }
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
