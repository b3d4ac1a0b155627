//! Observer of a training that logs its spans for a time line.

use std::ops::RangeInclusive;
use std::time::Instant;

use burn::tensor::Tensor;
use burn_mpi::{CommError, GradientSync};

use super::current::{begin, begin_batch, end, end_batch, on_sync, pause, register, span, with_log};
use super::log::Log;
use super::phase::Phase;
use super::recorder::Recorder;
use super::watch::{WatchedForward, WatchedLoss, WatchedSamples};
use crate::model::{BatchPlace, Network, Operator};
use crate::quant::Quantizer;
use crate::train::{CrossEntropy, Forward, Loss, Part, Scored, Trace};

/// Logs the steps in a range, and what happens between them and before the next step, on the
/// thread that made it. [`Recorder::stop`] returns the log.
#[derive(Debug, Clone)]
pub struct TimeLine {
    steps: RangeInclusive<usize>,
    forward: WatchedForward,
    loss: WatchedLoss,
    fake_quantized: usize,
    samples: usize,
    batch: usize,
    evaluation: usize,
    checkpoint: usize,
}

impl TimeLine {
    /// Logs `steps`, counted from 1, of a training with this loss. Times are those since
    /// `since`.
    pub fn start(since: Instant, steps: RangeInclusive<usize>, loss: CrossEntropy) -> Self {
        Recorder::default().with_log(Log::new(since, steps.clone())).start();
        pause(true);
        let new = |layer: &str, kind: &str, phase| register(Operator::new(layer, kind), phase);
        Self {
            steps,
            forward: WatchedForward::default(),
            loss: WatchedLoss::new(loss),
            fake_quantized: new("network", "fake quantized", Phase::Forward),
            samples: new("samples", "read and augment", Phase::Data),
            batch: WatchedSamples::row(),
            evaluation: new("evaluation", "evaluation", Phase::Evaluation),
            checkpoint: new("checkpoint", "checkpoint", Phase::Checkpoint),
        }
    }
}

impl Trace for TimeLine {
    fn begin_step(&mut self, step: usize, sync: &mut GradientSync) -> Result<(), CommError> {
        if step == *self.steps.start() {
            pause(false);
            with_log(|log| log.set_step(step - 1));
            sync.watch(Some(on_sync))?;
        }
        if step == *self.steps.end() + 1 {
            sync.watch(None)?;
            pause(true);
        }
        begin_batch();
        Ok(())
    }

    fn end_step(&mut self, sync: &GradientSync) {
        end_batch();
        log_buckets(sync);
    }

    fn begin(&self, part: Part) {
        begin(match part {
            Part::Samples => self.samples,
            Part::Batch => self.batch,
            Part::Evaluation => self.evaluation,
            Part::Checkpoint => self.checkpoint,
        });
    }

    fn end(&self) {
        end();
    }

    /// With fake quantization, the network is one operator.
    fn forward(
        &mut self,
        inner: &mut Option<Quantizer>,
        network: &Network,
        input: Tensor<4>,
        place: &BatchPlace,
    ) -> Tensor<2> {
        match inner {
            Some(inner) => span(self.fake_quantized, || inner.forward(network, input, place)),
            None => self.forward.forward(network, input, place),
        }
    }

    fn score(&self, _loss: &CrossEntropy, scores: Tensor<2>, labels: &[u8]) -> Scored {
        self.loss.score(scores, labels)
    }

    fn begin_update(&mut self) {
        Forward::<Network>::end_step(&mut self.forward);
    }
}

/// Logs the buckets of the current step, if there is a log.
pub fn log_buckets(sync: &GradientSync) {
    with_log(|log| log.buckets(&sync.report().buckets));
}
