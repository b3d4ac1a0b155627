//! Early stopping, from the test losses so far.
//!
//! They are sums over all ranks, the same bits on each, so all ranks decide the
//! same without communication. A resumed run decides from its history.

use run_record::EpochRow;

/// The epoch (from 1) with the lowest test loss, the first if several are equal.
pub fn best_epoch(history: &[EpochRow]) -> Option<usize> {
    let lowest = history.iter().fold(f64::INFINITY, |lowest, row| lowest.min(row.test_loss));
    history.iter().find(|row| row.test_loss == lowest).map(|row| row.epoch)
}

/// Whether `patience` epochs have passed since the best one.
pub fn is_over(history: &[EpochRow], patience: Option<usize>) -> bool {
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
