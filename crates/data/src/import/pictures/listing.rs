//! Reads pictures whose classes are in the user's own table, as in many competitions: `labels.csv` with
//! `id,breed` beside `train/`, or `train.csv` and `test.csv` beside `images/`.
//!
//! A table lists pictures if one of its columns names pictures of the folder. A file named `metadata.csv` is
//! read by [`metadata`] instead.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use run_record::count;

use crate::DataError;
use crate::import::labels::Labels;
use crate::import::pictures::folder::{Found, Picture, holds_pictures, inside, is_picture, name};
use crate::import::pictures::listed::{Listed, cell};
use crate::import::pictures::metadata;
use crate::import::pictures::picture_names::{Named, PictureNames};
use crate::import::pictures::place::{Encoded, Place};
use crate::import::same_class::finder;
use crate::import::split::{self, SplitKind};
use crate::import::tables::table_file::{TableFile, text};
use crate::import::tables::{is_submission, is_table, table};
use crate::import::{ImportArgs, test_split};
use crate::quote::{listed, quoted};

/// What the tables beside pictures contain.
pub(crate) enum Listing {
    /// The tables name the classes of these pictures.
    Pictures(Found),
    /// The tables name pictures, but folders are the classes. They are in this folder, or in the folders of
    /// its splits.
    Folders(PathBuf),
    /// No table is read as a list of pictures.
    None,
}

/// The folder of a split.
struct SplitFolder {
    name: String,
    folder: PathBuf,
    split: SplitKind,
}

/// Looks for tables that list the pictures below `source`, and reads the classes of the pictures from them.
pub(crate) fn find(source: &Path, args: &ImportArgs) -> Result<Listing, DataError> {
    // `--drop` and `--header` apply only to tables of features: with these options, no table is read as a
    // list of pictures.
    if !args.drop.is_empty() || args.header.is_some() {
        return Ok(Listing::None);
    }
    let (folders, _) = inside(source)?;
    let splits = split::of_names(&folders.iter().map(|folder| name(folder)).collect::<Vec<_>>());
    let side = |(folder, split): (PathBuf, Option<SplitKind>)| {
        Some(SplitFolder { name: name(&folder), folder, split: split? })
    };
    let sides: Vec<SplitFolder> = folders.into_iter().zip(splits).filter_map(side).collect();
    let tables = tables(source, &sides)?;
    if tables.is_empty() || !holds_pictures(source) {
        return Ok(Listing::None);
    }
    let pictures = PictureNames::in_folder(source)?;
    let open = |(path, split): (PathBuf, Option<SplitKind>)| {
        let of_split = sides.iter().find(|side| Some(side.split) == split);
        let within = of_split.map_or(source, |side| &side.folder);
        Listed::open(&path, split, within, &pictures)
            .or_else(|| Listed::open(&path, split, source, &pictures))
    };
    let mut tables: Vec<Listed> = tables.into_iter().filter_map(open).collect();
    let Some(mut train) = training(source, &mut tables, args)? else { return Ok(Listing::None) };
    let root = folder_of_classes(source, &sides)?;
    if args.label.is_none() && has_class_folders(&root, &sides)? {
        if let Some(class) = train.compare_folders(&root, &pictures, sides.is_empty())? {
            say_unused(&tables, &sides, &class)?;
        }
        return Ok(Listing::Folders(if sides.is_empty() { root } else { source.to_owned() }));
    }
    ListingReader { source, args, sides, pictures }.read(train, tables)
}

/// Returns whether a table in a folder names pictures below the folder.
pub(crate) fn is_in(folder: &Path) -> bool {
    let Ok(tables) = tables(folder, &[]) else { return false };
    if tables.is_empty() || !holds_pictures(folder) {
        return false;
    }
    let Ok(pictures) = PictureNames::in_folder(folder) else { return false };
    tables.into_iter().any(|(path, split)| Listed::open(&path, split, folder, &pictures).is_some())
}

/// Returns the tables in a source and in the folders of its splits, each with its split. Returns an empty
/// list if there is a metadata file, because this file then states the classes.
fn tables(source: &Path, sides: &[SplitFolder]) -> Result<Vec<(PathBuf, Option<SplitKind>)>, DataError> {
    let folders = std::iter::once(source).chain(sides.iter().map(|side| &*side.folder));
    if folders.clone().any(|folder| metadata::file(folder).is_some()) {
        return Ok(Vec::new());
    }
    let mut tables = Vec::new();
    for folder in folders {
        let side = sides.iter().find(|side| side.folder == folder);
        for file in inside(folder)?.1.into_iter().filter(|file| is_table(file) && !is_submission(file)) {
            let split = side.map_or_else(|| split::in_name(&name(&file)), |side| Some(side.split));
            tables.push((file, split));
        }
    }
    Ok(tables)
}

/// Removes the table of the training split from `tables` and returns it. It is the table whose name contains
/// the training split or, if there is no such table, the table whose name contains no split. If several
/// tables have such a name, it is the only one of them with a column of classes. If there is not exactly one,
/// returns an error. Returns `None` if there is no such table.
fn training(source: &Path, tables: &mut Vec<Listed>, args: &ImportArgs) -> Result<Option<Listed>, DataError> {
    for split in [Some(SplitKind::Train), None] {
        let mut places: Vec<usize> = (0..tables.len()).filter(|&at| tables[at].split == split).collect();
        let classed =
            |&at: &usize| tables[at].class(args.label.as_deref()).is_ok_and(|class| class.is_some());
        if places.len() > 1 && places.iter().any(classed) {
            places.retain(classed);
        }
        match places[..] {
            [] => {}
            [place] => return Ok(Some(tables.remove(place))),
            _ => bail!(
                source,
                "contains {} that list pictures ({}): choose the column of the class with --label, or move all but \
                 one table away",
                count(places.len(), "table"),
                listed(places.iter().map(|&at| tables[at].table.name.as_str()))
            ),
        }
    }
    Ok(None)
}

/// Returns the folder that contains the folders of classes: the training split if there is one, or `source`.
/// If this folder contains a single folder and no pictures, returns the inner folder, and so on.
fn folder_of_classes(source: &Path, sides: &[SplitFolder]) -> Result<PathBuf, DataError> {
    let mut root = sides
        .iter()
        .find(|side| side.split == SplitKind::Train)
        .map_or(source, |side| &side.folder)
        .to_owned();
    loop {
        let (folders, files) = inside(&root)?;
        match &folders[..] {
            [only] if !files.iter().any(|file| is_picture(file)) => root.clone_from(only),
            _ => return Ok(root),
        }
    }
}

/// Returns whether several folders in `root` contain pictures, while no picture is directly in `root`.
/// Folders of splits do not count.
fn has_class_folders(root: &Path, sides: &[SplitFolder]) -> Result<bool, DataError> {
    let (folders, files) = inside(root)?;
    let classes = folders.iter().filter(|folder| !sides.iter().any(|side| side.folder == **folder));
    Ok(!files.iter().any(|file| is_picture(file))
        && classes.filter(|folder| holds_pictures(folder)).count() > 1)
}

/// The folders of the training split are the classes, so no table is used. Warns about each other split that
/// has no folders of classes, but has its classes in a table. `class` is the name of the column of the
/// classes.
fn say_unused(tables: &[Listed], sides: &[SplitFolder], class: &str) -> Result<(), DataError> {
    for side in sides.iter().filter(|side| side.split != SplitKind::Train && holds_pictures(&side.folder)) {
        let has_class = |table: &&Listed| {
            let names = table.table.header.as_deref().unwrap_or_default();
            table.split == Some(side.split) && finder(names)(class).is_some()
        };
        if let Some(table) = tables.iter().find(has_class)
            && !has_class_folders(&side.folder, &[])?
        {
            log::warn!(
                "{} lists the classes of the pictures in {} and is not used: to take the classes of all splits \
                 from tables, pass --label {}",
                table.table.name,
                side.name,
                run_record::quoted(class)
            );
        }
    }
    Ok(())
}

/// Reads the tables of a source that name its pictures.
struct ListingReader<'a> {
    source: &'a Path,
    args: &'a ImportArgs,
    sides: Vec<SplitFolder>,
    pictures: PictureNames,
}

/// Pictures in the order of a table. A picture is the index of its file and the number of its label. If it
/// has no class and is left out, the number is `None`.
type LabelledPictures = Vec<(usize, Option<u32>)>;

/// The kind and the name of a split. The training split may occur under several names:
/// [`ListingReader::read`] joins its pictures.
type SplitName = (SplitKind, String);

impl ListingReader<'_> {
    fn read(self, mut train: Listed, others: Vec<Listed>) -> Result<Listing, DataError> {
        let Some(class) = train.class(self.args.label.as_deref())? else {
            return Ok(Listing::None);
        };
        let mut labels = Labels::with_names(None, self.args.missing_labels);
        log::info!(
            "{}: column {} names the pictures, column {} their classes",
            train.table.name,
            train.table.column_name(train.names),
            train.table.column_name(class)
        );
        let mut of_split = self.training_table(&mut train, class, &mut labels)?;
        for other in others {
            if let Some((split, pictures)) = self.other_table(other, &train, class, &mut labels)? {
                of_split.entry(split).or_default().extend(pictures);
            }
        }
        let (train_split, tests): (Vec<_>, Vec<_>) =
            of_split.into_iter().partition(|((split, _), _)| *split == SplitKind::Train);
        let train_split: LabelledPictures =
            train_split.into_iter().flat_map(|(_, pictures)| pictures).collect();
        if train_split.iter().all(|(_, label)| label.is_none()) {
            bail!(&train.table.path, "lists no training picture with a class");
        }
        let (names, mut tests): (Vec<String>, Vec<LabelledPictures>) =
            tests.into_iter().map(|((_, name), pictures)| (name, pictures)).unzip();
        self.say_left_out(&train, &names, tests.iter().chain([&train_split]));
        let numbers = |pictures: &LabelledPictures| {
            pictures.iter().filter_map(|(_, label)| *label).collect::<Vec<u32>>()
        };
        let known = labels.names(numbers(&train_split));
        let wanted = self.args.test_split.as_deref();
        let chosen = test_split::choose(self.source, wanted, &known, &names, |at| {
            Ok(labels.names(numbers(&tests[at])))
        })?;
        let test = chosen.map(|at| tests.swap_remove(at));
        labels.retain([&train_split].into_iter().chain(&test).flat_map(numbers));
        let (classes, class) = labels.classes(self.source)?;
        let pictures = |split: LabelledPictures| {
            let picture = |(place, label): (usize, Option<u32>)| {
                let (path, class) = (&self.pictures.files[place], class[label? as usize]);
                let name = path.strip_prefix(self.source).unwrap_or(path).to_string_lossy().into_owned();
                Some(Picture { place: Place::Encoded(Encoded::File(path.clone())), name, class })
            };
            split.into_iter().filter_map(picture).collect()
        };
        Ok(Listing::Pictures(Found { train: pictures(train_split), test: test.map(pictures), classes }))
    }

    /// Returns the pictures in the table of the training split, grouped by split: this table may also list
    /// the pictures of other splits. If it does, a column names the splits, or the pictures are in folders of
    /// splits.
    fn training_table(
        &self,
        train: &mut Listed,
        class: usize,
        labels: &mut Labels,
    ) -> Result<BTreeMap<SplitName, LabelledPictures>, DataError> {
        // Folders of splits have precedence over a column of splits.
        let may_have_column =
            train.split.is_none() && self.sides.iter().all(|side| side.split == SplitKind::Train);
        let of_column = if may_have_column { self.splits(train, class) } else { HashMap::new() };
        let unlabelled = self.unlabelled(train, class, &of_column, labels);
        let mut of_split: BTreeMap<SplitName, LabelledPictures> = BTreeMap::new();
        for (place, label) in self.labelled_pictures(train, class, labels, &unlabelled)? {
            let side = self.sides.iter().find(|side| self.pictures.files[place].starts_with(&side.folder));
            let split = match (train.split, of_column.get(&place), side) {
                (None, Some(split), _) => split.clone(),
                (None, None, Some(side)) => (side.split, side.name.clone()),
                _ => (SplitKind::Train, String::new()),
            };
            of_split.entry(split).or_default().push((place, label));
        }
        Ok(of_split)
    }

    /// Returns the split and the pictures of a table other than `train`. Returns `None` if the name of the
    /// table contains the training split or no split, or if no picture in the table has a class.
    fn other_table(
        &self,
        mut other: Listed,
        train: &Listed,
        class: usize,
        labels: &mut Labels,
    ) -> Result<Option<(SplitName, LabelledPictures)>, DataError> {
        let Some(split) = other.split.filter(|split| *split != SplitKind::Train) else { return Ok(None) };
        let class = match (&train.table.header, &other.table.header) {
            (Some(_), Some(header)) => finder(header)(&train.table.column_name(class)),
            (None, None) if train.table.columns == other.table.columns => Some(class),
            _ => None,
        };
        let side = self.sides.iter().find(|side| side.split == split);
        // In competitions, the test table may have an empty column to be filled in.
        let class = match class {
            Some(class) if table::classes(&mut other.table, class, labels, &BTreeSet::new())?.is_empty() => {
                None
            }
            class => class,
        };
        let Some(class) = class else {
            // If the split has a folder, `say_left_out` names the folder.
            if side.is_none() {
                log::warn!("{} is not used: it lists no picture with a class", other.table.name);
            }
            return Ok(None);
        };
        let name = side.map_or_else(|| other.table.name.clone(), |side| side.name.clone());
        let pictures = self.labelled_pictures(&mut other, class, labels, &BTreeSet::new())?;
        Ok(Some(((split, name), pictures)))
    }

    /// Warns about folders of splits that are not among `names`, and about pictures that no table names.
    fn say_left_out<'p>(
        &self,
        train: &Listed,
        names: &[String],
        listed: impl Iterator<Item = &'p LabelledPictures>,
    ) {
        let others = self.sides.iter().filter(|side| side.split != SplitKind::Train);
        for side in others.clone().filter(|side| !names.contains(&side.name)) {
            let number = self.pictures.files.iter().filter(|file| file.starts_with(&side.folder)).count();
            if number > 0 {
                log::warn!(
                    "{} is not used: no table lists the classes of its {} (`mpiburn predict` can classify them)",
                    side.name,
                    count(number, "picture")
                );
            }
        }
        let listed: BTreeSet<usize> = listed.flatten().map(|(place, _)| *place).collect();
        let is_other = |file: &Path| others.clone().any(|side| file.starts_with(&side.folder));
        let unnamed = (0..self.pictures.files.len()).filter(|place| !listed.contains(place));
        let unnamed = unnamed.filter(|&place| !is_other(&self.pictures.files[place])).count();
        if unnamed > 0 {
            log::warn!("left out: {} that {} does not list", count(unnamed, "picture"), train.table.name);
        }
    }

    /// Returns the pictures of a table and their labels. The pictures in `unlabelled` get no label.
    fn labelled_pictures(
        &self,
        listed: &mut Listed,
        class: usize,
        labels: &mut Labels,
        unlabelled: &BTreeSet<usize>,
    ) -> Result<LabelledPictures, DataError> {
        let (names, within) = (listed.names, listed.within.clone());
        let mut pictures = LabelledPictures::new();
        // Line and label of each picture so far.
        let mut seen: HashMap<usize, (u64, String)> = HashMap::new();
        let mut skipped = SkippedRows::default();
        listed.table.for_each_row(|table, row, position| {
            table.check_width(row, position)?;
            let wrong = |what: String| table.wrong(position, what);
            let cell = |column: usize| {
                text(&row[column])
                    .map_err(|what| wrong(format!("column {}: {what}", table.column_name(column))))
            };
            let (name, label) = (cell(names)?, cell(class)?);
            let line = table.line(position);
            let Some(place) = self.picture(name, &within).map_err(wrong)? else {
                skipped.absent += 1;
                skipped.first_absent.get_or_insert_with(|| format!("line {line}: {}", quoted(name)));
                return Ok(());
            };
            match seen.get(&place) {
                Some((before, other)) if other != label => {
                    return Err(wrong(format!(
                        "{} has class {}, but class {} in line {before}: give the picture one class",
                        quoted(name),
                        quoted(label),
                        quoted(other)
                    )));
                }
                Some(_) => skipped.again += 1,
                None => {
                    let number = if unlabelled.contains(&place) {
                        Ok(None)
                    } else {
                        labels.number(table.shown(class), label, table.number(label.as_bytes()))
                    };
                    pictures.push((place, number.map_err(wrong)?));
                    seen.insert(place, (line, label.to_owned()));
                }
            }
            Ok(())
        })?;
        skipped.report(&listed.table, &within, self.args)?;
        Ok(pictures)
    }

    /// Returns the index of the picture with this name in the folder `within`, or `None` if there is no such
    /// picture.
    fn picture(&self, name: &str, within: &Path) -> Result<Option<usize>, String> {
        match self.pictures.find(name, within) {
            Named::One(place) => Ok(Some(place)),
            Named::Nothing => Ok(None),
            Named::Outside => Err(format!("{} is outside of {}", quoted(name), self.source.display())),
            Named::Several(places) => {
                let [first, second] = places.map(|place| self.below(place));
                Err(format!("{} may be {first} or {second}: write the folder before the name", quoted(name)))
            }
        }
    }

    /// Returns the pictures of each split that `of_column` names and in which no picture has a class.
    /// Pictures of the training split are never returned.
    fn unlabelled(
        &self,
        listed: &mut Listed,
        class: usize,
        of_column: &HashMap<usize, SplitName>,
        labels: &Labels,
    ) -> BTreeSet<usize> {
        if of_column.is_empty() {
            return BTreeSet::new();
        }
        let (names, within) = (listed.names, listed.within.clone());
        let (mut pictures, mut with_class) = (Vec::new(), BTreeSet::new());
        // An error in a row occurs again when the classes are read.
        let _ = listed.table.for_each_row(|table, row, _| {
            let Named::One(place) = self.pictures.find(&cell(row, names), &within) else { return Ok(()) };
            let Some(split) = of_column.get(&place).filter(|(split, _)| *split != SplitKind::Train) else {
                return Ok(());
            };
            let label = cell(row, class);
            if labels.name(&label, table.number(label.as_bytes())).is_some() {
                with_class.insert(split);
            }
            pictures.push((place, split));
            Ok(())
        });
        pictures
            .into_iter()
            .filter(|(_, split)| !with_class.contains(split))
            .map(|(place, _)| place)
            .collect()
    }

    /// Returns the split of each picture if a column of the table names it. The column must name a split in
    /// every row with a picture, and both the training split and another split must occur in it. If there is
    /// no such column, returns an empty map.
    fn splits(&self, listed: &mut Listed, class: usize) -> HashMap<usize, SplitName> {
        let (names, within) = (listed.names, listed.within.clone());
        let mut columns: BTreeMap<usize, HashMap<usize, SplitName>> = (0..listed.table.columns)
            .filter(|&column| column != names && column != class)
            .map(|column| (column, HashMap::new()))
            .collect();
        // An error in a row occurs again when the classes are read.
        let _ = listed.table.for_each_row(|_, row, _| {
            let Named::One(place) = self.pictures.find(&cell(row, names), &within) else { return Ok(()) };
            columns.retain(|&column, found| {
                let name = cell(row, column);
                let split = split::of_name(&name);
                split.is_some_and(|split| {
                    found.insert(place, (split, name));
                    true
                })
            });
            if columns.is_empty() { Err(DataError::Stopped) } else { Ok(()) }
        });
        let has_both = |found: &HashMap<usize, SplitName>| {
            let is_train = |(split, _): &SplitName| *split == SplitKind::Train;
            found.values().any(is_train) && !found.values().all(is_train)
        };
        let found = columns.into_iter().find(|(_, found)| has_both(found));
        found.map_or_else(HashMap::new, |(column, found)| {
            let column = listed.table.column_name(column);
            log::info!("{}: the column {column} decides the split of each picture", listed.table.name);
            found
        })
    }

    /// Returns the path of a picture below the source.
    fn below(&self, place: usize) -> String {
        let path = &self.pictures.files[place];
        path.strip_prefix(self.source).unwrap_or(path).display().to_string()
    }
}

/// Rows of a table that are skipped.
#[derive(Default)]
struct SkippedRows {
    /// Number of rows that name a picture of an earlier row.
    again: usize,
    /// Number of rows with a name that no picture has. `first_absent` describes the first such row.
    absent: usize,
    first_absent: Option<String>,
}

impl SkippedRows {
    /// Reports the skipped rows. Rows that name no picture are an error, unless `--skip-broken` leaves them
    /// out.
    fn report(self, table: &TableFile, within: &Path, args: &ImportArgs) -> Result<(), DataError> {
        if self.again > 0 {
            let rows = count(self.again, "row");
            log::warn!("{}: {rows} left out, because an earlier row names the same picture", table.name);
        }
        if let Some(first) = self.first_absent {
            let rows = match self.absent {
                1 => "1 row with a picture that is".to_owned(),
                rows => format!("{rows} rows with pictures that are"),
            };
            let what = format!("{rows} missing in {} ({first})", within.display());
            if !args.skip_broken {
                bail!(
                    &table.path,
                    "contains {what}: complete the download, or leave such rows out with --skip-broken"
                );
            }
            log::warn!("left out: {what}");
        }
        Ok(())
    }
}
