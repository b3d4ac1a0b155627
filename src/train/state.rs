//! The position of a training: how far it is, and its results so far.
//!
//! A checkpoint stores the position next to the weights and the optimizer's moments, so a resumed run goes on
//! as if it had not been interrupted. A value that differs between ranks is a list here, with one element per
//! rank.
//!
//! A [`Tally`] has the number of samples, the number of correct samples, and the sum of losses.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LocalPosition, LossScale, Tally};
use crate::quant::Ranges;
use burn_mpi::{ArrivalOrder, TargetAccuracy};
use run_record::{Confusion, EpochRow, Phases};

/// How far a run is, and its results so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Current epoch, from 0.
    pub epoch: usize,
    /// Completed steps of the current epoch.
    pub step_in_epoch: usize,
    /// Completed steps of the run.
    pub step: usize,
    /// Number of ranks with which the run began, if a resume has changed it. The factor of `--lr-scaling`
    /// stays the one of this number, because the samples of a step stay the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ranks: Option<usize>,
    /// Each rank's tally of the current epoch.
    pub epoch_tallies: Vec<Tally>,
    /// Each rank's tally of the last complete test.
    pub test_tallies: Vec<Tally>,
    /// Confusion matrix of the last complete test, over all ranks.
    #[serde(default)]
    pub confusion: Confusion,
    /// Each rank's tally of the int8 model in the last complete test; empty without quantization.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub int8_tallies: Vec<Tally>,
    /// Each rank's tally of a window: the current epoch's steps since the last point of the training curve.
    pub window_tallies: Vec<Tally>,
    /// Number of steps of the current epoch before the window. `None` in checkpoints of older versions: their
    /// windows could begin in one epoch and end in the next.
    #[serde(default)]
    pub window_begin: Option<usize>,
    /// Order in which gradients become final. It decides which gradients share a bucket, and so an
    /// all-reduce. `None` before the first step.
    pub arrival: Option<ArrivalOrder>,
    /// Finished epochs. The vector is shared, so that a checkpoint does not copy it.
    pub history: Arc<Vec<EpochRow>>,
    /// With early stopping: completed steps at the end of the best epoch. The checkpoint of this step is
    /// kept.
    pub best_step: Option<usize>,
    /// Number of finished epochs that early stopping and `--keep` ignore. A resumed run ignores all earlier
    /// epochs if it changes the test set, because the tests of these epochs are not comparable with later
    /// tests. It also ignores them if it turns early stopping on or off, because the checkpoints of these
    /// epochs may not have been kept.
    pub compared_from: usize,
    /// Completed steps at the end of the epoch with the highest test accuracy. `--keep` keeps the checkpoint
    /// of this step.
    pub most_accurate_step: Option<usize>,
    /// With `--target-accuracy`: the target, and the test that first reached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetAccuracy>,
    /// Whether `--stop-at-target` has ended the run. The last epoch may then be incomplete.
    #[serde(default)]
    pub stopped_at_target: bool,
    /// With quantization-aware training: ranges of weights and activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Ranges>,
    /// With fp16: the loss scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// With local updates: their position. The parameters and moments of each rank are in a file of the
    /// checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<LocalPosition>,
    /// Bytes that each rank has passed to all-reduces of gradients, or of changes of parameters, in the steps
    /// so far. The number is equal on all ranks.
    #[serde(default)]
    pub bytes_sent: u64,
    /// Inside an epoch: each rank's own running statistics of batch norm; the weights file has their
    /// averages. Empty at the end of an epoch, when all ranks have the averages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<Vec<f32>>,
    /// Seconds of the training loops of finished epochs, mean over ranks.
    pub train_seconds: f64,
    /// Seconds of the current epoch's training loop so far: this rank's own, and in a checkpoint the mean
    /// over ranks.
    pub epoch_seconds: f64,
    /// Seconds of tests so far. This time and the times of checkpoints and start-up are this rank's own; a
    /// checkpoint has rank 0's.
    pub test_seconds: f64,
    /// With quantization: seconds of inference in the tests so far, of the float network and of the int8
    /// models; means over ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_seconds: Option<[f64; 2]>,
    /// Seconds of checkpoints, curves and comparisons of weights so far.
    pub checkpoint_seconds: f64,
    /// Seconds from the start of a process to its first step, summed over the processes of the run so far.
    pub start_up_seconds: f64,
    /// Seconds that each rank has waited for gradients so far.
    pub comm_seconds: Vec<f64>,
    /// Seconds of each phase of a step, summed over the last [`phase_steps`](Self::phase_steps) steps; mean
    /// over ranks.
    #[serde(default)]
    pub phase_seconds: Phases<f64>,
    /// Number of steps that `phase_seconds` covers: all steps so far, unless an older version, which did not
    /// record phases, made the first steps.
    #[serde(default)]
    pub phase_steps: usize,
}

/// Number of epochs by which the history's capacity grows. The rows of these epochs take about a megabyte, of
/// which only the used pages count as memory. If the vector doubled its capacity instead, its smaller copies
/// would stay in the allocator.
const ROOM: usize = 16_384;

impl Position {
    /// Appends a finished epoch to the history. Does not change the current epoch.
    pub fn finish(&mut self, row: EpochRow) {
        let history = Arc::make_mut(&mut self.history);
        if history.len() == history.capacity() {
            history.reserve_exact(ROOM);
        }
        history.push(row);
    }

    /// Returns the finished epochs that early stopping and `--keep` compare.
    pub fn compared(&self) -> &[EpochRow] {
        self.history.get(self.compared_from..).unwrap_or_default()
    }

    /// Makes early stopping and `--keep` ignore all epochs before the current one.
    pub fn compare_anew(&mut self) {
        self.compared_from = self.epoch;
        (self.best_step, self.most_accurate_step) = (None, None);
    }

    /// Whether `epochs` epochs are complete, or early stopping or `--stop-at-target` has ended the training.
    /// `early_stopping` is its patience in epochs, `None` without early stopping.
    pub fn is_done(&self, epochs: usize, early_stopping: Option<usize>) -> bool {
        self.epoch >= epochs || self.stopped_at_target || is_over(self.compared(), early_stopping)
    }

    /// Whether a test has reached the target of `--target-accuracy`.
    pub fn has_reached_target(&self) -> bool {
        self.target.is_some_and(|target| target.reached().is_some())
    }

    /// Total seconds so far: start-up, training, tests and checkpoints.
    pub fn seconds(&self) -> f64 {
        self.start_up_seconds
            + self.train_seconds
            + self.epoch_seconds
            + self.test_seconds
            + self.checkpoint_seconds
    }
}

/// Returns the epoch (from 1) with the lowest test loss; if several epochs have it, returns the first of
/// them. `None` if `history` is empty. Each rank computes the test loss from all ranks' tallies, so it has
/// the same bits on each rank, and all ranks decide on early stopping without communication.
pub fn best_epoch(history: &[EpochRow]) -> Option<usize> {
    let lowest = history.iter().fold(f64::INFINITY, |lowest, row| lowest.min(row.test_loss));
    history.iter().find(|row| row.test_loss == lowest).map(|row| row.epoch)
}

/// Whether `patience` epochs have passed since the best epoch.
fn is_over(history: &[EpochRow], patience: Option<usize>) -> bool {
    // Number of epochs before the first epoch in `history`, which may start later than epoch 1.
    let before = history.first().map_or(0, |row| row.epoch.saturating_sub(1));
    let since = before + history.len() - best_epoch(history).unwrap_or(before);
    patience.is_some_and(|patience| since >= patience)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(losses: &[f64]) -> Vec<EpochRow> {
        let row = |(at, &test_loss): (usize, &f64)| EpochRow {
            epoch: at + 1,
            train_loss: 1.0,
            train_accuracy: 50.0,
            test_loss,
            test_accuracy: 50.0,
            ..EpochRow::default()
        };
        losses.iter().enumerate().map(row).collect()
    }

    #[test]
    fn a_run_ends_when_patience_epochs_brought_no_new_minimum() {
        for (losses, best, over) in [
            (&[][..], None, false),
            (&[3.0], Some(1), false),
            (&[3.0, 2.0, 2.5], Some(2), false),
            (&[3.0, 2.0, 2.5, 2.0], Some(2), true),
            (&[3.0, 2.0, 2.5, 1.9], Some(4), false),
            (&[3.0, 2.0, 2.5, 1.9, 2.0, 2.0], Some(4), true),
        ] {
            let history = history(losses);
            assert_eq!(best_epoch(&history), best, "{losses:?}");
            assert_eq!(is_over(&history, Some(2)), over, "{losses:?}");
            assert!(!is_over(&history, None), "without patience there is no end");
        }
    }
}
