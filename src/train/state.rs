//! The position of a training, which a checkpoint has beside the weights and the optimizer's moments.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{LossScale, Tally};
use crate::quant::Ranges;
use burn_mpi::ArrivalOrder;
use run_record::{Confusion, EpochRow, Phases};

/// Position of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Current epoch, from 0.
    pub epoch: usize,
    /// Completed steps of that epoch.
    pub step_in_epoch: usize,
    /// Completed steps of the run.
    pub step: usize,
    /// Each rank's tally of the current epoch.
    pub epoch_tallies: Vec<Tally>,
    /// Each rank's tally of the last finished test.
    pub test_tallies: Vec<Tally>,
    /// The classes of all ranks' samples in that test, and those that the network named.
    #[serde(default)]
    pub confusion: Confusion,
    /// Each rank's tally of the integer model in that test; empty without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub int8_tallies: Vec<Tally>,
    /// Each rank's tally of the steps of this epoch since the last point of its curves.
    pub window_tallies: Vec<Tally>,
    /// Steps of this epoch before those of that tally; none in a checkpoint of a program whose tallies went on over
    /// the end of an epoch.
    #[serde(default)]
    pub window_begin: Option<usize>,
    /// Order of the gradients in buckets, once determined.
    pub arrival: Option<ArrivalOrder>,
    /// Finished epochs; shared, so that a checkpoint has no copy of its own.
    pub history: Arc<Vec<EpochRow>>,
    /// With early stopping: completed steps at the end of the best epoch, whose
    /// checkpoint is kept.
    pub best_step: Option<usize>,
    /// Finished epochs before the first one that early stopping and `--keep` compare: those before a resumed run
    /// with another test set, or with early stopping alone, are of other tests or have no checkpoint.
    pub compared_from: usize,
    /// Completed steps at the end of the epoch with the highest test accuracy, whose checkpoint
    /// `--keep` keeps.
    pub most_accurate_step: Option<usize>,
    /// With quantization-aware training: ranges of weights and activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Ranges>,
    /// With fp16: the loss scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Inside an epoch: each rank's running statistics of batch norms, which the weights'
    /// file has averaged. Empty at its end, when all ranks have the averages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buffers: Vec<Vec<f32>>,
    /// Seconds of training loops so far. All times are means over ranks at each checkpoint.
    pub train_seconds: f64,
    /// Seconds of the current epoch.
    pub epoch_seconds: f64,
    /// Seconds of tests so far.
    pub test_seconds: f64,
    /// With quantization: seconds of inference in the tests so far, of the float network and of the
    /// integer models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inference_seconds: Option<[f64; 2]>,
    /// Seconds of checkpoints, curves and comparisons of weights so far.
    pub checkpoint_seconds: f64,
    /// Seconds before the first step so far, of each process.
    pub start_up_seconds: f64,
    /// Each rank's seconds of waiting for gradients so far.
    pub comm_seconds: Vec<f64>,
    /// Seconds of each phase of the last [`phase_steps`](Self::phase_steps) steps, mean over ranks.
    #[serde(default)]
    pub phase_seconds: Phases<f64>,
    /// All steps so far, unless an older program, which did not note phases, made the first ones.
    #[serde(default)]
    pub phase_steps: usize,
}

/// Finished epochs for which there is room before the history grows: a megabyte, of which a run's
/// memory has what is used. A vector that doubles leaves its smaller copies to the allocator.
const ROOM: usize = 16_384;

impl Position {
    /// Appends a finished epoch to the history.
    pub fn finish(&mut self, row: EpochRow) {
        let history = Arc::make_mut(&mut self.history);
        if history.len() == history.capacity() {
            history.reserve_exact(ROOM);
        }
        history.push(row);
    }

    /// The finished epochs whose tests are compared with each other.
    pub fn compared(&self) -> &[EpochRow] {
        self.history.get(self.compared_from..).unwrap_or_default()
    }

    /// Compares only the epochs from here on.
    pub fn compare_anew(&mut self) {
        self.compared_from = self.epoch;
        (self.best_step, self.most_accurate_step) = (None, None);
    }

    /// Whether `epochs` epochs are complete, or early stopping with this patience has ended the training.
    pub fn is_done(&self, epochs: usize, early_stopping: Option<usize>) -> bool {
        self.epoch >= epochs || is_over(self.compared(), early_stopping)
    }

    /// Seconds of everything that is measured so far.
    pub fn seconds(&self) -> f64 {
        self.start_up_seconds
            + self.train_seconds
            + self.epoch_seconds
            + self.test_seconds
            + self.checkpoint_seconds
    }
}

/// The epoch (from 1) with the lowest test loss, the first if several are equal. Losses are sums over all ranks, the
/// same bits on each, so all ranks decide on early stopping without communication.
pub fn best_epoch(history: &[EpochRow]) -> Option<usize> {
    let lowest = history.iter().fold(f64::INFINITY, |lowest, row| lowest.min(row.test_loss));
    history.iter().find(|row| row.test_loss == lowest).map(|row| row.epoch)
}

/// Whether `patience` epochs have passed since the best one.
fn is_over(history: &[EpochRow], patience: Option<usize>) -> bool {
    // The history may begin after the first epoch.
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
