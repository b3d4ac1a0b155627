//! Output of `mpiburn profile`: tables, CSV and JSON.

use std::path::{Path, PathBuf};

use super::Measured;
use crate::device::DeviceKind;
use crate::model::ModelKind;
use crate::options::RunConfig;
use crate::profile::{ProfileRow, SortKey};
use crate::spans::Phase;
use crate::train::Precision;
use burn_fused::simd::Level;
use run_record::count;
use run_report::latency::median_of;
use run_report::{table, write_csv, write_file};

/// The configuration and the measurements.
pub struct Output {
    pub model: ModelKind,
    pub train: bool,
    pub int8: bool,
    pub batches: usize,
    /// Samples of a batch.
    pub batch: usize,
    pub ranks: usize,
    pub device: DeviceKind,
    pub precision: Precision,
    pub fused: bool,
    pub threads: usize,
    pub simd: Level,
    /// The run or checkpoint whose network and samples were taken.
    pub checkpoint: Option<PathBuf>,
    /// Bytes of a checkpoint's file of these weights.
    pub checkpoint_bytes: usize,
    /// Processor of rank 0.
    pub cpu: String,
    /// All options.
    pub config: RunConfig,
    pub sort: SortKey,
    pub measured: Measured,
}

impl Output {
    /// Prints the tables.
    pub fn print(&self) {
        let profile = &self.measured.profile;
        println!("{}", self.title());
        println!("{}", operators("operator", &profile.by_operator(self.sort)));
        println!("{}", operators("kind", &profile.by_kind(self.sort)));
        let collectives: Vec<&ProfileRow> = profile.collectives().collect();
        if !collectives.is_empty() {
            println!("{}", buckets(&collectives));
        }
        let [with, without] = self.medians();
        println!(
            "{:.2} ms in {}, {:.1}% of it in operators; a batch takes {with:.3} ms, and {without:.3} ms \
             without profiling ({:+.1}%; medians)",
            profile.wall_ms,
            count(self.batches, "batch"),
            profile.accounted_percent(),
            100.0 * (with / without - 1.0),
        );
    }

    /// Writes the files that were named: CSV, then JSON.
    pub fn write(&self, [csv, json]: [Option<&Path>; 2]) -> anyhow::Result<()> {
        let operators = self.measured.profile.by_operator(self.sort);
        if let Some(path) = csv {
            write_csv(path, &operators)?;
        }
        if let Some(path) = json {
            let text = serde_json::to_string_pretty(&self.file(operators))?;
            write_file(path, (text + "\n").as_bytes())?;
        }
        Ok(())
    }

    fn file(&self, operators: Vec<ProfileRow>) -> run_report::profiles::Profile<&RunConfig> {
        let [batch_ms, batch_ms_without_profiling] = self.medians();
        run_report::profiles::Profile {
            path: PathBuf::new(),
            model: self.model.to_string(),
            train: self.train,
            int8: self.int8,
            batches: self.batches,
            batch: self.batch,
            ranks: self.ranks,
            device: self.device.to_string(),
            precision: self.precision.to_string(),
            fused: self.fused,
            threads: self.threads,
            simd: self.simd.to_string(),
            checkpoint: self.checkpoint.as_ref().map(|path| path.display().to_string()),
            checkpoint_bytes: self.checkpoint_bytes as u64,
            cpu: self.cpu.clone(),
            config: &self.config,
            wall_ms: self.measured.profile.wall_ms,
            accounted_percent: self.measured.profile.accounted_percent(),
            batch_ms,
            batch_ms_without_profiling,
            operators,
        }
    }

    /// Milliseconds of a batch, with profiling and without.
    fn medians(&self) -> [f64; 2] {
        [&self.measured.profiled, &self.measured.plain].map(|times| {
            median_of(times.iter().map(|time| 1e3 * time.as_secs_f64()).collect()).unwrap_or_default()
        })
    }

    fn title(&self) -> String {
        let what = if self.train { "training step" } else { "inference" };
        let ranks = if self.ranks == 1 { "" } else { ", times of rank 0" };
        let mixed = match self.precision {
            Precision::No => String::new(),
            other => format!(", {other}"),
        };
        format!(
            "{} of {}{} at batch {} ({}{mixed}, fused operators {}, {} code, {}, {}{ranks})",
            count(self.batches, what),
            self.model,
            if self.int8 { " in int8" } else { "" },
            self.batch,
            self.device,
            if self.fused { "on" } else { "off" },
            self.simd,
            count(self.threads, "thread"),
            count(self.ranks, "rank"),
        )
    }
}

/// The table of operators or of kinds; `first` is the title of the first column.
fn operators(first: &str, rows: &[ProfileRow]) -> run_report::table::Table {
    let header = [
        first,
        "phase",
        "self CPU %",
        "self CPU",
        "CPU total %",
        "CPU total",
        "CPU time avg",
        "CPU mem",
        "self CPU mem",
        "peak mem",
        "calls",
    ];
    let lines = rows.iter().map(|row| {
        vec![
            row.name.clone(),
            if row.phase == Phase::Rest { String::new() } else { row.phase.name().to_owned() },
            format!("{:.2}%", row.self_cpu_percent),
            time(row.self_cpu_ms),
            format!("{:.2}%", row.cpu_total_percent),
            time(row.cpu_total_ms),
            time(row.cpu_time_avg_ms),
            bytes(row.memory_bytes),
            bytes(row.self_memory_bytes),
            bytes(row.peak_memory_bytes),
            row.calls.to_string(),
        ]
    });
    table::table(&header, 2, lines)
}

fn buckets(rows: &[&ProfileRow]) -> run_report::table::Table {
    let header = ["collective", "size", "hidden", "exposed", "busbw MB/s", "calls"];
    let lines = rows.iter().map(|row| {
        vec![
            row.name.clone(),
            bytes(row.bytes.unwrap_or_default() as i64),
            time(row.hidden_ms.unwrap_or_default()),
            time(row.exposed_ms.unwrap_or_default()),
            format!("{:.1}", row.bandwidth_mb_s.unwrap_or_default()),
            row.calls.to_string(),
        ]
    });
    table::table(&header, 1, lines)
}

/// Milliseconds in the unit that suits them.
fn time(ms: f64) -> String {
    match ms {
        ms if ms >= 1000.0 => format!("{:.3} s", ms / 1e3),
        ms if ms >= 1.0 => format!("{ms:.3} ms"),
        ms => format!("{:.3} µs", 1e3 * ms),
    }
}

/// Bytes in units of powers of 1024, as PyTorch's profiler prints them; freed ones are negative.
fn bytes(bytes: i64) -> String {
    let size = bytes.unsigned_abs() as f64;
    let value = bytes as f64;
    match size {
        size if size >= 1024.0 * 1024.0 => format!("{:.2} MB", value / (1024.0 * 1024.0)),
        size if size >= 1024.0 => format!("{:.2} KB", value / 1024.0),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_the_unit_that_suits_them() {
        assert_eq!([time(1234.5), time(12.3456), time(0.0123)], ["1.234 s", "12.346 ms", "12.300 µs"]);
        assert_eq!([bytes(-4_970_250), bytes(4721), bytes(-12)], ["-4.74 MB", "4.61 KB", "-12 B"]);
    }
}
