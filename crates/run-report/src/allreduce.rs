//! The table of `mpiburn bench allreduce`: latency and bandwidth by message size and backend.

use std::path::Path;

use super::LatencyRow;
use super::benchmarks::{ALLREDUCE, Benchmark};
use super::collectives::distinct;
use super::figures::Figures;
use super::latency::human_size;
use super::sheet::{Cell, Column, Sheet};

impl Benchmark for LatencyRow {
    const NAME: &'static str = ALLREDUCE;
    const TITLE: &'static str = "All-reduce";
    const FIGURES: Option<&'static str> = None;

    /// A line for each backend: the latencies of the smallest and the largest message, and the highest
    /// bandwidth.
    fn findings(rows: &[Self]) -> Vec<String> {
        let line = |backend: &str| {
            let own = || rows.iter().filter(|row| row.backend == backend);
            let (least, most) = (own().min_by_key(|row| row.bytes)?, own().max_by_key(|row| row.bytes)?);
            let widest = own().max_by(|a, b| a.busbw_mb_s.total_cmp(&b.busbw_mb_s))?;
            let of = |row: &Self| format!("{:.2} µs for {}", row.median_us, human_size(row.bytes));
            let mut line = format!("{backend}: {}", of(least));
            if most.bytes > least.bytes {
                line += &format!(", {}", of(most));
            }
            if widest.busbw_mb_s > 0.0 {
                let size = human_size(widest.bytes);
                line += &format!("; highest bus bandwidth {:.1} MB/s, at {size}", widest.busbw_mb_s);
            }
            Some(line)
        };
        distinct(rows, |row| &row.backend).into_iter().filter_map(line).collect()
    }

    fn sheets(name: &str, part: &str, path: &Path, rows: &[Self], _: Option<&Figures>) -> Vec<Sheet> {
        let own = |number, digits| Cell::measured(number, digits, path);
        let columns = vec![
            Column::words("size", "size")
                .means("Size of the message, which each rank contributes")
                .of(|row: &Self| Cell::text(human_size(row.bytes))),
            Column::words("backend", "backend")
                .means("Transport; ordered: sums in the order of ranks")
                .of(|row: &Self| Cell::text(&row.backend)),
            Column::number("bytes", "bytes").for_programs().of(|row: &Self| Cell::text(row.bytes.to_string())),
            Column::number("min µs", "min_us").means("Shortest call").ranked(1).of(|row: &Self| own(row.min_us, 2)),
            Column::number("median µs", "median_us").means("Median over the calls").of(|row: &Self| own(row.median_us, 2)),
            Column::number("p99 µs", "p99_us")
                .means("99 of 100 calls take no longer")
                .ranked(2)
                .of(|row: &Self| own(row.p99_us, 2)),
            Column::number("busbw MB/s", "busbw_mb_s")
                .means("Bus bandwidth at the median, in 10^6 bytes a second: 2(n-1)/n of the message for n ranks")
                .of(|row: &Self| own(row.busbw_mb_s, 1)),
        ];
        let mut sorted: Vec<&Self> = rows.iter().collect();
        sorted.sort_by_key(|row| row.bytes);
        let remark = "The latency of a call is the mean over ranks. The bus bandwidth counts the least possible traffic of \
                      an all-reduce, and is 0 on one rank.";
        let title = format!("{part}: latency and bus bandwidth by message size");
        vec![Sheet::of(name, title, columns, sorted).with_remarks([remark.into()])]
    }
}
