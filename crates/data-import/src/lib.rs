//! Data sets from what people have: pictures in folders, tables, arrays.
//!
//! [`import`] writes one format, which NumPy reads and `mpiburn train` trains on: `train-images.npy` and
//! `train-labels.npy`, the same for the test split, and [`DataSet`] in `dataset.json`.

#![forbid(unsafe_code)]

// First: its macro is for the modules below.
#[macro_use]
mod error;

mod archive;
mod arrays;
mod beginning;
mod cifar;
mod copies;
mod data_file;
mod folder;
#[cfg(test)]
mod folders_tests;
mod idx;
mod inner_folders;
mod job;
#[cfg(test)]
mod kind_tests;
mod labels;
mod left_behind;
mod listed;
mod listing;
mod metadata;
mod missing;
mod no_data_set;
mod npy;
#[cfg(test)]
mod own_tables_tests;
mod parquet_file;
#[cfg(test)]
mod parquet_tests;
mod partitions;
mod picture;
mod picture_names;
mod pictures;
mod place;
mod plan;
mod quote;
mod ranges;
mod reading;
mod same_class;
mod set;
#[cfg(test)]
mod sources_tests;
mod split;
mod split_folders;
mod table;
mod table_file;
#[cfg(test)]
mod table_tests;
mod tables;
mod temporary;
mod test_split;
#[cfg(test)]
mod tests;
mod truncated;
#[cfg(test)]
mod values_tests;
mod writer;

use std::ops::ControlFlow;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use job::Job;
use listing::Listing;
use quote::{listed, quoted, short};
use run_record::count;
use tables::{TableFiles, Tables};

pub use data_file::DataFile;
pub use error::ImportError;
pub use folder::recognised;
pub use idx::IdxFile;
pub use labels::MissingLabels;
pub use npy::{NpyFile, ONE_ROW, write_npy};
pub use picture::{Fit, Size};
pub use reading::{picture, pictures, rows};
pub use set::{DataSet, FILE, Numbers, SplitRecord};
pub use writer::{label_bytes, npy_header};

/// Options of an import.
#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn data import pets --out data/pets     pets/cat/*.jpg, pets/dog/*.jpg
  mpiburn data import pets --out data/pets --size 64 --fit pad     of many sizes
  mpiburn data import imagewoof --out data/woof --size 64      with train/, val/
  mpiburn data import iris.csv --out data/iris --label species      one row each

Classes are numbered in the order of their folders' names, as by torchvision's ImageFolder. Samples are \
written in an order drawn from the seed, because training reads them in the order of the file."
)]
pub struct ImportArgs {
    /// A folder with a folder of pictures for each class (or train/CLASS and test/CLASS or val/CLASS, or with
    /// metadata.csv or a table of their names and classes), a table in .csv, .tsv (also .gz) or .parquet, a folder with train.csv and test.csv, NumPy's
    /// arrays in an .npz file or a folder of .npy files, CIFAR's python batches, IDX files, or a .zip, .tar or .tar.gz
    /// of any of these.
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Folder to write the data set to; created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace an imported data set in DIR.
    #[arg(long)]
    pub overwrite: bool,
    /// Share of each class that becomes the test split, where SOURCE has none [default: 0.2].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub test_fraction: Option<f64>,
    /// Which of SOURCE's folders is the test split, where there are several: test before val.
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub test_split: Option<String>,
    /// Order of the samples: drawn from the seed, or that of the files.
    #[arg(long, value_enum, default_value = "random", hide_short_help = true)]
    pub order: Order,
    /// Seed of the order and of the test split.
    #[arg(long, default_value_t = 7, hide_short_help = true)]
    pub seed: u64,
    /// Mean of each channel of pictures scaled to 0..1, or of each feature; one value is for all [default: that of
    /// the training split].
    #[arg(long, value_name = "X,…", value_delimiter = ',', value_parser = finite, hide_short_help = true)]
    pub mean: Option<Vec<f32>>,
    /// Standard deviation of each channel or feature [default: that of the training split].
    #[arg(long, value_name = "X,…", value_delimiter = ',', value_parser = above_0, hide_short_help = true)]
    pub std: Option<Vec<f32>>,
    /// Height and width of all pictures, such as 64x96, or 64 for both [default: the
    /// pictures' own size, if all have the same one].
    #[arg(long, value_name = "HxW", help_heading = "Pictures")]
    pub size: Option<Size>,
    /// How pictures of another shape get that size: cut at the longer side (crop), filled up with black (pad), or
    /// stretched [default: crop].
    #[arg(long, value_enum, requires = "size", help_heading = "Pictures")]
    pub fit: Option<Fit>,
    /// Make all pictures grey [default: if all are].
    #[arg(long, conflicts_with = "rgb", help_heading = "Pictures")]
    pub grey: bool,
    /// Make all pictures coloured, with three channels.
    #[arg(long, help_heading = "Pictures")]
    pub rgb: bool,
    /// Leave out files that cannot be read as pictures; without it, they are an error.
    #[arg(long, help_heading = "Pictures")]
    pub skip_broken: bool,
    /// Column of the class: its name, or its number from 1 if none has that name [default: the one called label,
    /// class, target or species]; of arrays, the one of the labels.
    #[arg(long, value_name = "COLUMN", help_heading = "Tables")]
    pub label: Option<String>,
    /// Samples whose label is missing (empty, NA, NaN, null, ?) are an error, are left out (drop), or are a class of that
    /// name (keep).
    #[arg(long, value_enum, default_value = "error", hide_possible_values = true, help_heading = "Tables")]
    #[arg(value_name = "HOW")]
    pub missing_labels: MissingLabels,
    /// Whether the first row has the names of the columns [default: if it looks like it].
    #[arg(long, value_name = "yes|no", value_enum, help_heading = "Tables")]
    pub header: Option<Header>,
    /// Columns to leave out, such as a number of each row.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', help_heading = "Tables")]
    pub drop: Vec<String>,
}

/// Whether a table's first row has the names of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Header {
    /// It has.
    Yes,
    /// It is a sample.
    No,
}

impl ImportArgs {
    /// An error if an option was given that is for pictures.
    fn refuse_those_of_pictures(&self) -> Result<(), ImportError> {
        let given = [
            ("size", self.size.map(|size| size.to_string())),
            ("grey", self.grey.then(String::new)),
            ("rgb", self.rgb.then(String::new)),
            ("skip-broken", self.skip_broken.then(String::new)),
        ];
        self.refuse(given, "pictures")
    }

    /// An error if an option was given that is for tables alone.
    fn refuse_those_of_tables(&self) -> Result<(), ImportError> {
        let name = |header: Header| if header == Header::Yes { "yes" } else { "no" };
        let given = [
            ("drop", Some(self.drop.join(",")).filter(|drop| !drop.is_empty())),
            ("header", self.header.map(|header| name(header).to_owned())),
        ];
        self.refuse(given, "tables")
    }

    /// An error if an option has a value, and is for other sources.
    fn refuse<const N: usize>(
        &self,
        given: [(&'static str, Option<String>); N],
        what: &str,
    ) -> Result<(), ImportError> {
        let Some((option, value)) = given.into_iter().find_map(|(option, value)| Some((option, value?)))
        else {
            return Ok(());
        };
        let why = format!("is for {what}, and {} has none: leave it out", self.source.display());
        Err(ImportError::option(option, value, why))
    }
}

/// A share between 0 and 1, as it is typed.
fn share(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok().filter(|share: &f64| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "must be above 0 and below 1, such as 0.2".into())
}

/// A number that f32 has.
fn finite(text: &str) -> Result<f32, String> {
    let number = text.trim().parse().ok().filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| "must be a number such as 0.5, from -3.4e38 to 3.4e38".into())
}

/// A number above 0 that f32 has.
fn above_0(text: &str) -> Result<f32, String> {
    finite(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("must be above 0".into()) })
}

/// The order of the samples in a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// Drawn from the seed.
    Random,
    /// That of the files: by class and then by name, or that of the rows.
    Files,
}

/// An import that is done.
#[derive(Debug)]
pub struct Imported {
    /// What was written.
    pub set: DataSet,
    /// Number of training and of test samples of each class.
    pub counts: [Vec<usize>; 2],
}

/// Samples done, and all of them; the import stops on `Break`.
pub type Progress<'a> = dyn Fn(usize, usize) -> ControlFlow<()> + Sync + 'a;

/// Writes the data set of `args`. The folder has all of it or, after an error, what it had before. What happened to
/// the samples is logged.
///
/// # Errors
/// When the source cannot be read or has what cannot be imported, or the data set cannot be written.
pub fn import(args: &ImportArgs, progress: &Progress<'_>) -> Result<Imported, ImportError> {
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
        log::warn!("all samples are of one class, {}: there is nothing to tell apart", quoted(one));
    }
    let learned = imported.counts[0].iter().copied().filter(|&count| count > 0);
    if let (Some(least), Some(most)) = (learned.clone().min(), learned.max())
        && most > 10 * least
    {
        log::warn!(
            "the largest class has {most} training samples and the smallest {least}: a network may learn to name \
             the large ones alone"
        );
    }
    Ok(imported)
}

/// Which classes have no samples in a split, in a line for each kind.
fn without_samples(Imported { set, counts: [train, test] }: &Imported) -> Vec<String> {
    type IsSo = fn(usize, usize) -> bool;
    let kinds: [(&str, IsSo); 3] = [
        ("no sample", |train, test| train + test == 0),
        ("test samples and none to learn from", |train, test| train == 0 && test > 0),
        ("no test sample", |train, test| train > 0 && test == 0),
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

/// Imports a file or a folder, which an archive may have in a folder of its own.
fn from_source(source: &Path, job: &Job<'_>) -> Result<Imported, ImportError> {
    let args = job.args;
    let tables = match source.is_dir() {
        true => {
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
        }
        false => match &args.test_split {
            Some(name) => {
                let problem = format!("{} is one table, and has no other split", source.display());
                return Err(ImportError::option("test-split", short(name), problem));
            }
            None => Tables::one(TableFiles::one(source)),
        },
    };
    match parquet_file::column_of_pictures(&tables.train.files[0])? {
        None => table::import(&tables, job),
        Some(column) => pictures::import(parquet_file::pictures(&tables, &column, job)?, None, job),
    }
}

/// Checks that neither folder is in the other.
fn check_places(source: &Path, out: &Path) -> Result<(), ImportError> {
    if !source.is_dir() {
        // A pipe without a name (`<(command)`) cannot be resolved, and another is waited for without end.
        if std::fs::metadata(source).is_ok_and(|found| found.file_type().is_fifo()) {
            bail!(source, "is a pipe, and a file is needed: write its contents to a file first");
        }
        run_record::files::open_regular(source).map_err(ImportError::read(source))?;
    }
    let from = source.canonicalize().map_err(ImportError::read(source))?;
    let to = std::path::absolute(out).map_err(ImportError::write(out))?;
    // Through links as far as there is anything.
    let resolved = |part: &Path| Some(part.canonicalize().ok()?.join(to.strip_prefix(part).ok()?));
    let to = to.ancestors().find_map(resolved).unwrap_or(to.clone());
    if std::env::current_dir().is_ok_and(|here| to == here) {
        let problem =
            "is the folder that you are in, in whose place the import puts another: start it outside";
        return Err(ImportError::option("out", out.display(), problem));
    }
    if to.starts_with(&from) || from.starts_with(&to) {
        return Err(ImportError::option(
            "out",
            out.display(),
            format!("and {} are one folder, or one is in the other: choose another", source.display()),
        ));
    }
    Ok(())
}
