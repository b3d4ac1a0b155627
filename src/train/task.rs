//! Samples of a step, and their loss.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::Tally;
use crate::data::Normalizer;
use burn_fused::loss::{Score, smoothed_cross_entropy};

/// A rank's samples of one step as stored in files, with a class each; they are split into micro-batches.
#[derive(Debug, Clone, Copy)]
pub struct LabelledBytes<'a> {
    /// The samples concatenated, in the file's layout.
    pub bytes: &'a [u8],
    /// A class for each sample.
    pub labels: &'a [u8],
    /// Converts the bytes to floats.
    pub normalizer: &'a Normalizer,
}

impl<'a> LabelledBytes<'a> {
    /// Number of samples.
    pub fn count(&self) -> usize {
        self.labels.len()
    }

    /// The batch of a range of samples, on `device`.
    pub fn batch(&self, range: Range<usize>, device: &Device) -> (Tensor<4>, &'a [u8]) {
        let size = self.bytes.len() / self.labels.len().max(1);
        let bytes = &self.bytes[range.start * size..range.end * size];
        (self.normalizer.images(bytes, device), &self.labels[range])
    }
}

/// Cross entropy of class scores `[batch, classes]`: the mean over the batch `[1]`, for backward, and the metrics.
/// `smoothing` is the share of each label that is spread over all classes, from 0 to below 1.
pub fn cross_entropy(scores: Tensor<2>, labels: &[u8], smoothing: f64) -> (Tensor<1>, Tally) {
    let Score { loss, value, correct } = smoothed_cross_entropy(scores, labels, smoothing);
    (loss, Tally::of_batch(value, correct, labels.len()))
}
