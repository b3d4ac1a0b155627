//! The epochs of a run, the lines of `epochs.csv`, and overfitting: test loss rises while training loss falls.

use serde::{Deserialize, Serialize};

/// A finished epoch, one line of `epochs.csv`. Accuracies in percent.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochRow {
    /// From 1.
    pub epoch: usize,
    /// Mean over all ranks' training samples.
    pub train_loss: f64,
    /// Over all ranks' training samples.
    pub train_accuracy: f64,
    /// Mean over the whole test set.
    pub test_loss: f64,
    /// Over the whole test set.
    pub test_accuracy: f64,
    /// Wall time of the epoch's training loop.
    pub seconds: f64,
    /// Of the epoch's last step; none in the history of an earlier version.
    pub learning_rate: Option<f64>,
    /// Of the integer model over the whole test set, if there is one.
    pub int8_test_accuracy: Option<f64>,
    /// Of the integer model, mean over the whole test set.
    pub int8_test_loss: Option<f64>,
}

/// Minimum number of epochs with test loss above its minimum.
const LATER: usize = 2;
/// Minimum rise of the test loss from its minimum to the last epoch, relative to the minimum. A
/// loss that has converged moves by less.
pub const LEAST_RISE: f64 = 0.01;

/// The epoch after which a run overfits: the one of lowest test loss, if at
/// least two more epochs follow, all of higher test loss, the last by [`LEAST_RISE`] or more, and the training loss
/// at the end is below that at the lowest test loss. `None` otherwise: if the
/// run is still improving, has just had its best epoch, or its training loss
/// rises too, which is divergence.
pub fn overfits_after(epochs: &[EpochRow]) -> Option<usize> {
    // The last of equal ones, so that all later ones are higher.
    let lowest = epochs.iter().rev().min_by(|a, b| a.test_loss.total_cmp(&b.test_loss))?;
    let later = epochs.iter().filter(|row| row.epoch > lowest.epoch);
    let falls = epochs.last()?.train_loss < lowest.train_loss;
    let rises = epochs.last()?.test_loss >= lowest.test_loss * (1.0 + LEAST_RISE);
    (later.count() >= LATER && falls && rises).then_some(lowest.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(losses: &[(f64, f64)]) -> Option<usize> {
        let row = |(i, &(train_loss, test_loss)): (usize, &(f64, f64))| EpochRow {
            epoch: i + 1,
            train_loss,
            train_accuracy: 50.0,
            test_loss,
            test_accuracy: 50.0,
            seconds: 1.0,
            ..EpochRow::default()
        };
        overfits_after(&losses.iter().enumerate().map(row).collect::<Vec<_>>())
    }

    #[test]
    fn test_loss_that_turns_up_while_training_loss_falls_is_overfitting() {
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.0, 1.7), (0.6, 2.0)]), Some(2));
        assert_eq!(
            after(&[(2.0, 2.1), (1.5, 1.6), (1.2, 1.6), (1.0, 1.7), (0.6, 2.0)]),
            Some(3),
            "the last least"
        );
        assert_eq!(after(&[(2.0, 1.6), (1.0, 1.7), (0.6, 2.0)]), Some(1));
        // Fluctuation during the rise still counts.
        assert_eq!(after(&[(2.0, 1.6), (1.0, 2.7), (0.9, 2.0), (0.6, 2.2)]), Some(1));
    }

    #[test]
    fn a_run_that_gets_better_or_falls_apart_does_not_overfit() {
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.0, 1.5), (0.6, 1.4)]), None, "better to the end");
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.0, 1.7)]), None, "one epoch is chance");
        assert_eq!(after(&[(2.0, 2.1), (1.5, 1.6), (1.8, 1.7), (1.9, 2.0)]), None, "training loss rises too");
        assert_eq!(after(&[(2.0, 1.6), (1.0, 1.60003), (0.6, 1.60006)]), None, "converged");
        assert_eq!(after(&[]), None);
    }
}
