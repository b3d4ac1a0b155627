//! Measurements for people and for other programs: tables, CSV files, plots.

pub mod latency;
pub mod latency_plot;
pub mod table;

use std::path::{Path, PathBuf};

pub use latency::LatencyRow;

/// A file that could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {reason}", path.display())]
pub struct ReportError {
    path: PathBuf,
    reason: String,
}

impl ReportError {
    fn new(path: &Path, reason: impl ToString) -> Self {
        Self { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// Makes sure that a file can be written before the work that fills it. What
/// it holds already stays.
///
/// # Errors
/// When it cannot be made or opened.
pub fn check_writable(path: &Path) -> Result<(), ReportError> {
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| ReportError::new(path, error))
}
