//! Parquet files: features in columns, or pictures in one, as Hugging Face's data sets have them.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::types::TypePtr;
use serde_json::Value;

use crate::folder::{self, Found, Picture};
use crate::job::Job;
use crate::labels::Labels;
use crate::place::{Encoded, Place};
use crate::table_file::LABELS;
use crate::tables::Tables;
use crate::{DataFile, ImportError};

/// Is told each row that is read, and their number; an error stops the reading.
pub(crate) type Tell<'a> = dyn Fn(usize, usize) -> Result<(), ImportError> + 'a;

/// The first bytes of such a file.
pub(crate) const MAGIC: &[u8] = b"PAR1";

/// A column that is one of pictures.
const PICTURES: [&str; 4] = ["image", "img", "picture", "pixels"];

/// Whether a file is one, by its contents.
pub(crate) fn is_parquet(path: &Path) -> bool {
    let mut first = [0; MAGIC.len()];
    run_record::files::open_regular(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == MAGIC
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, ImportError> {
    let file = run_record::files::open_regular(path).map_err(ImportError::read(path))?;
    match run_record::files::foreign_file(path).filter(|_| !is_parquet(path)) {
        Some(kind) => bail!(path, "is {kind}"),
        None => guarded(path, || SerializedFileReader::new(file)),
    }
}

fn invalid(path: &Path) -> impl Fn(ParquetError) -> ImportError {
    move |error| match error.to_string() {
        what if what.contains("Disabled feature") => {
            let what =
                format!("is compressed by what is not read here ({what}): write it with snappy or zstd");
            ImportError::source(path, what)
        }
        what => ImportError::Damaged { path: path.to_owned(), what },
    }
}

/// The result of the reader of Parquet, which panics on some damaged files.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, ImportError> {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(read));
    std::panic::set_hook(hook);
    let damaged = || ImportError::Damaged { path: path.to_owned(), what: "cannot be decoded".into() };
    read.map_err(|_| damaged())?.map_err(invalid(path))
}

/// Calls `visit` with each row of the files: its file, its number in it from 1, and its columns.
fn for_each_row(
    paths: &[PathBuf],
    tell: &Tell<'_>,
    mut visit: impl FnMut(&Path, usize, Vec<(String, Field)>) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let rows = |path: &PathBuf| Ok(open(path)?.metadata().file_metadata().num_rows().max(0) as usize);
    let all = paths.iter().map(rows).sum::<Result<usize, ImportError>>()?;
    let mut done = 0;
    for path in paths {
        let (reader, before) = (open(path)?, done);
        let mut rows = guarded(path, || reader.get_row_iter(None))?;
        while let Some(row) = guarded(path, || rows.next().transpose())? {
            done += 1;
            tell(done, all)?;
            visit(path, done - before, row.into_columns())?;
        }
    }
    Ok(())
}

/// The columns of a file.
fn fields(path: &Path) -> Result<Vec<TypePtr>, ImportError> {
    Ok(open(path)?.metadata().file_metadata().schema().get_fields().to_vec())
}

/// Their names.
fn columns(path: &Path) -> Result<Vec<String>, ImportError> {
    Ok(fields(path)?.iter().map(|field| field.name().to_owned()).collect())
}

/// The rows of files with the same columns as a table of commas, whose first line has the names of the columns.
pub(crate) fn as_csv(paths: &[PathBuf], tell: &Tell<'_>) -> Result<File, ImportError> {
    let failed = |error: std::io::Error| ImportError::write(&std::env::temp_dir())(error);
    let mut writer = csv::Writer::from_writer(tempfile::tempfile().map_err(failed)?);
    let expected = columns(&paths[0])?;
    for path in &paths[1..] {
        let names = columns(path)?;
        if names != expected {
            bail!(
                path,
                "has the columns {}, and {} has {}",
                names.join(", "),
                paths[0].display(),
                expected.join(", ")
            );
        }
    }
    writer.write_record(&expected).map_err(|error| failed(error.into()))?;
    for_each_row(paths, tell, |_, _, row| {
        let cells = row.iter().map(|(_, field)| cell(field));
        writer.write_record(cells).map_err(|error| failed(error.into()))
    })?;
    let mut file = writer.into_inner().map_err(|error| failed(error.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

/// A value as text: a number in full, nothing where there is none.
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
        Field::Group(_) => "several columns".into(),
        Field::ListInternal(_) => "a list".into(),
        Field::MapInternal(_) => "a map".into(),
        number => number.to_string(),
    }
}

/// The column of pictures in tables of Parquet, if they have one: bytes, or a group of bytes and their path.
pub(crate) fn column_of_pictures(tables: &[PathBuf]) -> Result<Option<String>, ImportError> {
    let Some(path) = tables.first().filter(|path| is_parquet(path)) else { return Ok(None) };
    let is_picture = |field: &&TypePtr| match field.is_group() {
        true => field.get_fields().iter().any(|inner| inner.name() == "bytes"),
        false => {
            field.get_physical_type() == parquet::basic::Type::BYTE_ARRAY
                && PICTURES.contains(&&*field.name().to_lowercase())
        }
    };
    Ok(fields(path)?.iter().find(is_picture).map(|field| field.name().to_owned()))
}

/// What Hugging Face's `datasets` says of a file's columns.
fn features(path: &Path) -> Result<Value, ImportError> {
    let reader = open(path)?;
    let entries = reader.metadata().file_metadata().key_value_metadata();
    let text = entries.into_iter().flatten().find(|entry| entry.key == "huggingface");
    let json = text.and_then(|entry| serde_json::from_str::<Value>(entry.value.as_deref()?).ok());
    Ok(json.map_or(Value::Null, |json| json["info"]["features"].clone()))
}

/// Text in a line of its own, which a row of the table is.
fn in_line(text: &str) -> String {
    text.replace('\n', "\\n").replace('\r', "\\r")
}

/// The column of the classes, beside the one of pictures if there is one, and their names, if they are known.
pub(crate) fn label(
    tables: &Tables,
    pictures: Option<&str>,
    wanted: Option<&str>,
) -> Result<(String, Option<Vec<String>>), ImportError> {
    let path = &*tables.train[0];
    let (columns, known) = (columns(path)?, features(path)?);
    let names_in = |features: &Value, column: &str| -> Option<Vec<String>> {
        serde_json::from_value(features[column]["names"].clone()).ok()
    };
    let others: Vec<&String> = columns.iter().filter(|column| pictures != Some(column.as_str())).collect();
    let found = match wanted {
        Some(wanted) => others.iter().find(|column| **column == wanted),
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
        let listed = others.iter().map(|column| column.as_str()).collect::<Vec<_>>().join(", ");
        if let Some(wanted) = wanted {
            return Err(ImportError::option("label", wanted, format!("{} has {listed}", path.display())));
        }
        let Some(first) = others.first() else { bail!(path, "has no column of classes beside its pictures") };
        bail!(path, "which column is the class? It has {listed}: name one, as in --label {first}");
    };
    let names = names_in(&known, column);
    for path in tables.train.iter().chain(tables.test.iter().flatten()) {
        if fields(path)?.iter().any(|field| field.name() == column && field.is_group()) {
            bail!(path, "column {column} has lists or several columns, and a class is a word or a number");
        }
        if names_in(&features(path)?, column) != names {
            bail!(path, "names the classes of {column} otherwise than {}", tables.train[0].display());
        }
    }
    Ok((column.clone(), names))
}

/// A picture in a file of many: its place, its bytes, its name, and the number of its class.
type Unpacked = (usize, usize, String, u32);

/// The pictures of tables whose column `column` has them; their bytes are copied to files of the import.
pub(crate) fn pictures(tables: &Tables, column: &str, job: &Job<'_>) -> Result<Found, ImportError> {
    let args = job.args;
    let (label, names) = label(tables, Some(column), args.label.as_deref())?;
    let mut labels = Labels::of(names, args.missing_labels);
    let folder = job.folder("pictures")?;
    let mut unpack = |name: &str, paths: &[PathBuf]| -> Result<_, ImportError> {
        let place = folder.join(name);
        let failed = |error| ImportError::write(&place)(error);
        let mut file = BufWriter::new(File::create(&place).map_err(failed)?);
        let (mut start, mut found) = (0, Vec::new());
        for_each_row(paths, &|row, rows| job.step(row, rows), |path, row, columns| {
            let wrong = |what: String| ImportError::source(path, format!("row {row}: {what}"));
            let field =
                |wanted: &str| columns.iter().find(|(name, _)| name == wanted).map(|(_, field)| field);
            let class = field(&label).map(cell).unwrap_or_default();
            let number = labels.number(format!("column {label}"), class.trim(), class.trim().parse().ok());
            let Some(number) = number.map_err(wrong)? else { return Ok(()) };
            let bytes = field(column).and_then(bytes).unwrap_or_default();
            file.write_all(bytes).map_err(failed)?;
            let name = folder::name(path);
            found.push((start, bytes.len(), format!("{name}:{row}"), number));
            start += bytes.len();
            Ok(())
        })?;
        file.flush().map_err(failed)?;
        Ok((Arc::new(DataFile::open(&place)?), found))
    };
    let train = unpack("train", &tables.train)?;
    let test = tables.test.as_ref().map(|paths| unpack("test", paths)).transpose()?;
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

/// The bytes of a picture; none where there is no picture.
fn bytes(field: &Field) -> Option<&[u8]> {
    match field {
        Field::Bytes(bytes) => Some(bytes.data()),
        Field::Str(text) => Some(text.as_bytes()),
        Field::Group(group) => {
            group.get_column_iter().find(|(name, _)| *name == "bytes").and_then(|(_, field)| bytes(field))
        }
        _ => None,
    }
}
