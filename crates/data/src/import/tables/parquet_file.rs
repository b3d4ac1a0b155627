//! Reads Parquet files: tables of features, and tables with the bytes of pictures in a column, as Hugging
//! Face writes them.
//!
//! A table of features is converted to a temporary text file with commas, so that one reader serves all
//! tables. Pictures are copied to one file of the import for each split.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::ConvertedType;
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::TypePtr;
use run_record::count;
use serde_json::Value;

use crate::DataError;
use crate::error::{damage, until_stopped};
use crate::formats::DataFile;
use crate::import::job::Job;
use crate::import::labels::Labels;
use crate::import::pictures::folder::{self, Found, Picture};
use crate::import::pictures::place::{Encoded, Place};
use crate::import::same_class::finder;
use crate::import::tables::table_file::LABELS;
use crate::import::tables::{TableFiles, Tables, Tell, is_parquet, partitions};
use crate::import::temporary;
use crate::quote::{listed, quoted, short};

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

/// Calls the Parquet reader and turns a panic into an error: the reader panics on some damaged files. The
/// panic hook is replaced during the call, so that nothing is printed.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DataError> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    std::panic::set_hook(hook);
    read.map_err(|_| damaged(path))?.map_err(invalid(path))
}

/// Calls `visit` with each row of the files: the file, the number of the row in the file, counted from 1, and
/// the columns. Columns that come from the names of folders are last.
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

/// Returns the names of the columns of a file, and after them the names of columns from folders between the
/// file and `root`.
fn columns(path: &Path, root: &Path) -> Result<Vec<String>, DataError> {
    let mut columns = own_columns(path)?;
    let of_folders = partitions::in_path(path, root, &columns);
    columns.extend(of_folders.into_iter().map(|(name, _)| name));
    Ok(columns)
}

fn text_or_null(text: Option<String>) -> Field {
    text.map_or(Field::Null, Field::Str)
}

/// How a column is written as text.
#[derive(Clone)]
enum Cells {
    One,
    /// Each value is a list of this many numbers. Each number gets a column of its own. The text names the
    /// first row with such a list.
    Each(usize, String),
    /// The values are not single values. Each cell is empty.
    None,
}

/// Columns without single values, and what they contain instead.
type WithoutValues = Vec<(usize, String)>;

/// A table as text, and its columns without single values: the name of each, and what it contains instead.
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

/// Warns if the name of a folder gives a column of the file a value other than the value in the first row.
/// The import uses the column, while other tools may use the name of the folder.
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
            // The column may have a time of day after the date.
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
    /// This column has lists of different lengths, as the text describes.
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

/// Decides how each column is written. For a column of lists, the first value that is not null decides. Also
/// returns the columns without single values, and what they contain instead.
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
/// column of pictures, if there is one, and `wanted` the column that the user named.
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

/// Checks in all files of a table that the column of the classes contains words or numbers, and that the
/// classes have the same names as in `first`, the first file of the training split.
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
                "gives the classes of column {} other names than {}: write both files with the same names",
                short(column),
                first.display()
            );
        }
    }
    Ok(())
}

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

/// Returns the value of a row in the column `wanted`.
fn value<'f>(columns: &'f [(String, Field)], wanted: &str) -> Option<&'f Field> {
    columns.iter().find(|(name, _)| name == wanted).map(|(_, field)| field)
}

/// Returns the classes in a column of a table, reading only until one of them is in `known`. Returns an empty
/// set if the table does not have the column.
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

/// Counts rows that have the path of a picture instead of its bytes.
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
