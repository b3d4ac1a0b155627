//! The table of `mpiburn bench fused`: times of one fused operator for convolution and ReLU, times of
//! separate operators, and the published figures.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::benchmarks::Benchmark;
use super::csv_table::TableRow;
use super::published::{FigureLine, Figures, cell};
use super::rows::few_differ;
use super::sheet::{Cell, Column, Sheet};
use run_record::count;

/// One measurement: a row of the CSV file. The columns are the fields.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FusedRow {
    /// `fused`, or the compute backend that ran convolution and ReLU as separate operators.
    pub operator: String,
    /// How many times the convolution is applied, with the same weights.
    pub layers: usize,
    /// Number of input channels of the convolution. It has the same number of output channels.
    pub channels: usize,
    /// Number of samples in a batch.
    pub batch: usize,
    /// Number of training steps.
    pub steps: usize,
    /// Median time of a step's forward pass, in milliseconds.
    pub forward_ms: f64,
    /// Median time of a step's backward pass, in milliseconds.
    pub backward_ms: f64,
    /// Accuracy after training, in percent.
    pub test_accuracy: f64,
}

impl TableRow for FusedRow {
    const REPAIR: &'static str = "create it again with mpiburn bench fused --csv FILE, or remove it";

    fn problem(&self, before: &[Self]) -> Option<(&'static str, String)> {
        let again = before.iter().any(|row| (&row.operator, row.layers) == (&self.operator, self.layers));
        again.then(|| {
            ("operator", format!("{} with {} occurs twice", self.operator, count(self.layers, "layer")))
        })
    }
}

impl FusedRow {
    fn total(&self) -> f64 {
        self.forward_ms + self.backward_ms
    }
}

/// Returns the row of the operator `unfused` with as many layers as `of`. It has the times of separate
/// operators on the fused operator's device. `None` if there is no such row, or its time is 0.
fn unfused<'r>(rows: &'r [FusedRow], of: &FusedRow) -> Option<&'r FusedRow> {
    rows.iter().find(|row| (row.operator.as_str(), row.layers) == ("unfused", of.layers) && row.total() > 0.0)
}

impl Benchmark for FusedRow {
    const NAME: &'static str = "bench-fused";
    const TITLE: &'static str = "Fused operator";
    const FIGURES: Option<&'static str> = Some("fused");

    /// Returns a line for each number of layers: the fused operator's time relative to separate operators.
    fn findings(rows: &[Self]) -> Vec<String> {
        let fused = rows.iter().filter(|row| row.operator == "fused" && row.total() > 0.0);
        let line = |row: &Self| {
            let other = unfused(rows, row)?;
            let layers = count(row.layers, "layer");
            Some(if few_differ(row.total(), other.total()) {
                format!(
                    "{layers}: the fused operator is {:.2} times as fast as Conv2d and ReLU (forward and backward)",
                    other.total() / row.total()
                )
            } else {
                format!(
                    "{layers}: the times of the fused operator and of Conv2d and ReLU do not differ beyond noise \
                     ({:.3} and {:.3} ms, forward and backward)",
                    row.total(),
                    other.total()
                )
            })
        };
        fused.filter_map(line).collect()
    }

    fn sheets(name: &str, part: &str, path: &Path, rows: &[Self], figures: Option<&Figures>) -> Vec<Sheet> {
        let published =
            figures.map(|figures| published(&format!("{name}-published"), part, path, rows, figures));
        [measured(name, part, path, rows)].into_iter().chain(published).collect()
    }
}

/// Makes the table of measurements from the file `path`.
fn measured(name: &str, part: &str, path: &Path, rows: &[FusedRow]) -> Sheet {
    let own = |number, digits| Cell::measured(number, digits, path);
    let faster = |row: &FusedRow| {
        let other = unfused(rows, row).filter(|_| row.total() > 0.0)?;
        Some(own(other.total() / row.total(), 2))
    };
    let columns = vec![
        Column::words("layers", "layers")
            .means("Number of times that the convolution is applied, with the same weights")
            .shows(|row: &FusedRow| Cell::text(row.layers.to_string())),
        Column::words("operator", "operator")
            .means("fused: one operator; unfused, ndarray, tch: Burn's Conv2d and ReLU on flex and other devices")
            .shows(|row: &FusedRow| Cell::text(&row.operator)),
        Column::number("forward ms", "forward_ms")
            .means("Median over the training steps")
            .shows(|row: &FusedRow| own(row.forward_ms, 3)),
        Column::number("backward ms", "backward_ms")
            .means("Median over the training steps")
            .shows(|row: &FusedRow| own(row.backward_ms, 3)),
        Column::number("times as fast", "times_as_fast")
            .means("Forward and backward time of the unfused operator with the same number of layers, divided by this row's time")
            .shows(|row: &FusedRow| Cell::maybe(faster(row))),
        Column::number("test acc %", "test_accuracy").means("After training").shows(|row: &FusedRow| own(row.test_accuracy, 2)),
    ];
    let amount = rows.first().map_or_else(String::new, |row| {
        format!("{}, {} at batch {}", count(row.channels, "channel"), count(row.steps, "step"), row.batch)
    });
    Sheet::from_rows(name, format!("{part}: a step's time by operator, {amount}"), columns, rows)
        .with_remarks(["One thread.".into()])
}

/// Makes the table of published figures, each beside our row of the same operator. The published figures are
/// times of a whole training, so our times are the median step times the number of steps.
fn published(name: &str, part: &str, path: &Path, rows: &[FusedRow], figures: &Figures) -> Sheet {
    let ours = |line: &FigureLine| {
        let is =
            |row: &&FusedRow| row.operator == line["operator"] && row.layers.to_string() == line["layers"];
        rows.iter().find(is)
    };
    let own = |line: &FigureLine, number: fn(&FusedRow) -> f64| {
        Cell::maybe(ours(line).map(|row| Cell::measured(number(row), 2, path)))
    };
    let figure = |name: &'static str| move |line: &FigureLine| cell(Some(line), name);
    let columns = vec![
        Column::words("layers", "layers").shows(figure("layers")),
        Column::words("published operator", "published_operator").shows(figure("published_operator")),
        Column::words("ours", "operator")
            .shows(|line: &FigureLine| Cell::maybe(ours(line).map(|row| Cell::text(&row.operator)))),
        Column::number("forward s", "forward_s_published")
            .means("Published seconds of a whole training run")
            .shows(figure("forward_s")),
        Column::number("our fwd s", "forward_s_ours")
            .means("Median time of a step, multiplied by the number of steps")
            .shows(|line: &FigureLine| own(line, |row| 1e-3 * row.forward_ms * row.steps as f64)),
        Column::number("backward s", "backward_s_published")
            .means("Published seconds of a whole training run")
            .shows(figure("backward_s")),
        Column::number("our bwd s", "backward_s_ours")
            .means("Median time of a step, multiplied by the number of steps")
            .shows(|line: &FigureLine| own(line, |row| 1e-3 * row.backward_ms * row.steps as f64)),
        Column::number("test acc %", "test_accuracy_published")
            .means("As published")
            .hide_order(1)
            .shows(figure("test_accuracy")),
        Column::number("our acc %", "test_accuracy_ours")
            .hide_order(1)
            .shows(|line: &FigureLine| own(line, |row| row.test_accuracy)),
    ];
    let steps = rows.first().map_or(0, |row| row.steps);
    let remark = format!(
        "Ours: the median time of a step, multiplied by {}. The published number of steps is not stated.",
        count(steps, "step")
    );
    Sheet::from_rows(name, format!("{part}: beside published figures"), columns, &figures.lines)
        .with_remarks([figures.remark(&[], "one thread of this machine"), remark])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::csv_table::read;
    use crate::testing::tells;
    use crate::write_csv;

    fn row(operator: &str, layers: usize, forward_ms: f64, backward_ms: f64) -> FusedRow {
        let operator = operator.into();
        FusedRow {
            operator,
            layers,
            channels: 1,
            batch: 32,
            steps: 200,
            forward_ms,
            backward_ms,
            test_accuracy: 86.0,
        }
    }

    #[test]
    fn rows_are_compared_with_separate_operators_of_as_many_layers() {
        let rows = [row("fused", 2, 1.0, 1.0), row("unfused", 2, 1.0, 5.0), row("fused", 10, 1.0, 1.0)];
        let sheet = measured("fused", "P", Path::new("fused.csv"), &rows);
        let faster: Vec<String> = sheet.rows.iter().map(|row| row[4].shown()).collect();
        assert_eq!(faster, ["3.00", "1.00", "–"], "10 layers were not run unfused");
        assert_eq!(FusedRow::findings(&rows).len(), 1);
        assert!(tells(&FusedRow::findings(&rows)[0], &["2 layers: ", "3.00 times", "Conv2d"]));
        let close = FusedRow::findings(&[row("fused", 2, 1.0, 1.0), row("unfused", 2, 1.0, 1.05)]);
        assert!(tells(&close[0], &["2 layers: ", "noise", "2.000", "2.050 ms"]), "{close:?}");
    }

    #[test]
    fn published_seconds_are_beside_those_of_as_many_steps() {
        let text = "layers,published_operator,operator,forward_s,backward_s,test_accuracy,hardware\n\
                    2,cuDNN,,2.27,4.87,94.14,a GPU\n2,fused,fused,1.88,6.39,94.12,a GPU\n";
        let figures = Figures::from_csv(text.as_bytes(), &[]).unwrap();
        let rows = [row("fused", 2, 1.0, 2.0)];
        let sheet = published("fused-published", "P", Path::new("fused.csv"), &rows, &figures);
        let shown: Vec<String> =
            sheet.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            shown,
            ["2 cuDNN – 2.27 – 4.87 – 94.14 –", "2 fused fused 1.88 0.20 6.39 0.40 94.12 86.00"]
        );
    }

    #[test]
    fn a_written_file_is_read_back_and_another_table_is_none() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rows = vec![row("fused", 2, 1.0, 2.0)];
        write_csv(file.path(), &rows).unwrap();
        assert_eq!(read(file.path()), Ok(Some(rows)));
        std::fs::write(file.path(), "a,b\n1,2\n").unwrap();
        assert_eq!(read::<FusedRow>(file.path()), Ok(None));
    }
}
