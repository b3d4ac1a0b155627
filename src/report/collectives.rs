//! The table of `mpiburn bench collectives`: latency of each operation by backend, and which of
//! them PyTorch supports.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::csv_table::{Kind, MOST_US, TableRow};
use super::figures::{Figures, cell};
use super::sheet::{Cell, Column, Sheet};
use crate::names::count;

/// One operation on one backend: a row of the CSV file, whose columns are the fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Operation, such as `all-reduce`.
    pub operation: String,
    /// Backend, by its option value.
    pub backend: String,
    /// Topology of the job.
    pub topology: String,
    /// Bytes of each rank.
    pub bytes: usize,
    /// Median latency in µs; none if there is no result.
    pub median_us: Option<f64>,
    /// `correct`, or why there is no latency: `not supported`, `not built`, `needs 2 ranks`,
    /// `wrong result`.
    pub result: String,
}

impl TableRow for CollectiveRow {
    const COLUMNS: &'static [(&'static str, Kind)] = &[
        ("operation", Kind::Words),
        ("backend", Kind::Words),
        ("topology", Kind::Words),
        ("bytes", Kind::Count),
        ("median_us", Kind::OptionalUpTo(MOST_US)),
        ("result", Kind::Words),
    ];
    const REPAIR: &'static str =
        "left out: write it again with mpiburn bench collectives --csv FILE, or remove it";
}

/// Values of `of` in the order of their first rows.
pub(super) fn distinct<'r>(
    rows: &'r [CollectiveRow],
    of: impl Fn(&'r CollectiveRow) -> &'r str,
) -> Vec<&'r str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&of(row)) {
            names.push(of(row));
        }
    }
    names
}

/// A line for each backend of this build: which operations it does not support, or computes wrongly.
pub fn findings(rows: &[CollectiveRow]) -> Vec<String> {
    let of_backend = |backend: &str| {
        let own: Vec<&CollectiveRow> = rows.iter().filter(|row| row.backend == backend).collect();
        if own.iter().all(|row| row.result == "not built") {
            return None;
        }
        let correct = own.iter().filter(|row| row.result == "correct").count();
        let named = |result: &str| {
            let names: Vec<&str> =
                own.iter().filter(|row| row.result == result).map(|row| row.operation.as_str()).collect();
            if names.is_empty() { String::new() } else { format!("; {result}: {}", names.join(", ")) }
        };
        Some(format!(
            "{backend}: {correct} of {} with the right result{}{}",
            count(own.len(), "operation"),
            named("not supported"),
            named("wrong result")
        ))
    };
    distinct(rows, |row| &row.backend).into_iter().filter_map(of_backend).collect()
}

/// The table of the file `path`.
pub fn sheet(
    name: &str,
    part: &str,
    path: &Path,
    rows: &[CollectiveRow],
    figures: Option<&Figures>,
) -> Sheet {
    let backends = distinct(rows, |row| &row.backend);
    let mut columns = vec![Column::words("operation", "operation")];
    for backend in &backends {
        let column = Column::number(&format!("{backend} µs"), &format!("{backend}_us"));
        columns.push(column.means("Median latency; mean over ranks of each call's"));
    }
    let peers = ["gloo", "mpi", "nccl"];
    if figures.is_some() {
        columns.extend(peers.map(|peer| {
            Column::number(&format!("PyTorch {peer}"), &format!("pytorch_{peer}"))
                .means("Whether PyTorch supports it with this backend on a CPU, as published")
        }));
    }
    let cells = distinct(rows, |row| &row.operation).into_iter().map(|operation| {
        let mut line = vec![Cell::text(operation)];
        for backend in &backends {
            let found = rows
                .iter()
                .find(|row| (row.operation.as_str(), row.backend.as_str()) == (operation, *backend));
            line.push(match found.map(|row| (row.median_us, &row.result)) {
                Some((Some(us), _)) => Cell::number(us, 2, vec![path.to_owned()]),
                Some((None, result)) => Cell::text(result),
                None => Cell::nothing(),
            });
        }
        if let Some(figures) = figures {
            let published = figures.find(&[("operation", operation)]);
            line.extend(peers.map(|peer| cell(published, peer)));
        }
        line
    });
    let job = rows
        .first()
        .map_or_else(String::new, |row| format!("{} bytes per rank, {}", row.bytes, row.topology));
    let remark =
        "Each operation is called and its result checked, so a latency means that the backend supports it.";
    Sheet {
        name: name.into(),
        title: format!("{part}: latency by backend, {job}"),
        columns,
        rows: cells.collect(),
        remarks: vec![remark.into()],
    }
}

#[cfg(test)]
mod tests {
    use super::super::csv_table::Table;
    use super::super::write_csv;
    use super::*;

    fn row(operation: &str, backend: &str, median_us: Option<f64>, result: &str) -> CollectiveRow {
        let [operation, backend, topology, result] = [operation, backend, "1x2", result].map(Into::into);
        CollectiveRow { operation, backend, topology, bytes: 1024, median_us, result }
    }

    fn rows() -> Vec<CollectiveRow> {
        vec![
            row("send", "mpi", Some(1.25), "correct"),
            row("send", "gloo", None, "not built"),
            row("scatter", "mpi", None, "not supported"),
            row("scatter", "gloo", None, "not built"),
        ]
    }

    #[test]
    fn operations_are_rows_and_backends_columns() {
        let figures = Figures::of_text("operation,gloo,mpi,nccl,hardware\nsend,yes,yes,no,a table\n");
        let found = sheet("c", "P", Path::new("c.csv"), &rows(), Some(&figures));
        let shown: Vec<String> =
            found.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(shown, ["send 1.25 not built yes yes no", "scatter not supported not built – – –"]);
        assert_eq!(
            findings(&rows()),
            ["mpi: 1 of 2 operations with the right result; not supported: scatter"]
        );
    }

    #[test]
    fn a_written_file_is_read_back_and_another_table_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write_csv(file.path(), &rows()).unwrap();
        assert_eq!(Table::read(file.path()), Table::Rows(rows()));
        std::fs::write(file.path(), "a,b\n1,2\n").unwrap();
        assert_eq!(Table::<CollectiveRow>::read(file.path()), Table::Another);
    }
}
