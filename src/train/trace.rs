//! Observation of the parts of a training, for a time line.
//!
//! A [`Trainer`](super::Trainer) is generic over the observer. That of a training without a
//! time line is [`Untraced`], whose calls are compiled to what they observe: neither a clock
//! nor a branch is left.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use super::{CrossEntropy, Forward, LabelledBytes, Loss, Samples, Scored};
use crate::model::{BatchPlace, Network};
use crate::quant::Quantizer;
use burn_mpi::{CommError, GradientSync};

/// A part of a training outside forward, backward and update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Reading and augmenting the samples of a step.
    Samples,
    /// Converting samples to a batch.
    Batch,
    /// The test after an epoch.
    Evaluation,
    /// A checkpoint.
    Checkpoint,
}

/// Observer of a training on the thread that trains. Methods do by default what they observe,
/// and nothing else.
pub trait Trace: Clone {
    /// Begins the step with this number, from 1.
    ///
    /// # Errors
    /// If an earlier backward of `sync` panicked.
    fn begin_step(&mut self, _step: usize, _sync: &mut GradientSync) -> Result<(), CommError> {
        Ok(())
    }

    /// Ends it.
    fn end_step(&mut self, _sync: &GradientSync) {}

    /// Begins a part, which [`end`](Self::end) ends.
    fn begin(&self, _part: Part) {}

    /// Ends the part that began last.
    fn end(&self) {}

    /// The scores of a batch.
    fn forward(
        &mut self,
        inner: &mut Option<Quantizer>,
        network: &Network,
        input: Tensor<4>,
        place: &BatchPlace,
    ) -> Tensor<2> {
        inner.forward(network, input, place)
    }

    /// The loss of a batch, whose backward follows.
    fn score(&self, loss: &CrossEntropy, scores: Tensor<2>, labels: &[u8]) -> Scored {
        loss.score(scores, labels)
    }

    /// Begins the weight update, which ends the step.
    fn begin_update(&mut self) {}
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Untraced;

impl Trace for Untraced {}

/// Forward pass, loss or samples with their observer.
#[derive(Debug, Clone)]
pub(super) struct Observed<X, T> {
    pub inner: X,
    pub trace: T,
}

impl<T: Trace> Forward<Network> for Observed<Option<Quantizer>, T> {
    fn begin_step(&mut self, network: &Network) {
        self.inner.begin_step(network);
    }

    fn forward(&mut self, network: &Network, input: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        self.trace.forward(&mut self.inner, network, input, place)
    }

    fn averaged(&mut self, network: &Network) -> &mut [f32] {
        self.inner.averaged(network)
    }

    fn end_step(&mut self) {
        self.trace.begin_update();
        Forward::<Network>::end_step(&mut self.inner);
    }
}

impl<T: Trace> Loss<Tensor<2>, &[u8]> for Observed<CrossEntropy, T> {
    fn score(&self, scores: Tensor<2>, labels: &[u8]) -> Scored {
        self.trace.score(&self.inner, scores, labels)
    }
}

impl<'a, T: Trace> Samples for Observed<LabelledBytes<'a>, &T> {
    type Input = Tensor<4>;
    type Target = &'a [u8];

    fn count(&self) -> usize {
        self.inner.count()
    }

    fn batch(&self, range: Range<usize>, device: &Device) -> (Tensor<4>, &'a [u8]) {
        self.trace.begin(Part::Batch);
        let batch = self.inner.batch(range, device);
        self.trace.end();
        batch
    }
}
