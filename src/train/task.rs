//! What is trained on: samples, and the loss of what a model makes of them.
//!
//! The step knows neither images nor classes. Whatever has samples that become
//! batches, and a loss whose gradient can be taken, can be trained by it.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::Tally;
use crate::data::Normalizer;
use burn_fused::loss::{Score, smoothed_cross_entropy};

/// This rank's samples of one step, from which micro-batches are cut.
pub trait Samples {
    /// What a model takes.
    type Input;
    /// What a loss compares its output with.
    type Target;

    /// How many there are.
    fn count(&self) -> usize;

    /// The batch of some of them, on `device`.
    fn batch(&self, range: Range<usize>, device: &Device) -> (Self::Input, Self::Target);
}

/// The loss of a batch.
#[derive(Debug)]
pub struct Scored {
    /// Mean over the batch `[1]`, to start backward from.
    pub loss: Tensor<1>,
    /// The batch's metrics.
    pub tally: Tally,
}

/// What training makes smaller.
pub trait Loss<Output, Target> {
    /// The mean loss of a batch, and its metrics.
    fn score(&self, output: Output, target: Target) -> Scored;
}

/// Samples as they are in files, with a class each.
#[derive(Debug, Clone, Copy)]
pub struct LabelledBytes<'a> {
    /// One sample after the other, in the file's layout.
    pub bytes: &'a [u8],
    /// A class for each sample.
    pub labels: &'a [u8],
    /// Makes floats of the bytes.
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
    /// Share of each label that is spread over all classes, from 0 to below 1.
    pub smoothing: f64,
}

impl Loss<Tensor<2>, &[u8]> for CrossEntropy {
    fn score(&self, scores: Tensor<2>, labels: &[u8]) -> Scored {
        let Score { loss, value, correct } = smoothed_cross_entropy(scores, labels, self.smoothing);
        Scored { loss, tally: Tally::of_batch(value, correct, labels.len()) }
    }
}
