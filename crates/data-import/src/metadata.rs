//! `metadata.csv` or `metadata.jsonl` beside pictures: their classes, as Hugging Face's imagefolder has them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::labels::{LabelOptions, class_name, twin};
use crate::table_file::{LABELS, TableFile, text};
use crate::{Header, ImportError};

/// The column with the path of the picture, below the folder of the file.
const FILE_NAME: &str = "file_name";

/// The path of a picture and its class; none if it has none and is to be left out.
type Named = (PathBuf, Option<String>);

/// A line of the file: its number, and its columns that have text or a number.
type Line = (u64, BTreeMap<String, String>);

/// Whether a file has the name of such a file, in any case.
pub(crate) fn is_file_name(path: &Path) -> bool {
    let name = crate::folder::name(path).to_ascii_lowercase();
    ["metadata.csv", "metadata.jsonl", "metadata.parquet"].contains(&&*name)
}

/// The file with the classes of the pictures in a folder, if there is one.
pub(crate) fn file(folder: &Path) -> Option<PathBuf> {
    ["metadata.csv", "metadata.jsonl"].map(|name| folder.join(name)).into_iter().find(|path| path.is_file())
}

/// The paths of the pictures below the folder of `path`, and their classes: column `label`, or one with a name by
/// which it is known. None if there is no such column.
pub(crate) fn read(path: &Path, options: LabelOptions<'_>) -> Result<Option<Vec<Named>>, ImportError> {
    let is_csv = path.extension().is_some_and(|ending| ending == "csv");
    let lines = if is_csv { csv_lines(path)? } else { json_lines(path)? };
    let Some((_, first)) = lines.first() else {
        bail!(path, "names no picture");
    };
    let columns = || first.keys().cloned().collect::<Vec<_>>().join(", ");
    let is_known = |name: &&String| LABELS.contains(&&*name.to_lowercase());
    let label = match options.column {
        Some(label) if first.contains_key(label) => label,
        Some(label) => {
            return Err(ImportError::option("label", label, format!("{} has {}", path.display(), columns())));
        }
        None => match first.keys().find(is_known) {
            Some(label) => label,
            None => return Ok(None),
        },
    };
    let picture = |(number, line): &Line| {
        let wrong = |what: String| ImportError::source(path, format!("line {number}: {what}"));
        let cell = |column: &str| match line.get(column).map(|cell| cell.trim()) {
            None | Some("") => Err(wrong(format!("has no {column}, among {}", columns()))),
            Some(cell) => Ok(cell.to_owned()),
        };
        let name = PathBuf::from(cell(FILE_NAME)?);
        match name.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            true => {
                let text = line.get(label).map_or("", |cell| cell.trim());
                let class = class_name(format!("column {label}"), text, text.parse().ok(), options.missing);
                Ok((name, class.map_err(wrong)?))
            }
            false => Err(wrong(format!("{} is not below this folder", name.display()))),
        }
    };
    let pictures = lines.iter().map(picture).collect::<Result<Vec<_>, _>>()?;
    match twin(pictures.iter().map(|(name, _)| name)) {
        Some(name) => bail!(path, "names {} twice", name.display()),
        None => Ok(Some(pictures)),
    }
}

fn csv_lines(path: &Path) -> Result<Vec<Line>, ImportError> {
    let mut table = TableFile::open(&[path.to_owned()], Some(Header::Yes), &[], 1, &|_, _| Ok(()))?;
    let names = table.header.clone().unwrap_or_default();
    if let Some(name) = twin(&names) {
        bail!(path, "has two columns {name:?}: rename one");
    }
    let mut lines = Vec::new();
    table.for_each_row(|table, row, position| {
        table.check_width(row, position)?;
        let cell = |(name, cell): (&String, &[u8])| Ok((name.clone(), text(cell)?.to_owned()));
        let cells = names.iter().zip(row).map(cell).collect::<Result<_, String>>();
        lines.push((table.line(position), cells.map_err(|what| table.wrong(position, what))?));
        Ok(())
    })?;
    Ok(lines)
}

fn json_lines(path: &Path) -> Result<Vec<Line>, ImportError> {
    let file = File::open(path).map_err(ImportError::read(path))?;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(ImportError::read(path))?;
        if line.trim().is_empty() {
            continue;
        }
        let cells: BTreeMap<String, Value> = serde_json::from_str(&line)
            .map_err(|error| ImportError::source(path, format!("line {number}: {error}")))?;
        let text = |(name, value): (String, Value)| match value {
            Value::String(text) => Some((name, text)),
            Value::Number(number) => Some((name, number.to_string())),
            Value::Bool(value) => Some((name, value.to_string())),
            _ => None,
        };
        lines.push((number, cells.into_iter().filter_map(text).collect()));
    }
    Ok(lines)
}
