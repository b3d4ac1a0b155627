//! A table: cells that link to their runs, the choice of columns for a width, and output for terminal,
//! Markdown and CSV. The HTML output is in `page.rs`.

use itertools::Itertools;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::rows::{Spread, told, typed};
use terminal::table::table;

/// Escapes `text` for Markdown, on one line. Names may be from files that somebody else wrote.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '|' | '`' | '[' | ']' | '\\' => escaped.extend(['\\', character]),
            '<' => escaped += "&lt;",
            '\n' | '\r' => escaped.push(' '),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The value of a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum CellValue {
    /// A text.
    Text(String),
    /// A number, and how many decimal places to show.
    Number(Spread, usize),
    /// No value: unknown or not applicable.
    Nothing,
}

/// A cell, with the run directories or files that its value is from.
#[derive(Debug, Clone)]
pub struct Cell {
    /// Value of the cell.
    pub value: CellValue,
    /// Run directories or files of the value.
    pub runs: Vec<PathBuf>,
    /// Text beside the number, such as its range, or in place of a number for a cell without a value.
    pub beside: String,
    /// Marks of the footnotes that apply to the cell.
    pub marks: String,
}

impl Cell {
    /// Makes a cell with a text that is not measured.
    pub fn text(text: impl Into<String>) -> Self {
        Self { value: CellValue::Text(text.into()), ..Self::of_runs(Vec::new()) }
    }

    /// Returns the cell; a cell without a value if `cell` is `None`.
    pub fn maybe(cell: Option<Self>) -> Self {
        cell.unwrap_or_else(Self::nothing)
    }

    /// Makes a cell with one number from the file `path`.
    pub fn measured(number: f64, digits: usize, path: &Path) -> Self {
        Self::number(number, digits, vec![path.to_owned()])
    }

    /// Makes a cell with one number.
    pub fn number(number: f64, digits: usize, runs: Vec<PathBuf>) -> Self {
        Self { value: CellValue::Number(Spread::from_values(vec![number]), digits), ..Self::of_runs(runs) }
    }

    /// Makes a cell without a value.
    pub fn nothing() -> Self {
        Self::of_runs(Vec::new())
    }

    /// Makes a cell of `runs` without a value.
    pub fn of_runs(runs: Vec<PathBuf>) -> Self {
        Self { value: CellValue::Nothing, runs, beside: String::new(), marks: String::new() }
    }

    /// Returns the text for readers: median, the text beside it, and marks.
    pub fn shown(&self) -> String {
        let value = match &self.value {
            // Readers see `on` and `off`. Files for programs contain the value as in run.json.
            CellValue::Text(text) => typed(text).into(),
            CellValue::Nothing if self.beside.is_empty() => "–".into(),
            CellValue::Nothing => String::new(),
            CellValue::Number(spread, digits) => format!("{:.*}", digits, spread.median),
        };
        [value.as_str(), &self.beside, &self.marks].into_iter().filter(|part| !part.is_empty()).join(" ")
    }
}

/// A column of a table.
#[derive(Debug, Clone, Default)]
pub struct Column {
    /// Title for readers.
    pub title: String,
    /// Key for programs.
    pub key: String,
    /// Whether the column contains numbers.
    pub numeric: bool,
    /// Whether its numbers have a range over repeats.
    pub spread: bool,
    /// Definition of the column, shown as a tooltip of the title.
    pub definition: String,
    /// Order in which a narrow table leaves out columns. The column with the highest value is left out first.
    /// A column with 0 is never left out.
    pub hide_order: u8,
    /// Whether the column is only in files for programs.
    pub for_programs: bool,
}

impl Column {
    /// Makes a column of text.
    pub fn words(title: &str, key: &str) -> Self {
        Self { title: title.into(), key: key.into(), ..Self::default() }
    }

    /// Makes a column of single numbers.
    pub fn number(title: &str, key: &str) -> Self {
        Self { numeric: true, ..Self::words(title, key) }
    }

    /// Makes a column of numbers with a range over repeats.
    pub fn spread(title: &str, key: &str) -> Self {
        Self { spread: true, ..Self::number(title, key) }
    }

    /// Sets the definition.
    pub fn means(self, definition: &str) -> Self {
        Self { definition: definition.into(), ..self }
    }

    /// Sets [`hide_order`](Self::hide_order).
    pub fn hide_order(self, hide_order: u8) -> Self {
        Self { hide_order, ..self }
    }

    /// Makes the column appear only in files for programs.
    pub fn for_programs(self) -> Self {
        Self { for_programs: true, ..self }
    }

    /// Adds the function that makes the cell of a row.
    pub fn shows<'a, R: ?Sized>(self, cell: impl Fn(&R) -> Cell + 'a) -> Field<'a, R> {
        Field { column: self, cell: Box::new(cell) }
    }
}

/// A column, with the function that makes its cell for a row of type `R`.
pub struct Field<'a, R: ?Sized> {
    column: Column,
    cell: Box<dyn Fn(&R) -> Cell + 'a>,
}

/// A table with title and remarks.
#[derive(Debug, Clone, Default)]
pub struct Sheet {
    /// Short name, used in file names.
    pub name: String,
    /// Title of the table.
    pub title: String,
    /// Columns. Columns of text come first.
    pub columns: Vec<Column>,
    /// Rows. Each row has one cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// Line with the values of columns that are left out because all rows are equal in them.
    pub common: Option<String>,
    /// Remarks below the table.
    pub remarks: Vec<String>,
}

/// Key of the column into which a narrow table joins the columns that name a configuration.
pub const CONFIGURATION: &str = "configuration";

/// Width of a table in characters if the terminal's width is unknown, for example if output goes to a file.
pub(crate) const DEFAULT_WIDTH: usize = 100;

impl Sheet {
    /// Makes a table of `rows`, without remarks.
    pub fn from_rows<'r, R: ?Sized + 'r>(
        name: impl Into<String>,
        title: impl Into<String>,
        fields: Vec<Field<'_, R>>,
        rows: impl IntoIterator<Item = &'r R>,
    ) -> Self {
        let cells = |row: &R| fields.iter().map(|field| (field.cell)(row)).collect();
        let rows = rows.into_iter().map(cells).collect();
        let columns = fields.into_iter().map(|field| field.column).collect();
        Self { name: name.into(), title: title.into(), columns, rows, ..Self::default() }
    }

    /// Adds remarks.
    pub fn with_remarks(self, remarks: impl IntoIterator<Item = String>) -> Self {
        Self { remarks: self.remarks.into_iter().chain(remarks).collect(), ..self }
    }

    /// Returns the table for a terminal of `width` characters; 100 if the width is unknown. If the table is
    /// too wide, it only contains the most important columns, and a line names the others. With `wide` it
    /// contains all columns.
    pub fn terminal(&self, width: Option<u16>, wide: bool) -> String {
        let all = self.for_readers();
        let limit = width.map_or(DEFAULT_WIDTH, usize::from);
        if wide {
            return all.text(None);
        }
        let (narrow, rest) = all.narrow(limit, limit / 2);
        let mut text = narrow.text((narrow.width() > limit).then_some(limit as u16));
        if let Some(rest) = rest {
            let kept: Vec<&str> = narrow.columns.iter().map(|column| column.key.as_str()).collect();
            let more = rest.columns.iter().filter(|column| !kept.contains(&column.key.as_str()));
            let titles = more.map(|column| &column.title).join(", ");
            text += &format!("More columns with --wide: {titles}.\n");
        }
        text
    }

    /// Returns the width of the table in a terminal, in characters.
    pub(crate) fn width(&self) -> usize {
        self.table().lines().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    /// Returns the table for a terminal, without title and remarks.
    pub fn table(&self) -> comfy_table::Table {
        self.titled(|title| title.to_owned())
    }

    /// Returns the table for a terminal, with each column's title replaced by `title`.
    fn titled(&self, title: impl Fn(&str) -> String) -> comfy_table::Table {
        let left = self.labels();
        let header: Vec<String> = self.columns.iter().map(|column| title(&column.title)).collect();
        let columns: Vec<Vec<String>> = (0..self.columns.len())
            .map(|n| {
                let texts: Vec<String> = self.rows.iter().map(|row| row[n].shown()).collect();
                if self.columns[n].numeric { aligned(&texts) } else { texts }
            })
            .collect();
        table(&header, left, (0..self.rows.len()).map(|row| columns.iter().map(|c| c[row].clone()).collect()))
    }

    fn text(&self, width: Option<u16>) -> String {
        // If the width is limited, break titles at spaces.
        let mut table =
            self.titled(|title| if width.is_some() { title.replace(' ', "\n") } else { title.into() });
        if let Some(width) = width {
            table.set_content_arrangement(comfy_table::ContentArrangement::Dynamic).set_width(width);
        }
        let mut text = format!("{}\n{table}\n", self.title);
        self.common.iter().chain(&self.remarks).for_each(|remark| text += &format!("{remark}\n"));
        text
    }

    /// Returns the table as GitHub Markdown.
    pub fn markdown(&self) -> String {
        let line =
            |cells: Vec<String>| format!("| {} |\n", cells.iter().map(|cell| escaped(cell)).join(" | "));
        let sheet = self.for_readers();
        let mut text = format!("### {}\n\n", escaped(&self.title));
        text += &line(sheet.columns.iter().map(|column| column.title.clone()).collect());
        text += &line(sheet.columns.iter().map(|c| if c.numeric { "---:" } else { "---" }.into()).collect());
        sheet.rows.iter().for_each(|row| text += &line(row.iter().map(Cell::shown).collect()));
        for remark in &self.remarks {
            let _ = write!(text, "\n{}\n", escaped(remark));
        }
        text
    }

    /// Returns the table as CSV. A column with a range becomes three: median, minimum and maximum.
    ///
    /// # Errors
    /// If a row has fewer cells than the table has columns.
    pub fn csv(&self) -> Result<String, csv::Error> {
        let mut file = csv::Writer::from_writer(Vec::new());
        let header = self.columns.iter().flat_map(|column| {
            if column.spread {
                ["", "_min", "_max"].map(|part| format!("{}{part}", column.key)).to_vec()
            } else {
                vec![column.key.clone()]
            }
        });
        file.write_record(header)?;
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns).flat_map(|(cell, column)| {
                let width = if column.spread { 3 } else { 1 };
                let mut texts = match &cell.value {
                    CellValue::Text(text) => vec![text.clone()],
                    CellValue::Nothing => vec![String::new()],
                    CellValue::Number(spread, _) => {
                        // Six digits are more than the clocks resolve.
                        [spread.median, spread.min, spread.max].map(|number| significant(number, 6)).to_vec()
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

/// Formats a number with at most `digits` significant digits.
pub fn significant(number: f64, digits: usize) -> String {
    let rounded: f64 = format!("{number:.*e}", digits - 1).parse().unwrap_or(number);
    rounded.to_string()
}

impl Sheet {
    /// Returns the table without the columns for which `left_out` returns true. The arguments of `left_out`
    /// are a column and its cells.
    pub fn without(&self, left_out: impl Fn(&Column, &[&Cell]) -> bool) -> Self {
        let is_kept = |&n: &usize| {
            let cells: Vec<&Cell> = self.rows.iter().map(|row| &row[n]).collect();
            !left_out(&self.columns[n], &cells)
        };
        self.select(&(0..self.columns.len()).filter(is_kept).collect::<Vec<_>>())
    }

    /// Returns the table without the columns for programs.
    pub fn for_readers(&self) -> Self {
        self.without(|column, _| column.for_programs)
    }

    /// Returns the table with the columns for readers that fit into `limit` characters. See
    /// [`Column::hide_order`].
    pub fn fitting(&self, limit: usize) -> Self {
        let mut fitting = self.for_readers();
        while fitting.width() > limit {
            let highest =
                fitting.columns.iter().filter(|column| column.hide_order > 0).max_by_key(|c| c.hide_order);
            let Some(Column { key, definition, .. }) = highest.cloned() else { break };
            // Columns of one measure, such as one column for each backend, are left out together.
            let is_like = |column: &Column| !definition.is_empty() && column.definition == definition;
            fitting = fitting.without(|column, _| column.key == key || is_like(column));
        }
        fitting
    }

    /// Splits the table into several of at most `limit` characters, if possible. Each of these tables begins
    /// with the columns of text.
    pub fn parted(&self, limit: usize) -> Vec<Self> {
        let labels = self.labels();
        let with =
            |others: &[usize]| self.select(&(0..labels).chain(others.iter().copied()).collect::<Vec<_>>());
        let (mut parts, mut last) = (Vec::new(), Vec::new());
        for column in labels..self.columns.len() {
            last.push(column);
            if last.len() > 1 && with(&last).width() > limit {
                last.pop();
                parts.push(std::mem::replace(&mut last, vec![column]));
            }
        }
        parts.push(last);
        parts.iter().map(|others| with(others)).collect()
    }

    fn select(&self, kept: &[usize]) -> Self {
        Self {
            columns: kept.iter().map(|&n| self.columns[n].clone()).collect(),
            rows: self.rows.iter().map(|row| kept.iter().map(|&n| row[n].clone()).collect()).collect(),
            ..self.clone()
        }
    }

    /// Returns the table in at most `limit` characters, if possible, and a second table with the columns that
    /// were left out.
    ///
    /// Both tables lack the columns without any value, and the columns that `without_alike` moves to
    /// `common`. If the columns of text at the beginning need more than `labels` characters, they are joined
    /// into one column, so that the measurements stay in view.
    pub fn narrow(&self, limit: usize, labels: usize) -> (Self, Option<Self>) {
        let mut all = self.for_readers().without_alike();
        let has = |key: &str| self.columns.iter().any(|column| column.key == key);
        // The rows of a table of published figures are not named by options. Such a table has the column
        // `ours`.
        let is_of_runs = has("topology") && !has("ours");
        let width = all.select(&(0..all.labels()).collect::<Vec<_>>()).width();
        let mut room = limit;
        if is_of_runs && all.named() > 1 && width > labels {
            all = all.joined();
            // A long name is broken into several lines.
            room += all.select(&[0]).width().saturating_sub(labels);
        }
        let narrow = all.fitting(room);
        let kept = |key: &String| narrow.columns.iter().any(|column| column.key == *key);
        let dropped: Vec<usize> = (0..all.columns.len()).filter(|&n| !kept(&all.columns[n].key)).collect();
        // In the second table, rows are recognised by the columns of text at its beginning.
        let columns: Vec<usize> = (0..all.labels()).chain(dropped.iter().copied()).collect();
        let rest = Self { remarks: Vec::new(), common: None, ..all.select(&columns) };
        (narrow, (!dropped.is_empty()).then_some(rest))
    }

    /// Returns the number of columns of text at the beginning. They distinguish the rows.
    fn labels(&self) -> usize {
        self.columns.iter().take_while(|column| !column.numeric).count()
    }

    /// Returns the number of columns of text at the beginning, up to the column `rank`. They name a
    /// configuration. In a table with the column `rank`, a configuration has a row for each rank.
    fn named(&self) -> usize {
        self.columns.iter().take(self.labels()).take_while(|column| column.key != "rank").count()
    }

    /// Joins the columns that name a configuration into one. The joined column contains the values that are
    /// on or, if all are off, all values.
    fn joined(&self) -> Self {
        let labels = self.named();
        let mut sheet = self.clone();
        let column = Column::words("configuration", CONFIGURATION)
            .means("Settings in which the row differs from others");
        sheet.columns.splice(..labels, [column]);
        for row in &mut sheet.rows {
            let values: Vec<String> = row.iter().take(labels).map(Cell::shown).collect();
            let keys = self.columns.iter().map(|column| column.key.as_str());
            let name = told(keys.zip(values.iter().map(String::as_str))).join(", ");
            row.splice(..labels, [Cell::text(name)]);
        }
        sheet
    }

    /// Moves the columns with these keys, in their order, directly after the columns of text at the
    /// beginning.
    pub fn led_by(&self, keys: &[&str]) -> Self {
        let labels = self.labels();
        let place = |key: &&str| self.columns.iter().position(|column| column.key == **key);
        let first: Vec<usize> = keys.iter().filter_map(place).filter(|&at| at >= labels).collect();
        let others = (labels..self.columns.len()).filter(|at| !first.contains(at));
        self.select(&(0..labels).chain(first.iter().copied()).chain(others).collect::<Vec<_>>())
    }

    /// Removes columns without any value. If there are several rows, also removes columns with the same value
    /// in all rows, and puts these values into `common`.
    fn without_alike(&self) -> Self {
        let equal = |column: usize| {
            let first = self.rows.first().map(|row| row[column].shown());
            let empty =
                first.is_some() && self.rows.iter().all(|row| row[column].value == CellValue::Nothing);
            // Columns with a range over repeats stay, even if their numbers happen to be equal.
            let differs = self.columns[column].spread
                || self.rows.len() < 2
                || self.rows.iter().any(|row| Some(row[column].shown()) != first);
            empty || !differs
        };
        let (left_out, kept): (Vec<usize>, Vec<usize>) = (0..self.columns.len()).partition(|&n| equal(n));
        let common = left_out
            .iter()
            .filter(|&&n| {
                ![CellValue::Nothing, CellValue::Text(String::new())].contains(&self.rows[0][n].value)
            })
            .filter(|&&n| !self.columns[n].for_programs);
        let common: Vec<String> =
            common.map(|&n| format!("{} {}", self.columns[n].title, self.rows[0][n].shown())).collect();
        let mut sheet = self.select(&kept);
        if !common.is_empty() {
            sheet.common = Some(format!("In all rows: {}.", common.join(", ")));
        }
        sheet
    }
}

/// Splits a text after the integral part of its number. Decimals, a range or a mark may follow. A text that
/// does not begin with a number is not split.
pub fn split(text: &str) -> (&str, &str) {
    let sign = text.len() - text.trim_start_matches('-').len();
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    match digits {
        0 => (text, ""),
        _ => text.split_at(sign + digits),
    }
}

/// Pads each text of a column on the right. If the column is aligned right, the decimal points are then below
/// each other.
pub fn aligned(texts: &[String]) -> Vec<String> {
    let behind = |text: &str| split(text).1.chars().count();
    let longest = texts.iter().map(|text| behind(text)).max().unwrap_or(0);
    // A word such as `far lower`, or `–`, is aligned like an integral part.
    let pad = |text: &String| format!("{text}{}", " ".repeat(longest - behind(text)));
    texts.iter().map(pad).collect()
}

#[cfg(test)]
#[path = "sheet_tests.rs"]
mod tests;

#[cfg(test)]
mod align_tests {
    use super::*;

    #[test]
    fn decimal_points_are_below_each_other() {
        let texts = ["1.50 ±0.05", "12.25", "105", "66.1/65.7", "–", "-3.5 ᵃ"].map(ToOwned::to_owned);
        let found = aligned(&texts);
        let column = |text: &str, width: usize| format!("{text:>width$}").find('.');
        let width = found.iter().map(|text| text.chars().count()).max().unwrap();
        let points: Vec<usize> =
            found.iter().filter(|text| text.contains('.')).filter_map(|text| column(text, width)).collect();
        assert!(points.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}: {points:?}");
        assert_eq!(aligned(&["1".into(), "20".into()]), ["1", "20"]);
        assert_eq!(split("far lower"), ("far lower", ""));
    }
}
