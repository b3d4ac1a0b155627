//! Imports pictures whose bytes are in a column of a Parquet table. The bytes are copied to one file for each
//! split.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::record::Field;
use run_record::count;

use super::{cell, check_label, columns, for_each_row, label, value};
use crate::DataError;
use crate::error::until_stopped;
use crate::formats::DataFile;
use crate::import::job::Job;
use crate::import::labels::Labels;
use crate::import::pictures::folder::{self, Found, Picture};
use crate::import::pictures::place::{Encoded, Place};
use crate::import::tables::{TableFiles, Tables};
use crate::quote::{quoted, short};

/// A picture copied to a file: its offset and length in bytes, its name, and the number of its label.
type Unpacked = (usize, usize, String, u32);

/// Returns the pictures that are in the column `column` of the tables. Their bytes are copied to files of the
/// import.
pub(crate) fn pictures(tables: &Tables, column: &str, job: &Job<'_>) -> Result<Found, DataError> {
    let args = job.args;
    let (label, names) = label(&tables.train, Some(column), args.label.as_deref())?;
    let mut labels = Labels::with_names(names.clone(), args.missing_labels);
    let folder = job.folder("pictures")?;
    let mut by_path = ByPath::default();
    let mut unpack = |name: &str, files: &TableFiles, labels: &mut Labels| -> Result<_, DataError> {
        let place = folder.join(name);
        let failed = |error| DataError::write(&place)(error);
        let mut file = BufWriter::new(File::create(&place).map_err(failed)?);
        let (mut start, mut found) = (0, Vec::new());
        for_each_row(files, &|row, rows| job.step(row, rows), |path, row, columns| {
            let wrong = |what: String| DataError::source(path, format!("row {row}: {what}"));
            let class = value(&columns, &label).map(cell).unwrap_or_default();
            let place = format!("column {}", short(&label));
            let number = labels.number(place, class.trim(), class.trim().parse().ok());
            let Some(number) = number.map_err(wrong)? else { return Ok(()) };
            let picture = value(&columns, column).unwrap_or(&Field::Null);
            let bytes = bytes(picture).unwrap_or_default();
            if by_path.add(path, row, bytes, picture) {
                return Ok(());
            }
            file.write_all(bytes).map_err(failed)?;
            let name = folder::name(path);
            found.push((start, bytes.len(), format!("{name}:{row}"), number));
            start += bytes.len();
            Ok(())
        })?;
        file.flush().map_err(failed)?;
        Ok((Arc::new(DataFile::open(&place)?), found))
    };
    let train = unpack("train", &tables.train, &mut labels)?;
    let known = labels.names(train.1.iter().map(|(.., number)| *number));
    let test = tables.test(args, &known, |files| classes(files, &label, &labels, &known))?;
    let test = match test.map(|at| &tables.others[at]) {
        None => None,
        Some(other) => {
            if !columns(&other.table.files[0], &other.table.root)?.contains(&label) {
                return Err(other.without_classes(&label));
            }
            check_label(&other.table, &label, names.as_ref(), &tables.train.files[0])?;
            if classes(&other.table, &label, &labels, &known)?.is_empty() {
                return Err(other.unlabelled(&label));
            }
            Some(unpack("test", &other.table, &mut labels)?)
        }
    };
    by_path.finish(column, args.skip_broken && !train.1.is_empty())?;
    let (classes, class) = labels.classes(&args.source)?;
    let pictures = |(file, found): (Arc<DataFile>, Vec<Unpacked>)| {
        let picture = |(start, bytes, name, label)| Picture {
            place: Place::Encoded(Encoded::Part { file: file.clone(), start, bytes }),
            name,
            class: class[label as usize],
        };
        found.into_iter().map(picture).collect()
    };
    Ok(Found { train: pictures(train), test: test.map(pictures), classes })
}

/// Returns the classes in a column of a table, or an empty set if the table does not have the column. Reads
/// the table only until a class is in `known`, so the set may not have all classes.
fn classes(
    files: &TableFiles,
    column: &str,
    labels: &Labels,
    known: &BTreeSet<String>,
) -> Result<BTreeSet<String>, DataError> {
    let mut found = BTreeSet::new();
    let read = for_each_row(files, &|_, _| Ok(()), |_, _, columns| {
        let Some(label) = value(&columns, column).map(cell) else { return Err(DataError::Stopped) };
        found.extend(labels.name(label.trim(), label.trim().parse().ok()));
        if found.is_disjoint(known) { Ok(()) } else { Err(DataError::Stopped) }
    });
    until_stopped(read).map(|()| found)
}

/// Counts rows with the path of a picture, but without its bytes.
#[derive(Default)]
struct ByPath {
    number: usize,
    all: usize,
    first: Option<(PathBuf, usize, String)>,
}

impl ByPath {
    /// Counts a row. Returns true if the row has a path and no bytes.
    fn add(&mut self, path: &Path, row: usize, bytes: &[u8], picture: &Field) -> bool {
        self.all += 1;
        match path_of(picture).filter(|_| bytes.is_empty()) {
            None => false,
            Some(name) => {
                self.number += 1;
                self.first.get_or_insert_with(|| (path.to_owned(), row, name.to_owned()));
                true
            }
        }
    }

    fn finish(self, column: &str, is_left_out: bool) -> Result<(), DataError> {
        let Some((path, row, name)) = self.first else { return Ok(()) };
        let what = format!(
            "column {column} contains a path but no picture in {} of {} (row {row}: {})",
            self.number,
            count(self.all, "row"),
            quoted(&name)
        );
        if is_left_out {
            log::warn!("left out: {what}");
            return Ok(());
        }
        bail!(
            &path,
            "{what}: write the table with the bytes of the pictures, or import the folder of the pictures"
        );
    }
}

/// Returns the path of a picture that a row has beside its bytes or instead of them.
fn path_of(field: &Field) -> Option<&str> {
    match field {
        Field::Str(text) if !text.is_empty() => Some(text),
        Field::Group(group) => {
            let path = group.get_column_iter().find(|(name, _)| *name == "path");
            path.and_then(|(_, field)| path_of(field))
        }
        _ => None,
    }
}

/// Returns the bytes of a picture, or `None` if the row has none.
fn bytes(field: &Field) -> Option<&[u8]> {
    match field {
        Field::Bytes(bytes) => Some(bytes.data()),
        Field::Group(group) => {
            group.get_column_iter().find(|(name, _)| *name == "bytes").and_then(|(_, field)| bytes(field))
        }
        _ => None,
    }
}
