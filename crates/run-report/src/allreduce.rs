//! The table of `mpiburn bench allreduce`: latency and bus bandwidth by message size and backend. This module
//! also computes medians and percentiles for other modules.

use itertools::Itertools;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::benchmarks::Benchmark;
use super::csv_table::TableRow;
use super::plots::{Axis, Line, LinePlot, Mark, Palette, Panel, Picture, Plot, span};
use super::published::Figures;
use super::sheet::{Cell, Column, Sheet, significant};

/// Latencies of one message size on one backend: a row of the CSV file. The columns are the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Backend: the transport, such as `mpi`.
    pub backend: String,
    /// Size of the message in bytes.
    pub bytes: usize,
    /// Shortest latency in µs.
    pub min_us: f64,
    /// Median latency in µs.
    pub median_us: f64,
    /// 99th percentile of the latency in µs.
    pub p99_us: f64,
    /// Bus bandwidth at the median latency, in MB/s of 10^6 bytes.
    pub busbw_mb_s: f64,
}

impl LatencyRow {
    /// Computes the statistics of an all-reduce of `bytes` over `ranks`. `latencies` are in µs and not empty.
    pub fn of_all_reduce(backend: &str, bytes: usize, ranks: usize, mut latencies: Vec<f64>) -> Self {
        latencies.sort_by(f64::total_cmp);
        let [min_us, median_us, p99_us] = statistics(&latencies);
        let busbw_mb_s = rounded(bus_bandwidth(ranks, bytes, median(&latencies)));
        Self { backend: backend.to_owned(), bytes, min_us, median_us, p99_us, busbw_mb_s }
    }
}

/// Returns the median of `sorted`, which must not be empty.
pub fn median(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    if sorted.len().is_multiple_of(2) { (sorted[half - 1] + sorted[half]) / 2.0 } else { sorted[half] }
}

/// Returns the median of `values`, in any order; `None` if there are no values.
pub fn median_of(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| median(&values))
}

/// Returns minimum, median and 99th percentile of `sorted`, which must not be empty.
pub fn statistics(sorted: &[f64]) -> [f64; 3] {
    [sorted[0], median(sorted), percentile(sorted, 99)].map(rounded)
}

/// Returns the nearest-rank percentile: the lowest value in `sorted` that at least `percent`% of the values
/// do not exceed. `sorted` must not be empty; `percent` is from 1 to 100.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

/// Returns the bus bandwidth of an all-reduce that takes `us` µs, in MB/s of 10^6 bytes. As in nccl-tests,
/// the bus bandwidth is the minimum traffic on each rank's link, divided by the time. For n ranks, this
/// traffic is 2(n-1)/n times the size of the message.
fn bus_bandwidth(ranks: usize, bytes: usize, us: f64) -> f64 {
    if us <= 0.0 {
        return 0.0;
    }
    let n = ranks as f64;
    2.0 * (n - 1.0) / n * bytes as f64 / us
}

/// Formats a size in the largest unit that divides it: `4 B`, `17 KiB`, `13 MiB`.
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
    const REPAIR: &'static str = "create it again with mpiburn bench allreduce --csv FILE, or remove it";
}

/// Rounds µs or MB/s to three decimal places: further places would be noise.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl Benchmark for LatencyRow {
    const NAME: &'static str = "bench-allreduce";
    const TITLE: &'static str = "All-reduce";
    const FIGURES: Option<&'static str> = None;

    fn picture(number: usize, path: &Path, rows: &[Self]) -> Option<Picture> {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or("latency");
        let plot = latency_plot(format!("all-reduce, {stem}"), rows);
        let caption = format!("Latency of the all-reduce by message size, from {}.", path.display());
        Some(Picture { name: format!("allreduce-{number}-{stem}"), caption, plot })
    }

    /// Returns a line for each backend: the latencies of the smallest and the largest message, and the
    /// highest bandwidth.
    fn findings(rows: &[Self]) -> Vec<String> {
        let line = |backend: &str| {
            let own = || rows.iter().filter(|row| row.backend == backend);
            let (least, most) = (own().min_by_key(|row| row.bytes)?, own().max_by_key(|row| row.bytes)?);
            let widest = own().max_by(|a, b| a.busbw_mb_s.total_cmp(&b.busbw_mb_s))?;
            let words_of = |row: &Self| format!("{:.2} µs for {}", row.median_us, human_size(row.bytes));
            let mut line = format!("{backend}: {}", words_of(least));
            if most.bytes > least.bytes {
                line += &format!(", {}", words_of(most));
            }
            if widest.busbw_mb_s > 0.0 {
                let size = human_size(widest.bytes);
                line += &format!("; highest bus bandwidth {:.1} MB/s, at {size}", widest.busbw_mb_s);
            }
            Some(line)
        };
        rows.iter().map(|row| row.backend.as_str()).unique().filter_map(line).collect()
    }

    /// Makes a table with a row for each message size and columns for each backend.
    fn sheets(name: &str, part: &str, path: &Path, rows: &[Self], _: Option<&Figures>) -> Vec<Sheet> {
        type Read = fn(&LatencyRow) -> f64;
        let measures: [(&str, &str, &str, u8, usize, Read); 4] = [
            ("µs", "median_us", "Median latency over the calls", 0, 2, |row| row.median_us),
            (
                "MB/s",
                "busbw_mb_s",
                "Bus bandwidth in 10^6 bytes per second: 2(n-1)/n of the message size for n ranks, divided by the median latency",
                1,
                1,
                |row| row.busbw_mb_s,
            ),
            ("p99 µs", "p99_us", "99th percentile of the latency over the calls", 2, 2, |row| row.p99_us),
            ("min µs", "min_us", "Latency of the fastest call", 3, 2, |row| row.min_us),
        ];
        let mut columns = vec![
            Column::words("size", "size")
                .means("Size of the message of each rank")
                .shows(|bytes: &usize| Cell::text(human_size(*bytes))),
            Column::number("bytes", "bytes")
                .for_programs()
                .shows(|bytes: &usize| Cell::text(bytes.to_string())),
        ];
        for (title, key, meaning, hide_order, digits, read) in measures {
            for backend in rows.iter().map(|row| row.backend.as_str()).unique() {
                let column = Column::number(&format!("{backend} {title}"), &format!("{backend}_{key}"));
                columns.push(column.means(meaning).hide_order(hide_order).shows(move |bytes: &usize| {
                    let found = rows.iter().find(|row| row.backend == backend && row.bytes == *bytes);
                    Cell::maybe(found.map(|row| Cell::measured(read(row), digits, path)))
                }));
            }
        }
        let sizes: Vec<usize> = rows.iter().map(|row| row.bytes).sorted().dedup().collect();
        let remark = "µs: median over the calls; the latency of a call is its mean over ranks. MB/s: bus bandwidth, computed from \
                      the minimum traffic of an all-reduce, and 0 on one rank. ordered: sums in the order of ranks.";
        let title = format!("{part}: latency and bus bandwidth by message size");
        vec![Sheet::from_rows(name, title, columns, &sizes).with_remarks([remark.into()])]
    }
}

/// Plots the median latencies of `rows`, with the heading `title`.
pub fn latency_plot(title: String, rows: &[LatencyRow]) -> Plot {
    // A measured time may be 0, which has no logarithm.
    let point = |row: &LatencyRow| ((row.bytes as f64).log2(), row.median_us.max(1e-3).log10());
    let (smallest, largest) = span(rows.iter().map(|row| point(row).0));
    let (fastest, slowest) = span(rows.iter().map(|row| point(row).1));
    let names: Vec<&str> = rows.iter().map(|row| row.backend.as_str()).unique().collect();
    let palette = Palette::for_sections(&[names.iter().map(ToString::to_string).collect()]);
    let line = |backend: &str| {
        let points: Vec<_> = rows.iter().filter(|row| row.backend == backend).map(point).collect();
        Line { colour: palette.colour(backend), dots: points.clone(), points, ..Line::default() }
    };
    let (sizes, latencies) = (smallest - 0.6..largest + 0.6, fastest - 0.15..slowest + 0.15);
    Plot::Lines(LinePlot {
        heading: String::new(),
        legend: names.iter().map(|name| (name.to_string(), palette.colour(name), Mark::Line)).collect(),
        panels: vec![Panel {
            title,
            x: Axis::linear("message size", sizes, 4, 1.0, |log| human_size(log.exp2().round() as usize)),
            y: Axis::logarithmic("median latency [µs]", latencies, |log| significant(10f64.powf(*log), 3)),
            lines: names.into_iter().map(line).collect(),
        }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv_table::read;
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
            ("mpi,4,0.0,0.0,0.0,0.0", "column min_us: 0.0 must be above 0"),
            ("mpi,0,1.0,2.0,3.0,0.0", "column bytes: 0 must be above 0"),
        ] {
            std::fs::write(file.path(), format!("backend,bytes,min_us,median_us,p99_us,busbw_mb_s\n{row}\n"))
                .unwrap();
            let line = read::<LatencyRow>(file.path()).unwrap_err();
            assert!(line.contains(expected) && line.contains("bench allreduce"), "{line}");
        }
    }

    #[test]
    fn sizes_are_rows_and_backends_columns() {
        let row_of = |backend, bytes, us| LatencyRow::of_all_reduce(backend, bytes, 2, vec![us]);
        let rows = [row_of("mpi", 1024, 2.0), row_of("mpi", 4, 1.0), row_of("gloo", 1024, 8.0)];
        let sheet = &LatencyRow::sheets("a", "P", Path::new("a.csv"), &rows, None)[0];
        let titles: Vec<&str> = sheet.columns.iter().map(|column| column.title.as_str()).collect();
        assert_eq!(titles[..6], ["size", "bytes", "mpi µs", "gloo µs", "mpi MB/s", "gloo MB/s"]);
        let shown = |row: usize| sheet.rows[row][..6].iter().map(Cell::shown).collect::<Vec<_>>();
        assert_eq!(shown(0), ["4 B", "4", "1.00", "–", "4.0", "–"]);
        assert_eq!(shown(1), ["1 KiB", "1024", "2.00", "8.00", "512.0", "128.0"]);
    }

    #[test]
    fn the_csv_columns_are_as_documented() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let row = LatencyRow::of_all_reduce("mpi", 17408, 2, vec![3.0, 2.0, 1.00049]);
        write_csv(file.path(), std::slice::from_ref(&row)).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "backend,bytes,min_us,median_us,p99_us,busbw_mb_s\nmpi,17408,1.0,2.0,3.0,8704.0\n");
        assert_eq!(read(file.path()), Ok(Some(vec![row])));
        std::fs::write(file.path(), "a,b\n1,2\n").unwrap();
        assert_eq!(read::<LatencyRow>(file.path()), Ok(None));
    }
}

#[cfg(test)]
mod latency_plot_tests {
    use std::path::Path;

    use super::*;

    fn rows() -> Vec<LatencyRow> {
        let sizes = [4usize, 1 << 10, 1 << 20];
        let row = |backend, bytes: usize| {
            LatencyRow::of_all_reduce(backend, bytes, 2, vec![0.5 + bytes as f64 / 2000.0])
        };
        sizes.iter().flat_map(|&bytes| [row("mpi", bytes), row("ordered", bytes)]).collect()
    }

    #[test]
    fn both_formats_are_written_with_their_labels() {
        let folder = tempfile::tempdir().unwrap();
        let svg = folder.path().join("a.svg");
        latency_plot("two ranks".into(), &rows()).save(&svg).unwrap();
        let text = std::fs::read_to_string(&svg).unwrap();
        for word in ["<svg", "two ranks", "mpi", "ordered", "message size", "KiB", "µs"] {
            assert!(text.contains(word), "{word} is missing");
        }
        let png = folder.path().join("a.PNG");
        latency_plot("two ranks".into(), &rows()).save(&png).unwrap();
        assert!(std::fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    }

    #[test]
    fn one_measurement_can_be_plotted() {
        let folder = tempfile::tempdir().unwrap();
        let rows = [LatencyRow::of_all_reduce("mpi", 4, 1, vec![0.0])];
        latency_plot(String::new(), &rows).save(&folder.path().join("a.svg")).unwrap();
    }

    #[test]
    fn an_unwritable_file_is_reported_with_the_reason() {
        let error =
            latency_plot("".into(), &rows()).save(Path::new("/nowhere/a.svg")).unwrap_err().to_string();
        assert!(error.starts_with("cannot write /nowhere/a.svg: the folder /nowhere "), "{error}");
    }
}
