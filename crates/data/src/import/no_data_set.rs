//! Errors for folders that cannot be imported: what was found, what was expected, and what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use run_record::count;

use crate::DataError;
use crate::import::job::is_unpacked;
use crate::import::pictures::folder::{inside, is_picture, name};
use crate::import::split;
use crate::import::tables::{is_submission, is_table};
use crate::quote::listed;

/// Maximum number of kinds of files that a message lists.
const KINDS: usize = 3;
/// Extensions of archives and compressed files, which may contain a data set.
const PACKED: [&str; 6] = ["gz", "npz", "tar", "tgz", "zip", "7z"];

/// Returns the error for a folder without a data set.
pub(crate) fn no_data_set(folder: &Path) -> DataError {
    let (folders, files) = inside(folder).unwrap_or_default();
    let mut kinds: BTreeMap<String, Vec<&Path>> = BTreeMap::new();
    for file in &files {
        let ending = file.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let kind =
            ending.map_or_else(|| "file without an extension".into(), |ending| format!(".{ending} file"));
        kinds.entry(kind).or_default().push(file);
    }
    let mut found: Vec<(String, Vec<&Path>)> = kinds.into_iter().collect();
    found.sort_by_key(|(_, files)| std::cmp::Reverse(files.len()));
    if !folders.is_empty() {
        found.insert(0, ("folder".into(), folders.iter().map(PathBuf::as_path).collect()));
    }
    let mut words: Vec<String> = found
        .iter()
        .take(KINDS)
        .map(|(kind, paths)| {
            let names: Vec<String> = paths.iter().map(|path| name(path)).collect();
            let number = match kind.strip_suffix(" without an extension") {
                Some(kind) => format!("{} without an extension", count(paths.len(), kind)),
                None => count(paths.len(), kind),
            };
            format!("{number} ({})", listed(names))
        })
        .collect();
    if found.len() > KINDS {
        words.push(count(found.len() - KINDS, "other kind"));
    }
    let is_packed = |path: &&PathBuf| {
        path.extension().is_some_and(|ending| PACKED.contains(&&*ending.to_string_lossy().to_lowercase()))
    };
    let unpack = if is_unpacked(folder) { "unpack the archive, and " } else { "" };
    let advice = match &files.iter().filter(|path| is_table(path) || is_packed(path)).collect::<Vec<_>>()[..]
    {
        [] => String::new(),
        [only] => format!(": {unpack}import {}", name(only)),
        _ => format!(": {unpack}import one of them"),
    };
    let found = if words.is_empty() { "nothing".into() } else { words.join(", ") };
    DataError::source(
        folder,
        format!(
            "no data set found here. Expected one of: a folder of pictures for each class; pictures with \
             metadata.csv; train.csv and test.csv; one table; NumPy arrays. Found: {found}{advice}"
        ),
    )
}

/// Returns the error for a folder with pictures outside of class folders.
pub(crate) fn unclassed(folder: &Path) -> Result<DataError, DataError> {
    let (folders, files) = inside(folder)?;
    let pictures: Vec<&PathBuf> = files.iter().filter(|file| is_picture(file)).collect();
    let Some(first) = pictures.first() else { return Ok(no_data_set(folder)) };
    let classes = classes_in_names(&pictures);
    let such = if classes.is_empty() {
        String::new()
    } else {
        format!(" (the file names suggest the classes {})", listed(classes))
    };
    let (other_folders, other_files) =
        folder.parent().and_then(|parent| inside(parent).ok()).unwrap_or_default();
    let is_json = |path: &&PathBuf| path.extension().is_some_and(|ending| ending == "json");
    let json = files.iter().chain(&other_files).filter(is_json);
    let mut around = folders.iter().chain(&other_folders).chain(json);
    let annotations = if around.any(|path| split::is_of_annotations(&name(path))) {
        "; object annotations (COCO, YOLO, VOC) are not supported: a picture has one class"
    } else {
        ""
    };
    // The tables here do not name the pictures: a table that names them would have been imported.
    let in_source = split::of_name(&name(folder)).is_some();
    let beside = other_files.iter().filter(|_| in_source);
    let tables: Vec<String> = files
        .iter()
        .chain(beside)
        .filter(|file| is_table(file) && !is_submission(file))
        .map(|file| name(file))
        .collect();
    let tables = match &tables[..] {
        [] => String::new(),
        [one] => format!("; {one} does not list the pictures and their classes"),
        several => format!("; {} do not list the pictures and their classes", listed(several)),
    };
    Ok(DataError::source(
        folder,
        format!(
            "{} ({}{}) {} not in a class folder: move the pictures of each class{such} to a folder named after the \
             class, or list the pictures and their classes in metadata.csv with the columns file_name and \
             label{tables}{annotations}",
            count(pictures.len(), "picture"),
            name(first),
            if pictures.len() == 1 { "" } else { ", …" },
            if pictures.len() == 1 { "is" } else { "are" },
        ),
    ))
}

/// Returns the words with which the file names of pictures begin, such as cat and dog for `cat.0.jpg` and
/// `dog12.jpg`. Returns an empty set if the words do not look like classes: if some name does not begin with
/// a letter, if all names begin with the same word, or if there are fewer than twice as many pictures as
/// words.
fn classes_in_names(pictures: &[&PathBuf]) -> BTreeSet<String> {
    let first = |path: &&PathBuf| {
        let word: String = name(path).chars().take_while(|char| char.is_alphabetic()).collect();
        Some(word).filter(|word| !word.is_empty())
    };
    let words: Option<BTreeSet<String>> = pictures.iter().map(first).collect();
    words.filter(|words| (2..=pictures.len() / 2).contains(&words.len())).unwrap_or_default()
}
