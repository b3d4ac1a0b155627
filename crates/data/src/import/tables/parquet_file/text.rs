//! Converts a Parquet table to a temporary text file with commas. The module `table_file` reads this file
//! like any other table, so one reader serves all tables of features.

use std::fs::File;
use std::io::Seek;
use std::path::Path;

use parquet::basic::ConvertedType;
use parquet::record::Field;
use parquet::schema::types::TypePtr;

use super::{cell, columns, fields, for_each_row, own_columns, value};
use crate::DataError;
use crate::error::until_stopped;
use crate::import::pictures::folder;
use crate::import::tables::{TableFiles, Tell, partitions};
use crate::import::temporary;
use crate::quote::{listed, quoted, short};

/// How a column is written as text.
#[derive(Clone)]
enum Cells {
    One,
    /// Each value is a list of this many numbers, and each number gets a column of its own. The string names
    /// the first row with a list, for messages.
    Each(usize, String),
    /// The column has structs or maps, or lists that cannot become columns. All its cells are written empty.
    None,
}

/// Columns without single values, and what they contain instead.
type WithoutValues = Vec<(usize, String)>;

/// A table as text. `without_values` lists the columns without single values: the name of each column, and
/// what it contains instead.
pub(crate) struct CsvTable {
    pub(crate) file: File,
    pub(crate) without_values: Vec<(String, String)>,
}

/// Converts a table to a text file with commas and a header. All files must have the same columns. A column
/// of lists of numbers that all have the same length becomes one column for each position in the lists.
pub(crate) fn as_csv(files: &TableFiles, tell: &Tell<'_>) -> Result<CsvTable, DataError> {
    let paths = &files.files;
    let expected = columns(&paths[0], &files.root)?;
    for path in &paths[1..] {
        let names = columns(path, &files.root)?;
        if names != expected {
            let (names, expected) = (listed(&names), listed(&expected));
            bail!(
                path,
                "has the columns {names}, but {} has {expected}: give all files the same columns",
                paths[0].display()
            );
        }
    }
    warn_of_partitions(files)?;
    let (mut cells, mut without_values) = layout(files)?;
    loop {
        match write_csv(files, &expected, &cells, tell)? {
            Written::File(file) => {
                let named = |(column, what): (usize, String)| (expected[column].clone(), what);
                let without_values = without_values.into_iter().map(named).collect();
                return Ok(CsvTable { file, without_values });
            }
            Written::Differs(column, what) => {
                cells[column] = Cells::None;
                without_values.push((column, what));
            }
        }
    }
}

/// Warns if a column is both in a file and in the name of a folder, and the value in the file's first row
/// differs from the value in the folder's name. The import uses the file's column, while other tools may use
/// the name of the folder.
fn warn_of_partitions(files: &TableFiles) -> Result<(), DataError> {
    let number = |text: &str| text.parse::<f64>().ok();
    let is_same = |own: &str, text: &str| {
        let text = match &*text.to_lowercase() {
            "true" => "1".to_owned(),
            "false" => "0".to_owned(),
            _ => text.to_owned(),
        };
        match number(own) {
            Some(own) => number(&text) == Some(own),
            // A value in the file may have a time of day after the date in the folder's name.
            None => own.starts_with(&text),
        }
    };
    for path in &files.files {
        let own = own_columns(path)?;
        let mut both = partitions::in_path(path, &files.root, &[]);
        both.retain(|(name, _)| own.contains(name));
        if both.is_empty() {
            continue;
        }
        let mut other = None;
        let one = TableFiles { root: files.root.clone(), files: vec![path.clone()] };
        let read = for_each_row(&one, &|_, _| Ok(()), |_, _, row| {
            other = both.iter().find_map(|(name, text)| {
                let own = value(&row, name).map(cell).unwrap_or_default();
                let text = text.as_deref().unwrap_or_default();
                (!is_same(&own, text)).then_some((name, own, text))
            });
            Err(DataError::Stopped)
        });
        until_stopped(read)?;
        if let Some((name, own, text)) = other {
            log::warn!(
                "{}: column {} is {} in row 1, but the name of the folder says {}: the column is used",
                path.strip_prefix(&files.root).unwrap_or(path).display(),
                short(name),
                quoted(&own),
                quoted(text)
            );
            return Ok(());
        }
    }
    Ok(())
}

/// Result of writing a table as text.
enum Written {
    File(File),
    /// The column with this index has lists of different lengths. The string describes the lengths.
    Differs(usize, String),
}

fn write_csv(
    files: &TableFiles,
    names: &[String],
    cells: &[Cells],
    tell: &Tell<'_>,
) -> Result<Written, DataError> {
    let failed = |error: csv::Error| temporary::failed(error.into());
    let mut writer = csv::Writer::from_writer(temporary::file()?);
    for (name, cells) in names.iter().zip(cells) {
        match cells {
            Cells::Each(length, _) => {
                (0..*length).try_for_each(|at| writer.write_field(format!("{name}_{at}"))).map_err(failed)?;
            }
            _ => writer.write_field(name).map_err(failed)?,
        }
    }
    writer.write_record(None::<&[u8]>).map_err(failed)?;
    let mut differs = None;
    let read = for_each_row(files, tell, |path, number, row| {
        for (column, ((_, field), cells)) in row.iter().zip(cells).enumerate() {
            match (cells, field) {
                (Cells::None, _) => writer.write_field(""),
                (Cells::Each(length, _), Field::Null) => {
                    (0..*length).try_for_each(|_| writer.write_field(""))
                }
                (Cells::Each(length, first), Field::ListInternal(list)) => {
                    if list.len() != *length {
                        let (other, row) = (list.len(), row_name(files, path, number));
                        let what =
                            format!("lists of different lengths ({length} in {first}, {other} in {row})");
                        differs = Some((column, what));
                        return Err(DataError::Stopped);
                    }
                    list.elements().iter().try_for_each(|field| writer.write_field(cell(field)))
                }
                _ => writer.write_field(cell(field)),
            }
            .map_err(failed)?;
        }
        writer.write_record(None::<&[u8]>).map_err(failed)
    });
    if let Some((column, what)) = differs {
        return Ok(Written::Differs(column, what));
    }
    read?;
    let mut file = writer.into_inner().map_err(|error| temporary::failed(error.into_error()))?;
    file.rewind().map_err(temporary::failed)?;
    Ok(Written::File(file))
}

/// Names a row in a message.
fn row_name(files: &TableFiles, path: &Path, row: usize) -> String {
    if files.files.len() == 1 { format!("row {row}") } else { format!("row {row} of {}", folder::name(path)) }
}

/// Decides how each column is written. For a column of lists, this is decided by the first value that is not
/// null. Also returns the columns without single values, and what they contain instead.
fn layout(files: &TableFiles) -> Result<(Vec<Cells>, WithoutValues), DataError> {
    let is_list =
        |field: &TypePtr| field.is_group() && field.get_basic_info().converted_type() == ConvertedType::LIST;
    let fields = fields(&files.files[0])?;
    let mut cells = vec![Cells::One; columns(&files.files[0], &files.root)?.len()];
    let (mut unknown, groups): (Vec<usize>, Vec<usize>) = (0..fields.len())
        .filter(|&column| fields[column].is_group())
        .partition(|&column| is_list(&fields[column]));
    let is_map = |column: usize| fields[column].get_basic_info().converted_type() == ConvertedType::MAP;
    let what = |column| if is_map(column) { "maps" } else { "structs" };
    let mut without_values: WithoutValues =
        groups.iter().map(|&column| (column, what(column).to_owned())).collect();
    groups.iter().for_each(|&column| cells[column] = Cells::None);
    if unknown.is_empty() {
        return Ok((cells, without_values));
    }
    let read = for_each_row(files, &|_, _| Ok(()), |path, number, row| {
        unknown.retain(|&column| {
            let Field::ListInternal(list) = &row[column].1 else { return true };
            cells[column] = match list.elements() {
                [_, ..] if list.elements().iter().all(is_number) => {
                    Cells::Each(list.len(), row_name(files, path, number))
                }
                elements => {
                    let what = if elements.is_empty() {
                        "empty lists"
                    } else {
                        "lists of values that are not numbers"
                    };
                    without_values.push((column, what.into()));
                    Cells::None
                }
            };
            false
        });
        if unknown.is_empty() { Err(DataError::Stopped) } else { Ok(()) }
    });
    until_stopped(read).map(|()| (cells, without_values))
}

/// Returns whether an element of a list is a number or missing.
fn is_number(field: &Field) -> bool {
    let is_other = matches!(
        field,
        Field::Str(_) | Field::Bytes(_) | Field::Group(_) | Field::ListInternal(_) | Field::MapInternal(_)
    );
    !is_other
}
