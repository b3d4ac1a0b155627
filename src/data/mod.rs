//! From files to batches: which samples there are, which of them are this
//! rank's, and how they become tensors.

pub mod batch;
pub mod digits;
mod error;
mod idx;
mod mnist;
pub mod shard;
pub mod synthetic;

use std::path::Path;

pub use batch::Normalizer;
pub use error::DataError;
pub use mnist::Mnist;
pub use shard::{Shard, ShardPlan};

/// Which part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Trained on.
    Train = 0,
    /// Measured on.
    Test = 1,
}

/// What every sample of a data set has in common.
#[derive(Debug, Clone, PartialEq)]
pub struct Description {
    /// The format, as `idx`.
    pub kind: String,
    /// Channels, height and width of a sample.
    pub shape: [usize; 3],
    /// Number of classes; labels are below it.
    pub classes: usize,
    /// Mean per channel, of values scaled to [0, 1].
    pub mean: Vec<f32>,
    /// Standard deviation per channel, of values scaled to [0, 1].
    pub std: Vec<f32>,
}

/// A data set on disk, read in file order and as far as needed.
pub trait SampleSource {
    /// What the samples have in common.
    fn description(&self) -> &Description;

    /// Number of samples of `split`.
    fn len(&self, split: Split) -> usize;

    /// Calls `visit` with the number and the bytes of each of the first
    /// `limit` samples, in file order.
    ///
    /// # Errors
    /// When a file cannot be read to its end.
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

/// Opens the data set in `root`.
///
/// # Errors
/// When there is none, or a file of it is not what its name says.
pub fn open(root: &Path) -> Result<Box<dyn SampleSource>, DataError> {
    Ok(Box::new(Mnist::open(root)?))
}
