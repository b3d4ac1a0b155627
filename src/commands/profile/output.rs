//! Output of `mpiburn profile`: tables, CSV and JSON.

use crate::options::RunConfig;
use crate::profile::{Profile, ProfileRow, SortKey};
use crate::spans::Phase;
use crate::train::Precision;
use run_record::count;
use run_report::profiles;
use run_report::table::{Table, table};

type File = profiles::Profile<RunConfig>;

/// Prints the tables.
pub fn print(file: &File, profile: &Profile, sort: SortKey) {
    println!("{}", title(file));
    println!("{}", operators("operator", &file.operators));
    println!("{}", operators("kind", &profile.by_kind(sort)));
    let collectives: Vec<&ProfileRow> = profile.collectives().collect();
    if !collectives.is_empty() {
        println!("{}", buckets(&collectives));
    }
    let (with, without) = (file.batch_ms, file.batch_ms_without_profiling);
    println!(
        "{:.2} ms in {}, {:.1}% of it in operators; a batch takes {with:.3} ms, and {without:.3} ms \
         without profiling ({:+.1}%; medians)",
        file.wall_ms,
        count(file.batches, "batch"),
        file.accounted_percent,
        100.0 * (with / without - 1.0),
    );
}

fn title(file: &File) -> String {
    let what = if file.train { "training step" } else { "inference" };
    let ranks = if file.ranks == 1 { "" } else { ", times of rank 0" };
    let mixed = match file.config.precision {
        Precision::No => String::new(),
        other => format!(", {other}"),
    };
    format!(
        "{} of {}{} at batch {} ({}{mixed}, fused operators {}, {} code, {}, {}{ranks})",
        count(file.batches, what),
        file.model,
        if file.int8 { " in int8" } else { "" },
        file.batch,
        file.device,
        if file.fused { "on" } else { "off" },
        file.simd,
        count(file.threads, "thread"),
        count(file.ranks, "rank"),
    )
}

/// The table of operators or of kinds; `first` is the title of the first column.
fn operators(first: &str, rows: &[ProfileRow]) -> Table {
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
    table(&header, 2, lines)
}

fn buckets(rows: &[&ProfileRow]) -> Table {
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
    table(&header, 1, lines)
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
