//! A table whose numbers refer to their runs, and its text formats: terminal, Markdown,
//! CSV. HTML is in `page.rs`.

use std::fmt::Write;
use std::path::PathBuf;

use super::rows::Spread;
use super::table::table;

/// Value of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number and its decimal places.
    Number(Spread, usize),
    /// Unknown or not applicable.
    Nothing,
}

/// A cell, and the run directories of its value.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Its value.
    pub value: Value,
    /// The run directories.
    pub runs: Vec<PathBuf>,
}

impl Cell {
    /// Text that no run measured.
    pub fn text(text: impl Into<String>) -> Self {
        Self { value: Value::Text(text.into()), runs: Vec::new() }
    }

    /// One number.
    pub fn number(number: f64, digits: usize, runs: Vec<PathBuf>) -> Self {
        Self { value: Value::Number(Spread::of(vec![number]), digits), runs }
    }

    /// No value.
    pub fn nothing() -> Self {
        Self { value: Value::Nothing, runs: Vec::new() }
    }

    /// Display form: the median, with ± half of the range if there are repeats.
    pub fn shown(&self) -> String {
        match &self.value {
            Value::Text(text) => text.clone(),
            Value::Nothing => "–".into(),
            Value::Number(spread, digits) if spread.count == 1 => format!("{:.*}", digits, spread.median),
            Value::Number(spread, digits) => {
                format!("{:.*} ±{:.*}", digits, spread.median, digits, spread.half_range())
            }
        }
    }
}

/// A column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Title for readers.
    pub title: String,
    /// Key for programs.
    pub key: String,
    /// Whether it is numeric.
    pub numeric: bool,
    /// Whether its numbers have a range over repeats.
    pub spread: bool,
}

impl Column {
    /// A column of text.
    pub fn words(title: &str, key: &str) -> Self {
        Self { title: title.into(), key: key.into(), numeric: false, spread: false }
    }

    /// A column of single numbers.
    pub fn number(title: &str, key: &str) -> Self {
        Self { numeric: true, ..Self::words(title, key) }
    }

    /// A column of numbers with their range.
    pub fn spread(title: &str, key: &str) -> Self {
        Self { spread: true, ..Self::number(title, key) }
    }
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Sheet {
    /// Short name for file names.
    pub name: String,
    /// Title.
    pub title: String,
    /// Columns; those of text come first.
    pub columns: Vec<Column>,
    /// Rows, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// Notes below the table.
    pub remarks: Vec<String>,
}

impl Sheet {
    /// For a terminal of `width` columns; unlimited without. If the terminal is too
    /// narrow, columns that are equal in all rows become one line.
    pub fn terminal(&self, width: Option<u16>) -> String {
        match width {
            Some(width) if self.table().lines().any(|line| line.chars().count() > width.into()) => {
                self.without_alike().text(Some(width))
            }
            _ => self.text(None),
        }
    }

    fn table(&self) -> comfy_table::Table {
        let left = self.columns.iter().take_while(|column| !column.numeric).count();
        let header: Vec<&String> = self.columns.iter().map(|column| &column.title).collect();
        table(&header, left, self.rows.iter().map(|row| shown(row)))
    }

    fn text(&self, width: Option<u16>) -> String {
        let mut table = self.table();
        if let Some(width) = width {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(width);
        }
        let mut text = format!("{}\n{table}\n", self.title);
        self.remarks.iter().for_each(|remark| text += &format!("{remark}\n"));
        text
    }

    /// The columns that differ between rows, with the others as a remark.
    fn without_alike(&self) -> Self {
        let equal = |column: usize| {
            let first = self.rows.first().map(|row| row[column].shown());
            // Measurements stay, even if they happen to be equal.
            !self.columns[column].spread
                && self.rows.len() > 1
                && self.rows.iter().all(|row| Some(row[column].shown()) == first)
        };
        let (left_out, kept): (Vec<usize>, Vec<usize>) = (0..self.columns.len()).partition(|&n| equal(n));
        let common = left_out.iter().filter(|&&n| self.rows[0][n].value != Value::Nothing);
        let common: Vec<String> =
            common.map(|&n| format!("{} {}", self.columns[n].title, self.rows[0][n].shown())).collect();
        let mut remarks = self.remarks.clone();
        if !common.is_empty() {
            remarks.insert(0, format!("In all rows: {}.", common.join(", ")));
        }
        Self {
            columns: kept.iter().map(|&n| self.columns[n].clone()).collect(),
            rows: self.rows.iter().map(|row| kept.iter().map(|&n| row[n].clone()).collect()).collect(),
            remarks,
            ..self.clone()
        }
    }

    /// As a GitHub Markdown table.
    pub fn markdown(&self) -> String {
        let line = |cells: Vec<String>| {
            format!("| {} |\n", cells.iter().map(|c| c.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
        };
        let mut text = format!("### {}\n\n", self.title);
        text += &line(self.columns.iter().map(|column| column.title.clone()).collect());
        text += &line(self.columns.iter().map(|c| if c.numeric { "---:" } else { "---" }.into()).collect());
        self.rows.iter().for_each(|row| text += &line(shown(row)));
        for remark in &self.remarks {
            let _ = write!(text, "\n{remark}\n");
        }
        text
    }

    /// As CSV: medians in the column's key, minimum and maximum beside them.
    ///
    /// # Errors
    /// Only if memory runs out.
    pub fn csv(&self) -> Result<String, csv::Error> {
        let mut file = csv::Writer::from_writer(Vec::new());
        let header = self.columns.iter().flat_map(|column| match column.spread {
            true => ["", "_min", "_max"].map(|part| format!("{}{part}", column.key)).to_vec(),
            false => vec![column.key.clone()],
        });
        file.write_record(header)?;
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns).flat_map(|(cell, column)| {
                let width = if column.spread { 3 } else { 1 };
                let mut texts = match &cell.value {
                    Value::Text(text) => vec![text.clone()],
                    Value::Nothing => vec![String::new()],
                    Value::Number(spread, _) => {
                        [spread.median, spread.min, spread.max].map(significant).to_vec()
                    }
                };
                texts.resize(width, String::new());
                texts
            });
            file.write_record(cells)?;
        }
        let bytes = file.into_inner().map_err(|error| error.into_error())?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

fn shown(row: &[Cell]) -> Vec<String> {
    row.iter().map(Cell::shown).collect()
}

/// Six significant digits, more than the clocks have.
fn significant(number: f64) -> String {
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    rounded.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sheet() -> Sheet {
        let time = |values: &[f64]| Cell {
            value: Value::Number(Spread::of(values.to_vec()), 2),
            runs: vec!["results/a".into()],
        };
        Sheet {
            name: "times".into(),
            title: "Times".into(),
            columns: vec![Column::words("topo|logy", "topology"), Column::spread("train s", "train_s")],
            rows: vec![
                vec![Cell::text("1x1"), time(&[2.0, 1.0, 1.5])],
                vec![Cell::text("2x1"), time(&[1.0])],
                vec![Cell::text("2x2"), Cell::nothing()],
            ],
            remarks: vec!["Half of the range.".into()],
        }
    }

    #[test]
    fn repeats_are_a_median_and_half_of_their_range() {
        let text = sheet().terminal(None);
        assert!(text.contains("1.50 ±0.50") && text.contains(" 1.00 │"), "{text}");
        assert!(text.ends_with("Half of the range.\n"), "{text}");
    }

    #[test]
    fn a_narrow_terminal_gets_equal_columns_as_one_line() {
        let mut sheet = sheet();
        for (column, cell) in [
            (Column::words("backend", "backend"), Cell::text("mpi")),
            (Column::number("speed-up", "speed_up"), Cell::nothing()),
        ] {
            sheet.columns.push(column);
            sheet.rows.iter_mut().for_each(|row| row.push(cell.clone()));
        }
        let wide = sheet.terminal(Some(80));
        assert_eq!(wide, sheet.terminal(None), "it fits");
        assert!(wide.contains("┆ speed-up") && !wide.contains("In all rows"), "{wide}");
        let narrow = sheet.terminal(Some(40));
        assert!(narrow.contains("\nIn all rows: backend mpi.\n") && !narrow.contains("speed-up"), "{narrow}");
        assert!(narrow.contains("1.50 ±0.50") && narrow.lines().all(|l| l.chars().count() <= 40), "{narrow}");
        sheet.rows.truncate(1);
        assert!(!sheet.terminal(Some(20)).contains("In all rows"), "a single row has no equal columns");
    }

    #[test]
    fn markdown_is_a_table_with_right_aligned_numbers() {
        let expected = "### Times\n\n| topo\\|logy | train s |\n| --- | ---: |\n| 1x1 | 1.50 ±0.50 |\n\
                        | 2x1 | 1.00 |\n| 2x2 | – |\n\nHalf of the range.\n";
        assert_eq!(sheet().markdown(), expected);
    }

    #[test]
    fn csv_has_the_range_in_separate_columns() {
        let expected = "topology,train_s,train_s_min,train_s_max\n1x1,1.5,1,2\n2x1,1,1,1\n2x2,,,\n";
        assert_eq!(sheet().csv().unwrap(), expected);
        assert_eq!(significant(1.0 / 3.0), "0.333333");
    }
}
