//! Results of a trainer: weights, times, position.

use std::time::Duration;

use super::Trainer;
use crate::quant::Quantizer;
use crate::train::Position;
use burn_mpi::{ParamLayout, SyncReport};
use run_record::files::sha256_of_f32;
use run_record::{DataDigests, StepMs};

impl Trainer<'_> {
    /// The layout of the weights.
    pub fn layout(&self) -> &ParamLayout {
        self.learner.layout()
    }

    /// SHA-256 over all weights.
    pub fn weights_sha256(&self) -> String {
        sha256_of_f32(&self.learner.params)
    }

    /// The gradient buckets, and whether they overlapped with backward.
    pub fn sync_report(&self) -> SyncReport {
        self.learner.sync.report()
    }

    /// Times of this process's steps by phase, on this rank.
    pub fn step_ms(&self) -> StepMs {
        let steps = self.steps_here.max(1) as f64;
        self.learner.times().map(|time| 1e3 * time.as_secs_f64() / steps)
    }

    /// The digest of the training samples in use, which is the same on all ranks.
    pub fn data_sha256(&self) -> &str {
        self.shard.digest()
    }

    /// Number of test samples in use of the most frequent class among them.
    pub fn largest_test_class(&self) -> usize {
        self.evaluation.largest_class()
    }

    /// The digests of all samples in use.
    pub fn data_digests(&self) -> DataDigests {
        let of = |samples| self.source.description().digest(samples);
        DataDigests { train: of(self.shard.digest()), test: of(self.evaluation.data_sha256()) }
    }

    /// Adds the time before the first step, for the results.
    pub fn count_start_up(&mut self, time: Duration) {
        self.position.start_up_seconds += time.as_secs_f64();
    }

    /// The position of the run.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// The quantizer of quantization-aware training.
    pub(super) fn quantizer(&self) -> Option<&Quantizer> {
        self.learner.quantizer.as_ref()
    }
}
