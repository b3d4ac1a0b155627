//! The tables of a folder: which file, or which parts of Parquet, are the training and the test table.

pub(crate) mod beginning;
pub(crate) mod missing;
#[cfg_attr(not(feature = "parquet"), path = "without_parquet.rs")]
pub(crate) mod parquet_file;
#[cfg_attr(not(any(feature = "parquet", test)), expect(dead_code, reason = "Parquet alone has partitions"))]
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

/// Is told each row that is read, and their number; an error stops the reading.
pub(crate) type Tell<'a> = dyn Fn(usize, usize) -> Result<(), DataError> + 'a;

/// The first bytes of a Parquet file.
pub(crate) const PARQUET: &[u8] = b"PAR1";

/// Whether a file is Parquet, by its contents.
pub(crate) fn is_parquet(path: &Path) -> bool {
    let mut first = [0; PARQUET.len()];
    run_record::files::open_regular(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == PARQUET
}

/// The files of one table, of which Parquet may have several.
#[derive(Debug)]
pub(crate) struct TableFiles {
    /// A folder below it with a name such as `class=low` is a value of a column.
    #[cfg_attr(not(feature = "parquet"), expect(dead_code, reason = "Parquet alone has partitions"))]
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<PathBuf>,
}

impl TableFiles {
    /// A table of one file. The names of its folders are not columns.
    pub(crate) fn one(file: &Path) -> Self {
        Self { root: file.parent().unwrap_or(Path::new("")).to_owned(), files: vec![file.to_owned()] }
    }

    /// A table whose files are below `root`. Only Parquet may have several: of other tables, one file is read.
    fn of_parts(root: PathBuf, files: Vec<PathBuf>) -> Result<Self, DataError> {
        if files.len() > 1 && !files.iter().all(|file| is_parquet_name(file)) {
            let names =
                files.iter().map(|file| file.strip_prefix(&root).unwrap_or(file).display().to_string());
            bail!(
                &root,
                "has a table of {} ({}), and only tables of Parquet may have several files: write Parquet, or one \
                 .csv file with columns for the names of the folders",
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
    /// Those of other splits, in the order in which they are preferred for the test.
    pub(crate) others: Vec<Other>,
}

/// The table of a split beside the one for training.
#[derive(Debug)]
pub(crate) struct Other {
    name: String,
    pub(crate) table: TableFiles,
    /// What to do if it has no classes.
    advice: String,
}

impl Tables {
    pub(crate) fn one(train: TableFiles) -> Self {
        Self { train, others: Vec::new() }
    }

    /// The place of the test table among the others, by the classes of the training table. If none has classes, it is the
    /// first, whose error names them.
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
    /// The error that it lacks the column of the classes, as those of competitions do.
    pub(crate) fn without_classes(&self, column: &str) -> DataError {
        let what =
            format!("has no column {} with the classes: {}", crate::quote::quoted(column), self.advice);
        DataError::source(&self.table.files[0], what)
    }

    /// The error that this column has no classes.
    pub(crate) fn unlabelled(&self, column: &str) -> DataError {
        let what = format!("no row has a class in column {}: {}", short(column), self.advice);
        DataError::source(&self.table.files[0], what)
    }
}

/// A table of a folder.
struct Table {
    /// Its name without the ending.
    name: String,
    /// The file, or the folder or the first file of its parts.
    path: PathBuf,
    files: Vec<PathBuf>,
    is_folder: bool,
}

impl Table {
    /// Its files in `folder`, or in a folder of its own there.
    fn into_files(self, folder: &Path) -> Result<TableFiles, DataError> {
        let root = if self.is_folder { self.path } else { folder.to_owned() };
        TableFiles::of_parts(root, self.files)
    }
}

/// The tables in a folder: `train.csv` or the like, and test, or one alone. `None` if it is no folder of tables.
pub(crate) fn tables(folder: &Path, args: &ImportArgs) -> Result<Option<Tables>, DataError> {
    let has_pictures = holds_pictures(folder);
    let mut found = found(folder)?;
    let names: Vec<String> = found.iter().map(|table| table.name.clone()).collect();
    // Beside pictures, `train_log.csv` is no data set.
    let splits = if has_pictures {
        names.iter().map(|name| plain_split(name)).collect()
    } else {
        split::of_names(&names)
    };
    let mut splits: Vec<(Table, Option<SplitKind>)> = found.drain(..).zip(splits).collect();
    // The shortest name of a split is the plainest.
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
            "has two training tables, {} and {}: one table with the features and the class is expected",
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

/// Says which tables and folders are not used beside those that are `used`, the first of which is for training.
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
            log::warn!("{name} is not used: it has no table");
        } else if path.is_dir() && holds_pictures(path) {
            log::warn!("{name} is not used: {train} does not name its pictures");
        } else {
            log::warn!("{name} is not used: it is beside {train}");
        }
    }
    Ok(())
}

/// The split whose plain name is that of a table.
fn plain_split(name: &str) -> Option<SplitKind> {
    let is_plain = name.chars().all(|letter| letter.is_ascii_alphabetic());
    split::of_name(name).filter(|_| is_plain)
}

/// Checks that pictures in no folder do not lie beside the only table, one of which is the data set.
fn check_pictures(folder: &Path, tables: &[Table], args: &ImportArgs) -> Result<(), DataError> {
    let (folders, files) = folder::inside(folder)?;
    let pictures: Vec<String> =
        files.iter().filter(|file| folder::is_picture(file)).map(|file| folder::name(file)).collect();
    match tables {
        [table] if !pictures.is_empty() && !folders.iter().any(|folder| holds_pictures(folder)) => bail!(
            folder,
            "has {} ({}) in no class's folder, and {} does not name the pictures: move the pictures of each class to a \
             folder of its name, or {}",
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

/// The table of a folder without one for training: the only one.
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
                    log::info!("reading the folder {} in it", folder::name(only));
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
        let problem = format!("{} is one table, and has no other split", table.path.display());
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
        log::warn!("left out beside {}: {}{advice}", folder::name(&table.path), listed(others));
    }
    table.into_files(folder).map(|table| Some(Tables::one(table)))
}

/// Says that several files are one table.
fn say_parts(folder: &Path, files: &[PathBuf]) {
    if let [first, _, ..] = files {
        let first = first.strip_prefix(folder).unwrap_or(first);
        log::info!("{} are one table (the first: {})", count(files.len(), "file"), first.display());
    }
}

/// The folder with tables among some. Several are an error: the configurations of a data set of Hugging Face are so.
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

/// What to do where a source has several data sets.
fn one_of(path: &Path, args: &ImportArgs) -> String {
    if args.source.is_dir() {
        format!("import one, as in {}", command(path, args))
    } else {
        format!("unpack {}, and import one", folder::name(&args.source))
    }
}

/// The command that imports `path` alone.
fn command(path: &Path, args: &ImportArgs) -> String {
    format!("mpiburn data import {} --out {}", quoted(path.display()), quoted(args.out.display()))
}

/// What to do where the test table has no classes.
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

/// The tables that lie in a folder, and those whose parts are in a folder of it.
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
        // A whole table beside parts of the same name.
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

/// The files of the table in a folder: parts of Parquet, also below folders of partitions, or one file.
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

/// Whether a folder is a partition of a table of Parquet, rather than one of a data set.
pub(crate) fn is_partition(folder: &Path) -> bool {
    partitions::is_one(folder)
        && in_folder(folder).first().is_some_and(|file| is_parquet_name(file))
        && found(folder).is_ok_and(|tables| tables.iter().all(|table| split::of_name(&table.name).is_none()))
}

/// The name of a table's file without its ending, in any case; none of another file.
fn stem(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy();
    let without = |ending: &&str| {
        let (stem, found) = name.split_at_checked(name.len().checked_sub(ending.len() + 1)?)?;
        found.strip_prefix('.')?.eq_ignore_ascii_case(ending).then(|| stem.to_owned())
    };
    ENDINGS.iter().find_map(without)
}

/// What the name of a part of a table of Parquet says, `train-00000-of-00002.parquet` as Hugging Face names them or
/// `train_0.parquet`: its split, its number, and how many there are. None of another file.
fn part(path: &Path) -> Option<(String, u64, Option<usize>)> {
    let name = stem(path).filter(|_| is_parquet_name(path))?;
    let words: Vec<&str> = name.split(['-', '.', '_']).collect();
    let all = words.get(3).filter(|_| words[2] == "of").and_then(|all| all.parse().ok());
    Some((words[0].to_owned(), words.get(1)?.parse().ok()?, all))
}

/// The name of a part without what tells parts apart, numbers and UUIDs: DuckDB has `data_0`, Polars `00000000`,
/// pyarrow a UUID.
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

/// Checks that a part whose name says how many there are has the others beside it.
fn check_whole(path: &Path) -> Result<(), DataError> {
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
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
}

/// Whether Hadoop's tools ignore a file or folder of this name, such as `_SUCCESS`, `_metadata` and `_delta_log`.
fn is_hidden(name: &str) -> bool {
    name.starts_with('_')
}

/// Whether a table is the sample submission of a competition. Its classes are invented.
pub(crate) fn is_submission(path: &Path) -> bool {
    folder::name(path).to_lowercase().contains("submission")
}

/// Whether a file has the name of a table, which has samples.
pub(crate) fn is_table(path: &Path) -> bool {
    stem(path).is_some() && !metadata::is_file_name(path)
}
