//! A file of published figures of trainings, and which of its lines are a row's experiment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::ReportError;
use super::figures::text_of;
use super::rows::{Row, compare};
use super::sheet::Cell;

/// Column that names the hardware.
pub const HARDWARE: &str = "hardware";

/// Settings of our rows beside a file without such a column: what a report does not mention it did not use.
const UNUSED: [(&str, &str); 3] = [("accumulate", "1"), ("precision", "no"), ("quantized", "no")];
/// A setting that the report does not tell.
const NOT_STATED: &str = "not stated";

/// A line: an experiment, by column.
pub type Line = BTreeMap<String, String>;

/// A file of published figures.
#[derive(Debug)]
pub struct Reference {
    /// Its columns.
    pub header: Vec<String>,
    /// Its experiments.
    pub lines: Vec<Line>,
}

impl Reference {
    /// The figures in `file`.
    ///
    /// # Errors
    /// When the file cannot be read, or has no `topology` or no `hardware`.
    pub fn read(file: &Path) -> Result<Self, ReportError> {
        let failed = |error: csv::Error| ReportError::read(file, error);
        let text = text_of(file)?;
        let mut reader = csv::Reader::from_reader(text.as_slice());
        let header: Vec<String> = reader.headers().map_err(failed)?.iter().map(Into::into).collect();
        if let Some(missing) = ["topology", HARDWARE].iter().find(|name| !header.iter().any(|h| h == *name)) {
            return Err(ReportError::read(file, format!("it has no column {missing}")));
        }
        Ok(Self { header, lines: reader.deserialize().collect::<Result<_, _>>().map_err(failed)? })
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

    /// The hardware of the experiments.
    pub fn hardware(&self) -> String {
        let found: BTreeSet<&str> =
            self.lines.iter().filter_map(|line| line.get(HARDWARE)).map(String::as_str).collect();
        found.into_iter().collect::<Vec<_>>().join("; ")
    }
}

/// A published figure as a cell.
pub fn word(text: &str) -> Cell {
    if text.is_empty() { Cell::nothing() } else { Cell::text(text) }
}
