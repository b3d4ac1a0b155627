//! CSV tables that this program writes, read cell by cell: a damaged one is named with line and column.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde::de::DeserializeOwned;

use run_record::files::open_regular;

/// Longest time in milliseconds, 11 days: a longer one was not measured.
pub const MOST_MS: f64 = 1e9;
/// The same in microseconds.
pub const MOST_US: f64 = 1e12;
/// Most samples, bytes or steps.
const MOST_COUNT: u64 = 1_000_000_000_000;
/// Longest first line, in bytes: that of a table is shorter.
const LONGEST_HEADER: u64 = 64 << 10;

/// What the cells of a column contain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Text.
    Words,
    /// A whole number of things of which there is at least one.
    Count,
    /// A number above 0, up to this one.
    Above0(f64),
    /// A number from 0 to this one.
    UpTo(f64),
    /// The same, or nothing.
    OptionalUpTo(f64),
}

impl Kind {
    /// What is wrong with a cell.
    pub fn problem(self, cell: &str) -> Option<String> {
        match self {
            Self::Words => None,
            Self::Count => match cell.parse::<u64>() {
                Ok(1..=MOST_COUNT) => None,
                Ok(_) => Some(format!("{cell} is not from 1 to {:e}", MOST_COUNT as f64)),
                Err(_) => Some(format!("{cell:?} is not a whole number")),
            },
            Self::OptionalUpTo(_) if cell.is_empty() => None,
            Self::Above0(most) | Self::UpTo(most) | Self::OptionalUpTo(most) => match cell.parse::<f64>() {
                Ok(0.0) if matches!(self, Self::Above0(_)) => Some(format!("{cell} is not above 0")),
                Ok(number) => (!is_in(number, most)).then(|| out_of_range(cell, most)),
                Err(_) => Some(format!("{cell:?} is not a number")),
            },
        }
    }
}

/// Whether a number is from 0 to `most`; NaN is not.
pub fn is_in(number: f64, most: f64) -> bool {
    (0.0..=most).contains(&number)
}

/// That a number is not from 0 to `most`.
pub fn out_of_range(number: &str, most: f64) -> String {
    match most >= 1e6 {
        true => format!("{number} is not from 0 to {most:e}"),
        false => format!("{number} is not from 0 to {most}"),
    }
}

/// A row of a table, whose fields are the columns.
pub trait TableRow: DeserializeOwned {
    /// The columns that every file has.
    const COLUMNS: &'static [(&'static str, Kind)];
    /// Columns that only some files have.
    const OPTIONAL: &'static [(&'static str, Kind)] = &[];
    /// How to get the file again.
    const REPAIR: &'static str;

    /// What is wrong with the row after the rows `before`: its column, and the problem.
    fn problem(&self, _before: &[Self]) -> Option<(&'static str, String)> {
        None
    }
}

/// What a file is.
#[derive(Debug, PartialEq)]
pub enum Table<R> {
    /// Another table, or none.
    Another,
    /// Its rows.
    Rows(Vec<R>),
    /// Damaged: the file, line, column and problem, and what to do.
    Damaged(String),
}

impl<R: TableRow> Table<R> {
    /// Reads a file. It is known by its columns; one of them may be missing, which is damage.
    pub fn read(path: &Path) -> Self {
        let Ok(file) = open_regular(path) else { return Self::Another };
        let mut file = BufReader::new(file);
        let mut text = Vec::new();
        if (&mut file).take(LONGEST_HEADER).read_until(b'\n', &mut text).is_err() {
            return Self::Another;
        }
        let Some(header) = header(&text) else { return Self::Another };
        let missing: Vec<&str> = R::COLUMNS
            .iter()
            .map(|(name, _)| *name)
            .filter(|name| !header.iter().any(|n| n == *name))
            .collect();
        let rows = match missing[..] {
            [] => file
                .read_to_end(&mut text)
                .map_err(|error| error.to_string())
                .and_then(|_| all_quotes_closed(&text))
                .and_then(|()| rows(&mut csv_reader(&text), &header)),
            [name] => Err(format!("line 1: no column {name}")),
            _ => return Self::Another,
        };
        rows.map_or_else(|problem| Self::Damaged(damaged::<R>(path, &problem)), Self::Rows)
    }

    /// The rows; none if the file is another table or damaged.
    pub fn rows(self) -> Option<Vec<R>> {
        match self {
            Self::Rows(rows) if !rows.is_empty() => Some(rows),
            _ => None,
        }
    }
}

/// The line about a damaged file.
pub fn damaged<R: TableRow>(path: &Path, problem: &str) -> String {
    format!("{}: damaged ({problem}); {}", path.display(), R::REPAIR)
}

/// Checks that each line closes its quotes: no cell has several lines, and a quote that is left open
/// would take the rows below into its cell.
///
/// # Errors
/// The first line that does not.
pub fn all_quotes_closed(text: &[u8]) -> Result<(), String> {
    let is_open = |line: &[u8]| line.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
    match text.split(|byte| *byte == b'\n').position(is_open) {
        Some(before) => Err(format!("line {}: a quote is not closed", before + 1)),
        None => Ok(()),
    }
}

/// The columns in a file's first line, with or without a quote that is not closed.
fn header(line: &[u8]) -> Option<csv::StringRecord> {
    let mut line = line.to_vec();
    if all_quotes_closed(&line).is_err() {
        line.retain(|byte| *byte != b'"');
    }
    csv_reader(&line).headers().ok().cloned()
}

fn csv_reader(text: &[u8]) -> csv::Reader<&[u8]> {
    csv::ReaderBuilder::new().flexible(true).from_reader(text)
}

fn rows<R: TableRow>(reader: &mut csv::Reader<&[u8]>, header: &csv::StringRecord) -> Result<Vec<R>, String> {
    let columns = || R::COLUMNS.iter().chain(R::OPTIONAL);
    let mut rows: Vec<R> = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() != header.len() {
            return Err(format!(
                "line {line}: {} columns, and the header has {}",
                record.len(),
                header.len()
            ));
        }
        for (name, cell) in header.iter().zip(&record) {
            let kind = columns().find(|(known, _)| *known == name).map_or(Kind::Words, |(_, kind)| *kind);
            if let Some(problem) = kind.problem(cell) {
                return Err(format!("line {line}, column {name}: {problem}"));
            }
        }
        let row: R = record.deserialize(Some(header)).map_err(|error| format!("line {line}: {error}"))?;
        if let Some((column, problem)) = row.problem(&rows) {
            return Err(format!("line {line}, column {column}: {problem}"));
        }
        rows.push(row);
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::CollectiveRow;
    use crate::fused::FusedRow;
    use crate::latency::LatencyRow;
    use run_record::EpochRow;

    fn read<R: TableRow + std::fmt::Debug>(text: &str) -> Result<usize, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        match Table::<R>::read(file.path()) {
            Table::Another => Err("another".into()),
            Table::Rows(rows) => Ok(rows.len()),
            Table::Damaged(line) => Err(line),
        }
    }

    #[test]
    fn a_damaged_cell_is_named_with_its_line_and_column() {
        const FUSED: &str = "operator,layers,channels,batch,steps,forward_ms,backward_ms,test_accuracy";
        let fused = |row: &str| read::<FusedRow>(&format!("{FUSED}\nfused,2,1,32,200,1.0,1.0,86.0\n{row}\n"));
        assert_eq!(fused("unfused,2,1,32,200,1.0,5.0,86.0"), Ok(2));
        for (row, expected) in [
            ("unfused,2,1,32,200,abc,5.0,86.0", "line 3, column forward_ms: \"abc\" is not a number"),
            ("unfused,2,1,32,200,1.0,5.0", "line 3: 7 columns, and the header has 8"),
            ("unfused,2,1,32,200,1.0,-5.0,86.0", "line 3, column backward_ms: -5.0 is not from 0 to 1e9"),
            ("unfused,2,1,32,200,1e300,5.0,86.0", "line 3, column forward_ms: 1e300 is not from 0 to 1e9"),
            ("unfused,2,1,32,200,NaN,5.0,86.0", "line 3, column forward_ms: NaN is not from 0"),
            ("unfused,2,1,32,200,1.0,5.0,186", "line 3, column test_accuracy: 186 is not from 0 to 100)"),
            ("unfused,two,1,32,200,1.0,5.0,86", "line 3, column layers: \"two\" is not a whole number"),
            ("unfused,2,1,32,0,1.0,5.0,86", "line 3, column steps: 0 is not from 1 to 1e12"),
            ("unfused,2,1,32000000000000,9,1.0,5.0,86", "line 3, column batch: 32000000000000 is not from 1"),
            ("unfused,2,1,32,200,0.0,5.0,86", "line 3, column forward_ms: 0.0 is not above 0"),
            ("fused,2,1,32,200,2.0,5.0,86", "line 3, column operator: fused with 2 layers is there twice"),
        ] {
            let found = fused(row).unwrap_err();
            assert!(found.contains(expected) && found.contains("mpiburn bench fused"), "{row}: {found}");
        }
        let cut = FUSED.replace(",test_accuracy", "");
        let found = read::<FusedRow>(&format!("{cut}\nfused,2,1,32,200,1.0,1.0\n")).unwrap_err();
        assert!(found.contains("line 1: no column test_accuracy"), "{found}");
        assert_eq!(read::<FusedRow>("a,b\n1,2\n"), Err("another".into()));
        let latencies = "backend,bytes,min_us,median_us,p99_us,busbw_mb_s\nmpi,4,3.0,2.0,5.0,1.0\n";
        let found = read::<LatencyRow>(latencies).unwrap_err();
        assert!(found.contains("line 2, column median_us: 2 is below min_us 3"), "{found}");
    }

    #[test]
    fn an_open_quote_is_named_with_its_line_and_hides_no_row() {
        const HEADER: &str = "operation,backend,topology,bytes,median_us,result";
        let row = "send,mpi,1x2,1024,1.5,correct";
        let found = |lines: &[&str]| read::<CollectiveRow>(&lines.join("\n"));
        let gather = row.replace("send", "gather");
        assert_eq!(found(&[HEADER, row, "\"recv\",mpi,1x2,1024,1.5,\"correct\"", &gather]), Ok(3));
        for (other, expected) in [
            (row.to_owned(), "line 3, column operation: send of mpi is there twice"),
            (
                gather.replace("1x2", "2x2"),
                "line 3, column topology: 2x2, and 1x2 above: a file is of one job",
            ),
            (gather.replace("1x2", "abc"), "line 3, column topology: \"abc\" is not machines x processes"),
        ] {
            let found = found(&[HEADER, row, &other]).unwrap_err();
            assert!(found.contains(expected), "{other}: {found}");
        }
        for (lines, line) in [
            ([HEADER, "send,mpi,1x2,1024,1.5,\"correct", row], 2),
            ([HEADER, "\"send,mpi,1x2,1024,1.5,correct", row], 2),
            ([HEADER, row, "send,mpi,1x2,1024,1.5,\"correct"], 3),
            (["\"operation,backend,topology,bytes,median_us,result", row, row], 1),
        ] {
            let found = found(&lines).unwrap_err();
            assert!(found.contains(&format!("(line {line}: a quote is not closed)")), "{lines:?}: {found}");
        }
        assert_eq!(read::<CollectiveRow>("a,b\n\"1,2\n3,4\n"), Err("another".into()));
    }

    #[test]
    fn epochs_are_counted_from_1_and_none_is_missing() {
        const HEADER: &str = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,seconds";
        let epochs = |numbers: &[usize]| {
            let lines: String = numbers.iter().map(|n| format!("{n},0.5,50,0.5,50,1\n")).collect();
            read::<EpochRow>(&format!("{HEADER}\n{lines}"))
        };
        assert_eq!(epochs(&[1, 2, 3]), Ok(3));
        for (numbers, expected) in [
            ([1, 2, 1], "line 4, column epoch: 1 where 3 is next"),
            ([1, 1, 2], "line 3, column epoch: 1 where 2 is next"),
            ([1, 3, 4], "line 3, column epoch: 3 where 2 is next"),
        ] {
            let found = epochs(&numbers).unwrap_err();
            assert!(found.contains(expected), "{numbers:?}: {found}");
        }
        let found = read::<EpochRow>(&format!("{HEADER}\n1,0.5,150,0.5,50,1\n")).unwrap_err();
        assert!(found.contains("column train_accuracy: 150 is not from 0 to 100"), "{found}");
        // Only runs with an integer model have its accuracy.
        assert_eq!(read::<EpochRow>(&format!("{HEADER},int8_test_accuracy\n1,0.5,50,0.5,50,1,\n")), Ok(1));
        let found = read::<EpochRow>(&format!("{HEADER},int8_test_accuracy\n1,0.5,50,0.5,50,1,-3\n"));
        assert!(found.unwrap_err().contains("column int8_test_accuracy: -3"));
    }
}
