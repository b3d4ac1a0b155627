//! Reads file names from standard input, one per line.
//!
//! Users sometimes pipe the contents of a file instead, by mistake. Such input is an error. A picture or
//! another known format is recognised by its first bytes. A table is recognised by its first two lines: each
//! line has a cell separator and does not name a file.

use std::ffi::OsStr;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Context;
use run_record::files::foreign;

use super::Refused;

/// Calls `visit` with each name, and returns the number of names. Skips blank lines.
pub fn each_name(
    mut input: impl BufRead,
    mut visit: impl FnMut(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<usize> {
    const EXPECTED: &str = "- reads file names, one per line: name the file itself instead of -";
    let beginning = input.fill_buf().context("standard input")?;
    if let Some(kind) = foreign(beginning) {
        return Err(Refused(format!("standard input is {}, but {EXPECTED}", kind.name)).into());
    }
    let (mut names, mut first_row) = (0, None);
    for line in input.split(b'\n') {
        let line = line.context("standard input")?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if line.trim_ascii().is_empty() {
            continue;
        }
        names += 1;
        if names <= 2 && is_row(line) {
            match first_row {
                Some(_) => return Err(Refused(format!("standard input is a table, but {EXPECTED}")).into()),
                None if names == 1 => {
                    first_row = Some(line.to_owned());
                    continue;
                }
                None => {}
            }
        }
        if let Some(first) = first_row.take() {
            visit(Path::new(OsStr::from_bytes(&first)))?;
        }
        visit(Path::new(OsStr::from_bytes(line)))?;
    }
    if let Some(only) = first_row {
        visit(Path::new(OsStr::from_bytes(&only)))?;
    }
    Ok(names)
}

/// Whether a line has a cell separator and does not name a file.
fn is_row(line: &[u8]) -> bool {
    line.iter().any(|byte| b",;\t".contains(byte)) && !Path::new(OsStr::from_bytes(line)).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(input: &[u8]) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let count = each_name(input, |name| {
            names.push(name.to_string_lossy().into_owned());
            Ok(())
        });
        assert!(count.as_ref().is_ok_and(|count| *count == names.len()) || count.is_err());
        count.map(|_| names).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_names_and_blank_ones_are_skipped() {
        for (input, expected) in [
            (&b"a.png\n\n  \nb c.png\r\n\r\nd.png"[..], &["a.png", "b c.png", "d.png"][..]),
            (b"x,y.png\n", &["x,y.png"]),
            (b"x,y.png\nb.png\n1,2\n3,4\n", &["x,y.png", "b.png", "1,2", "3,4"]),
            (b"\n\n", &[]),
            (b"", &[]),
        ] {
            assert_eq!(names(input).unwrap(), expected, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn contents_in_place_of_names_are_refused() {
        for (input, expected) in [
            (&b"width,length\n1,2\n3,4\n"[..], "standard input is a table"),
            (b"1;2\n\n3;4\n", "standard input is a table"),
            (b"\x89PNG\r\n\x1a\n\0\0", "standard input is a picture (PNG)"),
            (b"{\"a\": 1}\n", "standard input is JSON"),
        ] {
            let message = names(input).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }
}
