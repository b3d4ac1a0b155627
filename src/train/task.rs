//! Traits of a training task: samples and loss.
//!
//! The step depends on neither images nor classes. It can train any task that
//! has samples in batches and a differentiable loss.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::Tally;
use crate::data::Normalizer;
use burn_fused::loss::{Score, smoothed_cross_entropy};

/// This rank's samples of one step, which are split into micro-batches.
pub trait Samples {
    /// Input of a model.
    type Input;
    /// Target that a loss compares with the output.
    type Target;

    /// Number of samples.
    fn count(&self) -> usize;

    /// The batch of a range of samples, on `device`.
    fn batch(&self, range: Range<usize>, device: &Device) -> (Self::Input, Self::Target);
}

/// The loss of a batch.
#[derive(Debug)]
pub struct Scored {
    /// Mean over the batch `[1]`, for backward.
    pub loss: Tensor<1>,
    /// The batch's metrics.
    pub tally: Tally,
}

/// The objective of a training.
pub trait Loss<Output, Target> {
    /// The mean loss of a batch, and its metrics.
    fn score(&self, output: Output, target: Target) -> Scored;
}

/// Samples as stored in files, with a class each.
#[derive(Debug, Clone, Copy)]
pub struct LabelledBytes<'a> {
    /// The samples concatenated, in the file's layout.
    pub bytes: &'a [u8],
    /// A class for each sample.
    pub labels: &'a [u8],
    /// Converts the bytes to floats.
    pub normalizer: &'a Normalizer,
}

impl<'a> Samples for LabelledBytes<'a> {
    type Input = Tensor<4>;
    type Target = &'a [u8];

    fn count(&self) -> usize {
        self.labels.len()
    }

    fn batch(&self, range: Range<usize>, device: &Device) -> (Tensor<4>, &'a [u8]) {
        let size = self.bytes.len() / self.labels.len().max(1);
        let bytes = &self.bytes[range.start * size..range.end * size];
        (self.normalizer.images(bytes, device), &self.labels[range])
    }
}

/// Cross entropy of class scores `[batch, classes]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CrossEntropy {
    /// Label smoothing: share of each label that is spread over all classes,
    /// from 0 to below 1.
    pub smoothing: f64,
}

impl Loss<Tensor<2>, &[u8]> for CrossEntropy {
    fn score(&self, scores: Tensor<2>, labels: &[u8]) -> Scored {
        let Score { loss, value, correct } = smoothed_cross_entropy(scores, labels, self.smoothing);
        Scored { loss, tally: Tally::of_batch(value, correct, labels.len()) }
    }
}
