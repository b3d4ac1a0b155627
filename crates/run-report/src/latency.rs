//! Latency statistics of repeated calls of one operation.

use serde::{Deserialize, Serialize};

use super::csv_table::TableRow;

/// The latency of one message size on one backend: a row of the CSV file, whose
/// columns are the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Backend, by its option value.
    pub backend: String,
    /// Size of the message in bytes.
    pub bytes: usize,
    /// Shortest latency in µs.
    pub min_us: f64,
    /// Median latency in µs.
    pub median_us: f64,
    /// 99th percentile of the latency in µs.
    pub p99_us: f64,
    /// Bus bandwidth at the median, in MB/s of 10^6 bytes.
    pub busbw_mb_s: f64,
}

impl LatencyRow {
    /// Statistics of the latencies, in µs, of an all-reduce of `bytes` over `ranks`;
    /// `latencies` is not empty.
    pub fn of_all_reduce(backend: &str, bytes: usize, ranks: usize, mut latencies: Vec<f64>) -> Self {
        latencies.sort_by(f64::total_cmp);
        let median = median(&latencies);
        Self {
            backend: backend.to_owned(),
            bytes,
            min_us: rounded(latencies[0]),
            median_us: rounded(median),
            p99_us: rounded(percentile(&latencies, 99)),
            busbw_mb_s: rounded(bus_bandwidth(ranks, bytes, median)),
        }
    }
}

/// The median of `sorted`, which is not empty.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len().is_multiple_of(2) {
        true => (sorted[half - 1] + sorted[half]) / 2.0,
        false => sorted[half],
    }
}

/// The median of `values`, in any order; none if it is empty.
pub fn median_of(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| median(&values))
}

/// The smallest of `sorted` that at least `percent` of 100 do not exceed. `sorted` is
/// not empty, and `percent` is from 1 to 100.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

/// Bus bandwidth of an all-reduce that takes `us` µs, in MB/s of 10^6 bytes, as
/// nccl-tests define it: the least possible traffic, 2(n-1)/n of the message, over each
/// of the `ranks`' links.
pub fn bus_bandwidth(ranks: usize, bytes: usize, us: f64) -> f64 {
    if us <= 0.0 {
        return 0.0;
    }
    let n = ranks as f64;
    2.0 * (n - 1.0) / n * bytes as f64 / us
}

/// A human-readable size: `4 B`, `17 KiB`, `13 MiB`.
pub fn human_size(bytes: usize) -> String {
    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;
    match bytes {
        n if n >= MIB && n.is_multiple_of(MIB) => format!("{} MiB", n / MIB),
        n if n >= KIB && n.is_multiple_of(KIB) => format!("{} KiB", n / KIB),
        n => format!("{n} B"),
    }
}

impl TableRow for LatencyRow {
    const REPAIR: &'static str =
        "left out: write it again with mpiburn bench allreduce --csv FILE, or remove it";
}

/// Rounds to a thousandth, which is below the clock's resolution.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv_table::Table;
    use crate::write_csv;

    #[test]
    fn percentiles_are_measured_values() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&hundred, 99), percentile(&hundred, 100)), (99.0, 100.0));
        assert_eq!(percentile(&[1.0, 2.0, 3.0], 99), 3.0);
        assert_eq!(percentile(&[7.0], 1), 7.0);
        assert_eq!((median(&hundred), median(&[1.0, 2.0, 9.0])), (50.5, 2.0));
        assert_eq!((median_of(vec![9.0, 1.0, 2.0]), median_of(Vec::new())), (Some(2.0), None));
    }

    #[test]
    fn the_bus_bandwidth_counts_the_minimum_traffic() {
        assert_eq!(bus_bandwidth(2, 1_000_000, 1000.0), 1000.0);
        assert_eq!(bus_bandwidth(4, 1_000_000, 1000.0), 1500.0);
        assert_eq!(bus_bandwidth(1, 1_000_000, 1000.0), 0.0, "one rank sends nothing");
        assert_eq!(bus_bandwidth(2, 4, 0.0), 0.0, "0 µs is below the clock's resolution");
    }

    #[test]
    fn sizes_are_written_in_the_largest_whole_unit() {
        let sizes = [4, 1000, 17408, 13631488, (1 << 20) + 1024];
        assert_eq!(sizes.map(human_size), ["4 B", "1000 B", "17 KiB", "13 MiB", "1025 KiB"]);
    }

    #[test]
    fn times_and_messages_of_nothing_are_damage() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (row, expected) in [
            ("mpi,4,0.0,0.0,0.0,0.0", "column min_us: 0.0 is not above 0"),
            ("mpi,0,1.0,2.0,3.0,0.0", "column bytes: 0 is not above 0"),
        ] {
            std::fs::write(file.path(), format!("backend,bytes,min_us,median_us,p99_us,busbw_mb_s\n{row}\n"))
                .unwrap();
            let Table::Damaged(line) = Table::<LatencyRow>::read(file.path()) else { panic!("{row}") };
            assert!(line.contains(expected) && line.contains("bench allreduce"), "{line}");
        }
    }

    #[test]
    fn the_csv_columns_are_as_documented() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let row = LatencyRow::of_all_reduce("mpi", 17408, 2, vec![3.0, 2.0, 1.00049]);
        write_csv(file.path(), std::slice::from_ref(&row)).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "backend,bytes,min_us,median_us,p99_us,busbw_mb_s\nmpi,17408,1.0,2.0,3.0,8704.0\n");
        assert_eq!(Table::read(file.path()), Table::Rows(vec![row]));
        std::fs::write(file.path(), "a,b\n1,2\n").unwrap();
        assert_eq!(Table::<LatencyRow>::read(file.path()), Table::Another);
    }
}
