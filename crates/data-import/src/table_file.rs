//! Table files: how their cells are separated, whether the first row names the columns, and their rows.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use flate2::read::MultiGzDecoder;
use run_record::count;
use run_record::files::{BEGINNING, foreign};

use crate::folder;
use crate::job::Job;
use crate::parquet_file::Tell;
use crate::tables::Tables;
use crate::writer::NPY_MAGIC;
use crate::{Header, ImportError, parquet_file};

/// What may separate cells.
const SEPARATORS: [u8; 4] = *b",;\t|";
/// Rows by which separator and decimal sign are found.
const SAMPLE: usize = 1000;
/// Names of a column of classes.
pub(crate) const LABELS: [&str; 4] = ["label", "class", "target", "species"];

/// A table and how it is read.
pub(crate) struct TableFile {
    pub(crate) path: PathBuf,
    /// Path in messages and in `dataset.json`.
    pub(crate) name: String,
    reader: Reader<File>,
    pub(crate) format: Format,
    /// Names of the columns, if the first row has them.
    pub(crate) header: Option<Vec<String>>,
    pub(crate) columns: usize,
    /// Of the first row of samples.
    start: Position,
    /// Where lines that are not empty begin, and their numbers.
    lines: Vec<(u64, u64)>,
    /// Whether rows are counted in place of lines, of which the first has the names.
    pub(crate) is_parquet: bool,
}

/// How cells are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) separator: u8,
    /// Whether the decimal sign is a comma.
    pub(crate) comma: bool,
}

/// Opens the tables of a source.
pub(crate) fn open(tables: &Tables, job: &Job<'_>) -> Result<(TableFile, Option<TableFile>), ImportError> {
    let args = job.args;
    let typed =
        args.label.iter().chain(&args.drop).map(String::as_str).filter(|word| word.parse::<usize>().is_err());
    let known: Vec<&str> = LABELS.into_iter().chain(typed).collect();
    let tell = |row: usize, rows: usize| job.row(row, rows);
    let open = |paths: &Vec<PathBuf>| TableFile::open(paths, args.header, &known, 2, &tell);
    let test = tables.test.as_ref().map(open).transpose()?;
    Ok((open(&tables.train)?, test))
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

/// Whether a cell says that there is no value.
pub(crate) fn is_missing(cell: &[u8]) -> bool {
    let text = text(cell).unwrap_or("x").to_ascii_lowercase();
    ["", "?", "na", "n/a", "nan", "null", "none"].contains(&text.as_str())
}

/// Whether `names` are 0, 1, 2, …, as pandas names columns without names.
fn count_columns(names: &ByteRecord) -> bool {
    names.len() > 2 && names.iter().enumerate().all(|(column, name)| text(name) == Ok(&*column.to_string()))
}

impl Format {
    /// The number in a cell.
    fn number(self, cell: &[u8]) -> Option<f64> {
        let text = text(cell).ok()?;
        let parsed = match self.comma {
            true if text.contains('.') => return None,
            true => text.replacen(',', ".", 1).parse(),
            false => text.parse(),
        };
        parsed.ok().filter(|value: &f64| value.is_finite())
    }

    /// That of a file, whose numbers are most in its first rows; none if these have no common number of cells.
    fn of(file: &mut File) -> io::Result<Option<Self>> {
        let mut best = None;
        for separator in SEPARATORS {
            file.seek(SeekFrom::Start(0))?;
            let mut reader = reader(file.try_clone()?, separator);
            let rows: Vec<ByteRecord> = reader.byte_records().take(SAMPLE).collect::<Result<_, _>>()?;
            let Some(columns) = rows.first().map(ByteRecord::len).filter(|&columns| columns > 1) else {
                continue;
            };
            let alike = rows.iter().filter(|row| row.len() == columns).count();
            let numbers =
                |format: Self| rows.iter().flatten().filter(|cell| format.number(cell).is_some()).count();
            let point = Self { separator, comma: false };
            let comma = Self { separator, comma: separator != b',' };
            let has_comma = rows
                .iter()
                .flatten()
                .any(|cell| comma.number(cell).is_some() && point.number(cell).is_none());
            let format = if has_comma { comma } else { point };
            let score = (alike, numbers(format), columns);
            if best.is_none_or(|(known, _)| score > known) {
                best = Some((score, format));
            }
        }
        file.seek(SeekFrom::Start(0))?;
        Ok(best.map(|(_, format)| format))
    }
}

impl TableFile {
    /// Opens the table in `paths`, of which Parquet alone has several, of at least `least` columns. Its first row has
    /// the names of the columns if `header` says so, or if it looks like it: as with one of the `known` names.
    /// Reading Parquet takes time, of which `tell` is told.
    pub(crate) fn open(
        paths: &[PathBuf],
        header: Option<Header>,
        known: &[&str],
        least: usize,
        tell: &Tell<'_>,
    ) -> Result<Self, ImportError> {
        let path = &*paths[0];
        let mut file = run_record::files::open_regular(path).map_err(ImportError::read(path))?;
        let mut magic = beginning(&mut file).map_err(ImportError::read(path))?;
        if magic.starts_with(&[0x1f, 0x8b]) {
            file = unpacked(file).map_err(ImportError::read(path))?;
            magic = beginning(&mut file).map_err(ImportError::read(path))?;
        }
        let is_parquet = magic.starts_with(parquet_file::MAGIC);
        if is_parquet {
            if header.is_some() {
                let problem = "is for .csv and .tsv, and the columns of Parquet have names: leave it out";
                return Err(ImportError::option("header", "", problem));
            }
            file = parquet_file::as_csv(paths, tell)?;
        } else if let Some(kind) = foreign(&magic) {
            match kind.advice {
                "" if magic.starts_with(NPY_MAGIC) => bail!(
                    path,
                    "is {kind}: import the folder with that of the labels, or an .npz file of both"
                ),
                "" => bail!(path, "is {kind}; a table or a folder of pictures is expected"),
                _ => bail!(path, "is {kind}"),
            }
        }
        let found =
            if is_parquet { Ok(None) } else { Format::of(&mut file) }.map_err(ImportError::read(path))?;
        let commas = (is_parquet || least == 1).then_some(Format { separator: b',', comma: false });
        let Some(format) = found.or(commas) else {
            bail!(
                path,
                "has no rows with the same number of cells, separated by a comma, semicolon, tab or |: a table \
                 with a row for each sample is expected"
            );
        };
        let lines = lines(&mut file).map_err(ImportError::read(path))?;
        let mut table = Self {
            path: path.to_owned(),
            name: folder::name(path),
            reader: reader(file, format.separator),
            format,
            header: None,
            columns: 0,
            start: Position::new(),
            lines,
            is_parquet,
        };
        let (mut first, mut second) = (ByteRecord::new(), ByteRecord::new());
        table.next(&mut first)?;
        table.columns = first.len();
        let start = table.reader.position().clone();
        table.next(&mut second)?;
        let is_header = match header {
            _ if is_parquet => true,
            Some(header) => header == Header::Yes,
            None => table.looks_like_names(&first, &second, known),
        };
        if is_header {
            let names: Result<Vec<String>, String> =
                first.iter().map(|cell| text(cell).map(str::to_owned)).collect();
            table.header = Some(names.map_err(|what| ImportError::source(path, format!("line 1: {what}")))?);
            table.start = start;
        }
        Ok(table)
    }

    /// Whether a row has names: one of those that are `known`, numbers that count the columns, or words alone above
    /// numbers.
    fn looks_like_names(&self, first: &ByteRecord, second: &ByteRecord, known: &[&str]) -> bool {
        let is_known =
            |cell| text(cell).is_ok_and(|name| known.iter().any(|known| name.eq_ignore_ascii_case(known)));
        // Infinite values are no names either.
        let is_number =
            |cell: &[u8]| text(cell).is_ok_and(|text| text.replace(',', ".").parse::<f64>().is_ok());
        first.iter().any(is_known)
            || count_columns(first)
            || (!first.iter().any(is_number) && second.iter().any(is_number))
    }

    /// Lines that are not empty, which are at least as many as the rows.
    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// The number of the line in which the row at `position` begins, or of the row in a table of Parquet.
    pub(crate) fn line(&self, position: &Position) -> u64 {
        let at = self.lines.partition_point(|(start, _)| *start < position.byte());
        let line = self.lines.get(at).map_or_else(|| position.line(), |(_, line)| *line);
        line - u64::from(self.is_parquet)
    }

    /// An error in the row at `position`.
    pub(crate) fn wrong(&self, position: &Position, what: impl AsRef<str>) -> ImportError {
        let what_line = if self.is_parquet { "row" } else { "line" };
        ImportError::source(&self.path, format!("{what_line} {}: {}", self.line(position), what.as_ref()))
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
            visit(self, &row, &position)?;
        }
        Ok(())
    }

    /// Checks that a row has as many cells as the first.
    pub(crate) fn check_width(&self, row: &ByteRecord, position: &Position) -> Result<(), ImportError> {
        match row.len() == self.columns {
            true => Ok(()),
            false => {
                let [found, expected] = [row.len(), self.columns].map(|cells| count(cells, "cell"));
                Err(self.wrong(position, format!("has {found}, and the first line {expected}")))
            }
        }
    }

    /// The number in a cell.
    pub(crate) fn number(&self, cell: &[u8]) -> Option<f64> {
        self.format.number(cell)
    }

    /// The column of that name, or of that number from 1.
    pub(crate) fn column(&self, option: &'static str, wanted: &str) -> Result<usize, ImportError> {
        let exact = self.called(|name| name == wanted);
        let found =
            if exact.is_empty() { self.called(|name| name.eq_ignore_ascii_case(wanted)) } else { exact };
        let number = wanted.parse().ok().filter(|number| (1..=self.columns).contains(number));
        let problem = match (&found[..], number) {
            (&[only], _) => return Ok(only),
            ([], Some(number)) => return Ok(number - 1),
            ([], None) => format!("{} has {}", self.name, self.named_columns()),
            ([first, second, ..], _) => format!(
                "{} has two columns of that name: say {} or {}, their numbers",
                self.name,
                first + 1,
                second + 1
            ),
        };
        Err(ImportError::option(option, wanted, problem))
    }

    /// The column of exactly that name, for which no number and no other column is taken.
    pub(crate) fn named(&self, name: &str) -> Result<usize, ImportError> {
        match self.called(|own| own == name)[..] {
            [only] => Ok(only),
            ref found => {
                let number = if found.is_empty() { "no column" } else { "two columns" };
                let among = self.header.as_deref().unwrap_or_default().join(", ");
                bail!(&self.path, "has {number} {name:?}, among {among}");
            }
        }
    }

    /// The column of the classes.
    pub(crate) fn label(&self, wanted: Option<&str>) -> Result<usize, ImportError> {
        if let Some(wanted) = wanted {
            return self.column("label", wanted);
        }
        match self.called(|name| LABELS.contains(&&*name.to_lowercase()))[..] {
            [only] => Ok(only),
            _ => bail!(
                &self.path,
                "which column is the class? It has {}: name one, as in --label {}",
                self.named_columns(),
                self.column_name(self.columns - 1)
            ),
        }
    }

    /// The columns with names of which `is_wanted` is true.
    fn called(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<usize> {
        let names = self.header.iter().flatten().enumerate();
        names.filter(|(_, name)| is_wanted(name)).map(|(column, _)| column).collect()
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

/// The first bytes of a file, by which other kinds of files are named.
fn beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(BEGINNING as u64).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(bytes)
}

/// Where lines that are not empty begin in a file, with their numbers from 1; a line ends in LF, CR or both.
fn lines(file: &mut File) -> io::Result<Vec<(u64, u64)>> {
    let (mut starts, mut line, mut is_start, mut before) = (Vec::new(), 1, true, 0);
    for (offset, byte) in BufReader::with_capacity(1 << 16, &*file).bytes().enumerate() {
        let byte = byte?;
        match byte {
            b'\n' if before == b'\r' => {}
            b'\n' | b'\r' => {
                line += 1;
                is_start = true;
            }
            _ if is_start => {
                starts.push((offset as u64, line));
                is_start = false;
            }
            _ => {}
        }
        before = byte;
    }
    file.seek(SeekFrom::Start(0))?;
    Ok(starts)
}
