//! The table of `mpiburn bench allreduce`: latency and bandwidth by message size and backend.

use std::path::Path;

use super::LatencyRow;
use super::latency::human_size;
use super::sheet::{Cell, Column, Sheet};

/// A line for each backend: the latencies of the smallest and the largest message, and the highest
/// bandwidth.
pub fn findings(rows: &[LatencyRow]) -> Vec<String> {
    let mut backends: Vec<&str> = Vec::new();
    for row in rows {
        if !backends.contains(&row.backend.as_str()) {
            backends.push(&row.backend);
        }
    }
    let line = |backend: &str| {
        let own = || rows.iter().filter(|row| row.backend == backend);
        let (least, most) = (own().min_by_key(|row| row.bytes)?, own().max_by_key(|row| row.bytes)?);
        let widest = own().max_by(|a, b| a.busbw_mb_s.total_cmp(&b.busbw_mb_s))?;
        let of = |row: &LatencyRow| format!("{:.2} µs for {}", row.median_us, human_size(row.bytes));
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
    backends.into_iter().filter_map(line).collect()
}

/// The table of the file `path`.
pub fn sheet(name: &str, part: &str, path: &Path, rows: &[LatencyRow]) -> Sheet {
    let columns = vec![
        Column::words("size", "size").means("Size of the message, which each rank contributes"),
        Column::words("backend", "backend").means("Transport; ordered: sums in the order of ranks"),
        Column::number("bytes", "bytes").for_programs(),
        Column::number("min µs", "min_us").means("Shortest call").ranked(1),
        Column::number("median µs", "median_us").means("Median over the calls"),
        Column::number("p99 µs", "p99_us").means("99 of 100 calls take no longer").ranked(2),
        Column::number("busbw MB/s", "busbw_mb_s").means(
            "Bus bandwidth at the median, in 10^6 bytes a second: 2(n-1)/n of the message for n ranks",
        ),
    ];
    let mut sorted: Vec<&LatencyRow> = rows.iter().collect();
    sorted.sort_by_key(|row| row.bytes);
    let line = |row: &&LatencyRow| {
        let own = |number: f64, digits| Cell::number(number, digits, vec![path.to_owned()]);
        vec![
            Cell::text(human_size(row.bytes)),
            Cell::text(&row.backend),
            Cell::text(row.bytes.to_string()),
            own(row.min_us, 2),
            own(row.median_us, 2),
            own(row.p99_us, 2),
            own(row.busbw_mb_s, 1),
        ]
    };
    Sheet {
        name: name.into(),
        title: format!("{part}: latency and bus bandwidth by message size"),
        columns,
        rows: sorted.iter().map(line).collect(),
        remarks: vec![
            "The latency of a call is the mean over ranks. The bus bandwidth counts the least possible traffic of \
             an all-reduce, and is 0 on one rank."
                .into(),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rows_and_each_backend_has_a_finding() {
        let row = |backend, bytes, us| LatencyRow::of_all_reduce(backend, bytes, 2, vec![us]);
        let rows = [row("mpi", 4, 1.5), row("mpi", 13 << 20, 6815.744), row("gloo", 4, 30.0)];
        assert_eq!(
            findings(&rows),
            [
                "mpi: 1.50 µs for 4 B, 6815.74 µs for 13 MiB; highest bus bandwidth 2000.0 MB/s, at 13 MiB",
                "gloo: 30.00 µs for 4 B; highest bus bandwidth 0.1 MB/s, at 4 B",
            ]
        );
        let found = sheet("a", "P", Path::new("ar.csv"), &rows);
        let shown: Vec<String> =
            found.rows.iter().map(|row| format!("{} {}", row[0].shown(), row[1].shown())).collect();
        assert_eq!(shown, ["4 B mpi", "4 B gloo", "13 MiB mpi"]);
        assert!(found.csv().unwrap().contains("13 MiB,mpi,13631488,6815.74,"), "exact bytes");
        assert!(!found.markdown().contains("13631488"), "bytes are for programs");
    }
}
