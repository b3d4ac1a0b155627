//! Reads Parquet files: tables of features, and tables with the bytes of pictures in a column, as Hugging
//! Face writes them.
//!
//! This module reads rows and columns, and finds the column of the classes. [`text`] converts a table of
//! features to text, and [`pictures`] copies the pictures out of a table.

mod pictures;
mod text;

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::ConvertedType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::TypePtr;
use serde_json::Value;

pub(crate) use self::pictures::pictures;
pub(crate) use self::text::{CsvTable, as_csv};
use crate::DataError;
use crate::error::damage;
use crate::import::same_class::finder;
use crate::import::tables::table_file::LABELS;
use crate::import::tables::{TableFiles, Tell, is_parquet, partitions};
use crate::quote::{listed, short};

/// Names of columns of pictures.
const PICTURES: [&str; 4] = ["image", "img", "picture", "pixels"];

fn open(path: &Path) -> Result<SerializedFileReader<File>, DataError> {
    let file = run_record::files::open_regular(path).map_err(DataError::read(path))?;
    match run_record::files::foreign_file(path).filter(|_| !is_parquet(path)) {
        Some(kind) => bail!(path, "is {kind}"),
        None => guarded(path, || SerializedFileReader::new(file)),
    }
}

fn invalid(path: &Path) -> impl Fn(ParquetError) -> DataError {
    move |error| {
        let text = error.to_string();
        let of_system = match error {
            ParquetError::External(error) => error.downcast().ok().filter(|error| damage(error).is_none()),
            _ => None,
        };
        match (of_system, text.split_once("Disabled feature at compile time: ")) {
            (Some(error), _) => DataError::read(path)(*error),
            (None, Some((_, codec))) => {
                let what = format!(
                    "is compressed with {codec}, which is not supported: write it with snappy or zstd"
                );
                DataError::source(path, what)
            }
            (None, None) => damaged(path),
        }
    }
}

fn damaged(path: &Path) -> DataError {
    DataError::damaged(path, "is a damaged Parquet file")
}

/// Calls `read`, which calls the Parquet reader, and turns a panic into an error: the reader panics on some
/// damaged files. During the call, another panic hook makes sure that nothing is printed.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DataError> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    std::panic::set_hook(hook);
    read.map_err(|_| damaged(path))?.map_err(invalid(path))
}

/// Calls `visit` for each row of the files. Its arguments are the file, the number of the row in this file,
/// counted from 1, and the names and values of the columns. Columns that come from the names of folders are
/// last.
fn for_each_row(
    files: &TableFiles,
    tell: &Tell<'_>,
    mut visit: impl FnMut(&Path, usize, Vec<(String, Field)>) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let rows = |path: &PathBuf| Ok(open(path)?.metadata().file_metadata().num_rows().max(0) as usize);
    let all = files.files.iter().map(rows).sum::<Result<usize, DataError>>()?;
    let mut done = 0;
    for path in &files.files {
        let (reader, before) = (open(path)?, done);
        let mut rows = guarded(path, || reader.get_row_iter(None))?;
        let of_folders = partitions::in_path(path, &files.root, &own_columns(path)?);
        while let Some(row) = guarded(path, || rows.next().transpose())? {
            done += 1;
            tell(done, all)?;
            let of_folders =
                of_folders.iter().map(|(name, value)| (name.clone(), text_or_null(value.clone())));
            visit(path, done - before, row.into_columns().into_iter().chain(of_folders).collect())?;
        }
    }
    Ok(())
}

/// Returns the files, each with the number of rows in the files before it.
pub(crate) fn rows_before(paths: &[PathBuf]) -> Result<Vec<(PathBuf, u64)>, DataError> {
    let mut before = 0;
    let with_rows = |path: &PathBuf| {
        let rows = open(path)?.metadata().file_metadata().num_rows().max(0) as u64;
        before += rows;
        Ok((path.clone(), before - rows))
    };
    paths.iter().map(with_rows).collect()
}

/// Returns the columns that are in a file.
fn fields(path: &Path) -> Result<Vec<TypePtr>, DataError> {
    Ok(open(path)?.metadata().file_metadata().schema().get_fields().to_vec())
}

/// Returns the names of the columns that are in a file.
fn own_columns(path: &Path) -> Result<Vec<String>, DataError> {
    Ok(fields(path)?.iter().map(|field| field.name().to_owned()).collect())
}

/// Returns the names of the columns that are in a file, followed by the names of the columns that come from
/// the folders between `root` and the file.
fn columns(path: &Path, root: &Path) -> Result<Vec<String>, DataError> {
    let mut columns = own_columns(path)?;
    let of_folders = partitions::in_path(path, root, &columns);
    columns.extend(of_folders.into_iter().map(|(name, _)| name));
    Ok(columns)
}

fn text_or_null(text: Option<String>) -> Field {
    text.map_or(Field::Null, Field::Str)
}

/// Converts a value to text. Numbers keep all digits, and a missing value becomes an empty text.
fn cell(field: &Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Bool(value) => u8::from(*value).to_string(),
        Field::Float16(value) => value.to_f32().to_string(),
        Field::Float(value) => value.to_string(),
        Field::Double(value) => value.to_string(),
        Field::Str(text) => in_line(text),
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => in_line(text),
            Err(_) => bytes.data().iter().map(|byte| format!("{byte:02x}")).collect(),
        },
        Field::Group(_) => "a struct".into(),
        Field::ListInternal(_) => "a list".into(),
        Field::MapInternal(_) => "a map".into(),
        number => number.to_string(),
    }
}

/// Returns the column of pictures of a Parquet file, if it has one: bytes, or a group of bytes and path.
pub(crate) fn column_of_pictures(path: &Path) -> Result<Option<String>, DataError> {
    if !is_parquet(path) {
        return Ok(None);
    }
    let is_picture = |field: &&TypePtr| {
        if field.is_group() {
            field.get_fields().iter().any(|inner| inner.name() == "bytes")
        } else {
            field.get_physical_type() == parquet::basic::Type::BYTE_ARRAY
                && PICTURES.contains(&&*field.name().to_lowercase())
        }
    };
    Ok(fields(path)?.iter().find(is_picture).map(|field| field.name().to_owned()))
}

/// Returns whether a column of a file contains the bytes of pictures, rather than their names.
pub(crate) fn embeds_pictures(path: &Path) -> Result<bool, DataError> {
    let Some(column) = column_of_pictures(path)? else { return Ok(false) };
    let is_text =
        |field: &TypePtr| !field.is_group() && field.get_basic_info().converted_type() == ConvertedType::UTF8;
    Ok(!fields(path)?.iter().any(|field| field.name() == column && is_text(field)))
}

/// Returns what Hugging Face's `datasets` has recorded about the columns of a file.
fn features(path: &Path) -> Result<Value, DataError> {
    let reader = open(path)?;
    let entries = reader.metadata().file_metadata().key_value_metadata();
    let text = entries.into_iter().flatten().find(|entry| entry.key == "huggingface");
    let json = text.and_then(|entry| serde_json::from_str::<Value>(entry.value.as_deref()?).ok());
    Ok(json.map_or(Value::Null, |json| json["info"]["features"].clone()))
}

/// Escapes line breaks: each row of the text file is one line.
fn in_line(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r")
}

/// Returns the column with the classes, and the names of the classes if the file has them. `pictures` is the
/// column of pictures, if there is one. `wanted` is the column that the user named with `--label`.
pub(crate) fn label(
    table: &TableFiles,
    pictures: Option<&str>,
    wanted: Option<&str>,
) -> Result<(String, Option<Vec<String>>), DataError> {
    let path = &*table.files[0];
    let (columns, known) = (columns(path, &table.root)?, features(path)?);
    let others: Vec<&String> = columns.iter().filter(|column| pictures != Some(column.as_str())).collect();
    let found = match wanted.map(str::trim) {
        Some(wanted) => {
            let number = wanted.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
            let column = finder(&columns)(wanted).or(number).and_then(|place| columns.get(place));
            others.iter().find(|other| Some(**other) == column)
        }
        None => {
            let has_names =
                |column: &&&String| names_in(&known, column).is_some_and(|names| !names.is_empty());
            let mut named = others.iter().filter(has_names);
            let only = others.first().filter(|_| pictures.is_some() && others.len() == 1);
            let named = named.next().filter(|_| named.next().is_none()).or(only);
            others.iter().find(|column| LABELS.contains(&&*column.to_lowercase())).or(named)
        }
    };
    let Some(&column) = found else {
        let listed = listed(&others);
        if let Some(wanted) = wanted {
            return Err(DataError::option(
                "label",
                short(wanted),
                format!("is not a column of {}, which has {listed}", path.display()),
            ));
        }
        let Some(first) = others.first() else {
            bail!(path, "contains only pictures: add a column with the class")
        };
        // Propose the last column that may contain classes.
        let fields = fields(path)?;
        let may_be = |column: &&&String| {
            let field = fields.iter().find(|field| field.name() == **column);
            field.is_none_or(|field| !field.is_group() && !is_float(field))
        };
        let proposed = run_record::quoted(others.iter().rfind(may_be).unwrap_or(first));
        bail!(path, "which column is the class? It has {listed}: name one, as in --label {proposed}");
    };
    let names = names_in(&known, column);
    check_label(table, column, names.as_ref(), path)?;
    Ok((column.clone(), names))
}

/// Returns whether a column contains floats.
fn is_float(field: &TypePtr) -> bool {
    use parquet::basic::Type;
    matches!(field.get_physical_type(), Type::FLOAT | Type::DOUBLE)
}

/// Returns the names of the classes in a column, if `features` has them.
fn names_in(features: &Value, column: &str) -> Option<Vec<String>> {
    serde_json::from_value(features[column]["names"].clone()).ok()
}

/// Checks the column of the classes in all files of a table. The column must contain words or numbers. Each
/// file must have the class names `names`, or no class names if `names` is `None`. `names` come from `first`,
/// the first file of the training table: an error about other names also names this file.
pub(crate) fn check_label(
    table: &TableFiles,
    column: &str,
    names: Option<&Vec<String>>,
    first: &Path,
) -> Result<(), DataError> {
    for path in &table.files {
        if fields(path)?.iter().any(|field| field.name() == column && field.is_group()) {
            bail!(
                path,
                "column {} contains lists or groups, but a class must be a word or a number",
                short(column)
            );
        }
        if names_in(&features(path)?, column).as_ref() != names {
            bail!(
                path,
                "gives the classes of column {} other names than {}: write the same names to both files",
                short(column),
                first.display()
            );
        }
    }
    Ok(())
}

/// Returns the value of a row in the column `wanted`.
fn value<'f>(columns: &'f [(String, Field)], wanted: &str) -> Option<&'f Field> {
    columns.iter().find(|(name, _)| name == wanted).map(|(_, field)| field)
}
