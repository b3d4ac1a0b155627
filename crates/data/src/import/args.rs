//! Command-line options of `mpiburn data import`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::DataError;
use crate::import::labels::MissingLabels;
use crate::import::pictures::picture::{Fit, Size};

/// Options of an import.
#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn data import pets --out data/pets   # pets/cat/*.jpg, pets/dog/*.jpg
  mpiburn data import pets --out data/pets --size 64 --fit pad   # many sizes
  mpiburn data import imagewoof --out data/woof --size 64   # train/, val/
  mpiburn data import iris.csv --out data/iris --label species

Classes are numbered in the order of their folders' names, as by torchvision's ImageFolder. Samples are \
written in an order drawn from the seed, because training reads them in the order of the file."
)]
pub struct ImportArgs {
    /// A folder with a folder of pictures for each class, or such folders in train and test (or val);
    /// pictures with a table of their classes; a table (.csv, .tsv, .gz, .parquet), or train.csv and
    /// test.csv; NumPy's arrays (.npz, .npy); CIFAR's python batches; IDX files; or a .zip, .tar or .tar.gz
    /// of these.
    #[arg(value_name = "SOURCE")]
    pub source: PathBuf,
    /// Folder to write the data set to; created if missing.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Replace an imported data set in DIR.
    #[arg(long)]
    pub overwrite: bool,
    /// Share of each class that becomes the test split, if SOURCE has no test split [default: 0.2].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub test_fraction: Option<f64>,
    /// Name of the split that is used for the test, if SOURCE has several [default: the first of test, eval,
    /// val and dev that shares a class with the training split].
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub test_split: Option<String>,
    /// Order of the samples in the data set.
    #[arg(long, value_enum, default_value = "random", hide_short_help = true)]
    pub order: Order,
    /// Seed of the order and of the test split.
    #[arg(long, default_value_t = 7, hide_short_help = true)]
    pub seed: u64,
    /// Mean of each channel of pictures, with pixels scaled to 0..1, or of each feature. One value applies to
    /// all channels or features [default: the mean of the training split].
    #[arg(long, value_name = "X,…", value_delimiter = ',', value_parser = finite, hide_short_help = true)]
    pub mean: Option<Vec<f32>>,
    /// Standard deviation of each channel or feature [default: the standard deviation of the training split].
    #[arg(long, value_name = "X,…", value_delimiter = ',', value_parser = above_0, hide_short_help = true)]
    pub std: Option<Vec<f32>>,
    /// Height and width of all pictures, such as 64x96, or 64 for both [default: their own size, if all have
    /// the same].
    #[arg(long, value_name = "HxW", help_heading = "Pictures")]
    pub size: Option<Size>,
    /// How to fit pictures of another shape into --size [default: crop].
    #[arg(long, value_enum, requires = "size", help_heading = "Pictures")]
    pub fit: Option<Fit>,
    /// Make all pictures grey [default: only if all pictures are grey].
    #[arg(long, conflicts_with = "rgb", help_heading = "Pictures")]
    pub grey: bool,
    /// Make all pictures coloured, with three channels.
    #[arg(long, help_heading = "Pictures")]
    pub rgb: bool,
    /// Leave out files that cannot be read as pictures. Without this option, they are an error.
    #[arg(long, help_heading = "Pictures")]
    pub skip_broken: bool,
    /// Column of the class: its name, or its number from 1 if no column has that name [default: the column
    /// named label, class, target or species]. For arrays, the name of the array of labels.
    #[arg(long, value_name = "COLUMN", help_heading = "Tables")]
    pub label: Option<String>,
    /// What to do with samples whose label is missing (empty, NA, NaN, null, ?): error, drop (leave them
    /// out), or keep (such a word is a class; an empty label stays an error).
    #[arg(long, value_enum, default_value = "error", hide_possible_values = true, help_heading = "Tables")]
    #[arg(value_name = "HOW")]
    pub missing_labels: MissingLabels,
    /// Whether the first row has the names of the columns [default: detected].
    #[arg(long, value_name = "yes|no", value_enum, help_heading = "Tables")]
    pub header: Option<Header>,
    /// Columns to leave out, such as a row number.
    #[arg(long, value_name = "COLUMN,…", value_delimiter = ',', help_heading = "Tables")]
    pub drop: Vec<String>,
}

/// Whether a table's first row has the names of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Header {
    /// The first row has the names of the columns.
    Yes,
    /// The first row is a sample.
    No,
}

impl ImportArgs {
    /// Returns an error if the user has given an option that applies only to pictures.
    pub(super) fn refuse_those_of_pictures(&self) -> Result<(), DataError> {
        let given = [
            ("size", self.size.map(Size::as_typed)),
            ("grey", self.grey.then(String::new)),
            ("rgb", self.rgb.then(String::new)),
            ("skip-broken", self.skip_broken.then(String::new)),
        ];
        self.refuse(given, "pictures")
    }

    /// Returns an error if the user has given an option that applies only to tables.
    pub(super) fn refuse_those_of_tables(&self) -> Result<(), DataError> {
        let name = |header: Header| if header == Header::Yes { "yes" } else { "no" };
        let given = [
            ("drop", Some(self.drop.join(",")).filter(|drop| !drop.is_empty())),
            ("header", self.header.map(|header| name(header).to_owned())),
        ];
        self.refuse(given, "tables")
    }

    /// Returns an error for the first option in `given` that has a value. The options in `given` apply only
    /// to `what`, for example to pictures.
    fn refuse<const N: usize>(
        &self,
        given: [(&'static str, Option<String>); N],
        what: &str,
    ) -> Result<(), DataError> {
        let Some((option, value)) = given.into_iter().find_map(|(option, value)| Some((option, value?)))
        else {
            return Ok(());
        };
        let why = format!(
            "applies only to {what}, but {} contains no {what}: leave the option out",
            self.source.display()
        );
        Err(DataError::option(option, value, why))
    }
}

/// Parses a share between 0 and 1, both excluded.
fn share(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok().filter(|share: &f64| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "must be above 0 and below 1, such as 0.2".into())
}

/// Parses a finite f32.
fn finite(text: &str) -> Result<f32, String> {
    let number = text.trim().parse().ok().filter(|number: &f32| number.is_finite());
    number.ok_or_else(|| "must be a number such as 0.5, from -3.4e38 to 3.4e38".into())
}

/// Parses a finite f32 above 0.
fn above_0(text: &str) -> Result<f32, String> {
    finite(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("must be above 0".into()) })
}

/// The order of the samples in a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Order {
    /// A random order, drawn from the seed.
    Random,
    /// The order of the source: by class and then by name, or the order of the rows.
    Files,
}
