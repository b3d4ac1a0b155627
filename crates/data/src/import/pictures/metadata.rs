//! Reads `metadata.csv`, `metadata.jsonl` or `metadata.parquet`. The file is beside pictures and lists the
//! pictures and their classes, as in Hugging Face's imagefolder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Component, Path, PathBuf};

use run_record::count;
use run_record::files::open_regular;
use serde_json::Value;

use crate::DataError;
use crate::import::labels::{LabelOptions, class_name, twin};
use crate::import::pictures::folder::{holds_pictures, inside, name};
use crate::import::pictures::picture_names::{Named, PictureNames};
use crate::import::same_class::finder;
use crate::import::tables::missing::is_missing;
use crate::import::tables::table_file::{LABELS, TableFile, text};
use crate::import::tables::{TableFiles, is_parquet};
use crate::import::{Header, split};
use crate::quote::{listed, quoted, short};

/// Names of metadata files.
const NAMES: [&str; 3] = ["metadata.csv", "metadata.jsonl", "metadata.parquet"];

/// Column with the path of a picture, relative to the folder of the metadata file.
const FILE_NAME: &str = "file_name";

/// The path of a picture and its class. With `--missing-labels drop`, a missing class is `None`, and the
/// picture is left out. If `--missing-labels` does not allow the missing class, the class is an error. The
/// caller ignores this error if no picture of a test split has a class.
pub(crate) type Classed = (PathBuf, Result<Option<String>, String>);

/// A line of the file: its number, and its cells by the names of their columns. In JSON, only texts, numbers
/// and booleans count as cells.
type Line = (u64, BTreeMap<String, String>);

/// Returns whether a file has the name of a metadata file, in any case.
pub(crate) fn is_file_name(path: &Path) -> bool {
    NAMES.contains(&&*name(path).to_ascii_lowercase())
}

/// Returns the metadata file in a folder, if there is one.
pub(crate) fn file(folder: &Path) -> Option<PathBuf> {
    let found = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    found.filter(|path| is_file_name(path) && path.is_file()).min()
}

/// Reads the paths of pictures, relative to the folder of `path`, and their classes. Returns `None` if there
/// is no column of classes.
pub(crate) fn read(path: &Path, options: LabelOptions<'_>) -> Result<Option<Vec<Classed>>, DataError> {
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("jsonl"));
    let (columns, lines) = if is_json { json_lines(path)? } else { table_lines(path)? };
    if lines.is_empty() {
        bail!(path, "lists no pictures");
    }
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let folder = path.parent().unwrap_or(Path::new("."));
    let Some(label) = class_column(path, folder, &columns, options.column)? else { return Ok(None) };
    if !columns.contains(&FILE_NAME) {
        bail!(path, "has no column {FILE_NAME}; the columns are {}", listed(columns));
    }
    let names = PictureNames::in_folder(folder)?;
    let picture = |(number, line): &Line| {
        let wrong = |what: String| DataError::source(path, format!("line {number}: {what}"));
        let picture = line.get(FILE_NAME).map_or("", |cell| cell.trim());
        if picture.is_empty() {
            return Err(wrong(format!("column {FILE_NAME} is empty: fill in the path of the picture")));
        }
        let text = line.get(label).map_or("", |cell| cell.trim());
        let class = class_name(format!("column {label}"), text, text.parse().ok(), options.missing);
        let class = match class.map_err(|what| format!("line {number}: {what}")) {
            Err(what) if !is_missing(text) => return Err(DataError::source(path, what)),
            class => class,
        };
        let is_below = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        match names.find(picture, folder) {
            _ if !Path::new(picture).components().all(is_below) => {}
            Named::One(place) => {
                let path = &names.files[place];
                return Ok((path.strip_prefix(folder).unwrap_or(path).to_owned(), class));
            }
            // A missing picture is reported when its pixels are read.
            Named::Nothing => return Ok((picture.into(), class)),
            Named::Several(places) => {
                let [first, second] = places.map(|place| &names.files[place]);
                let [first, second] =
                    [first, second].map(|file| file.strip_prefix(folder).unwrap_or(file).display());
                return Err(wrong(format!(
                    "{} may be {first} or {second}: write one of these paths",
                    quoted(picture)
                )));
            }
            Named::Outside => {}
        }
        Err(wrong(format!("{} is outside of the folder of this file", short(picture))))
    };
    let pictures = lines.iter().map(picture).collect::<Result<Vec<_>, _>>()?;
    without_repeats(path, pictures).map(Some)
}

/// Returns the column of the classes: the column `wanted` or, if `wanted` is `None`, a column with a known
/// name such as `label`. If there is no such column, it is the only column beside the paths of the pictures,
/// and several such columns are an error. Returns `None` if folders are the classes instead, or if there are
/// no paths or no other columns.
fn class_column<'l>(
    path: &Path,
    folder: &Path,
    names: &[&'l str],
    wanted: Option<&str>,
) -> Result<Option<&'l str>, DataError> {
    let is_known = |name: &&str| LABELS.contains(&&*name.to_lowercase());
    let others: Vec<&str> = names.iter().copied().filter(|name| *name != FILE_NAME).collect();
    let label = match wanted.map(|label| (label, finder(names)(label))) {
        Some((_, Some(place))) => names[place],
        Some((label, None)) => {
            let problem = format!("is not a column of {}, which has {}", path.display(), listed(names));
            return Err(DataError::option("label", short(label), problem));
        }
        None => match (names.iter().copied().find(is_known), &others[..]) {
            (Some(label), _) => label,
            (None, []) => return Ok(None),
            (None, _) if !names.contains(&FILE_NAME) || has_class_folders(folder)? => {
                return Ok(None);
            }
            (None, &[label]) => label,
            (None, [label, ..]) => bail!(
                path,
                "which column is the class? It has {}: name one, as in --label {}",
                listed(&others),
                run_record::quoted(label)
            ),
        },
    };
    let unused: Vec<&str> = others.into_iter().filter(|name| *name != label).collect();
    if !unused.is_empty() {
        log::info!("{}: the class is column {label}; not used: {}", name(path), listed(unused));
    }
    Ok(Some(label))
}

/// Removes lines that name the picture of an earlier line. Both lines must give the picture the same class.
fn without_repeats(path: &Path, lines: Vec<Classed>) -> Result<Vec<Classed>, DataError> {
    let mut pictures: Vec<Classed> = Vec::new();
    let (mut classes, mut again) = (HashMap::new(), 0);
    for (picture, class) in lines {
        let name = class.as_ref().ok().cloned().flatten();
        match classes.insert(picture.clone(), name.clone()) {
            Some(other) if other != name => {
                let [class, other] = [&name, &other].map(|class| quoted(class.as_deref().unwrap_or("none")));
                bail!(
                    path,
                    "lists {} twice, with the classes {other} and {class}: give the picture one class",
                    picture.display()
                );
            }
            Some(_) => again += 1,
            None => pictures.push((picture, class)),
        }
    }
    if again > 0 {
        log::warn!(
            "{}: {} left out, because an earlier line names the same picture",
            name(path),
            count(again, "line")
        );
    }
    Ok(pictures)
}

/// Returns whether `folder`, or the folder of a split in it, contains several folders of pictures. Such
/// folders are the classes.
fn has_class_folders(folder: &Path) -> Result<bool, DataError> {
    let (splits, others): (Vec<PathBuf>, Vec<PathBuf>) =
        inside(folder)?.0.into_iter().partition(|folder| split::of_name(&name(folder)).is_some());
    let is_any =
        splits.iter().map(|split| has_class_folders(split)).collect::<Result<Vec<_>, _>>()?.contains(&true);
    Ok(is_any || others.iter().filter(|folder| holds_pictures(folder)).count() > 1)
}

/// Reads the names of the columns, and the lines.
fn table_lines(path: &Path) -> Result<(Vec<String>, Vec<Line>), DataError> {
    // A Parquet file always has names of columns, and `TableFile::open` rejects the header option for it.
    let header = Some(Header::Yes).filter(|_| !is_parquet(path));
    let mut table = TableFile::open(&TableFiles::one(path), header, &[], 1, &|_, _| Ok(()))?;
    let names = table.header.clone().unwrap_or_default();
    if let Some(name) = twin(&names) {
        bail!(path, "has two columns {}: rename one", quoted(name));
    }
    let mut lines = Vec::new();
    table.for_each_row(|table, row, position| {
        table.check_width(row, position)?;
        let cell = |(name, cell): (&String, &[u8])| Ok((name.clone(), text(cell)?.to_owned()));
        let cells = names.iter().zip(row).map(cell).collect::<Result<_, String>>();
        lines.push((table.line(position), cells.map_err(|what| table.wrong(position, what))?));
        Ok(())
    })?;
    Ok((names, lines))
}

/// Reads the names of the columns of all lines, sorted, and the lines: a line may lack columns of other
/// lines.
fn json_lines(path: &Path) -> Result<(Vec<String>, Vec<Line>), DataError> {
    let file = open_regular(path).map_err(DataError::read(path))?;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(BufReader::new(file).lines()) {
        let line = line.map_err(|error| match error.kind() {
            ErrorKind::InvalidData => {
                DataError::source(path, format!("line {number}: is not UTF-8: save the file in UTF-8"))
            }
            _ => DataError::read(path)(error),
        })?;
        if line.trim().is_empty() {
            continue;
        }
        let cells: BTreeMap<String, Value> = serde_json::from_str(&line).map_err(|_| {
            let example = "{\"file_name\": \"0.png\", \"label\": 1}";
            DataError::source(path, format!("line {number}: is not a JSON object, such as {example}"))
        })?;
        let text = |(name, value): (String, Value)| match value {
            Value::String(text) => Some((name, text)),
            Value::Number(number) => Some((name, number.to_string())),
            Value::Bool(value) => Some((name, value.to_string())),
            _ => None,
        };
        lines.push((number, cells.into_iter().filter_map(text).collect()));
    }
    let columns: BTreeSet<&String> = lines.iter().flat_map(|(_, line): &Line| line.keys()).collect();
    Ok((columns.into_iter().cloned().collect(), lines))
}
