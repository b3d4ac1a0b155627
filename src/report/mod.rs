//! Reports of measurements: tables, CSV files, plots and an HTML page.

mod align;
pub mod bars;
pub mod canvas;
pub mod contact_sheet;
pub mod curves;
pub mod history;
pub mod latency;
pub mod latency_plot;
pub mod link;
pub mod measures;
mod narrow;
pub mod overview;
pub mod page;
pub mod pictures;
pub mod predict;
pub mod predict_plot;
pub mod published;
pub mod quality;
pub mod ratios;
pub mod remarks;
pub mod rows;
pub mod runs;
pub mod sheet;
pub mod summary;
pub mod table;
#[cfg(test)]
pub(crate) mod testing;

use std::path::{Path, PathBuf};

pub use latency::LatencyRow;
use serde::Serialize;

/// A file that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {}: {reason}", path.display())]
pub struct ReportError {
    verb: &'static str,
    path: PathBuf,
    reason: String,
}

impl ReportError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { verb: "write", path: path.to_owned(), reason: reason.to_string() }
    }

    fn read(path: &Path, reason: impl ToString) -> Self {
        Self { verb: "read", path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Writes `rows` to a CSV file, replacing its content: one line per row, with the field
/// names as header.
///
/// # Errors
/// When it cannot be written.
pub fn write_csv<R: Serialize>(path: &Path, rows: &[R]) -> Result<(), ReportError> {
    let write = || -> Result<(), csv::Error> {
        let mut file = csv::Writer::from_path(path)?;
        rows.iter().try_for_each(|row| file.serialize(row))?;
        Ok(file.flush()?)
    };
    write().map_err(|error| ReportError::new(path, error))
}

/// Checks that a file can be written before the work that fills it. Existing content
/// is kept.
///
/// # Errors
/// When it cannot be created or opened.
pub fn check_writable(path: &Path) -> Result<(), ReportError> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| ReportError::new(path, error))
}
