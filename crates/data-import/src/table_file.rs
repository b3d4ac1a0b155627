//! Table files: how their cells are separated, whether the first row names the columns, and their rows.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use flate2::read::MultiGzDecoder;

use crate::error::count;
use crate::{ImportError, folder};

/// What may separate cells.
const SEPARATORS: [u8; 4] = *b",;\t|";
/// Rows by which the separator is found.
const SAMPLE: usize = 50;
/// Names of a column of classes.
const LABELS: [&str; 4] = ["label", "class", "target", "species"];
/// Names of tables beside each other, without their endings.
const TRAIN: [&str; 2] = ["train", "training"];
const TEST: [&str; 4] = ["test", "val", "valid", "validation"];
const ENDINGS: [&str; 4] = ["csv", "tsv", "csv.gz", "tsv.gz"];

/// A table and how it is read.
pub(crate) struct TableFile {
    pub(crate) path: PathBuf,
    /// Path in messages and in `dataset.json`.
    pub(crate) name: String,
    reader: Reader<File>,
    separator: u8,
    /// Names of the columns, if the first row has them.
    pub(crate) header: Option<Vec<String>>,
    pub(crate) columns: usize,
    /// Of the first row of samples.
    start: Position,
}

/// The tables of a folder: training, and test if there is one.
fn tables(folder: &Path) -> Option<(PathBuf, Option<PathBuf>)> {
    let find = |names: &[&str]| {
        let files =
            names.iter().flat_map(|name| ENDINGS.map(|ending| folder.join(format!("{name}.{ending}"))));
        files.into_iter().find(|file| file.is_file())
    };
    Some((find(&TRAIN)?, find(&TEST)))
}

/// Whether a folder has train.csv or the like.
pub(crate) fn is_folder_of_tables(folder: &Path) -> bool {
    tables(folder).is_some()
}

/// The table in a folder with nothing else, as an archive may have it.
pub(crate) fn only_table(folder: &Path) -> Option<PathBuf> {
    let (folders, files) = folder::inside(folder).ok()?;
    let is_table =
        |path: &PathBuf| ENDINGS.iter().any(|ending| path.to_string_lossy().ends_with(&format!(".{ending}")));
    match &files[..] {
        [only] if folders.is_empty() && is_table(only) => Some(only.clone()),
        _ => None,
    }
}

/// Opens the table `source`, or those in the folder `source`.
pub(crate) fn open(source: &Path) -> Result<(TableFile, Option<TableFile>), ImportError> {
    let (train, test) = match source.is_dir() {
        true => tables(source).unwrap_or_default(),
        false => (source.to_owned(), None),
    };
    let test = test.map(|test| TableFile::open(&test)).transpose()?;
    Ok((TableFile::open(&train)?, test))
}

fn reader(file: File, separator: u8) -> Reader<File> {
    ReaderBuilder::new().has_headers(false).flexible(true).delimiter(separator).from_reader(file)
}

/// A cell as text, without spaces around it.
pub(crate) fn text(cell: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(cell)
        .map(str::trim)
        .map_err(|_| format!("{:?} is not UTF-8: save the table in UTF-8", String::from_utf8_lossy(cell)))
}

/// The number in a cell, with a decimal point, or a comma where that separates no cells.
pub(crate) fn number(cell: &[u8], separator: u8) -> Option<f64> {
    let text = text(cell).ok()?;
    let parsed = match separator != b',' && text.contains(',') && !text.contains('.') {
        true => text.replacen(',', ".", 1).parse(),
        false => text.parse(),
    };
    parsed.ok().filter(|value: &f64| value.is_finite())
}

/// Whether a cell says that there is no value.
pub(crate) fn is_missing(cell: &[u8]) -> bool {
    let text = text(cell).unwrap_or("x").to_ascii_lowercase();
    ["", "?", "na", "n/a", "nan", "null", "none"].contains(&text.as_str())
}

impl TableFile {
    pub(crate) fn open(path: &Path) -> Result<Self, ImportError> {
        let mut file = run_record::files::open_regular(path).map_err(ImportError::read(path))?;
        let mut magic = [0; 4];
        let read = file.read(&mut magic).and_then(|read| file.seek(SeekFrom::Start(0)).map(|_| read));
        let magic = &magic[..read.map_err(ImportError::read(path))?];
        if magic.starts_with(&[0x1f, 0x8b]) {
            file = unpacked(file).map_err(ImportError::read(path))?;
        } else if let Some(what) = foreign(magic) {
            return Err(ImportError::source(
                path,
                format!("is {what}, and a table or a folder of pictures is expected"),
            ));
        }
        let separator = separator(&mut file).map_err(ImportError::read(path))?.ok_or_else(|| {
            ImportError::source(
                path,
                "has no rows with the same number of cells, separated by a comma, semicolon, tab or |: a table \
                 with a row for each sample is expected",
            )
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut table = Self {
            path: path.to_owned(),
            name,
            reader: reader(file, separator),
            separator,
            header: None,
            columns: 0,
            start: Position::new(),
        };
        let (mut first, mut second) = (ByteRecord::new(), ByteRecord::new());
        table.next(&mut first)?;
        table.columns = first.len();
        let start = table.reader.position().clone();
        table.next(&mut second)?;
        let is_number = |cell: &[u8]| number(cell, separator).is_some();
        let names_label =
            first.iter().any(|cell| text(cell).is_ok_and(|name| LABELS.contains(&&*name.to_lowercase())));
        let names = first.iter().zip(second.iter()).any(|(name, value)| !is_number(name) && is_number(value));
        if names_label || (names && !first.iter().any(is_missing)) {
            let names: Result<Vec<String>, String> =
                first.iter().map(|cell| text(cell).map(str::to_owned)).collect();
            table.header = Some(names.map_err(|what| table.wrong(1, what))?);
            table.start = start;
        }
        Ok(table)
    }

    /// An error in a line of the file.
    pub(crate) fn wrong(&self, line: u64, what: impl AsRef<str>) -> ImportError {
        ImportError::source(&self.path, format!("line {line}: {}", what.as_ref()))
    }

    /// The next row, or false at the end.
    fn next(&mut self, row: &mut ByteRecord) -> Result<bool, ImportError> {
        self.reader.read_byte_record(row).map_err(|error| ImportError::read(&self.path)(error.into()))
    }

    /// Reads the row at `position`.
    pub(crate) fn row(&mut self, position: &Position, row: &mut ByteRecord) -> Result<(), ImportError> {
        self.reader.seek(position.clone()).map_err(|error| ImportError::read(&self.path)(error.into()))?;
        self.next(row).map(drop)
    }

    /// Calls `visit` with each row of samples and its position.
    pub(crate) fn for_each_row(
        &mut self,
        mut visit: impl FnMut(&Self, &ByteRecord, &Position) -> Result<(), ImportError>,
    ) -> Result<(), ImportError> {
        let mut row = ByteRecord::new();
        let start = self.start.clone();
        self.reader.seek(start).map_err(|error| ImportError::read(&self.path)(error.into()))?;
        while self.next(&mut row)? {
            let position = row.position().cloned().unwrap_or_else(Position::new);
            if row.len() != self.columns {
                let [found, expected] = [row.len(), self.columns].map(|cells| count(cells, "cell"));
                return Err(
                    self.wrong(position.line(), format!("has {found}, and the first line {expected}"))
                );
            }
            visit(self, &row, &position)?;
        }
        Ok(())
    }

    /// The number in a cell.
    pub(crate) fn number(&self, cell: &[u8]) -> Option<f64> {
        number(cell, self.separator)
    }

    /// The column of that name, or of that number from 1.
    pub(crate) fn column(&self, option: &'static str, wanted: &str) -> Result<usize, ImportError> {
        let names = self.header.as_deref().unwrap_or_default();
        let named = |same: &dyn Fn(&str) -> bool| names.iter().position(|name| same(name));
        let found =
            named(&|name| name == wanted).or_else(|| named(&|name| name.eq_ignore_ascii_case(wanted)));
        let numbered = || wanted.parse().ok().filter(|number| (1..=self.columns).contains(number));
        found.or_else(|| numbered().map(|number: usize| number - 1)).ok_or_else(|| {
            ImportError::option(option, wanted, format!("{} has {}", self.name, self.named_columns()))
        })
    }

    /// The column of the classes.
    pub(crate) fn label(&self, wanted: Option<&str>) -> Result<usize, ImportError> {
        if let Some(wanted) = wanted {
            return self.column("label", wanted);
        }
        let names = self.header.iter().flatten().enumerate();
        let known: Vec<usize> = names
            .filter(|(_, name)| LABELS.contains(&&*name.to_lowercase()))
            .map(|(column, _)| column)
            .collect();
        match known[..] {
            [only] => Ok(only),
            _ => {
                let what = format!(
                    "which column is the class? It has {}: name one, as in --label {}",
                    self.named_columns(),
                    self.header
                        .as_ref()
                        .map_or_else(|| self.columns.to_string(), |names| names[names.len() - 1].clone())
                );
                Err(ImportError::source(&self.path, what))
            }
        }
    }

    /// Its columns, in words.
    fn named_columns(&self) -> String {
        match &self.header {
            None => format!("columns 1 to {}, without names", self.columns),
            Some(names) if names.len() <= 12 => format!("the columns {}", names.join(", ")),
            Some(names) => {
                format!("{} columns: {}, …, {}", names.len(), names[..3].join(", "), names[names.len() - 1])
            }
        }
    }

    /// The name of a column.
    pub(crate) fn column_name(&self, column: usize) -> String {
        self.header.as_ref().map_or_else(|| (column + 1).to_string(), |names| names[column].clone())
    }
}

/// The contents of a compressed file, in one without a name.
fn unpacked(file: File) -> io::Result<File> {
    let mut plain = tempfile::tempfile()?;
    io::copy(&mut MultiGzDecoder::new(BufReader::new(file)), &mut plain)?;
    plain.seek(SeekFrom::Start(0))?;
    Ok(plain)
}

/// What begins with these bytes, if no table does.
fn foreign(magic: &[u8]) -> Option<&'static str> {
    let kinds: [(&[u8], &str); 8] = [
        (b"BZh", "packed by bzip2: unpack it"),
        (b"\xfd7zX", "packed by xz: unpack it"),
        (b"Rar!", "a .rar archive: unpack it"),
        (b"PAR1", "a Parquet file: save it as .csv"),
        (b"\x93NUM", "a NumPy file: put it and its labels into pairs of .npy files, which need no import"),
        (b"\x89PNG", "a picture: name the folder that has a folder for each class"),
        (b"\xff\xd8", "a picture: name the folder that has a folder for each class"),
        (b"\x80", "a Python pickle: save it as .csv or as pictures"),
    ];
    kinds.into_iter().find(|(start, _)| magic.starts_with(start)).map(|(_, what)| what)
}

/// The separator with which the first rows have the most numbers.
fn separator(file: &mut File) -> io::Result<Option<u8>> {
    let mut best = None;
    for separator in SEPARATORS {
        file.seek(SeekFrom::Start(0))?;
        let mut reader = reader(file.try_clone()?, separator);
        let rows: Vec<ByteRecord> = reader.byte_records().take(SAMPLE).collect::<Result<_, _>>()?;
        let Some(columns) = rows.first().map(ByteRecord::len).filter(|&columns| columns > 1) else {
            continue;
        };
        let alike = rows.iter().filter(|row| row.len() == columns).count();
        let numbers = rows.iter().flatten().filter(|cell| number(cell, separator).is_some()).count();
        let score = (alike, numbers, columns);
        if best.is_none_or(|(known, _)| score > known) {
            best = Some((score, separator));
        }
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(best.map(|(_, separator)| separator))
}
