//! A network link: the time of a point-to-point message by message size, and the latency and bandwidth that
//! fit the measured times.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::ReportError;
use super::allreduce::statistics;
use super::csv_table::{self, TableRow};
use run_record::files::open_regular;

/// How to measure a link: two ranks on two hosts.
pub(super) const MEASURE: &str =
    "create it with `mpirun -n 2 --host alpha,beta mpiburn bench link --csv FILE`";

/// Times of messages of one size in one direction: a row of the CSV file. The columns are the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkRow {
    /// Backend: the transport, such as `mpi`.
    pub backend: String,
    /// Size of the message in bytes.
    pub bytes: usize,
    /// Shortest time in µs.
    pub min_us: f64,
    /// Median time in µs.
    pub one_way_us: f64,
    /// 99th percentile of the time in µs.
    pub p99_us: f64,
}

impl TableRow for LinkRow {
    const REPAIR: &'static str = MEASURE;
}

impl LinkRow {
    /// Computes the statistics of one message size. `times` are in µs and not empty.
    pub fn of_exchanges(backend: &str, bytes: usize, mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let [min_us, one_way_us, p99_us] = statistics(&times);
        Self { backend: backend.to_owned(), bytes, min_us, one_way_us, p99_us }
    }
}

/// A link that carries n bytes in α + βn (Hockney's model). If times were measured, they are used instead of
/// the model's times.
#[derive(Debug, Clone, PartialEq)]
pub struct Link {
    /// α, in µs.
    pub latency_us: f64,
    /// 1/β, in Mbit/s of 10^6 bits.
    pub bandwidth_mbit: f64,
    /// Measured sizes in bytes and times in µs, both ascending.
    measured: Vec<(f64, f64)>,
}

impl Link {
    /// Makes a link that follows the model, without measured times.
    pub fn new(latency_us: f64, bandwidth_mbit: f64) -> Self {
        Self { latency_us, bandwidth_mbit, measured: Vec::new() }
    }

    /// Returns the time of a message of `bytes` in µs.
    ///
    /// If times were measured, the result is interpolated between them. For a message that is larger than all
    /// measured messages, the bandwidth determines the additional time. A single line would not fit the
    /// measured times: switches and traffic shapers forward a first burst without delay.
    pub fn time_us(&self, bytes: f64) -> f64 {
        let microseconds = |bytes: f64| 8.0 * bytes / self.bandwidth_mbit;
        let (Some(&first), Some(&last)) = (self.measured.first(), self.measured.last()) else {
            return self.latency_us + microseconds(bytes);
        };
        if bytes <= first.0 {
            return first.1;
        }
        let pairs = self.measured.windows(2).map(|pair| (pair[0], pair[1]));
        pairs.into_iter().find(|(_, (to, _))| bytes <= *to).map_or_else(
            || last.1 + microseconds(bytes - last.0),
            |((x0, y0), (x1, y1))| y0 + (y1 - y0) * (bytes - x0) / (x1 - x0),
        )
    }

    /// Fits a link to `rows`; `None` if all times are equal, or no message has any bytes.
    ///
    /// α is the shortest median. β is the slope of the line that begins at α and is fitted by weighted least
    /// squares. The weight is the inverse of the size, because the variance of a time grows with the size.
    /// With this weight, β is the sum of (time − α) over all rows, divided by the sum of all bytes.
    pub fn fit(rows: &[LinkRow]) -> Option<Self> {
        let mut measured: Vec<(f64, f64)> =
            rows.iter().map(|row| (row.bytes as f64, row.one_way_us)).filter(|(_, us)| *us > 0.0).collect();
        measured.sort_by(|a, b| a.0.total_cmp(&b.0));
        measured.dedup_by_key(|(bytes, _)| *bytes);
        let latency_us = measured.iter().map(|(_, us)| *us).fold(f64::INFINITY, f64::min);
        let bytes: f64 = measured.iter().map(|(bytes, _)| bytes).sum();
        let slope = measured.iter().map(|(_, us)| us - latency_us).sum::<f64>() / bytes;
        // A longer message cannot be faster than a shorter one, so a decrease is noise.
        let mut longest = 0f64;
        for (_, us) in &mut measured {
            longest = longest.max(*us);
            *us = longest;
        }
        let is_line = slope.is_finite() && slope > 0.0;
        is_line.then(|| Self { latency_us, bandwidth_mbit: 8.0 / slope, measured })
    }

    /// Reads the link that `mpiburn bench link` measured.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged or not from `bench link`, or all its times are equal.
    pub fn read(path: &Path) -> Result<Self, ReportError> {
        let problem = "times do not grow with the message size: measure again with larger --sizes";
        Self::fit(&read_csv(path)?).ok_or_else(|| ReportError::read(path, problem))
    }
}

/// Reads the rows that [`write_csv`](super::write_csv) wrote.
///
/// # Errors
/// If the file cannot be read, is damaged or has other columns.
pub fn read_csv(path: &Path) -> Result<Vec<LinkRow>, ReportError> {
    open_regular(path).map_err(|error| ReportError::read(path, error))?;
    let other = || {
        ReportError::read(
            path,
            format!("it has other columns than `mpiburn bench link` writes: {}", LinkRow::REPAIR),
        )
    };
    csv_table::read(path).map_err(ReportError::damaged)?.ok_or_else(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::tells;
    use crate::write_csv;

    fn rows(times: &[(usize, f64)]) -> Vec<LinkRow> {
        times.iter().map(|&(bytes, us)| LinkRow::of_exchanges("mpi", bytes, vec![us])).collect()
    }

    #[test]
    fn an_exact_line_is_recovered() {
        // 50 µs and 100 Mbit/s, which is 0.08 µs per byte.
        let link = Link::fit(&rows(&[(0, 50.0), (1000, 130.0), (100_000, 8050.0)])).unwrap();
        assert!((link.latency_us - 50.0).abs() < 1e-6, "{link:?}");
        assert!((link.bandwidth_mbit - 100.0).abs() < 1e-6, "{link:?}");
        for bytes in [0.0, 500.0, 17_000.0, 1e6] {
            let predicted = Link::new(50.0, 100.0).time_us(bytes);
            assert!((link.time_us(bytes) - predicted).abs() < 1e-6 && predicted == 50.0 + 0.08 * bytes);
        }
    }

    #[test]
    fn a_shapers_burst_changes_times_but_not_the_bandwidth() {
        // No delay for the first 4000 bytes, then 8 Mbit/s, which is 1 µs per byte.
        let shaped = |bytes: usize| (bytes, 10.0 + bytes.saturating_sub(4000) as f64);
        let link = Link::fit(&rows(&[4, 1000, 4000, 16_000, 64_000, 256_000].map(shaped))).unwrap();
        assert_eq!((link.latency_us, link.time_us(2500.0), link.time_us(10_000.0)), (10.0, 10.0, 6010.0));
        assert!((7.9..8.6).contains(&link.bandwidth_mbit), "{link:?}");
    }

    #[test]
    fn times_that_do_not_grow_are_rejected() {
        assert_eq!(Link::fit(&rows(&[(4, 50.0)])), None);
        assert_eq!(Link::fit(&[]), None);
    }

    #[test]
    fn a_written_file_is_read_back_and_another_is_rejected_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("link.csv");
        let written = rows(&[(4, 50.0), (1000, 130.0)]);
        write_csv(&path, &written).unwrap();
        assert_eq!(read_csv(&path).unwrap(), written);
        std::fs::write(&path, "a,b\n1,2\n").unwrap();
        let error = Link::read(&path).unwrap_err().to_string();
        assert!(tells(&error, &["link.csv", "mpirun -n 2 ", "bench link --csv"]), "{error}");
    }
}
