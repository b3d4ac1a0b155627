//! Reads CSV tables that this program wrote. The error of a damaged table names the file, line and column.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use run_record::files::open_regular;
use run_record::out_of_bounds;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of the first line in bytes. The header of a table is shorter.
const LONGEST_HEADER: u64 = 64 << 10;

/// Columns that contain text. Their cells are not checked against the bounds of numbers.
const TEXT: [&str; 5] = ["backend", "operation", "operator", "result", "topology"];

/// A row of a table. The fields are the columns.
pub trait TableRow: Default + Serialize + DeserializeOwned {
    /// What to do about a damaged file.
    const REPAIR: &'static str;

    /// Checks the row against the earlier rows `before`. If the row is invalid, returns the column and the
    /// problem.
    fn problem(&self, _before: &[Self]) -> Option<(&'static str, String)> {
        None
    }
}

/// Reads the table `path`; `None` if the file does not have the columns of `R`, or cannot be read.
///
/// # Errors
/// If the table is damaged. A table that lacks exactly one column counts as damaged. The message names the
/// file, line, column and problem, and says what to do.
pub fn read<R: TableRow>(path: &Path) -> Result<Option<Vec<R>>, String> {
    let Ok(file) = open_regular(path) else { return Ok(None) };
    let mut file = BufReader::new(file);
    let mut text = Vec::new();
    if (&mut file).take(LONGEST_HEADER).read_until(b'\n', &mut text).is_err() {
        return Ok(None);
    }
    let (Some(header), Some(columns)) = (header(&text), columns::<R>()) else { return Ok(None) };
    let missing: Vec<&str> = columns.iter().filter(|name| !header.iter().any(|n| n == *name)).collect();
    let rows = match missing[..] {
        [] => file
            .read_to_end(&mut text)
            .map_err(|error| error.to_string())
            .and_then(|_| all_quotes_closed(&text))
            .and_then(|()| rows(&text, &header)),
        [name] => Err(format!("line 1: the column {name} is missing")),
        _ => return Ok(None),
    };
    rows.map(Some).map_err(|problem| damaged::<R>(path, &problem))
}

/// Returns the columns of a row: the names of its fields.
fn columns<R: TableRow>() -> Option<csv::StringRecord> {
    let mut file = csv::Writer::from_writer(Vec::new());
    file.serialize(R::default()).ok()?;
    header(&file.into_inner().ok()?)
}

/// Makes the message about a damaged file.
pub fn damaged<R: TableRow>(path: &Path, problem: &str) -> String {
    format!("{}: is damaged ({problem}): {}", path.display(), R::REPAIR)
}

/// Checks that the quotes of each line are balanced. No cell has several lines, so an open quote is an error.
/// An open quote would make the CSV reader take the following rows as part of one cell.
///
/// # Errors
/// The first line with an open quote.
pub fn all_quotes_closed(text: &[u8]) -> Result<(), String> {
    let is_open = |line: &[u8]| line.iter().filter(|byte| **byte == b'"').count() % 2 == 1;
    match text.split(|byte| *byte == b'\n').position(is_open) {
        Some(before) => Err(format!("line {}: a quote is not closed", before + 1)),
        None => Ok(()),
    }
}

/// Returns the columns in a file's first line, even if a quote is open there.
fn header(line: &[u8]) -> Option<csv::StringRecord> {
    let mut line = line.to_vec();
    if all_quotes_closed(&line).is_err() {
        line.retain(|byte| *byte != b'"');
    }
    csv::Reader::from_reader(line.as_slice()).headers().ok().cloned()
}

fn rows<R: TableRow>(text: &[u8], header: &csv::StringRecord) -> Result<Vec<R>, String> {
    let mut rows: Vec<R> = Vec::new();
    let text = std::str::from_utf8(text).map_err(|error| {
        let line = 1 + text[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count();
        format!("line {line}: is not UTF-8 text")
    })?;
    for record in csv::Reader::from_reader(text.as_bytes()).records() {
        let record = record.map_err(|error| unread(&error))?;
        let line = record.position().map_or(0, csv::Position::line);
        let damaged = |column: &str, problem: String| format!("line {line}, column {column}: {problem}");
        let cells =
            header.iter().zip(&record).filter(|(name, cell)| !cell.is_empty() && !TEXT.contains(name));
        if let Some((name, problem)) =
            cells.filter_map(|(name, cell)| Some((name, out_of_bounds(name, cell)?))).next()
        {
            return Err(damaged(name, problem));
        }
        let row: R = record.deserialize(Some(header)).map_err(|error| match error.kind() {
            csv::ErrorKind::Deserialize { err, .. } => {
                let field = err.field().unwrap_or_default() as usize;
                let cell = record.get(field).unwrap_or_default();
                damaged(header.get(field).unwrap_or_default(), format!("{cell:?} {}", in_words(err.kind())))
            }
            _ => error.to_string(),
        })?;
        if let Some((column, problem)) = row.problem(&rows) {
            return Err(damaged(column, problem));
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Says why a line is not a row of the table.
fn unread(error: &csv::Error) -> String {
    let line = error.position().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("line {line}: has {len} cells, but the first line has {expected_len}")
        }
        _ => error.to_string(),
    }
}

/// Says what is wrong with a cell.
fn in_words(kind: &csv::DeserializeErrorKind) -> String {
    use csv::DeserializeErrorKind::{ParseFloat, ParseInt};
    match kind {
        ParseInt(_) => "is not a whole number from 0".into(),
        ParseFloat(_) => "is not a number".into(),
        other => format!("cannot be read: {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::CollectiveRow;
    use crate::fused::FusedRow;
    use run_record::EpochRow;

    fn read<R: TableRow>(text: &str) -> Result<usize, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        super::read::<R>(file.path())?.map(|rows| rows.len()).ok_or("another".into())
    }

    #[test]
    fn a_damaged_cell_is_named_with_its_line_and_column() {
        const FUSED: &str = "operator,layers,channels,batch,steps,forward_ms,backward_ms,test_accuracy";
        let fused = |row: &str| read::<FusedRow>(&format!("{FUSED}\nfused,2,1,32,200,1.0,1.0,86.0\n{row}\n"));
        assert_eq!(fused("unfused,2,1,32,200,1.0,5.0,86.0"), Ok(2));
        for (row, expected) in [
            ("unfused,2,1,32,200,abc,5.0,86.0", "line 3, column forward_ms: \"abc\" is not a number"),
            ("unfused,2,1,32,200,1.0,5.0", "(line 3: has 7 cells, but the first line has 8)"),
            ("unfused,2,1,32,200,1.0,-5.0,86.0", "line 3, column backward_ms: -5.0 is outside 0 to 1e12"),
            ("unfused,2,1,32,200,1e300,5.0,86.0", "line 3, column forward_ms: 1e300 is outside 0 to 1e12"),
            ("unfused,2,1,32,200,NaN,5.0,86.0", "line 3, column forward_ms: NaN is outside 0"),
            ("unfused,2,1,32,200,1.0,5.0,186", "line 3, column test_accuracy: 186 is outside 0 to 100)"),
            ("unfused,two,1,32,200,1.0,5.0,86", "line 3, column layers: \"two\" is not a whole number"),
            ("unfused,2,1,32,0,1.0,5.0,86", "line 3, column steps: 0 must be above 0"),
            ("unfused,2,1,32,200,0.0,5.0,86", "line 3, column forward_ms: 0.0 must be above 0"),
            ("fused,2,1,32,200,2.0,5.0,86", "line 3, column operator: fused with 2 layers occurs twice"),
        ] {
            let found = fused(row).unwrap_err();
            assert!(found.contains(expected) && found.contains("mpiburn bench fused"), "{row}: {found}");
        }
        let cut = FUSED.replace(",test_accuracy", "");
        let found = read::<FusedRow>(&format!("{cut}\nfused,2,1,32,200,1.0,1.0\n")).unwrap_err();
        assert!(found.contains("line 1: the column test_accuracy "), "{found}");
        assert_eq!(read::<FusedRow>("a,b\n1,2\n"), Err("another".into()));
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), [FUSED.as_bytes(), b"\n\xff,2,1,32,200,1.0,1.0,86.0\n"].concat())
            .unwrap();
        let found = super::read::<FusedRow>(path.path()).unwrap_err();
        assert!(found.contains("(line 2: is not UTF-8 text)"), "{found}");
    }

    #[test]
    fn an_open_quote_is_named_with_its_line_and_hides_no_row() {
        const HEADER: &str = "operation,backend,topology,bytes,median_us,result";
        let row = "send,mpi,1x2,1024,1.5,correct";
        let found = |lines: &[&str]| read::<CollectiveRow>(&lines.join("\n"));
        let gather = row.replace("send", "gather");
        assert_eq!(found(&[HEADER, row, "\"recv\",mpi,1x2,1024,1.5,\"correct\"", &gather]), Ok(3));
        for (other, expected) in [
            (row.to_owned(), "line 3, column operation: send of mpi occurs twice"),
            (gather.replace("1x2", "2x2"), "line 3, column topology: 2x2, but 1x2 above"),
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
        const HEADER: &str = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,seconds,learning_rate,\
                              int8_test_accuracy,int8_test_loss";
        let epochs = |numbers: &[usize]| {
            let lines: String = numbers.iter().map(|n| format!("{n},0.5,50,0.5,50,1,0.001,,\n")).collect();
            read::<EpochRow>(&format!("{HEADER}\n{lines}"))
        };
        assert_eq!(epochs(&[1, 2, 3]), Ok(3));
        for (numbers, expected) in [
            ([1, 2, 1], "line 4, column epoch: expected epoch 3, found 1"),
            ([1, 1, 2], "line 3, column epoch: expected epoch 2, found 1"),
            ([1, 3, 4], "line 3, column epoch: expected epoch 2, found 3"),
        ] {
            let found = epochs(&numbers).unwrap_err();
            assert!(found.contains(expected), "{numbers:?}: {found}");
        }
        let found = read::<EpochRow>(&format!("{HEADER}\n1,0.5,150,0.5,50,1,0.001,,\n")).unwrap_err();
        assert!(found.contains("column train_accuracy: 150 is outside 0 to 100"), "{found}");
        let found = read::<EpochRow>(&format!("{HEADER}\n1,0.5,50,0.5,50,1,0.001,-3,\n"));
        assert!(found.unwrap_err().contains("column int8_test_accuracy: -3"));
    }
}
