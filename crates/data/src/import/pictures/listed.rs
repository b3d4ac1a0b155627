//! Finds two columns in a table that names pictures: the column with the names, and the column with the
//! classes. If the pictures are in folders, the folders may be the classes instead of a column.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use csv::ByteRecord;

use crate::DataError;
use crate::import::Header;
use crate::import::pictures::folder::is_picture;
use crate::import::pictures::picture_names::{Named, PictureNames};
use crate::import::split::{self, SplitKind};
use crate::import::tables::table_file::{LABELS, TableFile, text};
use crate::import::tables::{TableFiles, is_parquet, parquet_file};
use crate::quote::{listed, quoted};

/// Maximum number of rows that are read to find the column with the names of pictures.
const SAMPLE: usize = 200;
/// Maximum number of rows in which classes are compared with folders.
const COMPARED: usize = 2000;

/// For one column of a table: the distinct pairs (folder, cell). Each row gives one pair: the folder of its
/// picture, and its cell in the column.
type FoldersAndCells = BTreeSet<(String, Vec<u8>)>;

/// A table with a column that names pictures.
pub(crate) struct Listed {
    pub(crate) table: TableFile,
    /// The column with the names of pictures.
    pub(crate) names: usize,
    pub(crate) split: Option<SplitKind>,
    /// The folder with the pictures that the table names.
    pub(crate) within: PathBuf,
}

impl Listed {
    /// Opens a table that names pictures in the folder `within`. Returns `None` if the table cannot be read,
    /// names no pictures, contains the pictures themselves, or seems to be a table of features.
    pub(crate) fn open(
        path: &Path,
        split: Option<SplitKind>,
        within: &Path,
        pictures: &PictureNames,
    ) -> Option<Self> {
        let is_parquet = is_parquet(path);
        if is_parquet && parquet_file::embeds_pictures(path).unwrap_or(true) {
            return None;
        }
        let open = |header: Header| {
            let header = Some(header).filter(|_| !is_parquet);
            TableFile::open(&TableFiles::one(path), header, &[], 1, &|_, _| Ok(())).ok()
        };
        let mut table = open(Header::Yes)?;
        let rows = sample(&mut table, SAMPLE);
        let names =
            (0..table.columns).filter_map(|column| Some((score(&rows, column, within, pictures)?, column)));
        // Of columns with equal scores, take the first.
        let (_, names) = names.max_by_key(|(score, column)| (*score, std::cmp::Reverse(*column)))?;
        if has_features(&rows, names) {
            return None;
        }
        let first = table.column_name(names);
        if matches!(pictures.find(&first, within), Named::One(_) | Named::Several(_)) {
            table = open(Header::No)?;
        }
        Some(Self { table, names, split, within: within.to_owned() })
    }

    /// Returns the column of the classes: the column `wanted`, a column with a known name such as `label`, or
    /// the only column beside the column of the names. Returns `None` if there is no column beside the names.
    pub(crate) fn class(&self, wanted: Option<&str>) -> Result<Option<usize>, DataError> {
        if let Some(wanted) = wanted {
            return self.table.column("label", wanted).map(Some);
        }
        let others: Vec<usize> = (0..self.table.columns).filter(|&column| column != self.names).collect();
        match (&others[..], self.known()) {
            ([], _) => Ok(None),
            (_, Some(known)) => Ok(Some(known)),
            (&[only], _) => Ok(Some(only)),
            (&[.., last], _) => bail!(
                &self.table.path,
                "which column is the class? Column {} names the pictures, and the others are {}: name one, as in \
                 --label {}",
                quoted(&self.table.column_name(self.names)),
                listed(others.iter().map(|&column| self.table.column_name(column))),
                run_record::quoted(self.table.column_name(last))
            ),
        }
    }

    /// Returns the column with a name that is usual for classes, such as `label`. Returns `None` if there is
    /// no such column, or more than one.
    fn known(&self) -> Option<usize> {
        let is_known = |&column: &usize| {
            let name = self.table.column_name(column).to_lowercase();
            column != self.names && LABELS.contains(&&*name)
        };
        let mut known = (0..self.table.columns).filter(is_known);
        known.next().filter(|_| known.next().is_none())
    }

    /// Compares the table with the folders of the pictures below `root`, and returns the name of the column
    /// that has the same classes as the folders, if there is one.
    ///
    /// A column with a known name, such as `label`, is an error if its classes are not those of the folders.
    /// If no column has a known name or the classes of the folders, warns with a list of the columns and
    /// returns `None`. If a column has the classes of the folders and `may_have_splits` is true, also warns
    /// about a column of splits, because the import does not use the column of splits.
    pub(crate) fn compare_folders(
        &mut self,
        root: &Path,
        pictures: &PictureNames,
        may_have_splits: bool,
    ) -> Result<Option<String>, DataError> {
        let columns = self.folders_and_cells(root, pictures);
        let is_of_folders = |pairs: &FoldersAndCells| {
            let [folders, cells] = [
                pairs.iter().map(|(folder, _)| folder).collect::<BTreeSet<_>>().len(),
                pairs.iter().map(|(_, cell)| cell).collect::<BTreeSet<_>>().len(),
            ];
            pairs.len() == folders && folders == cells
        };
        let known = self.known();
        let class = match known {
            Some(known) => Some(known).filter(|known| is_of_folders(&columns[*known])),
            None => columns.iter().position(is_of_folders),
        };
        if let Some(class) = class {
            let class = self.table.column_name(class);
            let splits = columns.iter().position(names_splits).filter(|_| may_have_splits);
            if let Some(splits) = splits {
                log::warn!(
                    "{}: column {} names the splits and is not used: to take classes and splits from the table, \
                     pass --label {}",
                    self.table.name,
                    self.table.column_name(splits),
                    run_record::quoted(&class)
                );
            }
            return Ok(Some(class));
        }
        let Some(known) = known else {
            let folders = columns[self.names].iter().map(|(folder, _)| &**folder).collect();
            return self.say_folders_are_classes(&folders).map(|()| None);
        };
        let column = self.table.column_name(known);
        bail!(
            &self.table.path,
            "column {} and the folders give the pictures different classes: use the column with --label {}, or \
             move the table away",
            quoted(&column),
            run_record::quoted(&column)
        );
    }

    /// Returns the pairs (folder, cell) of each column, from the rows that name pictures below `root`.
    fn folders_and_cells(&mut self, root: &Path, pictures: &PictureNames) -> Vec<FoldersAndCells> {
        let mut columns = vec![FoldersAndCells::new(); self.table.columns];
        for row in sample(&mut self.table, COMPARED) {
            let Named::One(place) = pictures.find(&cell(&row, self.names), &self.within) else { continue };
            // Pictures of other splits are in folders outside of `root`.
            let Ok(below) = pictures.files[place].strip_prefix(root) else { continue };
            let folder = below.iter().next().map(|folder| folder.to_string_lossy().into_owned());
            let folder = folder.unwrap_or_default();
            for (pairs, cell) in columns.iter_mut().zip(&row) {
                pairs.insert((folder.clone(), cell.to_vec()));
            }
        }
        columns
    }

    /// Warns that the `folders` of the pictures are the classes, and lists the columns that may have other
    /// classes. Returns an error if the folders differ only in a number.
    fn say_folders_are_classes(&self, folders: &BTreeSet<&str>) -> Result<(), DataError> {
        let columns = (0..self.table.columns).filter(|&column| column != self.names);
        let columns = listed(columns.map(|column| self.table.column_name(column)));
        // Archives of many pictures come in parts, and each part makes a numbered folder.
        let stems: BTreeSet<&str> =
            folders.iter().map(|folder| folder.trim_end_matches(|c: char| c.is_ascii_digit())).collect();
        if folders.len() > 1 && stems.len() == 1 && !stems.contains("") {
            bail!(
                &self.table.path,
                "lists pictures in folders whose names differ only in a number ({}): take the classes from one of \
                 its columns with --label ({columns}), or move the table away if the folders are the classes",
                listed(folders)
            );
        }
        log::warn!(
            "the folders are the classes; {} also lists the pictures: to take the classes from one of its columns, \
             pass --label COLUMN ({columns})",
            self.table.name
        );
        Ok(())
    }
}

/// Returns whether a column with these cells names splits: the training split and at least one other.
fn names_splits(pairs: &FoldersAndCells) -> bool {
    let splits: Option<BTreeSet<SplitKind>> =
        pairs.iter().map(|(_, cell)| split::of_name(text(cell).unwrap_or_default())).collect();
    splits.is_some_and(|splits| splits.len() > 1 && splits.contains(&SplitKind::Train))
}

pub(crate) fn cell(row: &ByteRecord, column: usize) -> String {
    row.get(column).and_then(|cell| text(cell).ok()).unwrap_or_default().to_owned()
}

/// Returns the first rows of a table.
fn sample(table: &mut TableFile, most: usize) -> Vec<ByteRecord> {
    let mut rows = Vec::new();
    // `Stopped` ends the reading. Any other error occurs again when the table is imported.
    let _ = table.for_each_row(|_, row, _| {
        rows.push(row.clone());
        if rows.len() < most { Ok(()) } else { Err(DataError::Stopped) }
    });
    rows
}

/// Returns the number of pictures that a column names, or `None` if it does not contain names of pictures.
///
/// At least half of the cells must name pictures. If most of these names have no extension, the number of
/// different pictures must be at least nine tenths of the number of names. Without this rule, a column of the
/// classes 0 and 1 would be taken for names of the pictures 0.png and 1.png.
fn score(rows: &[ByteRecord], column: usize, within: &Path, pictures: &PictureNames) -> Option<usize> {
    let (mut found, mut named, mut with_ending) = (BTreeSet::new(), 0, 0);
    for cell in rows.iter().map(|row| cell(row, column)) {
        if let Named::One(place) | Named::Several([place, _]) = pictures.find(&cell, within) {
            found.insert(place);
            named += 1;
            with_ending += usize::from(is_picture(Path::new(&cell)));
        }
    }
    let is_name = 2 * with_ending >= named || 10 * found.len() >= 9 * named;
    (named > 0 && 2 * named >= rows.len() && is_name).then_some(found.len())
}

/// Returns whether a table with at least three columns is a table of features. The column `names` seems to
/// name pictures, but the names may be numbers of features: the number 1 also names 1.png. All other columns
/// contain numbers too, except for at most one column, the class.
fn has_features(rows: &[ByteRecord], names: usize) -> bool {
    let is_number =
        |column: usize| rows.iter().all(|row| cell(row, column).replace(',', ".").parse::<f64>().is_ok());
    let columns = rows.first().map_or(0, ByteRecord::len);
    let others = (0..columns).filter(|&column| column != names && !is_number(column)).count();
    columns > 2 && is_number(names) && others < 2
}
