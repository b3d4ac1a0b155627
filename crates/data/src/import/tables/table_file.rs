//! Opens table files, finds their columns, and reads their rows.
//!
//! A text table may be compressed with gzip or written in UTF-16, and a Parquet table may have several files.
//! Every table is converted to one text file in UTF-8 before its rows are read. Errors nevertheless name
//! lines or rows of the user's files.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use csv::{ByteRecord, Position, Reader};
use flate2::read::MultiGzDecoder;
use run_record::count;
use run_record::files::{BEGINNING, foreign};

use crate::DataError;
use crate::formats::npy::MAGIC as NPY_MAGIC;
use crate::import::job::Job;
use crate::import::pictures::folder;
pub(crate) use crate::import::tables::beginning::text;
use crate::import::tables::beginning::{Beginning, CellFormat, Hints, from_utf16, is_empty_from};
use crate::import::tables::missing::is_missing;
use crate::import::tables::{PARQUET, TableFiles, Tell, parquet_file};
use crate::import::{Header, split, temporary};
use crate::quote::{listed, quoted, short};

/// Advice for a row that continues over several lines by mistake.
pub(crate) const QUOTE: &str = "check for a missing or surplus quotation mark (\")";
/// Names of columns that are taken for the column of the classes.
pub(crate) const LABELS: [&str; 4] = ["label", "class", "target", "species"];

/// An open table, and how it is read.
pub(crate) struct TableFile {
    pub(crate) path: PathBuf,
    /// Path in messages and in `dataset.json`.
    pub(crate) name: String,
    /// For Parquet: the files of the table, each with the number of rows in the files before it.
    parts: Vec<(PathBuf, u64)>,
    reader: Reader<File>,
    pub(crate) format: CellFormat,
    /// Names of the columns, if the table has a header.
    pub(crate) header: Option<Vec<String>>,
    pub(crate) columns: usize,
    /// Position of the first row of samples.
    start: Position,
    /// Offset and number of each line that is not empty.
    lines: Vec<(u64, u64)>,
    /// Whether column 1 contains names of the rows, and the header has no name for this column.
    pub(crate) has_row_names: bool,
    /// Descriptions of the lines and columns that are left out, for the log.
    pub(crate) notes: Vec<String>,
    /// Whether the table is Parquet: messages then count rows instead of lines.
    pub(crate) is_parquet: bool,
    /// For Parquet: columns whose cells are not single values. Each entry is the name of the column and what
    /// it contains instead, such as `structs`.
    without_values: Vec<(String, String)>,
}

/// Opens a table of the import's source. The table must have at least `least` columns.
pub(crate) fn open(files: &TableFiles, least: usize, job: &Job<'_>) -> Result<TableFile, DataError> {
    let args = job.args;
    let typed = args
        .label
        .iter()
        .chain(&args.drop)
        .map(|word| word.trim())
        .filter(|word| word.parse::<usize>().is_err());
    let known: Vec<&str> = LABELS.into_iter().chain(typed).collect();
    TableFile::open(files, args.header, &known, least, &|row, rows| job.row(row, rows))
}

impl TableFile {
    /// Opens a table of at least `least` columns.
    ///
    /// `header` says whether the first row is the header. If `header` is `None`, the first row is the header
    /// if it looks like one, for example if it contains one of the names in `known`. `tell` is called while
    /// Parquet is converted, which takes time.
    pub(crate) fn open(
        files: &TableFiles,
        header: Option<Header>,
        known: &[&str],
        least: usize,
        tell: &Tell<'_>,
    ) -> Result<Self, DataError> {
        let path = &*files.files[0];
        let TableText { mut file, parts, is_parquet, without_values } = contents(files, header, tell)?;
        let lines = lines(&mut file).map_err(DataError::read(path))?;
        let hints = Hints {
            names: known,
            has_header: header.map(|header| header == Header::Yes),
            may_be_one_column: least == 1,
        };
        let beginning = if is_parquet {
            Beginning::of_names(&mut file).map(Ok)
        } else {
            Beginning::read(&mut file, &hints, |position| line_at(&lines, position))
        };
        let beginning = beginning.map_err(DataError::read(path))?;
        let Beginning { format, header, columns, start, has_row_names, notes } =
            beginning.map_err(|what| DataError::source(path, what))?;
        file.seek(SeekFrom::Start(0)).map_err(DataError::read(path))?;
        Ok(Self {
            path: path.to_owned(),
            name: folder::name(path),
            parts,
            reader: format.reader(file),
            format,
            header,
            columns,
            start,
            lines,
            has_row_names,
            notes,
            is_parquet,
            without_values,
        })
    }

    /// Returns the number of lines that are not empty. There are at least as many lines as rows.
    pub(crate) fn lines(&self) -> usize {
        self.lines.len()
    }

    /// Returns the number of the line in which the row at `position` begins. For Parquet, returns the number
    /// of the row in its file.
    pub(crate) fn line(&self, position: &Position) -> u64 {
        self.place(position).1
    }

    /// Returns the file of the row at `position`, and the number of the line or row in that file.
    fn place(&self, position: &Position) -> (&Path, u64) {
        if !self.is_parquet {
            return (&self.path, line_at(&self.lines, position));
        }
        // The header is record 0 of the text, so the number of any other record is the number of a row,
        // counted from 1 through all files.
        let row = position.record();
        match self.parts.iter().rev().find(|(_, before)| *before < row) {
            Some((path, before)) => (path, row - before),
            None => (&self.path, row),
        }
    }

    /// Returns the origin of a sample for `dataset.json`: its file, relative to the folder that all files of
    /// the table are in, and its line or row.
    pub(crate) fn from(&self, position: &Position) -> String {
        let (path, line) = self.place(position);
        let is_common = |folder: &&Path| self.parts.iter().all(|(path, _)| path.starts_with(folder));
        let common = self.path.ancestors().skip(1).find(is_common);
        let below = common.and_then(|common| path.strip_prefix(common).ok()).unwrap_or(path);
        format!("{}:{line}", below.display())
    }

    /// Returns the error for the row at `position`.
    pub(crate) fn wrong(&self, position: &Position, what: impl AsRef<str>) -> DataError {
        let what_line = if self.is_parquet { "row" } else { "line" };
        let (path, line) = self.place(position);
        DataError::source(path, format!("{what_line} {line}: {}", what.as_ref()))
    }

    /// Reads the next row. Returns false at the end.
    fn next(&mut self, row: &mut ByteRecord) -> Result<bool, DataError> {
        self.reader.read_byte_record(row).map_err(|error| DataError::read(&self.path)(error.into()))
    }

    /// Reads the row at `position`.
    pub(crate) fn row(&mut self, position: &Position, row: &mut ByteRecord) -> Result<(), DataError> {
        self.reader.seek(position.clone()).map_err(|error| DataError::read(&self.path)(error.into()))?;
        self.next(row).map(drop)
    }

    /// Calls `visit` with each row of samples and its position.
    pub(crate) fn for_each_row(
        &mut self,
        mut visit: impl FnMut(&Self, &ByteRecord, &Position) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let mut row = ByteRecord::new();
        let start = self.start.clone();
        self.reader.seek(start).map_err(|error| DataError::read(&self.path)(error.into()))?;
        while self.next(&mut row)? {
            let position = row.position().cloned().unwrap_or_else(Position::new);
            visit(self, &row, &position)?;
        }
        Ok(())
    }

    /// Checks that a row has as many cells as the table has columns. More cells are allowed if they are
    /// empty.
    pub(crate) fn check_width(&self, row: &ByteRecord, position: &Position) -> Result<(), DataError> {
        if row.len() >= self.columns && is_empty_from(row, self.columns) {
            Ok(())
        } else {
            let [found, expected] = [row.len(), self.columns].map(|cells| count(cells, "cell"));
            let what = format!("has {found}, but the first line has {expected}");
            let has_lines = !self.is_parquet && row.iter().any(|cell| cell.contains(&b'\n'));
            Err(self.wrong(
                position,
                if has_lines { format!("continues over several lines and {what}: {QUOTE}") } else { what },
            ))
        }
    }

    /// Finds a cell that seems to contain whole rows, because a quotation mark is missing or surplus. Returns
    /// the cell's column, and the number of the cell's lines after the first.
    ///
    /// The first line of such a cell is the end of a row, the last line is the beginning of a row, and the
    /// lines between are whole rows. A cell of only two lines is reported only if it ends with a line feed,
    /// because its closing quotation mark is missing: a text of two lines may have the commas of such a cell
    /// by chance.
    pub(crate) fn swallowed(&self, row: &ByteRecord) -> Option<(usize, usize)> {
        let lines = |cell: &[u8]| -> Vec<usize> {
            let separators = |line: &[u8]| line.iter().filter(|byte| **byte == self.format.separator).count();
            // If the closing quotation mark is missing, the cell ends with the last line of the file.
            let cell = cell.strip_suffix(b"\n").unwrap_or(cell);
            cell.split(|byte| *byte == b'\n').map(separators).collect()
        };
        let is_so = |column: usize, lines: &[usize], is_open: bool| match lines {
            [first, between @ .., last] => {
                *first == self.columns - 1 - column
                    && *last == column
                    && between.iter().all(|separators| *separators == self.columns - 1)
                    && (is_open || !between.is_empty())
            }
            _ => false,
        };
        let cells = row.iter().enumerate().take(self.columns);
        let mut cells = cells.filter(|(_, cell)| !self.is_parquet && cell.contains(&b'\n'));
        cells.find_map(|(column, cell)| {
            let lines = lines(cell);
            is_so(column, &lines, cell.ends_with(b"\n")).then_some((column, lines.len() - 1))
        })
    }

    /// Checks that the columns of features contain single values.
    pub(crate) fn check_values(&self, features: &[usize]) -> Result<(), DataError> {
        let found = features.iter().find_map(|&column| {
            let (_, what) = self.without_values.iter().find(|(name, _)| *name == self.column_name(column))?;
            Some((column, what))
        });
        let Some((column, what)) = found else { return Ok(()) };
        bail!(&self.path, "{} contains {what}: {}", self.shown(column), self.drop(column))
    }

    /// Returns the number in a cell.
    pub(crate) fn number(&self, cell: &[u8]) -> Option<f64> {
        self.format.number(cell)
    }

    /// Returns the value of a feature, which must be finite as f32. The error says what is wrong and what to
    /// do.
    pub(crate) fn feature(&self, row: &ByteRecord, column: usize) -> Result<f64, [String; 2]> {
        let (cell, name) = (&row[column], self.shown(column));
        let value = self.format.value(cell);
        match (value.filter(|value| (*value as f32).is_finite()), text(cell)) {
            (Some(value), _) => Ok(value),
            (None, Ok(text)) if value.is_some() || self.format.is_too_large(cell) => Err([
                format!("{name} is {}, which exceeds the range of f32", short(text)),
                "scale the column".into(),
            ]),
            (None, Ok(text)) if is_missing(text) => {
                let what = if text.is_empty() { "is empty".into() } else { format!("is {}", quoted(text)) };
                Err([
                    format!("{name} {what}, so it has no value"),
                    format!("fill it in, leave the row out, or {}", self.drop(column)),
                ])
            }
            (None, Ok(text)) => {
                let advice = if split::of_name(text).is_some() {
                    "if the column says which split a row belongs to, write the rows of each split to a file, \
                     such as train.csv and test.csv; otherwise "
                } else {
                    "replace it with a number, or "
                };
                Err([
                    format!("{name} is {}, which is not a number", quoted(text)),
                    format!("{advice}{}", self.drop(column)),
                ])
            }
            (None, Err(_)) => Err([format!("{name} is not UTF-8"), "save the table in UTF-8".into()]),
        }
    }

    /// Returns the advice to leave out a column.
    fn drop(&self, column: usize) -> String {
        format!("leave the column out with --drop {}", run_record::quoted(self.typed(column)))
    }

    /// Returns the index of the column with the name `wanted`. If no column has this name, `wanted` is read
    /// as the number of a column, counted from 1.
    pub(crate) fn column(&self, option: &'static str, wanted: &str) -> Result<usize, DataError> {
        let wanted = wanted.trim();
        let exact = self.called(|name| name == wanted);
        let found =
            if exact.is_empty() { self.called(|name| name.eq_ignore_ascii_case(wanted)) } else { exact };
        let number = wanted.parse().ok().filter(|number| (1..=self.columns).contains(number));
        let problem = match (&found[..], number) {
            (&[only], _) => return Ok(only),
            ([], Some(number)) => return Ok(number - 1),
            ([], None) if wanted.parse::<i64>().is_ok() => {
                format!("columns are counted from 1, and {} has {}", self.name, count(self.columns, "column"))
            }
            ([], None) => format!("is not a column of {}, which has {}", self.name, self.named_columns()),
            ([first, second, ..], _) => format!(
                "{} has two columns with this name: choose one by its number, {} or {}",
                self.name,
                first + 1,
                second + 1
            ),
        };
        Err(DataError::option(option, short(wanted), problem))
    }

    /// Returns the column with this name or number. A column of lists in Parquet was converted to several
    /// columns, `NAME_0`, `NAME_1` and so on. If no column has the name `NAME` itself, `NAME` stands for all
    /// of them.
    pub(crate) fn columns(&self, option: &'static str, wanted: &str) -> Result<Vec<usize>, DataError> {
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let is_of_list = |name: &str| {
            self.is_parquet
                && name.strip_prefix(wanted).and_then(|rest| rest.strip_prefix('_')).is_some_and(is_number)
        };
        match (self.column(option, wanted), self.called(is_of_list)) {
            (Err(_), columns) if !columns.is_empty() => Ok(columns),
            (column, _) => column.map(|column| vec![column]),
        }
    }

    /// Returns the column with exactly this name. Unlike [`Self::column`], does not accept a number or
    /// another spelling.
    pub(crate) fn named(&self, name: &str) -> Result<usize, DataError> {
        match self.called(|own| own == name)[..] {
            [only] => Ok(only),
            ref found => {
                let number = if found.is_empty() { "no column" } else { "two columns" };
                let among = listed(self.header.as_deref().unwrap_or_default());
                bail!(&self.path, "has {number} named {}; the columns are {among}", quoted(name));
            }
        }
    }

    /// Returns the column of the classes: the column `wanted` or, if `wanted` is `None`, the only column with
    /// a name in [`LABELS`].
    pub(crate) fn label(&self, wanted: Option<&str>) -> Result<usize, DataError> {
        if let Some(wanted) = wanted {
            return self.column("label", wanted);
        }
        match self.called(|name| LABELS.contains(&&*name.to_lowercase()))[..] {
            [only] => Ok(only),
            _ => bail!(
                &self.path,
                "which column is the class? It has {}: name one, as in --label {}",
                self.named_columns(),
                run_record::quoted(self.column_name(self.columns - 1))
            ),
        }
    }

    /// Returns the columns whose names `is_wanted` accepts.
    fn called(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<usize> {
        let names = self.header.iter().flatten().enumerate();
        names.filter(|(_, name)| is_wanted(name)).map(|(column, _)| column).collect()
    }

    /// Describes the columns of the table for a message.
    fn named_columns(&self) -> String {
        match &self.header {
            None => format!("columns 1 to {}, without names", self.columns),
            Some(names) => format!("the columns {}", listed(names)),
        }
    }

    /// Returns a column for a message: its name or, if it has none, its number.
    pub(crate) fn shown(&self, column: usize) -> String {
        format!("column {}", short(&self.typed(column)))
    }

    /// Returns a column as the user would type it in an option.
    pub(crate) fn typed(&self, column: usize) -> String {
        let name = self.column_name(column);
        if name.is_empty() { (column + 1).to_string() } else { name }
    }

    /// Returns the name of a column, or its number if the table has no header.
    pub(crate) fn column_name(&self, column: usize) -> String {
        self.header.as_ref().map_or_else(|| (column + 1).to_string(), |names| names[column].clone())
    }
}

/// The contents of a table as UTF-8 text.
struct TableText {
    file: File,
    /// See [`TableFile::parts`].
    parts: Vec<(PathBuf, u64)>,
    is_parquet: bool,
    /// See [`TableFile::without_values`].
    without_values: Vec<(String, String)>,
}

/// Returns the contents of a table as UTF-8 text: decompresses the file or converts it from UTF-16 or
/// Parquet, if necessary. `tell` is called while Parquet is converted, which takes time.
fn contents(files: &TableFiles, header: Option<Header>, tell: &Tell<'_>) -> Result<TableText, DataError> {
    let path = &*files.files[0];
    let mut file = run_record::files::open_regular(path).map_err(DataError::read(path))?;
    let mut magic = beginning(&mut file).map_err(DataError::read(path))?;
    if magic.starts_with(&[0x1f, 0x8b]) {
        file = temporary::copy(path, MultiGzDecoder::new(BufReader::new(file)))?;
        magic = beginning(&mut file).map_err(DataError::read(path))?;
    }
    let is_parquet = magic.starts_with(PARQUET);
    let (mut parts, mut without_values) = (Vec::new(), Vec::new());
    if magic.starts_with(b"\xff\xfe") {
        file = from_utf16(path, file, u16::from_le_bytes)?;
    } else if magic.starts_with(b"\xfe\xff") {
        file = from_utf16(path, file, u16::from_be_bytes)?;
    } else if is_parquet {
        if header.is_some() {
            let problem =
                "applies only to .csv and .tsv, but the columns of Parquet have names: leave the option out";
            return Err(DataError::option("header", "", problem));
        }
        parquet_file::CsvTable { file, without_values } = parquet_file::as_csv(files, tell)?;
        parts = parquet_file::rows_before(&files.files)?;
    } else if let Some(kind) = foreign(&magic) {
        match kind.advice {
            "" if magic.starts_with(NPY_MAGIC) => {
                bail!(
                    path,
                    "is {kind}: import the folder with this array and the array of the labels, or an .npz file \
                     of both"
                )
            }
            "" => bail!(path, "is {kind}: import a table or a folder of pictures instead"),
            _ => bail!(path, "is {kind}"),
        }
    } else if magic.split(|byte| *byte == b'\n').next().is_some_and(|line| line.contains(&0)) {
        bail!(path, "is not UTF-8 text: save the table as .csv in UTF-8, or as .parquet");
    }
    Ok(TableText { file, parts, is_parquet, without_values })
}

/// Returns the first bytes of a file, from which other formats are recognised.
fn beginning(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(BEGINNING as u64).read_to_end(&mut bytes)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(bytes)
}

/// Returns the number of the line in which the row at `position` begins.
fn line_at(lines: &[(u64, u64)], position: &Position) -> u64 {
    let at = lines.partition_point(|(start, _)| *start < position.byte());
    lines.get(at).map_or_else(|| position.line(), |(_, line)| *line)
}

/// Returns the offset and the number, from 1, of each line that is not empty. A line ends with LF, CR or CR
/// LF.
fn lines(file: &mut File) -> io::Result<Vec<(u64, u64)>> {
    file.seek(SeekFrom::Start(0))?;
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
