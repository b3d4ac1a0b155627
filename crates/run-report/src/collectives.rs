//! The table of `mpiburn bench collectives`: the latency of each operation by backend, and which operations
//! PyTorch supports.

use itertools::Itertools;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::benchmarks::Benchmark;
use super::csv_table::TableRow;
use super::published::{Figures, cell};
use super::sheet::{Cell, Column, Sheet};
use run_record::count;

/// Result of one operation on one backend: a row of the CSV file. The columns are the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CollectiveRow {
    /// Operation, such as `all-reduce`.
    pub operation: String,
    /// Backend: the transport, such as `mpi`.
    pub backend: String,
    /// Topology of the job.
    pub topology: String,
    /// Bytes that each rank contributes.
    pub bytes: usize,
    /// Median latency in µs; `None` if the operation did not succeed.
    pub median_us: Option<f64>,
    /// [`CORRECT`], or the reason why there is no latency.
    pub result: String,
}

impl TableRow for CollectiveRow {
    const REPAIR: &'static str = "create it again with mpiburn bench collectives --csv FILE, or remove it";

    fn problem(&self, before: &[Self]) -> Option<(&'static str, String)> {
        let is_again = |row: &Self| (&row.operation, &row.backend) == (&self.operation, &self.backend);
        match before.first() {
            Some(first) if first.topology != self.topology => Some((
                "topology",
                format!("{}, but {} above: a table must be from one job", self.topology, first.topology),
            )),
            _ if before.iter().any(is_again) => {
                Some(("operation", format!("{} of {} occurs twice", self.operation, self.backend)))
            }
            _ => None,
        }
    }
}

/// The operation's result was correct, and it has a latency.
pub const CORRECT: &str = "correct";
/// This build does not contain the backend.
pub const NOT_BUILT: &str = "not built";
/// The backend does not support the operation.
pub const NOT_SUPPORTED: &str = "not supported";
/// The operation is between two ranks, and the job has one rank.
pub const NEEDS_2_RANKS: &str = "needs 2 ranks";
/// The operation's result was wrong.
pub const WRONG: &str = "wrong result";
/// Results of a backend for which at least one rank has no usable GPU.
pub const NO_GPU: [&str; 4] = ["no driver", "no library", "no GPU", "shared GPU"];

/// Whether the result says that the backend was not tried: it is not in this build, or at least one rank has
/// no usable GPU.
fn is_absent(result: &str) -> bool {
    result == NOT_BUILT || NO_GPU.contains(&result)
}

/// Returns the backends of `rows`, in their order.
fn backends(rows: &[CollectiveRow]) -> impl Iterator<Item = &str> {
    rows.iter().map(|row| row.backend.as_str()).unique()
}

impl Benchmark for CollectiveRow {
    const NAME: &'static str = "bench-collectives";
    const TITLE: &'static str = "Collectives";
    const FIGURES: Option<&'static str> = Some("collectives");

    /// Returns a line for each backend that was tried: how many operations had the correct result, and which
    /// operations the backend does not support or computes wrongly.
    fn findings(rows: &[Self]) -> Vec<String> {
        let of_backend = |backend: &str| {
            let own: Vec<&Self> = rows.iter().filter(|row| row.backend == backend).collect();
            if own.iter().all(|row| is_absent(&row.result)) {
                return None;
            }
            let correct = own.iter().filter(|row| row.result == CORRECT).count();
            let named = |result: &str| {
                let names =
                    own.iter().filter(|row| row.result == result).map(|row| &row.operation).join(", ");
                if names.is_empty() { names } else { format!("; {result}: {names}") }
            };
            Some(format!(
                "{backend}: {correct} of {} with the correct result{}{}",
                count(own.len(), "operation"),
                named(NOT_SUPPORTED),
                named(WRONG)
            ))
        };
        backends(rows).filter_map(of_backend).collect()
    }

    fn sheets(name: &str, part: &str, path: &Path, rows: &[Self], figures: Option<&Figures>) -> Vec<Sheet> {
        let mut columns =
            vec![Column::words("operation", "operation").shows(|operation: &str| Cell::text(operation))];
        for backend in backends(rows) {
            let column = Column::number(&format!("{backend} µs"), &format!("{backend}_us"));
            columns.push(
                column
                    .means("Median latency over the calls; the latency of a call is its mean over ranks")
                    .shows(move |operation: &str| {
                        let mut own = rows.iter().filter(|row| row.backend == backend);
                        let found = own.find(|row| row.operation == operation);
                        Cell::maybe(found.map(|row| match row.median_us {
                            Some(us) => Cell::measured(us, 2, path),
                            None => Cell::text(&row.result),
                        }))
                    }),
            );
        }
        for device in ["CPU", "GPU"] {
            for (peer, figures) in ["gloo", "mpi", "nccl"].into_iter().zip([figures; 3]) {
                let Some(figures) = figures else { continue };
                let key = format!("{peer}_{}", device.to_lowercase());
                let column = Column::number(&format!("PyTorch {peer}, {device}"), &format!("pytorch_{key}"));
                let column = column.means(
                    "Whether PyTorch supports the operation with this backend, as published; if built: only if MPI was built for GPUs",
                );
                columns.push(
                    column
                        .shows(move |operation: &str| cell(figures.find(&[("operation", operation)]), &key)),
                );
            }
        }
        let job = rows
            .first()
            .map_or_else(String::new, |row| format!("{} bytes per rank, {}", row.bytes, row.topology));
        let remark = "Each operation is called and its result checked, so a latency means that the backend supports it.";
        let operations = rows.iter().map(|row| row.operation.as_str()).unique();
        let title = format!("{part}: latency by backend, {job}");
        vec![Sheet::from_rows(name, title, columns, operations).with_remarks([remark.into()])]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv_table::read;
    use crate::testing::tells;
    use crate::write_csv;

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
            row("send", "nccl", None, "no GPU"),
            row("scatter", "nccl", None, "no GPU"),
        ]
    }

    #[test]
    fn operations_are_rows_and_backends_columns() {
        let figures = Figures::from_csv(
            b"operation,gloo_cpu,mpi_cpu,nccl_cpu,gloo_gpu,mpi_gpu,nccl_gpu,hardware\n\
             send,yes,yes,no,no,if built,yes,a table\n",
            &[],
        )
        .unwrap();
        let found = &CollectiveRow::sheets("c", "P", Path::new("c.csv"), &rows(), Some(&figures))[0];
        let shown: Vec<String> =
            found.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            shown,
            [
                "send 1.25 not built no GPU yes yes no no if built yes",
                "scatter not supported not built no GPU – – – – – –"
            ]
        );
        let lines = CollectiveRow::findings(&rows());
        let facts = ["mpi: 1 of 2 operations", "not supported: scatter"];
        assert!(lines.len() == 1 && tells(&lines[0], &facts), "{lines:?}");
    }

    #[test]
    fn the_published_support_has_both_devices() {
        let figures =
            Figures::from_csv(include_bytes!("../../../results/reference/collectives.csv"), &[]).unwrap();
        let with = |column: &str, value: &str| -> Vec<String> {
            let lines = figures.lines.iter().filter(|line| line[column] == value);
            lines.map(|line| line["operation"].clone()).collect()
        };
        assert_eq!(with("gloo_cpu", "no"), ["reduce-scatter", "all-to-all"]);
        assert_eq!(
            (with("mpi_cpu", "no"), with("nccl_cpu", "yes").len()),
            (vec!["reduce-scatter".to_owned()], 0)
        );
        assert_eq!(with("gloo_gpu", "yes"), ["broadcast", "all-reduce"]);
        assert_eq!(
            (with("mpi_gpu", "no"), with("mpi_gpu", "if built").len()),
            (vec!["reduce-scatter".to_owned()], 10)
        );
        assert_eq!((with("nccl_gpu", "no"), with("nccl_gpu", "yes").len()), (vec!["scatter".to_owned()], 10));
    }

    #[test]
    fn a_written_file_is_read_back_and_another_table_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        write_csv(file.path(), &rows()).unwrap();
        assert_eq!(read(file.path()), Ok(Some(rows())));
        std::fs::write(file.path(), "a,b\n1,2\n").unwrap();
        assert_eq!(read::<CollectiveRow>(file.path()), Ok(None));
    }
}
