//! Errors in data sets: the file, what is wrong, what to do.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use crate::import::ImportError;
use run_record::quoted;

use crate::DataFormat;

/// An error in the files of a data set.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The folder contains no data set.
    #[error("{}", instead(root))]
    NoneHere {
        /// The folder.
        root: PathBuf,
    },
    /// Which files are wrong, and what to do.
    #[error("{0}")]
    Files(String),
}

/// What to do with samples that a format of experiments does not have.
pub(super) const OTHER_SAMPLES: &str =
    "replace the file if it is damaged; samples of other classes or sizes are for `mpiburn data import`";

impl DataError {
    /// That the folder `root` has more than one data set, by a file of each.
    pub(super) fn several(root: &Path, [first, second]: [impl Display; 2]) -> Self {
        let root = root.display();
        Self::Files(format!(
            "two data sets in {root}, of {first} and of {second}; name one of them, or move it to another folder"
        ))
    }

    /// That a file of a data set of this kind is missing; `also` says more, such as another missing file.
    pub(super) fn missing(path: &Path, also: &str, kind: DataFormat) -> Self {
        let (path, generator) = (path.display(), kind.generator());
        Self::Files(format!(
            "{path} is missing{also}; generate a data set with `mpiburn data {generator}`, or point --data-root at one"
        ))
    }

    /// That a file does not have the expected format.
    pub(super) fn invalid(path: &Path, what: &str, kind: DataFormat) -> Self {
        let (path, generator) = (path.display(), kind.generator());
        Self::Files(format!(
            "{path}: {what}; save or download the file again, or generate a data set with `mpiburn data {generator}`"
        ))
    }

    /// That a file is well-formed, but cannot be used as it is.
    pub(super) fn unsuitable(path: &Path, what: impl Display) -> Self {
        Self::Files(format!("{}: {what}", path.display()))
    }

    /// That a label of the file at `path` is none of the `classes`; `at` says which.
    pub(super) fn label(path: &Path, label: u16, at: &str, classes: usize) -> Self {
        let last = classes - 1;
        Self::unsuitable(path, format!("label {label} of {at} is outside 0 to {last}; {OTHER_SAMPLES}"))
    }

    /// An error of a file of a data set of this kind.
    pub(super) fn of(kind: DataFormat, error: ImportError) -> Self {
        match error {
            ImportError::Read { path, reason } => Self::read(&path)(reason),
            ImportError::Damaged { path, what } => Self::invalid(&path, &what, kind),
            other => Self::Files(other.to_string()),
        }
    }

    /// An error of the file at `path` that cannot be read.
    pub(super) fn read(path: &Path) -> impl Fn(std::io::Error) -> Self {
        let path = path.display().to_string();
        move |reason| {
            Self::Files(format!(
                "cannot read {path}: {reason}; generate a data set with `mpiburn data`, or point --data-root at one"
            ))
        }
    }
}

impl From<ImportError> for DataError {
    fn from(error: ImportError) -> Self {
        Self::of(DataFormat::Npy, error)
    }
}

/// What a folder without a data set holds, and what to do.
fn instead(root: &Path) -> String {
    let folder = root.display();
    if root.is_file() {
        return format!(
            "no data set in {folder}: it is a file; make a data set of it with `mpiburn data import {} --out DIR`, for \
             --data-root DIR",
            quoted(&folder)
        );
    }
    // Their tables are no samples.
    for (file, what) in [("run.json", "run"), ("sweep.json", "sweep")] {
        if root.join(file).is_file() {
            return format!("no data set in {folder}: it is a {what}; name the folder of a data set instead");
        }
    }
    if let Some(what) = crate::import::recognised(root) {
        let set = format!("{}-set", folder.to_string().trim_end_matches('/'));
        return format!(
            "no data set in {folder}: it has {what}; make one of it with `mpiburn data import {} --out {}`",
            quoted(&folder),
            quoted(set)
        );
    }
    // One that is named after a kind is generated as those of `mpiburn data` are.
    let named = ["digits", "objects", "features"].into_iter().find(|kind| root.ends_with(kind));
    let others = if named.is_none() { " (or objects, features)" } else { "" };
    let generate = format!("`mpiburn data {} --out {}`{others}", named.unwrap_or("digits"), quoted(&folder));
    match (root.exists(), named) {
        (false, None) => format!(
            "there is no folder {folder}: point --data-root at the folder of a data set, or make one with `mpiburn data \
             digits` (or objects, features) or, of your own pictures or table, `mpiburn data import`"
        ),
        (false, Some(_)) => format!(
            "there is no folder {folder}: generate one with {generate}, or point --data-root at the folder of a data set"
        ),
        (true, _) => format!(
            "no data set in {folder}: it has none of dataset.json, train-images-idx3-ubyte (or .gz), data_batch_1.bin \
             and train_data/train_x.npy; point --data-root at the folder of a data set, generate one with {generate}, \
             or make one of your own pictures or table with `mpiburn data import`"
        ),
    }
}
