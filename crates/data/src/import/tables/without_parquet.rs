//! Replaces `parquet_file` in a build without the feature `parquet`.

use std::fs::File;
use std::path::{Path, PathBuf};

use super::{TableFiles, Tables, Tell, is_parquet};
use crate::DataError;
use crate::error::without;
use crate::import::job::Job;
use crate::import::pictures::folder::Found;

fn parquet<T>(path: &Path) -> Result<T, DataError> {
    bail!(path, "{}", without("Parquet", "parquet"))
}

pub(crate) fn column_of_pictures(path: &Path) -> Result<Option<String>, DataError> {
    if is_parquet(path) { parquet(path) } else { Ok(None) }
}

pub(crate) fn embeds_pictures(path: &Path) -> Result<bool, DataError> {
    column_of_pictures(path).map(|column| column.is_some())
}

pub(crate) struct CsvTable {
    pub(crate) file: File,
    pub(crate) without_values: Vec<(String, String)>,
}

pub(crate) fn as_csv(files: &TableFiles, _: &Tell<'_>) -> Result<CsvTable, DataError> {
    parquet(&files.files[0])
}

pub(crate) fn rows_before(paths: &[PathBuf]) -> Result<Vec<(PathBuf, u64)>, DataError> {
    parquet(&paths[0])
}

pub(crate) fn label(
    table: &TableFiles,
    _: Option<&str>,
    _: Option<&str>,
) -> Result<(String, Option<Vec<String>>), DataError> {
    parquet(&table.files[0])
}

pub(crate) fn check_label(
    table: &TableFiles,
    _: &str,
    _: Option<&Vec<String>>,
    _: &Path,
) -> Result<(), DataError> {
    parquet(&table.files[0])
}

pub(crate) fn pictures(tables: &Tables, _: &str, _: &Job<'_>) -> Result<Found, DataError> {
    parquet(&tables.train.files[0])
}
