//! Finds the training table and the test table in a folder.
//!
//! A table is one text file or one or more Parquet files. Spark, Hugging Face and other tools write a table
//! as several Parquet files, its parts. The split of a table is recognised from its name (`train.csv`,
//! `test-00000-of-00001.parquet`). If no table has the name of a training table, the folder must contain
//! exactly one table.

pub(crate) mod beginning;
pub(crate) mod missing;
#[cfg_attr(not(feature = "parquet"), path = "without_parquet.rs")]
pub(crate) mod parquet_file;
#[cfg_attr(not(any(feature = "parquet", test)), expect(dead_code, reason = "only Parquet has partitions"))]
pub(crate) mod partitions;
pub(crate) mod ranges;
pub(crate) mod table;
pub(crate) mod table_file;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use run_record::{count, quoted};

use crate::DataError;
use crate::import::pictures::folder::{self, holds_pictures};
use crate::import::pictures::metadata;
use crate::import::split::{self, SplitKind};
use crate::import::{ImportArgs, test_split};
use crate::quote::{listed, short};

const ENDINGS: [&str; 5] = ["csv", "tsv", "csv.gz", "tsv.gz", "parquet"];

/// Called for each row that is read, with its number and the number of all rows. An error stops the reading.
pub(crate) type Tell<'a> = dyn Fn(usize, usize) -> Result<(), DataError> + 'a;

/// First bytes of a Parquet file.
pub(crate) const PARQUET: &[u8] = b"PAR1";

/// Returns whether a file is Parquet, from its contents.
pub(crate) fn is_parquet(path: &Path) -> bool {
    let mut first = [0; PARQUET.len()];
    run_record::files::open_regular(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == PARQUET
}

/// The files of one table. Only a Parquet table may have several files.
#[derive(Debug)]
pub(crate) struct TableFiles {
    /// Folder of the table. If a folder below it has a name such as `class=low`, all files in this folder
    /// have the value `low` in the column `class`.
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "only Parquet has partitions"))]
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<PathBuf>,
}

impl TableFiles {
    /// Returns a table of one file. Names of folders do not become columns of the table.
    pub(crate) fn one(file: &Path) -> Self {
        Self { root: file.parent().unwrap_or(Path::new("")).to_owned(), files: vec![file.to_owned()] }
    }

    /// Returns a table of files below `root`. If there are several files and one of them is not Parquet,
    /// returns an error.
    fn of_parts(root: PathBuf, files: Vec<PathBuf>) -> Result<Self, DataError> {
        if files.len() > 1 && !files.iter().all(|file| is_parquet_name(file)) {
            let names =
                files.iter().map(|file| file.strip_prefix(&root).unwrap_or(file).display().to_string());
            bail!(
                &root,
                "contains a table of {} ({}), but only Parquet tables may have several files: write Parquet files, or \
                 one .csv file with a column for each COLUMN=VALUE in the folders' names",
                count(files.len(), "file"),
                listed(names)
            );
        }
        Ok(Self { root, files })
    }
}

/// The tables of a source.
#[derive(Debug)]
pub(crate) struct Tables {
    pub(crate) train: TableFiles,
    /// Tables of the other splits. Tables that are preferred for the test come first.
    pub(crate) others: Vec<Other>,
}

/// Table of a split other than the training split.
#[derive(Debug)]
pub(crate) struct Other {
    name: String,
    pub(crate) table: TableFiles,
    /// What to do if the table has no classes.
    advice: String,
}

impl Tables {
    pub(crate) fn one(train: TableFiles) -> Self {
        Self { train, others: Vec::new() }
    }

    /// Chooses the test table and returns its index in `others`, or `None` if `others` is empty. `train` are
    /// the classes of the training table, and `classes` reads the classes of a table. Without `--test-split`,
    /// the test table is chosen by its classes. If no table in `others` has classes, returns 0: the caller's
    /// error then says that this table has no classes, and what to do.
    pub(crate) fn test(
        &self,
        args: &ImportArgs,
        train: &BTreeSet<String>,
        mut classes: impl FnMut(&TableFiles) -> Result<BTreeSet<String>, DataError>,
    ) -> Result<Option<usize>, DataError> {
        let names: Vec<String> = self.others.iter().map(|other| other.name.clone()).collect();
        let wanted = args.test_split.as_deref();
        let chosen =
            test_split::choose(&args.source, wanted, train, &names, |at| classes(&self.others[at].table))?;
        let chosen = chosen.or((!names.is_empty()).then_some(0));
        let files = chosen.into_iter().flat_map(|at| &self.others[at].table.files);
        files.into_iter().try_for_each(|path| check_whole(path))?;
        Ok(chosen)
    }
}

impl Other {
    /// Returns the error for a table without the column of the classes, such as the test table of a
    /// competition.
    pub(crate) fn without_classes(&self, column: &str) -> DataError {
        let what =
            format!("has no column {} with the classes: {}", crate::quote::quoted(column), self.advice);
        DataError::source(&self.table.files[0], what)
    }

    /// Returns the error for a table with the column `column` of classes, but without a class in any row.
    pub(crate) fn unlabelled(&self, column: &str) -> DataError {
        let what = format!("no row has a class in column {}: {}", short(column), self.advice);
        DataError::source(&self.table.files[0], what)
    }
}

/// A table found in a folder, before its split is known.
struct Table {
    /// Name of the file or folder without its extension.
    name: String,
    /// The only file, the folder of the table, or the first of several parts.
    path: PathBuf,
    files: Vec<PathBuf>,
    is_folder: bool,
}

impl Table {
    /// Returns the files of the table. The root is the table's own folder if it has one, and otherwise
    /// `folder`.
    fn into_files(self, folder: &Path) -> Result<TableFiles, DataError> {
        let root = if self.is_folder { self.path } else { folder.to_owned() };
        TableFiles::of_parts(root, self.files)
    }
}

/// Finds the tables in a folder: a training table such as `train.csv` and the tables of other splits, or a
/// single table. Returns `None` if the folder has no tables to import.
pub(crate) fn tables(folder: &Path, args: &ImportArgs) -> Result<Option<Tables>, DataError> {
    let has_pictures = holds_pictures(folder);
    let mut found = found(folder)?;
    let names: Vec<String> = found.iter().map(|table| table.name.clone()).collect();
    // In a folder with pictures, a table such as `train_log.csv` is not a data set: accept only plain names
    // such as `train.csv`.
    let splits = if has_pictures {
        names.iter().map(|name| plain_split(name)).collect()
    } else {
        split::of_names(&names)
    };
    let mut splits: Vec<(Table, Option<SplitKind>)> = found.drain(..).zip(splits).collect();
    // If a split has several tables, tables that are not folders come first. Among them, the table with the
    // shortest name comes first, because it has the plainest name.
    splits.sort_by_key(|(table, split)| (split.is_none(), *split, table.is_folder, table.name.len()));
    if splits.first().is_none_or(|(_, split)| *split != Some(SplitKind::Train)) {
        let tables: Vec<Table> = splits.into_iter().map(|(table, _)| table).collect();
        return if has_pictures {
            check_pictures(folder, &tables, args).map(|()| None)
        } else {
            without_split(folder, tables, args)
        };
    }
    if let [(first, _), (second, Some(SplitKind::Train)), ..] = &splits[..]
        && [first.is_folder, second.is_folder] == [false; 2]
        && first.name.len() == second.name.len()
        && first.name != second.name
    {
        let names = [&first.path, &second.path].map(|path| folder::name(path));
        bail!(
            folder,
            "contains two training tables, {} and {}: write the features and the class to one table",
            names[0],
            names[1]
        );
    }
    let train = splits.remove(0).0;
    let (others, unused): (Vec<_>, Vec<_>) =
        splits.into_iter().partition(|(_, split)| split.is_some_and(|split| split != SplitKind::Train));
    train.files.iter().try_for_each(|path| check_whole(path))?;
    let used: Vec<&Table> = std::iter::once(&train).chain(others.iter().map(|(table, _)| table)).collect();
    let unused: Vec<&Table> = unused.iter().map(|(table, _)| table).collect();
    say_unused(folder, &used, &unused, has_pictures)?;
    let other = |(table, _): (Table, Option<SplitKind>)| {
        Ok(Other {
            name: table.name.clone(),
            advice: alone(folder, &train, &table, args),
            table: table.into_files(folder)?,
        })
    };
    let others = others.into_iter().map(other).collect::<Result<_, DataError>>()?;
    Ok(Some(Tables { train: train.into_files(folder)?, others }))
}

/// Logs which tables and folders are not used. The first of the `used` tables is for training.
fn say_unused(
    folder: &Path,
    used: &[&Table],
    unused: &[&Table],
    has_pictures: bool,
) -> Result<(), DataError> {
    let (folders, _) = folder::inside(folder)?;
    let is_used =
        |path: &&PathBuf| used.iter().flat_map(|table| &table.files).any(|used| used.starts_with(path));
    let train = folder::name(&used[0].path);
    let unused = unused.iter().map(|table| &table.path).filter(|path| !path.is_dir());
    for path in unused.chain(&folders).filter(|path| !is_used(path)) {
        let name = folder::name(path);
        if split::of_name(&name).is_some() && path.is_dir() && !has_pictures {
            log::warn!("{name} is not used: it contains no table");
        } else if path.is_dir() && holds_pictures(path) {
            log::warn!("{name} is not used: {train} does not list its pictures");
        } else {
            log::warn!("{name} is not used: the training table is {train}");
        }
    }
    Ok(())
}

/// Returns the split of a table with a plain name: one word of letters.
fn plain_split(name: &str) -> Option<SplitKind> {
    let is_plain = name.chars().all(|letter| letter.is_ascii_alphabetic());
    split::of_name(name).filter(|_| is_plain)
}

/// Rejects a folder that has a single table and pictures outside of class folders: the table or the pictures
/// could be the data set.
fn check_pictures(folder: &Path, tables: &[Table], args: &ImportArgs) -> Result<(), DataError> {
    let (folders, files) = folder::inside(folder)?;
    let pictures: Vec<String> =
        files.iter().filter(|file| folder::is_picture(file)).map(|file| folder::name(file)).collect();
    match tables {
        [table] if !pictures.is_empty() && !folders.iter().any(|folder| holds_pictures(folder)) => bail!(
            folder,
            "contains {} ({}) outside of class folders, and {} does not list the pictures: move the pictures of each \
             class to a folder named after the class, or {}",
            count(pictures.len(), "picture"),
            listed(&pictures),
            folder::name(&table.path),
            if args.source.is_dir() {
                format!("import the table alone ({})", command(&table.path, args))
            } else {
                format!("unpack {}, and import the table alone", folder::name(&args.source))
            }
        ),
        _ => Ok(()),
    }
}

/// Finds the table in a folder without a training table. It is the only table there, or it consists of parts
/// in partitions (folders with names such as `year=2020`). If there is no table, looks in the only inner
/// folder that has tables.
fn without_split(folder: &Path, tables: Vec<Table>, args: &ImportArgs) -> Result<Option<Tables>, DataError> {
    let (mut folders, files) = folder::inside(folder)?;
    folders.retain(|folder| !is_hidden(&folder::name(folder)));
    let (in_folders, mut tables): (Vec<Table>, Vec<Table>) =
        tables.into_iter().partition(|table| table.is_folder);
    if tables.is_empty() && !folders.is_empty() && folders.iter().all(|folder| partitions::is_one(folder)) {
        let files: Vec<PathBuf> = in_folders.into_iter().flat_map(|table| table.files).collect();
        if files.is_empty() {
            return Ok(None);
        }
        let table = TableFiles::of_parts(folder.to_owned(), files)?;
        say_parts(folder, &table.files);
        return Ok(Some(Tables::one(table)));
    }
    match &tables[..] {
        [] => {
            return match data_set_in(folder, &folders, args)? {
                Some(only) => {
                    log::info!("reading the inner folder {}", folder::name(only));
                    self::tables(only, args)
                }
                None => Ok(None),
            };
        }
        [_] => {}
        _ => {
            let names = listed(tables.iter().map(|table| folder::name(&table.path)));
            bail!(
                folder,
                "has {} ({names}): {}",
                count(tables.len(), "table"),
                one_of(&tables[0].path, args)
            );
        }
    }
    let table = tables.remove(0);
    if let Some(wanted) = &args.test_split {
        let problem =
            format!("{} is a single table without splits: leave the option out", table.path.display());
        return Err(DataError::option("test-split", short(wanted), problem));
    }
    table.files.iter().try_for_each(|path| check_whole(path))?;
    say_parts(folder, &table.files);
    let others = files.iter().chain(&folders).filter(|path| !table.files.contains(path));
    let others: Vec<String> = others.map(|path| folder::name(path)).filter(|name| !is_hidden(name)).collect();
    if !others.is_empty() {
        let is_archive = |name: &String| {
            [".zip", ".tar", ".tgz", ".tar.gz"].iter().any(|end| name.to_lowercase().ends_with(end))
        };
        let advice = if others.iter().any(is_archive) {
            "; if the table names pictures in an archive, unpack it"
        } else {
            ""
        };
        log::warn!("the data set is {}; left out: {}{advice}", folder::name(&table.path), listed(others));
    }
    table.into_files(folder).map(|table| Some(Tables::one(table)))
}

/// Logs that several files are read as one table.
fn say_parts(folder: &Path, files: &[PathBuf]) {
    if let [first, _, ..] = files {
        let first = first.strip_prefix(folder).unwrap_or(first);
        log::info!("{} form one table (the first: {})", count(files.len(), "file"), first.display());
    }
}

/// Returns the only folder in `folders` that has tables, in itself or in an inner folder. Returns `None` if
/// no folder has tables. Several folders with tables are an error, for example the configurations of a
/// Hugging Face data set.
fn data_set_in<'f>(
    folder: &Path,
    folders: &'f [PathBuf],
    args: &ImportArgs,
) -> Result<Option<&'f PathBuf>, DataError> {
    let has_tables = |folder: &&PathBuf| {
        let has_any = |folder: &Path| found(folder).is_ok_and(|tables| !tables.is_empty());
        has_any(folder)
            || folder::inside(folder).is_ok_and(|(folders, _)| folders.iter().any(|folder| has_any(folder)))
    };
    let sets: Vec<&PathBuf> = folders.iter().filter(has_tables).collect();
    match &sets[..] {
        [first, _, ..] => bail!(
            folder,
            "has {} in folders ({}): {}",
            count(sets.len(), "data set"),
            listed(sets.iter().map(|set| folder::name(set))),
            one_of(first, args)
        ),
        _ => Ok(sets.first().copied()),
    }
}

/// Returns what to do if a source has several data sets.
fn one_of(path: &Path, args: &ImportArgs) -> String {
    if args.source.is_dir() {
        format!("import one, as in {}", command(path, args))
    } else {
        format!("unpack {}, and import one", folder::name(&args.source))
    }
}

/// Returns the command that imports `path` alone.
fn command(path: &Path, args: &ImportArgs) -> String {
    format!("mpiburn data import {} --out {}", quoted(path.display()), quoted(args.out.display()))
}

/// Returns what to do if the test table has no classes.
fn alone(folder: &Path, train: &Table, test: &Table, args: &ImportArgs) -> String {
    let [train_name, test_name] = [train, test].map(|table| folder::name(&table.path));
    let is_one = train.is_folder || train.files.len() == 1;
    match (args.source.is_dir() && is_one, is_one) {
        (true, _) => {
            format!("import {train_name} alone, and predict {test_name} ({})", command(&train.path, args))
        }
        (false, true) => format!(
            "unpack {}, import {train_name} alone, and predict {test_name}",
            folder::name(&args.source)
        ),
        _ => format!("move {test_name} out of {}, and predict it", folder.display()),
    }
}

/// Finds the tables in a folder: text files, Parquet files with their parts, and inner folders that contain
/// the files of one table.
fn found(folder: &Path) -> Result<Vec<Table>, DataError> {
    let (folders, files) = folder::inside(folder)?;
    let mut tables = Vec::new();
    let mut parts: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files.into_iter().filter(|path| is_table(path) && !is_submission(path)) {
        let name = stem(&file).unwrap_or_default();
        if !is_parquet_name(&file) {
            tables.push(Table { name, path: file.clone(), files: vec![file], is_folder: false });
        } else if !is_hidden(&name) {
            let table = part(&file).map_or_else(|| alike(&name), |(split, ..)| split);
            parts.entry(table).or_default().push(file);
        }
    }
    for (name, mut files) in parts {
        // A file with the plain name of the table, such as `train.parquet`, is the whole table. Parts beside
        // it are ignored.
        let is_whole = |file: &&PathBuf| stem(file).is_some_and(|stem| stem.eq_ignore_ascii_case(&name));
        if let Some(whole) = files.iter().find(is_whole).cloned() {
            files = vec![whole];
        }
        files.sort_by_cached_key(|path| part(path).map(|(_, number, _)| number));
        let name = if files.len() == 1 && part(&files[0]).is_none() {
            stem(&files[0]).unwrap_or_default()
        } else {
            name
        };
        tables.push(Table { name, path: files[0].clone(), files, is_folder: false });
    }
    for folder in folders {
        let files = in_folder(&folder);
        if !files.is_empty() {
            let name = stem(&folder).unwrap_or_else(|| folder::name(&folder));
            tables.push(Table { name, path: folder, files, is_folder: true });
        }
    }
    Ok(tables)
}

/// Returns the files of the table in a folder: the Parquet files of the folder, and the files in its
/// partition folders. If there are no such files and no pictures, but a single text table, returns this
/// table. In all other cases, the list is empty.
fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let (folders, files) = folder::inside(folder).unwrap_or_default();
    let is_part =
        |path: &&PathBuf| is_table(path) && is_parquet_name(path) && !is_hidden(&folder::name(path));
    let mut parts: Vec<PathBuf> = files.iter().filter(is_part).cloned().collect();
    parts.extend(
        folders.iter().filter(|folder| partitions::is_one(folder)).flat_map(|folder| in_folder(folder)),
    );
    let mut tables = files.into_iter().filter(|path| is_table(path) && !is_parquet_name(path));
    match (parts.is_empty(), tables.next(), tables.next()) {
        (true, Some(only), None) if !holds_pictures(folder) => vec![only],
        _ => parts,
    }
}

/// Returns whether a folder is a partition of a Parquet table. Its name must be one such as `year=2020`, and
/// it must contain Parquet files of the table. If it contains tables of splits, such as
/// `lr=0.1/train.parquet`, it is a data set and not a partition.
pub(crate) fn is_partition(folder: &Path) -> bool {
    partitions::is_one(folder)
        && in_folder(folder).first().is_some_and(|file| is_parquet_name(file))
        && found(folder).is_ok_and(|tables| tables.iter().all(|table| split::of_name(&table.name).is_none()))
}

/// Returns the name of a table file without its extension, or `None` if the file is not a table. The case of
/// the extension does not matter.
fn stem(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let without = |ending: &&str| {
        let (stem, found) = name.split_at_checked(name.len().checked_sub(ending.len() + 1)?)?;
        found.strip_prefix('.')?.eq_ignore_ascii_case(ending).then(|| stem.to_owned())
    };
    ENDINGS.iter().find_map(without)
}

/// Reads the name of a Parquet part: `train-00000-of-00002.parquet`, as Hugging Face names parts, or a name
/// such as `train_0.parquet` or `part.0.parquet`. Returns the first word of the name, the number of the part,
/// and the number of all parts if the name has it. Returns `None` for other names.
fn part(path: &Path) -> Option<(String, u64, Option<usize>)> {
    let name = stem(path).filter(|_| is_parquet_name(path))?;
    let words: Vec<&str> = name.split(['-', '.', '_']).collect();
    let all = words.get(3).filter(|_| words[2] == "of").and_then(|all| all.parse().ok());
    Some((words[0].to_owned(), words.get(1)?.parse().ok()?, all))
}

/// Returns a name that all parts of a table have in common, if their names are not those that [`part`] reads.
/// Words of hexadecimal digits, such as numbers and the groups of UUIDs, become `#` if they contain a decimal
/// digit. Digits at the end of other words are removed. Polars, for example, names parts `00000000`, and
/// pyarrow names them by a UUID.
fn alike(name: &str) -> String {
    let is_number = |word: &str| {
        word.bytes().all(|byte| byte.is_ascii_hexdigit()) && word.contains(|c: char| c.is_ascii_digit())
    };
    let word = |word: &str| {
        let stem = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
        if is_number(word) { "#".to_owned() } else { stem.to_owned() }
    };
    name.split(|letter: char| !letter.is_alphanumeric()).map(word).collect::<Vec<_>>().join("-")
}

/// Checks that all parts are there, if the name of `path` says how many parts there are.
fn check_whole(path: &Path) -> Result<(), DataError> {
    let Some((split, _, Some(expected))) = part(path) else { return Ok(()) };
    let beside = path.parent().unwrap_or(Path::new("."));
    let is_other =
        |path: &&PathBuf| part(path).is_some_and(|(of, _, all)| of == split && all == Some(expected));
    let found = folder::inside(beside)?.1.iter().filter(is_other).count();
    if found == expected {
        return Ok(());
    }
    bail!(beside, "contains only {found} of {expected} parts of {split}: complete the download");
}

fn is_parquet_name(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
}

/// Returns whether a name begins with `_`. Hadoop's tools ignore such files and folders, for example
/// `_SUCCESS`, `_metadata` and `_delta_log`.
fn is_hidden(name: &str) -> bool {
    name.starts_with('_')
}

/// Returns whether a table is the sample submission of a competition, in which the classes are invented.
pub(crate) fn is_submission(path: &Path) -> bool {
    folder::name(path).to_lowercase().contains("submission")
}

/// Returns whether a file has the name of a table, and not of a metadata file.
pub(crate) fn is_table(path: &Path) -> bool {
    stem(path).is_some() && !metadata::is_file_name(path)
}
