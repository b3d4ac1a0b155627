//! Observers of samples, operators, loss and optimizer, for inference and for a `Learner`.
//!
//! While nothing is recorded, each does the same as what it wraps.

use std::ops::Range;

use burn::tensor::{Device, Tensor};
use burn_fused::stamp_backward;

use super::current::{begin, follow, register, span, with};
use super::phase::Phase;
use crate::model::{BatchPlace, LayerWatch, Network, Operator};
use crate::train::{CrossEntropy, Forward, LabelledBytes, Loss, Plain, Samples, Scored};

/// What precedes the first operator's backward.
pub(super) const AUTODIFF: &str = "autodiff";

/// Rows of the operators of a network, in the order of forward.
#[derive(Debug, Clone, Default)]
pub struct OperatorWatch {
    /// Of forward and backward.
    rows: Vec<[usize; 2]>,
    next: usize,
}

impl OperatorWatch {
    /// Begins a forward pass.
    pub fn begin_forward(&mut self) -> &mut Self {
        self.next = 0;
        self
    }
}

fn rows_of(operator: Operator) -> [usize; 2] {
    [Phase::Forward, Phase::Backward].map(|phase| register(operator.clone(), phase))
}

impl LayerWatch for OperatorWatch {
    fn layer<const I: usize, const O: usize>(
        &mut self,
        operator: impl FnOnce() -> Operator,
        input: Tensor<I>,
        apply: impl FnOnce(Tensor<I>) -> Tensor<O>,
    ) -> Tensor<O> {
        if self.next == self.rows.len() {
            self.rows.push(rows_of(operator()));
        }
        let [forward, backward] = self.rows[self.next];
        self.next += 1;
        stamp_backward(span(forward, || apply(input)), backward, follow)
    }
}

/// Whether this thread records.
fn is_on() -> bool {
    with(|_| ()).is_some()
}

/// The network's own forward pass, with its operators recorded.
#[derive(Debug, Clone, Default)]
pub struct WatchedForward {
    watch: OperatorWatch,
    optimizer: Option<usize>,
}

impl Forward<Network> for WatchedForward {
    fn forward(&mut self, network: &Network, input: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        match is_on() {
            true => network.apply_watched(input, Some(place), self.watch.begin_forward()),
            false => Plain.forward(network, input, place),
        }
    }

    /// The weight update follows, and ends the step.
    fn end_step(&mut self) {
        if is_on() {
            let new = || register(Operator::new("optimizer", "optimizer"), Phase::Optimizer);
            begin(*self.optimizer.get_or_insert_with(new));
        }
    }
}

/// Cross entropy, recorded.
#[derive(Debug, Clone)]
pub struct WatchedLoss {
    loss: CrossEntropy,
    rows: [usize; 2],
    graph: usize,
}

impl WatchedLoss {
    /// `loss`, for the recorder of this thread.
    pub fn new(loss: CrossEntropy) -> Self {
        let rows = rows_of(Operator::new("loss", "cross entropy"));
        Self { loss, rows, graph: register(Operator::new(AUTODIFF, AUTODIFF), Phase::Backward) }
    }
}

impl Loss<Tensor<2>, &[u8]> for WatchedLoss {
    fn score(&self, scores: Tensor<2>, labels: &[u8]) -> Scored {
        if !is_on() {
            return self.loss.score(scores, labels);
        }
        let [forward, backward] = self.rows;
        let Scored { loss, tally } = span(forward, || self.loss.score(scores, labels));
        let loss = stamp_backward(loss, backward, follow);
        // Backward orders the graph before the first stamp.
        follow(self.graph);
        Scored { loss, tally }
    }
}

/// Samples whose conversion to a batch is recorded.
#[derive(Debug, Clone, Copy)]
pub struct WatchedSamples<'a> {
    /// The samples.
    pub samples: LabelledBytes<'a>,
    /// Their row, of [`row`](Self::row).
    pub row: usize,
}

impl WatchedSamples<'_> {
    /// A row for samples.
    pub fn row() -> usize {
        register(Operator::new("samples", "bytes to tensor"), Phase::Data)
    }
}

impl<'a> Samples for WatchedSamples<'a> {
    type Input = Tensor<4>;
    type Target = &'a [u8];

    fn count(&self) -> usize {
        self.samples.count()
    }

    fn batch(&self, range: Range<usize>, device: &Device) -> (Tensor<4>, &'a [u8]) {
        span(self.row, || self.samples.batch(range, device))
    }
}
