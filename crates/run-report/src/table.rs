//! Tables on the console.

use comfy_table::presets::UTF8_FULL_CONDENSED;
pub use comfy_table::{CellAlignment, Table};
use itertools::Itertools;

use super::LatencyRow;
use super::allreduce::human_size;
use super::collectives::CollectiveRow;

/// A table of text with the columns of `header`; those after the first `left` are
/// numbers, aligned right.
pub fn table<S: ToString>(header: &[S], left: usize, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(header.iter().map(ToString::to_string));
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// The latencies as a table, with each size on its first line only.
pub fn of_latencies(rows: &[LatencyRow]) -> Table {
    let lines = rows.iter().enumerate().map(|(i, row)| {
        let repeated = i > 0 && rows[i - 1].bytes == row.bytes;
        vec![
            if repeated { String::new() } else { human_size(row.bytes) },
            row.backend.clone(),
            format!("{:.2}", row.min_us),
            format!("{:.2}", row.median_us),
            format!("{:.2}", row.p99_us),
            format!("{:.1}", row.busbw_mb_s),
        ]
    });
    table(&["size", "backend", "min µs", "median µs", "p99 µs", "busbw MB/s"], 2, lines)
}

/// The operations of `mpiburn bench collectives`, one a line, with a column for each backend.
pub fn of_collectives(rows: &[CollectiveRow]) -> Table {
    let backends = rows.iter().map(|row| row.backend.as_str()).unique();
    let lines = rows.iter().map(|row| row.operation.as_str()).unique().map(|operation| {
        let cell = |row: &CollectiveRow| row.median_us.map_or(row.result.clone(), |us| format!("{us:.2}"));
        let of_operation = rows.iter().filter(|row| row.operation == operation);
        std::iter::once(operation.to_owned()).chain(of_operation.map(cell)).collect()
    });
    let header: Vec<&str> = std::iter::once("operation").chain(backends).collect();
    table(&header, 1, lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_shown_once_and_numbers_are_right_aligned() {
        let row = |backend, us| LatencyRow::of_all_reduce(backend, 4096, 2, vec![us]);
        let text = of_latencies(&[row("mpi", 2.0), row("ordered", 12.5)]).to_string();
        assert_eq!(text.matches("4 KiB").count(), 1, "{text}");
        let ends: Vec<_> = ["  2.00 ", " 12.50 "].map(|n| text.lines().any(|l| l.contains(n))).into();
        assert_eq!(ends, [true, true], "{text}");
    }
}
