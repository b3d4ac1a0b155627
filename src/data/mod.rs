//! From files to batches: which samples there are, which of them are this
//! rank's, and how they become tensors.

pub mod augment;
pub mod batch;
mod cifar10;
mod data_file;
mod element;
mod error;
pub mod generate;
mod idx;
mod kind;
mod mnist;
mod npy;
mod npy_header;
mod npy_pairs;
pub mod shard;

use std::path::Path;

pub use batch::Normalizer;
pub use cifar10::Cifar10;
pub use element::Element;
pub use error::DataError;
pub use kind::Kind;
pub use mnist::Mnist;
pub use npy::write_npy;
pub use npy_pairs::NpyPairs;
pub use shard::{Shard, ShardPlan};

/// Which part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Trained on.
    Train = 0,
    /// Measured on.
    Test = 1,
}

impl Split {
    /// Both, in their usual order.
    pub const ALL: [Self; 2] = [Self::Train, Self::Test];

    /// `train` or `test`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
        }
    }
}

/// What every sample of a data set has in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The format.
    pub kind: Kind,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// What a sample's numbers are, as they are on disk.
    pub element: Element,
    /// Number of classes; labels are below it.
    pub classes: usize,
    /// What the data set calls each class.
    pub class_names: Vec<String>,
    /// Mean per channel, of bytes scaled to [0, 1]; floats stay as they are.
    pub mean: Vec<f32>,
    /// Standard deviation per channel, of bytes scaled to [0, 1].
    pub std: Vec<f32>,
}

impl Description {
    /// Bytes of a sample, as it is on disk.
    pub fn sample_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element.bytes()
    }
}

/// A data set on disk, read in file order and as far as needed.
pub trait SampleSource {
    /// What the samples have in common.
    fn description(&self) -> &Description;

    /// Number of samples of `split`.
    fn len(&self, split: Split) -> usize;

    /// Calls `visit` with the number and the bytes of each of the first
    /// `limit` samples, in file order. The bytes are channels of rows of
    /// [`Description::element`], little-endian.
    ///
    /// # Errors
    /// When a file cannot be read to its end, or holds what is no number.
    fn for_each_image(
        &self,
        split: Split,
        limit: usize,
        visit: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), DataError>;

    /// Labels of the first `limit` samples, checked against the classes.
    ///
    /// # Errors
    /// When the file cannot be read, or a label is out of range.
    fn labels(&self, split: Split, limit: usize) -> Result<Vec<u8>, DataError>;
}

/// Opens the data set in `root`, of whichever kind it is.
///
/// # Errors
/// When there is none or more than one, or a file is not what its name says.
pub fn open(root: &Path) -> Result<Box<dyn SampleSource>, DataError> {
    Ok(match Kind::of_folder(root)? {
        Kind::Idx => Box::new(Mnist::open(root)?),
        Kind::Cifar10 => Box::new(Cifar10::open(root)?),
        Kind::Npy => Box::new(NpyPairs::open(root)?),
        Kind::Noise => return Err(DataError::NoneHere { root: root.to_owned() }),
    })
}
