//! A table whose numbers know their runs, and its forms: terminal, Markdown,
//! CSV. The page has its own in `page.rs`.

use std::fmt::Write;
use std::path::PathBuf;

use super::rows::Spread;
use super::table::table;

/// What a cell says.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A word.
    Text(String),
    /// A number and its digits behind the point.
    Number(Spread, usize),
    /// Not known, or without meaning here.
    Nothing,
}

/// A cell, and the run directories that it is from.
#[derive(Debug, Clone)]
pub struct Cell {
    /// What it says.
    pub value: Value,
    /// Where it is from.
    pub runs: Vec<PathBuf>,
}

impl Cell {
    /// A word or number that no run measured.
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

    /// As people read it: the median, with ± half of the range where there
    /// are repeats.
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
    /// For people.
    pub title: String,
    /// For programs.
    pub key: String,
    /// Whether it holds numbers.
    pub numeric: bool,
    /// Whether those are over repeats.
    pub spread: bool,
}

impl Column {
    /// Words.
    pub fn words(title: &str, key: &str) -> Self {
        Self { title: title.into(), key: key.into(), numeric: false, spread: false }
    }

    /// One number a row.
    pub fn number(title: &str, key: &str) -> Self {
        Self { numeric: true, ..Self::words(title, key) }
    }

    /// A number with its range.
    pub fn spread(title: &str, key: &str) -> Self {
        Self { spread: true, ..Self::number(title, key) }
    }
}

/// A table.
#[derive(Debug, Clone, Default)]
pub struct Sheet {
    /// Short, for names of files.
    pub name: String,
    /// In words.
    pub title: String,
    /// Columns; those of words come first.
    pub columns: Vec<Column>,
    /// Lines, each as long as `columns`.
    pub rows: Vec<Vec<Cell>>,
    /// What to know when reading it.
    pub remarks: Vec<String>,
}

impl Sheet {
    /// For a terminal of `width` columns; of any width without.
    pub fn terminal(&self, width: Option<u16>) -> String {
        let left = self.columns.iter().take_while(|column| !column.numeric).count();
        let header: Vec<&String> = self.columns.iter().map(|column| &column.title).collect();
        let mut table = table(&header, left, self.rows.iter().map(|row| shown(row)));
        if let Some(width) = width {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(width);
        }
        let mut text = format!("{}\n{table}\n", self.title);
        self.remarks.iter().for_each(|remark| text += &format!("{remark}\n"));
        text
    }

    /// As GitHub shows it.
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

    /// For programs: medians under the column's key, the range beside them.
    ///
    /// # Errors
    /// Only when memory runs out.
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
                        [spread.median, spread.least, spread.greatest].map(significant).to_vec()
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

/// Six digits: more than any clock here has.
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
    fn markdown_is_a_table_with_numbers_at_the_right() {
        let expected = "### Times\n\n| topo\\|logy | train s |\n| --- | ---: |\n| 1x1 | 1.50 ±0.50 |\n\
                        | 2x1 | 1.00 |\n| 2x2 | – |\n\nHalf of the range.\n";
        assert_eq!(sheet().markdown(), expected);
    }

    #[test]
    fn csv_has_the_range_in_columns_of_its_own() {
        let expected = "topology,train_s,train_s_min,train_s_max\n1x1,1.5,1,2\n2x1,1,1,1\n2x2,,,\n";
        assert_eq!(sheet().csv().unwrap(), expected);
        assert_eq!(significant(1.0 / 3.0), "0.333333");
    }
}
