//! Finds pictures in folders, and the class of each picture. The class is the name of the folder, or a
//! metadata file states it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use run_record::count;
use walkdir::{DirEntry, WalkDir};

use crate::DataError;
use crate::import::arrays::{cifar, idx};
use crate::import::labels::LabelOptions;
use crate::import::left_behind::is_ignored;
use crate::import::no_data_set::unclassed;
use crate::import::pictures::metadata::Classed;
use crate::import::pictures::place::{Encoded, Place};
use crate::import::pictures::{listing, metadata};
use crate::import::split::{self, SplitKind};
use crate::import::tables::is_table;
use crate::import::{arrays, tables};
use crate::quote::{listed, quoted, short};
use crate::source::MOST_CLASSES;

/// File name extensions of pictures.
const PICTURES: [&str; 16] = [
    "apng", "bmp", "dib", "gif", "jfif", "jpe", "jpeg", "jpg", "pbm", "pgm", "png", "pnm", "ppm", "tif",
    "tiff", "webp",
];
/// Maximum number of files and folders below a folder that [`holds_pictures`] looks at.
const MOST_LOOKED_AT: usize = 1000;

/// A picture of a source.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    pub(crate) place: Place,
    /// Where the picture is, for messages and `dataset.json`: its path below the source, or its position in a
    /// file.
    pub(crate) name: String,
    pub(crate) class: u16,
}

/// All pictures of a source.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) classes: Vec<String>,
    pub(crate) train: Vec<Picture>,
    /// `None` if the source has no test split, or no test split with classes.
    pub(crate) test: Option<Vec<Picture>>,
}

pub(crate) fn is_picture(path: &Path) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
    ending.is_some_and(|ending| PICTURES.contains(&ending.as_str()))
}

/// Returns the folders and the files directly in a folder, each sorted by name. Leaves out ignored names, and
/// links to an enclosing folder.
pub(crate) fn inside(folder: &Path) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
    let (mut entries, _) = entries(folder)?;
    entries.sort();
    Ok(entries.into_iter().partition(|path| path.is_dir()))
}

/// Returns the number of links in a folder that lead to an enclosing folder.
pub(crate) fn loops(folder: &Path) -> Result<usize, DataError> {
    entries(folder).map(|(_, loops)| loops)
}

/// Returns the entries of a folder, and the number of its links to an enclosing folder. The entries do not
/// include these links and ignored names.
fn entries(folder: &Path) -> Result<(Vec<PathBuf>, usize), DataError> {
    let read = || -> io::Result<(Vec<PathBuf>, usize)> {
        let (mut paths, mut loops) = (Vec::new(), 0);
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if is_ignored(&name(&path)) {
                continue;
            }
            if entry.file_type()?.is_symlink() && path.is_dir() && leads_back(&path) {
                loops += 1;
            } else {
                paths.push(path);
            }
        }
        Ok((paths, loops))
    };
    read().map_err(DataError::read(folder))
}

/// Returns the last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Files and links that a search for pictures left out. For each extension, `endings` has the number of files
/// and the first file. `loops` is the number of links to an enclosing folder.
#[derive(Default)]
pub(crate) struct LeftOut {
    pub(crate) endings: BTreeMap<String, (usize, PathBuf)>,
    loops: usize,
}

impl LeftOut {
    pub(crate) fn new(loops: usize) -> Self {
        Self { loops, ..Self::default() }
    }

    fn add(&mut self, path: PathBuf) {
        let ending = path.extension().map_or_else(
            || "no extension".to_owned(),
            |ending| format!("extension .{}", ending.to_string_lossy().to_lowercase()),
        );
        self.endings.entry(ending).or_insert((0, path)).0 += 1;
    }

    pub(crate) fn log(&self, source: &Path) {
        for (ending, (number, first)) in &self.endings {
            log::warn!(
                "left out: {} with {ending}: a picture needs an extension such as .jpg or .png (the first: {}{})",
                count(*number, "file"),
                first.strip_prefix(source).unwrap_or(first).display(),
                crate::import::pictures::picture::foreign_picture(first)
                    .map_or_else(String::new, |kind| format!(", {kind}"))
            );
        }
        if self.loops > 0 {
            log::warn!("left out: {} to an enclosing folder", count(self.loops, "link"));
        }
    }
}

/// Returns the folder of the data set: `source`, or the only folder in `source` if there is nothing to import
/// beside it. Archives often contain a single folder, or several folders inside each other.
pub(crate) fn below(source: &Path) -> Result<PathBuf, DataError> {
    let mut folder = source.to_owned();
    loop {
        let (mut folders, files) = inside(&folder)?;
        if folders.len() > 1 && folders.iter().all(|folder| split::is_no_class(&name(folder))) {
            // If all folders have names such as `images` and `labels`, ignore those without pictures.
            folders.retain(|folder| holds_pictures(folder));
        }
        match &folders[..] {
            [only]
                if !files.iter().any(|file| is_picture(file))
                    && !tables::is_partition(only)
                    && holds_more(only)?
                    && !belongs(only, &folder, &files) =>
            {
                if split::of_name(&name(only)) == Some(SplitKind::Train) {
                    return Ok(folder);
                }
                log::info!("reading the inner folder {}", name(only));
                folder.clone_from(only);
            }
            _ => return Ok(folder),
        }
    }
}

/// Returns whether `only`, the only folder in `folder`, belongs to tables in `folder`. This is so if there
/// are tables, and either `only` has nothing to import, or the tables list its pictures.
fn belongs(only: &Path, folder: &Path, files: &[PathBuf]) -> bool {
    files.iter().any(|file| is_table(file)) && (recognised(only).is_none() || listing::is_in(folder))
}

/// Returns whether a folder contains folders or files with data, rather than only the pictures of a class.
fn holds_more(folder: &Path) -> Result<bool, DataError> {
    let (folders, files) = inside(folder)?;
    let is_data = |path: &PathBuf| {
        is_table(path) || arrays::is_array(path) || cifar::is_batch(path) || idx::is_idx(path)
    };
    Ok(!folders.is_empty() || metadata::file(folder).is_some() || files.iter().any(is_data))
}

/// Returns whether there are pictures below a folder. Looks only at the first [`MOST_LOOKED_AT`] entries.
pub(crate) fn holds_pictures(folder: &Path) -> bool {
    let is_part = |entry: &DirEntry| entry.depth() == 0 || !is_ignored(&entry.file_name().to_string_lossy());
    let entries = WalkDir::new(folder).follow_links(true).into_iter().filter_entry(is_part);
    entries.flatten().take(MOST_LOOKED_AT).any(|entry| is_picture(entry.path()))
}

/// Describes what a folder contains that can be imported, or returns `None` if nothing is recognised.
pub fn recognised(source: &Path) -> Option<&'static str> {
    let (folders, files) = inside(source).ok()?;
    if files.iter().any(|path| is_table(path)) {
        Some("tables")
    } else if files.iter().any(|path| arrays::is_array(path)) {
        Some("arrays")
    } else if files.iter().any(|path| cifar::is_batch(path)) {
        Some("CIFAR batches")
    } else if files.iter().any(|path| idx::is_idx(path)) {
        Some("IDX files with names other than MNIST's")
    } else if metadata::file(source).is_some() {
        Some("pictures")
    } else if folders.iter().any(|folder| holds_pictures(folder)) {
        Some("folders of pictures")
    } else if files.iter().any(|path| is_picture(path)) {
        Some("pictures without class folders")
    } else {
        None
    }
}

/// The pictures of a split, with their classes by name.
#[derive(Default)]
pub(crate) struct Classes {
    names: BTreeSet<String>,
    /// Path, name and class of each picture.
    pictures: Vec<(PathBuf, String, String)>,
    /// Whether a metadata file states the classes. Classes from such a file are sorted by number if all are
    /// whole numbers. Classes that are folders are always sorted as text.
    pub(crate) is_listed: bool,
}

impl Classes {
    /// Returns the classes that have pictures.
    pub(crate) fn full(&self) -> BTreeSet<String> {
        self.pictures.iter().map(|(.., class)| class.clone()).collect()
    }
}

/// Finds the pictures of `split`, which is `source` or a folder in it. If `split` or `source` contains a
/// metadata file, the file lists the pictures and their classes. Without a metadata file, the folders in
/// `split` are the classes.
///
/// A split other than the training split counts as empty if none of its pictures has a class in the metadata
/// file. In all other cases, a missing class is an error, unless `label` says to leave out pictures without a
/// class.
pub(crate) fn classes(
    source: &Path,
    split: &Path,
    is_train: bool,
    label: LabelOptions<'_>,
    left_out: &mut LeftOut,
) -> Result<Classes, DataError> {
    if let Some((folder, file)) =
        [split, source].into_iter().find_map(|folder| Some((folder, metadata::file(folder)?)))
    {
        if let Some(listed) = metadata::read(&file, label)? {
            let listed = listed.into_iter().map(|(name, class)| (folder.join(name), class));
            let listed = listed.filter(|(path, _)| path.starts_with(split)).collect();
            return listed_classes(source, split, is_train, &file, listed);
        }
        let file = name_below(source, &file);
        log::info!("{file} has no column label, class, target or species: the folders are the classes");
    } else if let Some(label) = label.column.filter(|_| holds_pictures(split)) {
        let problem = format!(
            "applies only to tables and arrays, but {} contains neither: leave the option out",
            source.display()
        );
        return Err(DataError::option("label", short(label), problem));
    }
    let (folders, files) = inside(split)?;
    let beside: Vec<&PathBuf> = files.iter().filter(|file| is_picture(file)).collect();
    if folders.is_empty() {
        return Err(unclassed(split)?);
    }
    if split != source {
        left_out.loops += loops(split)?;
    }
    if let [first, ..] = &beside[..] {
        log::warn!(
            "left out: {} beside the class folders (the first: {})",
            count(beside.len(), "picture"),
            name_below(source, first)
        );
    }
    files.iter().filter(|file| !is_picture(file)).for_each(|file| left_out.add(file.clone()));
    let mut classes = Classes::default();
    for folder in folders {
        let Some(class) = folder.file_name().and_then(|name| name.to_str()) else {
            bail!(&folder, "has a name that is not UTF-8: rename the folder");
        };
        let mut pictures = walk(&folder, left_out)?;
        // Sort as torchvision does: by the text of the folder's path, and then by file name.
        let place =
            |path: &PathBuf| (path.parent().map(|folder| folder.as_os_str().to_owned()), path.clone());
        pictures.sort_by_cached_key(place);
        classes.names.insert(class.to_owned());
        classes.pictures.extend(pictures.into_iter().map(|path| {
            let name = name_below(source, &path);
            (path, name, class.to_owned())
        }));
    }
    Ok(classes)
}

/// Returns the pictures of `split`, which are `listed` in the metadata file `file`. Leaves out pictures
/// without a class.
fn listed_classes(
    source: &Path,
    split: &Path,
    is_train: bool,
    file: &Path,
    listed: Vec<Classed>,
) -> Result<Classes, DataError> {
    let others = walk(split, &mut LeftOut::default())?.len().saturating_sub(listed.len());
    let all = listed.len();
    let is_unlabelled = !is_train && listed.iter().all(|(_, class)| class.is_err());
    let with_class = listed.into_iter().filter(|_| !is_unlabelled).map(|(path, class)| Ok((path, class?)));
    let with_class: Vec<_> =
        with_class.collect::<Result<_, String>>().map_err(|what| DataError::source(file, what))?;
    let with_class = with_class.into_iter().filter_map(|(path, class)| Some((path, class?)));
    let pictures: Vec<_> =
        with_class.map(|(path, class)| (path.clone(), name_below(source, &path), class)).collect();
    if all > pictures.len() {
        log::info!("left out: {} without a class", count(all - pictures.len(), "picture"));
    }
    if others > 0 {
        let file = name_below(source, file);
        log::warn!("left out: {} that {file} does not list", count(others, "picture"));
    }
    if is_train && pictures.is_empty() {
        bail!(file, "lists no training picture with a class");
    }
    let names = pictures.iter().map(|(.., class)| class.clone()).collect();
    Ok(Classes { names, pictures, is_listed: true })
}

/// Returns the path of a picture or a file, relative to the source.
fn name_below(source: &Path, path: &Path) -> String {
    path.strip_prefix(source).unwrap_or(path).to_string_lossy().into_owned()
}

/// Returns the pictures below a folder, sorted by name. Links are followed, except for links to an enclosing
/// folder.
pub(crate) fn walk(folder: &Path, left_out: &mut LeftOut) -> Result<Vec<PathBuf>, DataError> {
    let (mut pictures, mut loops) = (Vec::new(), 0);
    let is_part = |entry: &DirEntry| {
        let is_loop = entry.path_is_symlink() && entry.file_type().is_dir() && leads_back(entry.path());
        loops += usize::from(is_loop);
        entry.depth() == 0 || !(is_loop || is_ignored(&entry.file_name().to_string_lossy()))
    };
    let entries = WalkDir::new(folder).follow_links(true).sort_by_file_name().into_iter();
    for entry in entries.filter_entry(is_part) {
        let path = match entry {
            Ok(entry) if entry.file_type().is_dir() => continue,
            Ok(entry) => entry.into_path(),
            Err(error) if error.loop_ancestor().is_some() => {
                left_out.loops += 1;
                continue;
            }
            Err(error) => {
                let path = error.path().unwrap_or(folder).to_owned();
                // Keep a dangling link with the name of a picture. It is reported when the picture is read.
                if !path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
                    let reason = error.into_io_error().unwrap_or(ErrorKind::Other.into());
                    return Err(DataError::read(&path)(reason));
                }
                path
            }
        };
        if is_picture(&path) { pictures.push(path) } else { left_out.add(path) }
    }
    left_out.loops += loops;
    Ok(pictures)
}

/// Returns whether a link leads to an enclosing folder. `WalkDir` finds loops only inside the folder that it
/// walks, but the link may lead to a folder above that folder.
fn leads_back(link: &Path) -> bool {
    let place = link.parent().unwrap_or(Path::new(".")).canonicalize();
    link.canonicalize().is_ok_and(|target| place.is_ok_and(|place| place.starts_with(target)))
}

/// Numbers the classes of both splits together, and returns the pictures with the numbers of their classes.
pub(crate) fn collect(source: &Path, train: Classes, test: Option<Classes>) -> Result<Found, DataError> {
    let splits = || std::iter::once(&train).chain(&test);
    let full: BTreeSet<String> = splits().flat_map(Classes::full).collect();
    let empty: BTreeSet<&String> =
        splits().flat_map(|split| &split.names).filter(|name| !full.contains(*name)).collect();
    if full.is_empty() {
        let has_arrays = |name: &String| {
            let found = inside(&source.join(name));
            found.is_ok_and(|(_, files)| files.iter().any(|path| arrays::is_array(path)))
        };
        if empty.iter().any(|name| has_arrays(name)) {
            bail!(
                source,
                "contains NumPy arrays in {} ({}): move them to one folder, with names such as x_train.npy, \
                 y_train.npy, x_test.npy and y_test.npy",
                count(empty.len(), "folder"),
                listed(empty)
            );
        }
        bail!(
            source,
            "contains no pictures in {} ({}): the supported extensions are {}",
            count(empty.len(), "folder"),
            listed(empty),
            PICTURES.join(", ")
        );
    }
    for name in empty {
        log::warn!("left out: class {}: its folder contains no pictures", quoted(name));
    }
    if full.len() > MOST_CLASSES {
        bail!(source, "has {} classes, but at most {MOST_CLASSES} are supported", full.len());
    }
    let mut classes: Vec<String> = full.into_iter().collect();
    if splits().any(|split| split.is_listed) && classes.iter().all(|name| name.parse::<i64>().is_ok()) {
        classes.sort_by_key(|name| name.parse::<i64>().unwrap_or_default());
    }
    let number: HashMap<&String, u16> = classes.iter().zip(0..=u16::MAX).collect();
    let pictures = |split: Classes| {
        let picture = |(path, name, class): (PathBuf, String, String)| Picture {
            place: Place::Encoded(Encoded::File(path)),
            name,
            class: number[&class],
        };
        split.pictures.into_iter().map(picture).collect()
    };
    let (train, test) = (pictures(train), test.map(pictures));
    Ok(Found { train, test, classes })
}
