//! Reports of mpiburn's runs, profiles and benchmarks: tables, CSV files, plots and an HTML page.
//!
//! The crate reads what `run-record` writes, and the CSV files of benchmarks. It needs neither Burn nor MPI,
//! so a laptop can show the results of a cluster: `cargo install --path crates/run-report`. The README of the
//! repository describes the program.
//!
//! Terms of this crate:
//!
//! - row: a configuration, which is one run or several repeats with equal settings;
//! - section: the runs of one sweep, or all runs outside sweeps;
//! - job: the rows of a section that do the same work, so that their times can be compared;
//! - part: what the page shows under one heading: a section, a folder of profiles, or a benchmark.

#![forbid(unsafe_code)]

// Unlike the macros of the standard library, these macros do not panic if the reader of the output closes the
// pipe.
#[macro_use(eprintln, print, println)]
extern crate terminal;

pub mod allreduce;
pub mod benchmarks;
pub mod by_rank;
mod checks;
pub mod collectives;
#[cfg(test)]
mod columns_tests;
mod command;
pub mod cost_model;
pub mod csv_table;
mod curve_points;
#[cfg(test)]
mod extremes_tests;
mod findings;
pub mod fused;
mod glance;
pub mod inputs;
pub mod link;
pub mod matrix;
mod naming;
pub mod overview;
pub mod page;
pub mod pairs;
pub mod pictures;
pub mod plots;
mod prediction;
pub mod profiles;
pub mod published;
pub mod quantized;
pub mod remarks;
pub mod rows;
pub mod runs;
pub mod sheet;
pub mod summary;
mod target;
#[cfg(test)]
mod testing;

use std::path::Path;

pub use allreduce::LatencyRow;
pub use command::{Format, ReportArgs, run};
pub use plots::write_png;
use run_record::files::{WholeFile, replace_file};
use serde::Serialize;

/// A file that cannot be written or read. The message names the file.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ReportError(String);

impl ReportError {
    fn new(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self(format!("cannot write {}: {reason}", path.display()))
    }

    fn read(path: &Path, reason: impl std::fmt::Display) -> Self {
        Self(format!("cannot read {}: {reason}", path.display()))
    }

    /// Makes the error from a line that already names the damaged file.
    fn damaged(line: String) -> Self {
        Self(line)
    }
}

/// An option with a value that cannot be used: an error of usage.
#[derive(Debug, thiserror::Error)]
#[error("--{option}{value}: {problem}")]
pub struct UsageError {
    option: &'static str,
    /// The value with a leading space; empty for an option without a value.
    value: String,
    problem: String,
}

impl UsageError {
    fn new(option: &'static str, value: impl ToString, problem: impl Into<String>) -> Self {
        let value = value.to_string();
        let value = if value.is_empty() { value } else { format!(" {value}") };
        Self { option, value, problem: problem.into() }
    }
}

/// Writes `rows` to a CSV file, with the field names as header. An existing file is replaced once the new one
/// is complete.
///
/// # Errors
/// If the file cannot be written.
pub fn write_csv<R: Serialize>(path: &Path, rows: &[R]) -> Result<(), ReportError> {
    let text = || -> Result<Vec<u8>, csv::Error> {
        let mut file = csv::Writer::from_writer(Vec::new());
        rows.iter().try_for_each(|row| file.serialize(row))?;
        file.into_inner().map_err(|error| error.into_error().into())
    };
    write_file(path, &text().map_err(|error| ReportError::new(path, error))?)
}

/// Writes a file. An existing file is replaced once the new one is complete.
///
/// # Errors
/// If the file cannot be written, or is a symbolic link.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ReportError> {
    replace_file(path, bytes).map_err(|error| ReportError::new(path, error))
}

/// Checks that a file can be written, before the work that produces its content. An existing file is kept,
/// and no new file remains.
///
/// # Errors
/// If the file cannot be created, or is not a regular file.
pub fn check_writable(path: &Path) -> Result<(), ReportError> {
    WholeFile::at(path).map(drop).map_err(|error| ReportError::new(path, error))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn nothing_is_written_through_a_link_and_nothing_is_left_by_a_check() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("target"), "kept").unwrap();
        std::os::unix::fs::symlink(path("target"), path("link")).unwrap();
        for result in [check_writable(&path("link")), write_csv(&path("link"), &[(1, 2)])] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("cannot write ") && error.contains("symbolic link"), "{error}");
        }
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "kept");
        check_writable(&path("new")).unwrap();
        check_writable(&path("target")).unwrap();
        assert!(!path("new").exists() && fs::read_to_string(path("target")).unwrap() == "kept");
        let error = check_writable(&path("none/new")).unwrap_err().to_string();
        assert!(error.contains("none/new: the folder ") && error.contains("/none "), "{error}");
        assert!(check_writable(folder.path()).unwrap_err().to_string().contains("it is a folder"));
        write_file(&path("target"), b"new").unwrap();
        assert_eq!(fs::read_to_string(path("target")).unwrap(), "new");
    }
}
