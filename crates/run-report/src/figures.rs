//! Published figures of profiles and benchmarks: a line of a CSV file for each row of a table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::ReportError;
use super::csv_table::all_quotes_closed;
use super::sheet::Cell;
use run_record::files::read_regular;

/// The lines of a file of published figures.
#[derive(Debug, Default)]
pub struct Figures {
    lines: Vec<BTreeMap<String, String>>,
}

impl Figures {
    /// The file `reference/NAME.csv` beside `folder` or in it, or below `results/`; `None` if there
    /// is none.
    ///
    /// # Errors
    /// If it cannot be read, or has no column `hardware`.
    pub fn read(folder: &Path, name: &str) -> Result<Option<Self>, ReportError> {
        let folders: [PathBuf; 3] =
            [folder.join("../reference"), folder.join("reference"), "results/reference".into()];
        let mut files = folders.into_iter().map(|folder| folder.join(format!("{name}.csv")));
        let Some(file) = files.find(|file| file.is_file()) else { return Ok(None) };
        let failed = |error: csv::Error| ReportError::read(&file, error);
        let text = text_of(&file)?;
        let mut reader = csv::Reader::from_reader(text.as_slice());
        if !reader.headers().map_err(failed)?.iter().any(|name| name == "hardware") {
            return Err(ReportError::read(&file, "it has no column hardware"));
        }
        Ok(Some(Self { lines: reader.deserialize().collect::<Result<_, _>>().map_err(failed)? }))
    }

    /// The lines whose columns have the values of `wanted`.
    pub fn of(&self, wanted: &[(&str, &str)]) -> impl Iterator<Item = &BTreeMap<String, String>> {
        let is = |line: &&BTreeMap<String, String>| {
            wanted.iter().all(|(name, value)| line.get(*name).is_some_and(|found| found == value))
        };
        self.lines.iter().filter(is).collect::<Vec<_>>().into_iter()
    }

    /// The first of them.
    pub fn find(&self, wanted: &[(&str, &str)]) -> Option<&BTreeMap<String, String>> {
        self.of(wanted).next()
    }

    /// The remark below a table: hardware of both, which differs.
    pub fn remark(&self, wanted: &[(&str, &str)], ours: &str) -> String {
        let hardware: BTreeSet<&str> =
            self.of(wanted).filter_map(|line| line.get("hardware")).map(String::as_str).collect();
        format!(
            "Published: {}. Ours: {ours}. The hardware differs, so ratios of the two are not meaningful.",
            hardware.into_iter().collect::<Vec<_>>().join("; ")
        )
    }
}

/// The text of a file of published figures.
///
/// # Errors
/// If it cannot be read, or has a quote that would hide the lines below.
pub fn text_of(file: &Path) -> Result<Vec<u8>, ReportError> {
    let text = read_regular(file).map_err(|error| ReportError::read(file, error))?;
    all_quotes_closed(&text).map_err(|problem| ReportError::read(file, problem))?;
    Ok(text)
}

#[cfg(test)]
impl Figures {
    /// The lines of `text`, for tests.
    pub fn of_text(text: &str) -> Self {
        let lines = csv::Reader::from_reader(text.as_bytes()).into_deserialize().collect::<Result<_, _>>();
        Self { lines: lines.expect("lines of figures") }
    }
}

/// The cell of a published figure.
pub fn cell(line: Option<&BTreeMap<String, String>>, name: &str) -> Cell {
    match line.and_then(|line| line.get(name)).map(String::as_str) {
        None | Some("") => Cell::nothing(),
        Some(text) => Cell::text(text),
    }
}
