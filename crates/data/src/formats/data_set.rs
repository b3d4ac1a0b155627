//! Reads `dataset.json`, the description of an imported data set. `mpiburn data import` writes this file.

use std::path::{Path, PathBuf};

use run_record::count;
use serde::{Deserialize, Serialize};

use crate::import::Fit;
use crate::import::labels::twin;
use crate::{DataError, Element, Split};

/// Name of the file that describes an imported data set.
pub const FILE: &str = "dataset.json";

/// An imported data set, as `dataset.json` describes it. The same folder contains two files for each split,
/// `train` and `test`:
/// - `SPLIT-images.npy`: `[samples, channels, height, width]` of bytes, or `[samples, features]` of f32;
/// - `SPLIT-labels.npy`: `[samples]` of u16, the index of each sample's class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataSet {
    /// Version of the format of `dataset.json`. This program reads and writes version 1.
    pub version: u32,
    /// Channels, height and width of a sample. For a feature vector: 1, 1 and the number of features.
    pub shape: [usize; 3],
    /// Type of the numbers that a sample consists of, u8 or f32.
    pub numbers: Element,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// For bytes: mean of each channel, with bytes scaled to [0, 1]. For floats: mean of each feature.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel or feature, in the units of `mean`.
    pub std: Vec<f32>,
    /// The training split.
    pub train: SplitRecord,
    /// The test split.
    pub test: SplitRecord,
    /// Names of the features. Empty for pictures, and for features without names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub features: Vec<String>,
    /// How pictures were fitted to the size that the user chose, or `None` if they kept their own size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<Fit>,
    /// Path of the file or folder that was imported.
    pub source: PathBuf,
    /// Seed for the order of the samples and for the choice of the test samples.
    pub seed: u64,
}

/// What `dataset.json` records of a split.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SplitRecord {
    /// Number of samples.
    pub samples: usize,
    /// SHA-256 digest of labels and samples. `mpiburn data info` prints it. A training computes the digest of
    /// the files again, and compares it with this one.
    pub sha256: String,
    /// Origin of each sample: a file below `source`, `file:line` or `file:row` of a table, or `file[row]` of
    /// an array. Training does not read this field.
    #[serde(default, skip_deserializing)]
    pub from: Vec<String>,
}

impl DataSet {
    /// Returns the dtype and the shape of an array of `samples` samples. A sample has the given channels,
    /// height and width, and `numbers` is the type of its numbers.
    pub(crate) fn array(
        samples: usize,
        [channels, height, width]: [usize; 3],
        numbers: Element,
    ) -> (&'static str, Vec<usize>) {
        match numbers {
            Element::U8 => ("|u1", vec![samples, channels, height, width]),
            _ => ("<f4", vec![samples, channels * height * width]),
        }
    }

    /// Returns the record of `split`.
    pub(crate) fn split(&self, split: Split) -> &SplitRecord {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }

    /// Reads `dataset.json` in `folder` and checks it.
    ///
    /// # Errors
    /// When the file cannot be read, is not valid JSON of this format, has another version, or contradicts
    /// itself.
    pub fn read(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(FILE);
        let text = run_record::files::read_text(&path).map_err(DataError::read(&path))?;
        let set: Self = serde_json::from_str(&text).map_err(|error| {
            DataError::source(
                &path,
                format!("{}; import the data set again", run_record::json_problem(&error)),
            )
        })?;
        let values = match set.numbers {
            Element::U8 => set.shape[0],
            _ => set.shape.iter().product(),
        };
        if twin(&set.classes).is_some() {
            bail!(&path, "contains two classes with the same name: import the data set again");
        }
        if twin(&set.features).is_some() || !(set.features.is_empty() || set.features.len() == values) {
            bail!(&path, "lists features that do not match the samples: import the data set again");
        }
        if set.version != 1 {
            bail!(
                &path,
                "has version {}, but this program reads version 1: import the data set again",
                set.version
            );
        }
        if set.shape.contains(&0) || set.classes.is_empty() {
            bail!(&path, "has an empty shape or no classes: import the data set again");
        }
        if set.mean.len() != values || set.std.len() != values {
            bail!(
                &path,
                "has {} and {} for {}: import the data set again",
                count(set.mean.len(), "mean"),
                count(set.std.len(), "standard deviation"),
                count(values, if set.numbers == Element::U8 { "channel" } else { "feature" })
            );
        }
        let are_numbers = set.mean.iter().all(|mean| mean.is_finite())
            && set.std.iter().all(|std| std.is_finite() && *std > 0.0);
        if !are_numbers {
            bail!(
                &path,
                "contains a mean that is not finite, or a standard deviation that is not above 0: import the \
                 data set again"
            );
        }
        Ok(set)
    }

    /// Returns the name of the file of `split` that contains `what`: `images` or `labels`.
    pub fn file_name(split: &str, what: &str) -> String {
        format!("{split}-{what}.npy")
    }

    /// Returns the names of all files of an imported data set.
    pub fn file_names() -> [String; 5] {
        let name = Self::file_name;
        [
            FILE.into(),
            name("train", "images"),
            name("train", "labels"),
            name("test", "images"),
            name("test", "labels"),
        ]
    }
}

/// Converts labels to the bytes that the digest of a split covers: one byte for each label if there are at
/// most 256 classes, and two bytes otherwise.
pub fn label_bytes(labels: &[u16], classes: usize) -> Vec<u8> {
    let bytes = if classes <= 256 { 1 } else { 2 };
    labels.iter().flat_map(|label| label.to_le_bytes().into_iter().take(bytes)).collect()
}
