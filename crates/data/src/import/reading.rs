//! Reads pictures and tables for `mpiburn predict`, and converts them to the form of the data set that a
//! network was trained on.

use std::path::{Path, PathBuf};

use run_record::count;
use run_record::files::foreign_file;

use crate::DataError;
use crate::import::labels::twin;
use crate::import::pictures::codec;
use crate::import::pictures::folder::{LeftOut, is_picture, walk};
use crate::import::pictures::picture::{self, Fit, Size, Target};
use crate::import::pictures::place::{Encoded, Place};
use crate::import::same_class::finder;
use crate::import::tables::table_file::TableFile;
use crate::import::tables::{TableFiles, is_parquet};
use crate::quote::{listed, quoted};

/// Returns the picture `path` or, if `path` is a folder, the pictures below it, sorted by name.
///
/// # Errors
/// When a folder cannot be read.
pub fn pictures(path: &Path) -> Result<Vec<PathBuf>, DataError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut left_out = LeftOut::default();
    let pictures = walk(path, &mut left_out)?;
    let others: usize = left_out.endings.values().map(|(number, _)| number).sum();
    if others > 0 {
        let mut firsts = left_out.endings.values().map(|(_, first)| first);
        let why = match firsts.find_map(|first| Some((first, picture::foreign_picture(first)?))) {
            Some((first, kind)) => format!("; {} is {kind}", first.display()),
            None => " without an extension of pictures, such as .jpg".to_owned(),
        };
        log::warn!("{}: left out {}{why}", path.display(), count(others, "file"));
    }
    Ok(pictures)
}

/// Returns the pixels of the picture `path` as bytes `[channels, height, width]`. The picture becomes grey if
/// `channels` is 1, and RGB otherwise.
///
/// # Errors
/// When the file cannot be read as a picture.
pub fn picture(path: &Path, [channels, height, width]: [usize; 3], fit: Fit) -> Result<Vec<u8>, DataError> {
    let size = Size { height: height as u32, width: width as u32 };
    let place = Place::Encoded(Encoded::File(path.to_owned()));
    codec::read(&place, Target { size, fit, grey: channels == 1 })
        .map_err(|what| DataError::source(path, what))
}

/// Calls `visit` for each row of the table `path`. Its arguments are the number of the row's line (for
/// Parquet, the number of the row) and the values of the row's features. `features` is the number of
/// features.
///
/// `names` are the names of the features. If the table has a header and `names` is not empty, columns are
/// found by name, in any spelling, and other columns are ignored. If the table has no header, or `names` is
/// empty, the table must have exactly `features` columns, in the order of the features.
///
/// # Errors
/// When the table cannot be read or does not have the columns. An error in a single row is passed to `visit`.
pub fn rows(
    path: &Path,
    features: usize,
    names: &[String],
    mut visit: impl FnMut(u64, Result<Vec<f32>, DataError>),
) -> Result<(), DataError> {
    if path.is_dir() {
        bail!(path, "is a folder, but the run was trained on a table: name table files instead");
    }
    let kind = foreign_file(path).filter(|kind| kind.advice.is_empty() && !is_parquet(path));
    // PNM begins with text, so its contents do not show that it is not a table.
    let is_pnm = path.is_file() && is_picture(path);
    let kind = kind.map(|kind| kind.to_string()).or_else(|| is_pnm.then(|| "a picture".into()));
    if let Some(kind) = kind {
        bail!(path, "is {kind}, but the run was trained on a table: name table files instead");
    }
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut table = TableFile::open(&TableFiles::one(path), None, &known, features.min(2), &|_, _| Ok(()))?;
    let columns: Vec<usize> = match &table.header {
        Some(header) if !names.is_empty() => {
            let find = finder(header);
            let column = |name: &String| find(name).map_or_else(|| table.named(name), Ok);
            let columns = names.iter().map(column).collect::<Result<Vec<_>, _>>()?;
            if let Some(column) = twin(&columns) {
                let name = quoted(&table.column_name(*column));
                bail!(
                    path,
                    "column {name} matches two features; the features of the run are {}: write a column for each",
                    listed(names)
                );
            }
            columns
        }
        _ if table.columns == features => (0..features).collect(),
        _ => {
            let remedy =
                if table.columns < features { "add the missing columns" } else { "remove all other columns" };
            bail!(
                path,
                "has {}, but the network takes {}{}; {remedy}",
                count(table.columns, "column"),
                count(features, "feature"),
                match names {
                    [] => String::new(),
                    names => format!(": {}", listed(names)),
                }
            );
        }
    };
    table.check_values(&columns)?;
    table.for_each_row(|table, row, position| {
        if let Err(error) = table.check_width(row, position) {
            visit(table.line(position), Err(error));
            return Ok(());
        }
        let value = |&column: &usize| {
            let value = table.feature(row, column).map(|value| value as f32);
            value.map_err(|[what, _]| table.wrong(position, what))
        };
        visit(table.line(position), columns.iter().map(value).collect());
        Ok(())
    })
}
