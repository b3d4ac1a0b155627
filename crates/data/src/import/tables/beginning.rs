//! Finds out how a text table begins: its separator, its decimal sign, its header, and the row of its first
//! sample.
//!
//! Real tables rarely begin with a plain header. They have a title or comments before it, a line `sep=;` for
//! Excel, a row of units after it, or names of rows without a column name. This module reads the first rows
//! once with each possible separator, takes the separator that splits most rows into the same number of
//! cells, and then decides what each of the first rows is.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use run_record::count;

use crate::DataError;
use crate::import::tables::missing::is_missing;
use crate::import::temporary;
use crate::quote::{listed, quoted};

/// Possible separators between cells.
const SEPARATORS: [u8; 4] = *b",;\t|";
/// Maximum number of rows that are read to find the separator, the decimal sign and the header.
const SAMPLE: usize = 1000;
/// Maximum number of lines of a title. Comments may be longer.
const MOST_OF_TITLE: usize = 10;
/// The texts with which comments begin: in tables of NumPy and R, of Weka and MATLAB, and of other programs.
const COMMENTS: [&str; 3] = ["#", "%", "//"];
/// Number of bytes at the beginning of a file that are read to see the first line, and whether the file is no
/// table.
const BEGINNING: usize = 1 << 12;

/// How the cells of a table are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellFormat {
    pub(crate) separator: u8,
    /// Whether the decimal sign is a comma instead of a point.
    pub(crate) comma: bool,
}

impl CellFormat {
    /// Returns the number in a cell, or `None` if the cell does not contain a finite number.
    pub(crate) fn number(self, cell: &[u8]) -> Option<f64> {
        self.parsed(cell).filter(|value| value.is_finite())
    }

    /// Returns whether a cell contains digits of a number that exceeds the range of f64.
    pub(crate) fn is_too_large(self, cell: &[u8]) -> bool {
        cell.iter().any(u8::is_ascii_digit) && self.parsed(cell).is_some_and(f64::is_infinite)
    }

    fn parsed(self, cell: &[u8]) -> Option<f64> {
        let text = text(cell).ok()?;
        if self.comma && text.contains('.') {
            return None;
        }
        if self.comma { text.replacen(',', ".", 1).parse().ok() } else { text.parse().ok() }
    }

    /// Returns the value of a feature's cell, or `None` if the cell has no value. True is 1, and False is 0:
    /// pandas and R write these words.
    pub(crate) fn value(self, cell: &[u8]) -> Option<f64> {
        let is = |word: &str| cell.trim_ascii().eq_ignore_ascii_case(word.as_bytes());
        if is("true") {
            Some(1.0)
        } else if is("false") {
            Some(0.0)
        } else {
            self.number(cell)
        }
    }

    pub(crate) fn reader(self, file: File) -> Reader<File> {
        ReaderBuilder::new().has_headers(false).flexible(true).delimiter(self.separator).from_reader(file)
    }
}

/// Returns the text of a cell without blanks around it.
pub(crate) fn text(cell: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(cell).map(str::trim).map_err(|_| {
        format!("{} is not UTF-8: save the table in UTF-8", quoted(&String::from_utf8_lossy(cell)))
    })
}

fn is_empty(cell: &[u8]) -> bool {
    cell.trim_ascii().is_empty()
}

/// Returns whether the cell in `column` and all cells after it are empty.
pub(crate) fn is_empty_from(row: &ByteRecord, column: usize) -> bool {
    row.iter().skip(column).all(is_empty)
}

/// Returns the texts of the cells that are not empty.
fn words(row: &ByteRecord) -> Vec<&str> {
    row.iter().filter(|cell| !is_empty(cell)).filter_map(|cell| text(cell).ok()).collect()
}

fn is_comment(row: &ByteRecord) -> bool {
    let first = row.get(0).and_then(|cell| text(cell).ok()).unwrap_or_default();
    COMMENTS.iter().any(|mark| first.starts_with(mark))
}

/// Returns whether `names` are 0, 1, 2 and so on, at least up to 2: pandas writes such names if columns have
/// none. The first name may be empty, because pandas writes an empty name above its index.
fn count_columns(names: &ByteRecord) -> bool {
    let first = usize::from(names.get(0).is_some_and(is_empty));
    let mut numbered = names.iter().skip(first).enumerate();
    names.len() > 2 + first && numbered.all(|(column, name)| text(name) == Ok(&*column.to_string()))
}

/// How a table begins.
pub(crate) struct Beginning {
    pub(crate) format: CellFormat,
    /// Names of the columns, if the table has a header.
    pub(crate) header: Option<Vec<String>>,
    /// Number of columns, without empty columns at the end.
    pub(crate) columns: usize,
    /// Position of the first row of samples.
    pub(crate) start: Position,
    /// Whether column 1 contains names of the rows, and the header has no name for this column.
    pub(crate) has_row_names: bool,
    /// Descriptions of the lines and columns that are left out, for the log.
    pub(crate) notes: Vec<String>,
}

/// What a caller already knows about a table.
pub(crate) struct Hints<'a> {
    /// Names of columns: a row with one of these names is the header.
    pub(crate) names: &'a [&'a str],
    /// Whether the table has a header, or `None` if the caller does not know.
    pub(crate) has_header: Option<bool>,
    /// Whether the table may have only one column.
    pub(crate) may_be_one_column: bool,
}

/// The first rows of a file, cut into cells at one of the possible separators.
struct FirstRows {
    format: CellFormat,
    rows: Vec<ByteRecord>,
    /// Most frequent number of cells in a row. `alike` is the number of rows that have this number of cells.
    width: usize,
    alike: usize,
}

/// What each of the first rows of a table is.
struct TableLayout {
    /// Whether the first row names the separator (`sep=;`).
    is_sep_line: bool,
    /// Index of the row in which the table begins.
    first: usize,
    is_header: bool,
    has_units: bool,
    has_row_names: bool,
    first_sample: usize,
    /// Number of columns, without empty columns at the end.
    columns: usize,
}

impl FirstRows {
    fn read(file: &mut File, separator: u8) -> io::Result<Self> {
        file.seek(SeekFrom::Start(0))?;
        let format = CellFormat { separator, comma: false };
        let mut reader = format.reader(file.try_clone()?);
        let rows: Vec<ByteRecord> = reader.byte_records().take(SAMPLE).collect::<Result<_, _>>()?;
        let alike = |width: usize| rows.iter().filter(|row| row.len() == width).count();
        let mut widths: Vec<usize> = rows.iter().map(ByteRecord::len).collect();
        widths.sort_unstable();
        widths.dedup();
        // If two numbers of cells are equally frequent, take the number of cells in the first row.
        let first = rows.first().map_or(0, ByteRecord::len);
        let width = widths.into_iter().max_by_key(|&width| (alike(width), width == first)).unwrap_or(0);
        let comma = CellFormat { comma: separator != b',', ..format };
        let has_comma = rows
            .iter()
            .filter(|row| row.len() == width)
            .flatten()
            .any(|cell| comma.number(cell).is_some() && format.number(cell).is_none());
        let format = if has_comma { comma } else { format };
        Ok(Self { format, width, alike: alike(width), rows })
    }

    /// Returns how well the separator fits: the number of rows of equal width, the number of cells with
    /// numbers, and the number of cells in a row. Scores are compared in this order.
    fn score(&self) -> (usize, usize, usize) {
        let numbers = self.rows.iter().flatten().filter(|cell| self.format.number(cell).is_some()).count();
        (self.alike, numbers, self.width)
    }

    /// Returns the index of the row in which the table begins, after comments and a title.
    fn first(&self, is_sep_line: bool, hints: &Hints<'_>) -> usize {
        let from = usize::from(is_sep_line);
        let is_before = |row: &ByteRecord| is_comment(row) || self.is_title(row, hints);
        let Some(first) = (from..self.rows.len()).find(|&at| !is_before(&self.rows[at])) else { return from };
        let titles = self.rows[from..first].iter().filter(|row| !is_comment(row)).count();
        // NumPy writes a header as a comment. Such a comment has as many cells as the row of numbers below
        // it.
        if first > from
            && is_comment(&self.rows[first - 1])
            && self.rows[first - 1].len() == self.rows[first].len()
        {
            let has_number = self.rows[first].iter().any(|cell| self.format.value(cell).is_some());
            let are_names = self.rows[first - 1].iter().all(|cell| self.format.value(cell).is_none());
            if has_number && are_names && self.width > 1 {
                return first - 1;
            }
        }
        // Skip these rows only if they are clearly comments or a title: if each row is a comment or has one
        // cell, or if a header follows.
        let is_clear = self.rows[from..first].iter().all(|row| is_comment(row) || row.len() == 1)
            || hints.has_header == Some(true)
            || self.is_header(first, hints);
        if is_clear && titles <= MOST_OF_TITLE { first } else { from }
    }

    /// Returns whether a row can be a line of a title: the table has several columns, all cells of the row
    /// after the first are empty, and the first cell is neither a number nor one of the names in `hints`.
    fn is_title(&self, row: &ByteRecord, hints: &Hints<'_>) -> bool {
        self.width > 1
            && is_empty_from(row, 1)
            && row.get(0).is_none_or(|cell| self.format.value(cell).is_none() && !is_known(cell, hints))
    }

    /// Returns whether a row is a header: it has one of the names in `hints`, or it counts the columns (see
    /// [`count_columns`]), or it has no number while the row below has a number or is a row of units.
    fn is_header(&self, at: usize, hints: &Hints<'_>) -> bool {
        let Some(row) = self.rows.get(at) else { return false };
        // Infinite values and NaN count as numbers too: they are not names of columns.
        let is_number = |cell: &[u8]| {
            self.format.value(cell).is_some()
                || text(cell).is_ok_and(|text| text.replace(',', ".").parse::<f64>().is_ok())
        };
        let below = |more: usize| self.rows.get(at + more).is_some_and(|row| row.iter().any(is_number));
        row.iter().any(|cell| is_known(cell, hints))
            || count_columns(row)
            || (!row.iter().any(is_number) && (below(1) || self.are_units(at + 1)))
    }

    /// Returns whether a row has the units of the columns: each of its words is in brackets, or is above a
    /// number in the next row.
    ///
    /// If some word in brackets is above a number, the row cannot be a sample, because a sample would have a
    /// number in this column. The other cells of such a row may have any words. Empty cells and `-` are
    /// always allowed.
    fn are_units(&self, at: usize) -> bool {
        let [Some(row), Some(below)] = [at, at + 1].map(|at| self.rows.get(at)) else { return false };
        let is_bracketed = |word: &str| word.starts_with(['(', '[']) && word.ends_with([')', ']']);
        let has_brackets = row
            .iter()
            .zip(below)
            .any(|(cell, below)| text(cell).is_ok_and(is_bracketed) && self.format.value(below).is_some());
        let is_unit = |(cell, below): (&[u8], &[u8])| match text(cell) {
            Ok("" | "-") => true,
            Ok(word) => {
                let is_word = self.format.value(cell).is_none() && !is_missing(word);
                is_word && (has_brackets || is_bracketed(word) || self.format.value(below).is_some())
            }
            Err(_) => false,
        };
        row.len() == below.len()
            && row.len() > 1
            && words(row).iter().any(|word| *word != "-")
            && below.iter().any(|cell| self.format.value(cell).is_some())
            && row.iter().zip(below).all(is_unit)
    }

    /// Returns whether the first cells of the rows below the header `at` are names of the rows: each row has
    /// one cell more than the header, and the first cells are words, or 1, 2, 3 and so on. R's `write.table`
    /// writes such tables.
    fn have_row_names(&self, at: usize) -> bool {
        let rows = self.rows.get(at + 1..).unwrap_or_default();
        let names: Vec<&[u8]> = rows.iter().filter_map(|row| row.get(0)).collect();
        let are_words = names.iter().all(|name| !is_empty(name) && self.format.number(name).is_none());
        let count_rows = names.iter().zip(1..).all(|(name, row)| text(name) == Ok(&*row.to_string()));
        self.rows.get(at).is_some_and(|header| header.len() + 1 == self.width)
            && rows.len() > 1
            && rows.iter().all(|row| row.len() == self.width && !is_empty(&row[self.width - 1]))
            && (are_words || count_rows)
    }

    /// Returns the number of cells in the row `first`, without columns at the end that are empty in all rows.
    fn columns(&self, first: usize) -> usize {
        let rows = &self.rows[first.min(self.rows.len())..];
        let mut columns = rows.first().map_or(0, ByteRecord::len);
        while columns > 1 && rows.iter().all(|row| row.get(columns - 1).is_none_or(is_empty)) {
            columns -= 1;
        }
        columns
    }

    fn layout(&self, is_sep_line: bool, hints: &Hints<'_>) -> TableLayout {
        let first = self.first(is_sep_line, hints);
        let is_header = hints.has_header.unwrap_or_else(|| self.is_header(first, hints));
        let has_units = is_header && self.are_units(first + 1);
        let has_row_names = is_header && self.have_row_names(first);
        TableLayout {
            is_sep_line,
            first,
            is_header,
            has_units,
            has_row_names,
            first_sample: first + usize::from(is_header) + usize::from(has_units),
            columns: self.columns(first) + usize::from(has_row_names),
        }
    }

    fn position(&self, at: usize) -> Option<Position> {
        self.rows.get(at).and_then(ByteRecord::position).cloned()
    }

    /// Describes the lines and columns that are left out. `line` returns the line number of a position.
    fn notes(&self, layout: &TableLayout, line: impl Fn(&Position) -> u64) -> Vec<String> {
        let &TableLayout { is_sep_line, first, has_units, has_row_names, columns, .. } = layout;
        let mut notes = Vec::new();
        if is_sep_line {
            notes.push("line 1 names the separator".into());
        }
        let from = usize::from(is_sep_line);
        let lines = |from: usize, to: usize| {
            let [from, to] = [from, to].map(|at| self.position(at).map_or(0, |place| line(&place)));
            if from == to { format!("line {from} is") } else { format!("lines {from} to {to} are") }
        };
        if first > from {
            let comments = self.rows[from..first].iter().filter(|row| is_comment(row)).count();
            let what = match (comments, first - from - comments) {
                (1, 0) => "a comment",
                (_, 0) => "comments",
                (0, _) => "a title",
                _ => "a title and comments",
            };
            notes.push(format!("{} left out: {what}", lines(from, first - 1)));
        }
        if has_units {
            let units = self.rows.get(first + 1).map(words).unwrap_or_default();
            notes.push(format!("{} left out: units ({})", lines(first + 1, first + 1), listed(units)));
        }
        if has_row_names {
            notes.push("column 1 is left out: it has the names of the rows".into());
        }
        let all = self.rows.get(first).map_or(0, ByteRecord::len);
        if all > columns {
            notes.push(match all - columns {
                1 => format!("column {all} is left out: it is empty"),
                _ => format!("columns {} to {all} are left out: they are empty", columns + 1),
            });
        }
        notes
    }

    /// Returns the names of the columns if the table has a header, or an error that names the line that is
    /// not UTF-8.
    fn header(
        &self,
        layout: &TableLayout,
        line: impl Fn(&Position) -> u64,
    ) -> Result<Option<Vec<String>>, String> {
        let Some(names) = self.rows.get(layout.first).filter(|_| layout.is_header) else { return Ok(None) };
        let unnamed = layout.has_row_names.then_some(&b""[..]);
        let names = unnamed.into_iter().chain(names).take(layout.columns);
        let names: Result<Vec<String>, String> = names.map(|name| text(name).map(str::to_owned)).collect();
        names.map(Some).map_err(|what| {
            format!("line {}: {what}", self.position(layout.first).map_or(1, |place| line(&place)))
        })
    }
}

fn is_known(cell: &[u8], hints: &Hints<'_>) -> bool {
    text(cell).is_ok_and(|name| hints.names.iter().any(|known| name.eq_ignore_ascii_case(known)))
}

impl Beginning {
    /// Returns the beginning of a table that is known to be separated by commas and to have a header in its
    /// first row.
    pub(crate) fn of_names(file: &mut File) -> io::Result<Self> {
        file.seek(SeekFrom::Start(0))?;
        let format = CellFormat { separator: b',', comma: false };
        let (mut reader, mut names) = (format.reader(file.try_clone()?), ByteRecord::new());
        reader.read_byte_record(&mut names)?;
        let header: Vec<String> =
            names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        let (columns, start) = (header.len(), reader.position().clone());
        Ok(Self { format, header: Some(header), columns, start, has_row_names: false, notes: Vec::new() })
    }

    /// Finds out how a table begins. The inner error says why the text is not a table. `line` returns the
    /// line number of a position.
    pub(crate) fn read(
        file: &mut File,
        hints: &Hints<'_>,
        line: impl Fn(&Position) -> u64,
    ) -> io::Result<Result<Self, String>> {
        let mut text = Vec::new();
        file.seek(SeekFrom::Start(0))?;
        file.take(BEGINNING as u64).read_to_end(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_start_matches('\u{feff}');
        if let Some(problem) = other_text(text) {
            return Ok(Err(problem));
        }
        let named = named_separator(text);
        let separators = named.map_or(SEPARATORS.to_vec(), |separator| vec![separator]);
        let mut read: Vec<FirstRows> = separators
            .into_iter()
            .map(|separator| FirstRows::read(file, separator))
            .collect::<Result<_, _>>()?;
        let first_row = |rows: &FirstRows| rows.first(named.is_some(), hints);
        let is_usable = |at: &usize| {
            let rows = &read[*at];
            rows.width > 1 && rows.rows.get(first_row(rows)).is_some_and(|row| row.len() > 1)
        };
        // If separators have equal scores, take the first of them. `max_by_key` takes the last, so the order
        // is reversed.
        let best = (0..read.len()).rev().filter(is_usable).max_by_key(|&at| read[at].score());
        let rows = match best {
            Some(best) => read.swap_remove(best),
            None if hints.may_be_one_column => read.swap_remove(0),
            None => return Ok(Err(not_a_table(&read, text, line))),
        };
        let layout = rows.layout(named.is_some(), hints);
        let mut end = Position::new();
        end.set_byte(file.metadata()?.len());
        let notes = rows.notes(&layout, &line);
        Ok(rows.header(&layout, &line).map(|header| Self {
            format: rows.format,
            header,
            columns: layout.columns,
            start: rows.position(layout.first_sample).unwrap_or(end),
            has_row_names: layout.has_row_names,
            notes,
        }))
    }
}

/// Returns the separator that the first line names for Excel, as in `sep=;`.
fn named_separator(text: &str) -> Option<u8> {
    let line = text.split(['\r', '\n']).next()?.trim_matches('"');
    let separator = line.get(..4).filter(|start| start.eq_ignore_ascii_case("sep=")).and(line.get(4..))?;
    separator.bytes().next().filter(u8::is_ascii)
}

/// If a text is empty or begins like LIBSVM's sparse format, returns why it cannot be read. Returns `None`
/// for any other text.
fn other_text(text: &str) -> Option<String> {
    let mut words = text.trim_start().lines().next().unwrap_or_default().split_whitespace();
    let Some(label) = words.next() else { return Some("is empty".into()) };
    let is_pair = |word: &str| {
        let pair = word.split_once(':');
        pair.is_some_and(|(at, value)| at.parse::<u64>().is_ok() && value.parse::<f64>().is_ok())
    };
    let mut pairs = words.peekable();
    let is_sparse = label.parse::<f64>().is_ok() && pairs.peek().is_some() && pairs.all(is_pair);
    is_sparse.then(|| "is in LIBSVM's sparse format, which is not supported: save it as .csv".into())
}

/// Returns why a text is not a table.
fn not_a_table(read: &[FirstRows], text: &str, line: impl Fn(&Position) -> u64) -> String {
    let line = |row: &ByteRecord| row.position().map_or(1, &line);
    let best = read.iter().rev().filter(|rows| rows.width > 1).max_by_key(|rows| rows.score());
    let of_width = |rows: &FirstRows| {
        Some((rows.rows.first()?.clone(), rows.rows.iter().find(|row| row.len() == rows.width)?.clone()))
    };
    match best.and_then(of_width) {
        Some((first, other)) => format!(
            "line {} has {}, but line {} has {}: a table must have one row for each sample, and the same number of \
             cells in each row",
            line(&first),
            count(first.len(), "cell"),
            line(&other),
            count(other.len(), "cell")
        ),
        None => {
            let first = text.trim_start().lines().next().unwrap_or_default();
            format!(
                "line 1 has 1 cell, {}: a table must have one row for each sample, with cells separated by a \
                 comma, semicolon, tab or |",
                quoted(first)
            )
        }
    }
}

/// Converts a text from UTF-16 to UTF-8, in a temporary file. `unit` converts two bytes to a code unit.
pub(crate) fn from_utf16(path: &Path, file: File, unit: fn([u8; 2]) -> u16) -> Result<File, DataError> {
    let mut bytes = BufReader::new(file).bytes();
    let mut plain = BufWriter::new(temporary::file()?);
    let mut failed = None;
    let units = std::iter::from_fn(|| match (bytes.next()?, bytes.next()?) {
        (Ok(first), Ok(second)) => Some(unit([first, second])),
        (Err(error), _) | (_, Err(error)) => {
            failed = Some(error);
            None
        }
    });
    for letter in char::decode_utf16(units) {
        write!(plain, "{}", letter.unwrap_or(char::REPLACEMENT_CHARACTER)).map_err(temporary::failed)?;
    }
    match failed {
        Some(error) => Err(DataError::read(path)(error)),
        None => plain.into_inner().map_err(|error| temporary::failed(error.into_error())),
    }
}
