//! How a table in text begins: how its cells are written, what stands before its header, and its first rows.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use run_record::count;

use crate::DataError;
use crate::import::tables::missing::is_missing;
use crate::import::temporary;
use crate::quote::{listed, quoted};

/// What may separate cells.
const SEPARATORS: [u8; 4] = *b",;\t|";
/// Rows by which separator and decimal sign are found.
const SAMPLE: usize = 1000;
/// Most lines of a title. Comments may be longer.
const MOST_OF_TITLE: usize = 10;
/// What comments begin with in tables of NumPy and R, of Weka and MATLAB, and of programs.
const COMMENTS: [&str; 3] = ["#", "%", "//"];
/// Bytes in which the first line is looked for.
const BEGINNING: usize = 1 << 12;

/// How cells are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellFormat {
    pub(crate) separator: u8,
    /// Whether the decimal sign is a comma.
    pub(crate) comma: bool,
}

impl CellFormat {
    /// The number in a cell.
    pub(crate) fn number(self, cell: &[u8]) -> Option<f64> {
        let text = text(cell).ok()?;
        if self.comma && text.contains('.') {
            return None;
        }
        let parsed = if self.comma { text.replacen(',', ".", 1).parse() } else { text.parse() };
        parsed.ok().filter(|value: &f64| value.is_finite())
    }

    /// The number in a cell of a feature: True and False are 1 and 0, as pandas and R write them.
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

/// A cell as text, without blanks around it.
pub(crate) fn text(cell: &[u8]) -> Result<&str, String> {
    std::str::from_utf8(cell).map(str::trim).map_err(|_| {
        format!("{} is not UTF-8: save the table in UTF-8", quoted(&String::from_utf8_lossy(cell)))
    })
}

fn is_empty(cell: &[u8]) -> bool {
    cell.trim_ascii().is_empty()
}

/// Whether all cells from `column` on are empty.
pub(crate) fn is_empty_from(row: &ByteRecord, column: usize) -> bool {
    row.iter().skip(column).all(is_empty)
}

/// The cells with text.
fn words(row: &ByteRecord) -> Vec<&str> {
    row.iter().filter(|cell| !is_empty(cell)).filter_map(|cell| text(cell).ok()).collect()
}

fn is_comment(row: &ByteRecord) -> bool {
    let first = row.get(0).and_then(|cell| text(cell).ok()).unwrap_or_default();
    COMMENTS.iter().any(|mark| first.starts_with(mark))
}

/// Whether `names` are 0, 1, 2, …, as pandas names columns without names. That of the index, which it writes first, is
/// empty.
fn count_columns(names: &ByteRecord) -> bool {
    let first = usize::from(names.get(0).is_some_and(is_empty));
    let mut numbered = names.iter().skip(first).enumerate();
    names.len() > 2 + first && numbered.all(|(column, name)| text(name) == Ok(&*column.to_string()))
}

/// The beginning of a table.
pub(crate) struct Beginning {
    pub(crate) format: CellFormat,
    /// Names of the columns, if the first row has them.
    pub(crate) header: Option<Vec<String>>,
    /// Number of columns without those at the end that are empty.
    pub(crate) columns: usize,
    /// Of the first row of samples.
    pub(crate) start: Position,
    /// Whether column 1 has the names of the rows, and none of its own.
    pub(crate) has_row_names: bool,
    /// What is left out, in words.
    pub(crate) notes: Vec<String>,
}

/// What a caller knows of a table.
pub(crate) struct Hints<'a> {
    /// Names by which a row is the header.
    pub(crate) names: &'a [&'a str],
    /// Whether the first row is the header, if that is known.
    pub(crate) has_header: Option<bool>,
    /// Whether one column is enough.
    pub(crate) may_be_one_column: bool,
}

/// The first rows of a file as they are with one separator.
struct FirstRows {
    format: CellFormat,
    rows: Vec<ByteRecord>,
    /// The number of cells that most of them have, and how many have it.
    width: usize,
    alike: usize,
}

/// What the first rows of a table are.
struct TableLayout {
    /// Whether the first row names the separator.
    is_sep_line: bool,
    /// The row in which the table begins.
    first: usize,
    is_header: bool,
    has_units: bool,
    has_row_names: bool,
    first_sample: usize,
    /// Number of columns without those at the end that are empty.
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
        // The first row decides between two.
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

    fn score(&self) -> (usize, usize, usize) {
        let numbers = self.rows.iter().flatten().filter(|cell| self.format.number(cell).is_some()).count();
        (self.alike, numbers, self.width)
    }

    /// The row in which the table begins, behind comments and a title.
    fn first(&self, is_sep_line: bool, hints: &Hints<'_>) -> usize {
        let from = usize::from(is_sep_line);
        let is_before = |row: &ByteRecord| is_comment(row) || self.is_title(row, hints);
        let Some(first) = (from..self.rows.len()).find(|&at| !is_before(&self.rows[at])) else { return from };
        let titles = self.rows[from..first].iter().filter(|row| !is_comment(row)).count();
        // NumPy writes a header as a comment: it has as many cells as the numbers below it.
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
        // A title has one cell, or stands above names.
        let is_clear = self.rows[from..first].iter().all(|row| is_comment(row) || row.len() == 1)
            || hints.has_header == Some(true)
            || self.is_header(first, hints);
        if is_clear && titles <= MOST_OF_TITLE { first } else { from }
    }

    /// Whether a row has one cell, which is the first and no number, or none, where others have several.
    fn is_title(&self, row: &ByteRecord, hints: &Hints<'_>) -> bool {
        self.width > 1
            && is_empty_from(row, 1)
            && row.get(0).is_none_or(|cell| self.format.value(cell).is_none() && !is_known(cell, hints))
    }

    /// Whether a row has names: one of those that are known, numbers that count the columns, or words alone above
    /// numbers.
    fn is_header(&self, at: usize, hints: &Hints<'_>) -> bool {
        let Some(row) = self.rows.get(at) else { return false };
        // Infinite values are no names either.
        let is_number = |cell: &[u8]| {
            self.format.value(cell).is_some()
                || text(cell).is_ok_and(|text| text.replace(',', ".").parse::<f64>().is_ok())
        };
        let below = |more: usize| self.rows.get(at + more).is_some_and(|row| row.iter().any(is_number));
        row.iter().any(|cell| is_known(cell, hints))
            || count_columns(row)
            || (!row.iter().any(is_number) && (below(1) || self.are_units(at + 1)))
    }

    /// Whether a row has units: words alone, each in brackets or above a number. Where one is in brackets above a number,
    /// where a sample has no word, the others may be any words.
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

    /// Whether the rows below the header `at` have one more cell, the first, which names them: R's `write.table` names no
    /// column for the names of the rows, which are words or count the rows.
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

    /// Columns of the row `first` without those at its end that are empty in all rows.
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

    /// What is left out, in words. `line` is the number of the line at a position.
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

    /// Names of the columns, if the first row has them; or which line is not UTF-8.
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
    /// That of a table with commas whose first row has the names.
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

    /// The beginning of a table, or what is wrong with it. `line` is the number of the line at a position.
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
        // Of those that are equal, the first.
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

/// The separator in the first line, as Excel takes it: `sep=;`.
fn named_separator(text: &str) -> Option<u8> {
    let line = text.split(['\r', '\n']).next()?.trim_matches('"');
    let separator = line.get(..4).filter(|start| start.eq_ignore_ascii_case("sep=")).and(line.get(4..))?;
    separator.bytes().next().filter(u8::is_ascii)
}

/// Why a text is not read, if it is empty or begins as LIBSVM's do.
fn other_text(text: &str) -> Option<String> {
    let mut words = text.trim_start().lines().next().unwrap_or_default().split_whitespace();
    let Some(label) = words.next() else { return Some("is empty".into()) };
    let is_pair = |word: &str| {
        let pair = word.split_once(':');
        pair.is_some_and(|(at, value)| at.parse::<u64>().is_ok() && value.parse::<f64>().is_ok())
    };
    let mut pairs = words.peekable();
    let is_sparse = label.parse::<f64>().is_ok() && pairs.peek().is_some() && pairs.all(is_pair);
    is_sparse.then(|| "is in LIBSVM's sparse format, which is not read: save it as .csv".into())
}

/// Why a text is no table.
fn not_a_table(read: &[FirstRows], text: &str, line: impl Fn(&Position) -> u64) -> String {
    let line = |row: &ByteRecord| row.position().map_or(1, &line);
    let best = read.iter().rev().filter(|rows| rows.width > 1).max_by_key(|rows| rows.score());
    let of_width = |rows: &FirstRows| {
        Some((rows.rows.first()?.clone(), rows.rows.iter().find(|row| row.len() == rows.width)?.clone()))
    };
    match best.and_then(of_width) {
        Some((first, other)) => format!(
            "line {} has {}, line {} has {}: a table with a row for each sample is expected, and rows have the same \
             number of cells",
            line(&first),
            count(first.len(), "cell"),
            line(&other),
            count(other.len(), "cell")
        ),
        None => {
            let first = text.trim_start().lines().next().unwrap_or_default();
            format!(
                "line 1 has 1 cell, {}: a table with a row for each sample is expected, whose cells are separated by a \
                 comma, semicolon, tab or |",
                quoted(first)
            )
        }
    }
}

/// A text in UTF-16 as UTF-8, in a file without a name; `unit` makes a number of its bytes.
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
