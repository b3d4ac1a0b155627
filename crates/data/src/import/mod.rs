//! Converts pictures in folders, tables and arrays to data sets for training: `mpiburn data import`.
//!
//! [`import`] writes one format, whatever the source is: `train-images.npy` and `train-labels.npy`, the same
//! files for `test`, and [`DataSet`] in `dataset.json`. NumPy reads these files, and `mpiburn train` trains
//! on them.
//!
//! The kind of a source is recognised from the names and contents of its files. An archive is unpacked first
//! and then treated as a folder. Any other file is read as a table. A folder is searched in this order:
//! CIFAR's python batches, IDX files, arrays of NumPy, a table that names pictures, tables of features,
//! folders of pictures. The first kind that is found is imported.

mod archive;
mod args;
mod arrays;
mod copies;
mod job;
pub(crate) mod labels;
mod left_behind;
mod no_data_set;
pub(crate) mod pictures;
mod plan;
mod reading;
mod same_class;
mod split;
mod tables;
mod temporary;
mod test_split;
#[cfg(all(test, feature = "archives", feature = "parquet", feature = "pictures"))]
mod tests;
#[cfg(all(test, not(all(feature = "archives", feature = "parquet", feature = "pictures"))))]
#[path = "without_tests.rs"]
mod tests;
#[cfg_attr(not(feature = "archives"), path = "without_archives.rs")]
mod unpack;
pub(crate) mod writer;

use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use run_record::count;

use crate::DataError;
use crate::formats::{DataSet, cifar10, is_data_file};
use crate::quote::{listed, quoted, short};
use arrays::{cifar, idx};
use job::Job;
use pictures::listing::{self, Listing};
use pictures::{folder, split_folders};
use tables::{TableFiles, Tables, parquet_file, table};

pub use args::{Header, ImportArgs, Order};
pub use labels::MissingLabels;
pub use pictures::folder::recognised;
pub use pictures::picture::{Fit, Size};
pub use reading::{picture, pictures, rows};

/// Result of an import.
#[derive(Debug)]
pub struct Imported {
    /// The data set that was written.
    pub set: DataSet,
    /// Number of training samples and of test samples of each class.
    pub counts: [Vec<usize>; 2],
}

/// Called with the number of steps done and the number of all steps. The import stops if the function returns
/// `Break`.
pub type ImportProgress<'a> = dyn Fn(usize, usize) -> ControlFlow<()> + Sync + 'a;

/// Imports the source that `args` names. After success, the output folder contains the whole data set. After
/// an error, the folder contains the same as before. Remarks and warnings about the samples are logged.
///
/// # Errors
/// When the source cannot be read, when something in it cannot be imported, when an option does not fit the
/// source, when the data set cannot be written, when another import writes to the same folder, or when
/// `progress` stops the import.
pub fn import(args: &ImportArgs, progress: &ImportProgress<'_>) -> Result<Imported, DataError> {
    check_places(&args.source, &args.out)?;
    let job = Job::start(args, progress)?;
    writer::check_free(&args.out, args.overwrite)?;
    let unpacked = if args.source.is_dir() { None } else { archive::unpack(&job)? };
    let source = unpacked.as_deref().unwrap_or(&args.source);
    let imported =
        from_source(source, &job).map_err(|error| archive::renamed(error, source, &args.source))?;
    for problem in without_samples(&imported) {
        log::warn!("{problem}");
    }
    if let [one] = &imported.set.classes[..] {
        log::warn!(
            "all samples belong to one class, {}: there is nothing for a network to learn",
            quoted(one)
        );
    }
    let learned = imported.counts[0].iter().copied().filter(|&count| count > 0);
    if let (Some(least), Some(most)) = (learned.clone().min(), learned.max())
        && most > 10 * least
    {
        log::warn!(
            "the largest class has {most} training samples and the smallest {least}: a network may learn to \
             predict only the large classes"
        );
    }
    Ok(imported)
}

/// Returns warnings about classes without samples in a split. There is one line for each kind of problem,
/// with the names of all classes that have the problem.
fn without_samples(Imported { set, counts: [train, test] }: &Imported) -> Vec<String> {
    type IsSo = fn(usize, usize) -> bool;
    let kinds: [(&str, IsSo); 3] = [
        ("no samples", |train, test| train + test == 0),
        ("test samples but no training samples", |train, test| train == 0 && test > 0),
        ("no test samples", |train, test| train > 0 && test == 0),
    ];
    let line = |(what, is_so): (&str, IsSo)| {
        let classes = set.classes.iter().zip(train.iter().zip(test));
        let found: Vec<&String> =
            classes.filter(|(_, (train, test))| is_so(**train, **test)).map(|(name, _)| name).collect();
        match &found[..] {
            [] => None,
            [one] => Some(format!("class {} has {what}", quoted(one))),
            _ => Some(format!("{} have {what}: {}", count(found.len(), "class"), listed(&found))),
        }
    };
    kinds.into_iter().filter_map(line).collect()
}

/// Describes a file that is only a part of a data set, such as the images without the labels. Returns `None`
/// for any other file.
pub(crate) fn part_of_data_set(path: &Path) -> Option<&'static str> {
    if idx::is_idx(path) {
        Some("an IDX file")
    } else if cifar::is_batch(path) || cifar10::is_file_name(path.file_name()?) {
        Some("a file of CIFAR")
    } else if is_data_file(path) {
        Some("a file of a data set")
    } else {
        None
    }
}

/// Imports the file or folder `source`. If `source` contains only one folder and nothing else to import,
/// imports this inner folder, because archives often contain a single folder with the data set.
fn from_source(source: &Path, job: &Job<'_>) -> Result<Imported, DataError> {
    let args = job.args;
    let tables = if source.is_dir() {
        let source = &folder::below(source)?;
        let made = match cifar::find(source, job)? {
            Some(made) => Some(made),
            None => idx::find(source, job)?,
        };
        if let Some(made) = made {
            let folder = job.folder.join(arrays::FOLDER);
            return made.import(job).map_err(|error| archive::renamed(error, &folder, source));
        }
        if let Some(arrays) = arrays::find(source, args)? {
            return arrays.import(job);
        }
        let mut folders = source.clone();
        let tables = match listing::find(source, args)? {
            Listing::Pictures(found) => return pictures::import(found, None, job),
            Listing::Folders(classes) => {
                folders = classes;
                None
            }
            Listing::None => tables::tables(source, args)?,
        };
        let Some(tables) = tables else {
            let found = split_folders::find(&folders, args.test_split.as_deref(), args.label_options())?;
            return pictures::import(found, None, job);
        };
        tables
    } else {
        if let Some(kind) = part_of_data_set(source) {
            bail!(source, "is {kind}: import its folder, {}", crate::error::parent(source).display());
        }
        match &args.test_split {
            Some(name) => {
                let problem =
                    format!("{} is a single table without splits: leave the option out", source.display());
                return Err(DataError::option("test-split", short(name), problem));
            }
            None => Tables::one(TableFiles::one(source)),
        }
    };
    match parquet_file::column_of_pictures(&tables.train.files[0])? {
        None => table::import(&tables, job),
        Some(column) => pictures::import(parquet_file::pictures(&tables, &column, job)?, None, job),
    }
}

/// Checks that `source` and `out` are not inside each other, that `out` is not the current folder, and that
/// `source` is not a pipe.
fn check_places(source: &Path, out: &Path) -> Result<(), DataError> {
    if !source.is_dir() {
        // Reject pipes. The path of an unnamed pipe (`<(command)`) cannot be resolved, and reading a named
        // pipe may never return.
        if std::fs::metadata(source).is_ok_and(|found| found.file_type().is_fifo()) {
            bail!(source, "is a pipe: write its contents to a file, and import the file");
        }
        run_record::files::open_regular(source).map_err(DataError::read(source))?;
    }
    let from = source.canonicalize().map_err(DataError::read(source))?;
    let to = std::path::absolute(out).map_err(DataError::write(out))?;
    // The path of `out` need not exist. Resolve links in the part of the path that exists.
    let resolved = |part: &Path| Some(part.canonicalize().ok()?.join(to.strip_prefix(part).ok()?));
    let to = to.ancestors().find_map(resolved).unwrap_or(to.clone());
    if std::env::current_dir().is_ok_and(|here| to == here) {
        let problem =
            "is the current folder, which the import would replace: run the import from another folder";
        return Err(DataError::option("out", out.display(), problem));
    }
    let relation = match (to.starts_with(&from), from.starts_with(&to)) {
        (false, false) => return Ok(()),
        (true, true) => "is the same folder as",
        (true, false) => "is inside",
        (false, true) => "contains",
    };
    let problem = format!("{relation} SOURCE {}: choose another folder", source.display());
    Err(DataError::option("out", out.display(), problem))
}
