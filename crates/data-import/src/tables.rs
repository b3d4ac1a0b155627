//! The tables of a folder: which file, or which parts of Parquet, are the training and the test table.

use std::path::{Path, PathBuf};

use crate::ImportError;
use crate::folder::{self, OTHERS, TRAIN};

const ENDINGS: [&str; 5] = ["csv", "tsv", "csv.gz", "tsv.gz", "parquet"];

/// The tables of a source: training, and test if there is one. Parquet has a table in several files.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) train: Vec<PathBuf>,
    pub(crate) test: Option<Vec<PathBuf>>,
}

/// The tables in a folder: `train.csv` or the like, and test, or one alone, as an archive may have it.
pub(crate) fn tables(folder: &Path, test_split: Option<&str>) -> Result<Option<Tables>, ImportError> {
    let (folders, files) = folder::inside(folder)?;
    let find = |wanted: &str| -> Vec<PathBuf> {
        let is_wanted = |path: &&PathBuf| {
            let split = part(path).map(|(split, ..)| split).or_else(|| stem(path));
            split.is_some_and(|name| name.eq_ignore_ascii_case(wanted))
        };
        let mut found: Vec<PathBuf> = files.iter().filter(is_wanted).cloned().collect();
        found.sort_by_cached_key(|path| part(path).map(|(_, number, _)| number));
        match found.iter().find(|path| part(path).is_none()) {
            Some(whole) => vec![whole.clone()],
            None if !found.is_empty() => found,
            // Hugging Face's converted data sets have a folder for each split.
            None => folders
                .iter()
                .filter(|path| path.ends_with(wanted))
                .flat_map(|path| parts_only(path))
                .collect(),
        }
    };
    let Some(train) = TRAIN.iter().map(|name| find(name)).find(|found| !found.is_empty()) else {
        return Ok(match &files[..] {
            [only] if folders.is_empty() && is_table(only) && test_split.is_none() => {
                Some(Tables { train: vec![only.clone()], test: None })
            }
            _ => None,
        });
    };
    let others =
        || OTHERS.into_iter().map(|split| (split, find(split))).filter(|(_, found)| !found.is_empty());
    let test = match test_split {
        None => others().next().map(|(_, found)| found),
        Some(wanted) => Some(find(wanted)).filter(|found| !found.is_empty()).map(Some).ok_or_else(|| {
            let found: Vec<&str> = others().map(|(split, _)| split).collect();
            let found = if found.is_empty() { "no other table".into() } else { found.join(", ") };
            ImportError::option("test-split", wanted, format!("{} has {found}", folder.display()))
        })?,
    };
    train.iter().chain(test.iter().flatten()).try_for_each(|path| check_whole(path))?;
    let is_used = |path: &&PathBuf| {
        let used = train.iter().chain(test.iter().flatten());
        used.into_iter().any(|used| used.starts_with(path))
    };
    for path in files.iter().filter(|path| is_table(path)).chain(&folders).filter(|path| !is_used(path)) {
        log::warn!("{} is not used: it is beside {}", folder::name(path), folder::name(&train[0]));
    }
    Ok(Some(Tables { train, test }))
}

/// The name of a table's file without its ending; none of another file.
fn stem(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    ENDINGS.iter().find_map(|ending| Some(name.strip_suffix(&format!(".{ending}"))?.to_owned()))
}

/// What the name of a part of a table of Parquet says, `train-00000-of-00002.parquet` as Hugging Face names them or
/// `train_0.parquet`: its split, its number, and how many there are. None of another file.
fn part(path: &Path) -> Option<(String, u64, Option<usize>)> {
    let name = stem(path).filter(|_| is_parquet_name(path))?;
    let words: Vec<&str> = name.split(['-', '.', '_']).collect();
    let all = words.get(3).filter(|_| words[2] == "of").and_then(|all| all.parse().ok());
    Some((words[0].to_owned(), words.get(1)?.parse().ok()?, all))
}

/// Checks that a part whose name says how many there are has the others beside it.
fn check_whole(path: &Path) -> Result<(), ImportError> {
    let Some((split, _, Some(expected))) = part(path) else { return Ok(()) };
    let beside = path.parent().unwrap_or(Path::new("."));
    let is_other =
        |path: &&PathBuf| part(path).is_some_and(|(of, _, all)| of == split && all == Some(expected));
    let found = folder::inside(beside)?.1.iter().filter(is_other).count();
    if found == expected {
        return Ok(());
    }
    bail!(beside, "has {found} of {expected} parts of {split}: is the download incomplete?");
}

fn is_parquet_name(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "parquet")
}

/// The tables of Parquet in a folder.
fn parts_only(folder: &Path) -> Vec<PathBuf> {
    let files = folder::inside(folder).map(|(_, files)| files).unwrap_or_default();
    files.into_iter().filter(|path| is_parquet_name(path)).collect()
}

/// Whether a file has the name of a table, which has samples.
pub(crate) fn is_table(path: &Path) -> bool {
    stem(path).is_some_and(|name| name != "metadata")
}
