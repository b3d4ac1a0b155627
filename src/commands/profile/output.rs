//! Prints the tables of `mpiburn profile`: operators, kinds of operators, and collectives.

use crate::options::RunConfig;
use crate::profile::{MeasuredProfile, ProfileRow, SortKey};
use crate::spans::Phase;
use crate::train::MixedPrecision;
use run_record::count;
use terminal::table::{Table, shortened, table};

type StoredProfile = run_record::profile::Profile<RunConfig>;

/// Prints the tables of operators, kinds and collectives, and the totals.
pub fn print(file: &StoredProfile, profile: &MeasuredProfile, sort: SortKey) {
    println!("{}", title(file));
    let is_detailed = log::log_enabled!(log::Level::Debug);
    println!("{}", operators("operator", &file.operators, is_detailed));
    println!("{}", operators("kind", &profile.by_kind(sort), is_detailed));
    let collectives: Vec<&ProfileRow> = profile.collectives().collect();
    if !collectives.is_empty() {
        println!("{}", buckets(&collectives, is_detailed));
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

fn title(file: &StoredProfile) -> String {
    let what = if file.train { "training step" } else { "inference" };
    let ranks = if file.ranks == 1 { "" } else { ", times of rank 0" };
    let mixed = match file.config.precision {
        MixedPrecision::No => String::new(),
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

/// Makes the table of operators or of kinds; `first` is the title of the first column. Without `-v`, the
/// table has fewer columns, so that it fits into 100 characters.
fn operators(first: &'static str, rows: &[ProfileRow], is_detailed: bool) -> Table {
    type CellText = fn(&ProfileRow) -> String;
    let name: CellText = if is_detailed { |row| row.name.clone() } else { |row| shortened(&row.name, 28) };
    let phase: CellText = |row| match row.phase {
        Phase::Rest => String::new(),
        phase => phase.to_string(),
    };
    let columns: [(&str, bool, CellText); 11] = [
        (first, true, name),
        ("phase", true, phase),
        ("self %", true, |row| format!("{:.2}", row.self_cpu_percent)),
        ("self CPU", true, |row| time(row.self_cpu_ms)),
        ("total %", false, |row| format!("{:.2}", row.cpu_total_percent)),
        ("CPU total", true, |row| time(row.cpu_total_ms)),
        ("CPU avg", false, |row| time(row.cpu_time_avg_ms)),
        ("CPU mem", false, |row| bytes(row.memory_bytes)),
        ("self mem", false, |row| bytes(row.self_memory_bytes)),
        ("peak mem", true, |row| bytes(row.peak_memory_bytes)),
        ("calls", true, |row| row.calls.to_string()),
    ];
    let shown: Vec<_> = columns.into_iter().filter(|(_, is_common, _)| *is_common || is_detailed).collect();
    let header: Vec<&str> = shown.iter().map(|(title, ..)| *title).collect();
    table(&header, 2, rows.iter().map(|row| shown.iter().map(|(.., cell)| cell(row)).collect()))
}

fn buckets(rows: &[&ProfileRow], is_detailed: bool) -> Table {
    let header = ["collective", "size", "hidden", "exposed", "busbw MB/s", "calls"];
    let lines = rows.iter().map(|row| {
        vec![
            if is_detailed { row.name.clone() } else { shortened(&row.name, 40) },
            bytes(row.bytes.unwrap_or_default() as i64),
            time(row.hidden_ms.unwrap_or_default()),
            time(row.exposed_ms.unwrap_or_default()),
            format!("{:.1}", row.bandwidth_mb_s.unwrap_or_default()),
            row.calls.to_string(),
        ]
    });
    table(&header, 1, lines)
}

/// Formats milliseconds as s, ms or µs.
fn time(ms: f64) -> String {
    match ms {
        ms if ms >= 1000.0 => four_digits(ms / 1e3, "s"),
        ms if ms >= 1.0 => four_digits(ms, "ms"),
        ms => four_digits(1e3 * ms, "µs"),
    }
}

fn four_digits(value: f64, unit: &str) -> String {
    let before = value.abs().max(1.0).log10() as usize;
    format!("{value:.*} {unit}", 3usize.saturating_sub(before))
}

/// Formats bytes in units of powers of 1024, as PyTorch's profiler does. Freed bytes are negative.
fn bytes(bytes: i64) -> String {
    let size = bytes.unsigned_abs() as f64;
    let value = bytes as f64;
    match size {
        size if size >= 1024.0 * 1024.0 => four_digits(value / (1024.0 * 1024.0), "MB"),
        size if size >= 1024.0 => four_digits(value / 1024.0, "KB"),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_have_the_unit_that_suits_them() {
        assert_eq!([time(1234.5), time(12.3456), time(0.0123)], ["1.234 s", "12.35 ms", "12.30 µs"]);
        assert_eq!([time(2e7), time(0.0)], ["20000 s", "0.000 µs"]);
        assert_eq!([bytes(-4_970_250), bytes(472_100), bytes(-12)], ["-4.740 MB", "461.0 KB", "-12 B"]);
    }

    /// The values are as wide as in a profile that takes one minute.
    #[test]
    fn tables_fit_100_columns() {
        let row = ProfileRow {
            name: "bucket 1 all-reduce (a.layer.with.a.long.name.weight and 12 more)".into(),
            kind: "all-reduce".into(),
            phase: Phase::Communication,
            calls: 100_000,
            self_cpu_percent: 99.99,
            self_cpu_ms: 999.9,
            cpu_total_percent: 99.99,
            cpu_total_ms: 999.9,
            cpu_time_avg_ms: 999.9,
            memory_bytes: -1_072_000,
            self_memory_bytes: -1_072_000,
            peak_memory_bytes: 1_072_000,
            allocated_bytes: 1_072_000,
            bytes: Some(1_072_000),
            hidden_ms: Some(999.9),
            exposed_ms: Some(999.9),
            bandwidth_mb_s: Some(99_999.9),
        };
        let widest = |table: Table| {
            let text = table.to_string();
            text.lines().map(|line| line.chars().count()).max()
        };
        let rows = std::slice::from_ref(&row);
        for width in [widest(operators("operator", rows, false)), widest(buckets(&[&row], false))] {
            assert!(width <= Some(100), "{width:?}");
        }
        assert!(widest(operators("operator", rows, true)) > Some(100), "-v has all columns");
    }
}
