//! Reports of measurements: tables, CSV files, plots and an HTML page.

mod align;
pub mod bars;
pub mod benchmarks;
pub mod canvas;
pub mod collectives;
pub mod contact_sheet;
pub mod curves;
mod figures;
pub mod fused;
pub mod history;
pub mod inputs;
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
pub mod profiles;
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

/// Checks that `path` is a regular file, a folder, or nothing yet. A FIFO would make its opening wait
/// for a reader, and a device keeps nothing.
///
/// # Errors
/// When it is something else.
pub fn check_regular(path: &Path) -> Result<(), ReportError> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_file() && !found.is_dir() => {
            Err(ReportError::new(path, "it is a FIFO, a socket or a device; name a regular file"))
        }
        _ => Ok(()),
    }
}

/// Checks that a file can be written before the work that fills it. Existing content
/// is kept.
///
/// # Errors
/// When it cannot be created or opened, or is not a regular file.
pub fn check_writable(path: &Path) -> Result<(), ReportError> {
    check_regular(path)?;
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(|error| ReportError::new(path, error))
}
