//! Published figures: a line of a CSV file for each experiment, or for each row of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::ReportError;
use super::csv_table::all_quotes_closed;
use super::rows::{Row, compare};
use super::sheet::Cell;
use run_record::files::read_regular;

/// Column that names the hardware.
pub const HARDWARE: &str = "hardware";

/// Settings of our rows beside a file without such a column: what a report does not mention it did not use.
const UNUSED: [(&str, &str); 3] = [("accumulate", "1"), ("precision", "no"), ("quantized", "no")];
/// A setting that the report does not tell.
const NOT_STATED: &str = "not stated";

/// A line, by column.
pub type Line = BTreeMap<String, String>;

/// A file of published figures.
#[derive(Debug)]
pub struct Figures {
    /// Its columns.
    pub header: Vec<String>,
    /// Its lines.
    pub lines: Vec<Line>,
}

impl Figures {
    /// The figures in `file`.
    ///
    /// # Errors
    /// If the file cannot be read, has a quote that would hide the lines below, or lacks a column of `needed`.
    pub fn read(file: &Path, needed: &[&str]) -> Result<Self, ReportError> {
        let text = read_regular(file).map_err(|error| ReportError::read(file, error))?;
        Self::of(&text, needed).map_err(|problem| ReportError::read(file, problem))
    }

    /// The figures in the bytes of a file.
    pub(crate) fn of(text: &[u8], needed: &[&str]) -> Result<Self, String> {
        all_quotes_closed(text)?;
        let mut reader = csv::Reader::from_reader(text);
        let header = reader.headers().map_err(|error| error.to_string())?;
        let header: Vec<String> = header.iter().map(Into::into).collect();
        if let Some(missing) = needed.iter().find(|name| !header.iter().any(|column| column == *name)) {
            return Err(format!("it has no column {missing}"));
        }
        let lines = reader.deserialize().collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(Self { header, lines })
    }

    /// The file `reference/NAME.csv` beside `folder` or in it, or below `results/`; `None` if there is none, or
    /// it cannot be read, with a line in `notes`.
    pub fn beside(folder: &Path, name: &str, notes: &mut Vec<String>) -> Option<Self> {
        let folders = [folder.join("../reference"), folder.join("reference"), "results/reference".into()];
        let mut files = folders.into_iter().map(|folder| folder.join(format!("{name}.csv")));
        let read = Self::read(&files.find(|file| file.is_file())?, &[HARDWARE]);
        read.map_err(|error| notes.push(format!("{error}; published figures are omitted"))).ok()
    }

    /// The first line whose columns have the values of `wanted`.
    pub fn find(&self, wanted: &[(&str, &str)]) -> Option<&Line> {
        self.lines.iter().find(|line| has(line, wanted))
    }

    /// The remark below a table: hardware of both, which differs.
    pub fn remark(&self, wanted: &[(&str, &str)], ours: &str) -> String {
        format!(
            "Published: {}. Ours: {ours}. The hardware differs, so ratios of the two are not meaningful.",
            self.hardware(wanted)
        )
    }

    /// The hardware of the lines whose columns have the values of `wanted`.
    pub fn hardware(&self, wanted: &[(&str, &str)]) -> String {
        let lines = self.lines.iter().filter(|line| has(line, wanted));
        let found: BTreeSet<&str> = lines.filter_map(|line| line.get(HARDWARE)).map(String::as_str).collect();
        found.into_iter().collect::<Vec<_>>().join("; ")
    }

    /// Whether `line` is the experiment of `row`, one of `rows`: the columns `described` that are settings
    /// of a run are equal. An empty cell, and one that is not stated, match any value.
    pub fn is_of(&self, line: &Line, described: &[&String], row: &Row<'_>, rows: &[Row<'_>]) -> bool {
        let has = |name: &str| self.header.iter().any(|column| column == name);
        let uses_no_other = UNUSED.iter().all(|(name, value)| has(name) || row.setting(name) == *value);
        uses_no_other
            && described.iter().all(|name| {
                let is_known = rows.iter().any(|row| row.settings.contains_key(*name));
                match (line.get(*name).map_or("", String::as_str), is_known) {
                    ("" | NOT_STATED, _) => true,
                    // A feature that this program does not have is a feature not used.
                    (value, false) => value != "true",
                    (value, true) => compare(row.setting(name), value).is_eq(),
                }
            })
    }
}

/// Whether the columns of a line have the values of `wanted`.
fn has(line: &Line, wanted: &[(&str, &str)]) -> bool {
    wanted.iter().all(|(name, value)| line.get(*name).is_some_and(|found| found == value))
}

/// The cell of a published figure.
pub fn cell(line: Option<&Line>, name: &str) -> Cell {
    word(line.and_then(|line| line.get(name)).map_or("", String::as_str))
}

/// A published figure as a cell.
pub fn word(text: &str) -> Cell {
    if text.is_empty() { Cell::nothing() } else { Cell::text(text) }
}
