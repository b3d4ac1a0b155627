//! Checks of a position that was read from a checkpoint.

use super::{Position, Tally};
use run_record::EpochRow;

/// What the position of a run has to agree with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Number of ranks.
    pub ranks: usize,
    /// Epochs of the run.
    pub epochs: usize,
    /// Steps of an epoch.
    pub steps: usize,
    /// Updates that the optimizer has made.
    pub updates: u64,
    /// Whether the run has a loss scale.
    pub scales_loss: bool,
    /// Whether the run has ranges of quantization-aware training.
    pub has_ranges: bool,
}

impl Position {
    /// Checks the position against the run's options and its data set.
    ///
    /// # Errors
    /// The first value that is out of range, with the expected one.
    pub fn check(&self, bounds: &Bounds) -> Result<(), String> {
        self.check_counts(bounds)?;
        let Bounds { ranks, scales_loss, has_ranges, .. } = *bounds;
        for (name, tallies, may_be_missing) in [
            ("epoch_tallies", &self.epoch_tallies, false),
            ("window_tallies", &self.window_tallies, false),
            ("test_tallies", &self.test_tallies, self.epoch == 0),
            ("int8_tallies", &self.int8_tallies, true),
        ] {
            if tallies.len() != ranks && !(may_be_missing && tallies.is_empty()) {
                return Err(format!("`{name}` has {} ranks, and the run {ranks}", tallies.len()));
            }
            if !tallies.iter().all(is_tally) {
                return Err(format!("`{name}` has counts that are negative or not finite"));
            }
        }
        let seconds = [
            self.train_seconds,
            self.epoch_seconds,
            self.test_seconds,
            self.checkpoint_seconds,
            self.start_up_seconds,
        ];
        let inference = self.inference_seconds.unwrap_or_default();
        if !seconds
            .iter()
            .chain(&inference)
            .chain(&self.comm_seconds)
            .all(|time| time.is_finite() && *time >= 0.0)
        {
            return Err("a time is negative or not finite".into());
        }
        if self.comm_seconds.len() != ranks {
            return Err(format!("`comm_seconds` has {} ranks, and the run {ranks}", self.comm_seconds.len()));
        }
        if self.loss_scale.is_some() != scales_loss {
            let has = if scales_loss { "needs one (--precision fp16)" } else { "has none" };
            return Err(format!("`loss_scale` is {:?}, and the run {has}", self.loss_scale.map(|s| s.scale)));
        }
        if let Some(scale) = self.loss_scale.filter(|scale| !scale.is_valid()) {
            return Err(format!(
                "the loss scale is {}, and must be a positive number whose inverse is finite",
                scale.scale
            ));
        }
        if self.ranges.is_some() != has_ranges {
            let has = if has_ranges { "needs them (--quantize qat)" } else { "has none" };
            return Err(format!("`ranges` do not fit: the run {has}"));
        }
        Ok(())
    }

    /// Checks epochs, steps and updates.
    fn check_counts(&self, bounds: &Bounds) -> Result<(), String> {
        let Bounds { epochs, steps, updates, .. } = *bounds;
        if self.epoch > epochs {
            return Err(format!("{} epochs are done, and the run has {epochs}", self.epoch));
        }
        let expected = self.epoch.checked_mul(steps).and_then(|done| done.checked_add(self.step_in_epoch));
        if self.step_in_epoch >= steps.max(1) || expected != Some(self.step) {
            return Err(format!(
                "`step` is {} and `step_in_epoch` {} after {} epochs of {steps} steps; has the data set changed?",
                self.step, self.step_in_epoch, self.epoch
            ));
        }
        let skipped = self.loss_scale.map_or(0, |scale| scale.skipped_steps);
        if updates.checked_add(skipped as u64) != Some(self.step as u64) {
            return Err(format!(
                "`updates` is {updates} after {} steps, of which {skipped} had none",
                self.step
            ));
        }
        let numbers = self.history.iter().map(|row| row.epoch);
        if !numbers.eq(1..=self.epoch) {
            return Err(format!(
                "`history` has {} epochs, of {} that are done",
                self.history.len(),
                self.epoch
            ));
        }
        if let Some(row) = self.history.iter().find(|row| !is_row(row)) {
            return Err(format!("`history` has values out of range in epoch {}", row.epoch));
        }
        if self.compared_from > self.epoch {
            return Err(format!("`compared_from` is {}, after {} epochs", self.compared_from, self.epoch));
        }
        let later = |step: Option<usize>| step.is_some_and(|step| step > self.step);
        if later(self.best_step) || later(self.most_accurate_step) {
            return Err(format!("the best epoch's step is after step {}", self.step));
        }
        Ok(())
    }
}

/// Losses may be NaN, which JSON stores as null.
fn is_tally(tally: &Tally) -> bool {
    let counts = [tally.correct, tally.samples];
    counts.iter().all(|count| count.is_finite() && *count >= 0.0) && tally.correct <= tally.samples
}

fn is_row(row: &EpochRow) -> bool {
    let percent = |value: f64| (0.0..=100.0).contains(&value);
    let int8 = row.int8_test_accuracy.is_none_or(percent);
    let rate = row.learning_rate.is_none_or(|lr| lr.is_finite() && lr >= 0.0);
    percent(row.train_accuracy) && percent(row.test_accuracy) && int8 && rate && row.seconds >= 0.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::train::LossScale;

    fn position() -> (Position, Bounds) {
        let tallies = vec![Tally { loss: 1.0, correct: 2.0, samples: 4.0 }; 2];
        let row = EpochRow { epoch: 1, train_accuracy: 50.0, test_accuracy: 60.0, ..EpochRow::default() };
        let position = Position {
            epoch: 1,
            step_in_epoch: 3,
            step: 13,
            epoch_tallies: tallies.clone(),
            window_tallies: tallies.clone(),
            test_tallies: tallies,
            history: Arc::new(vec![row]),
            comm_seconds: vec![0.5, 0.25],
            ..Position::default()
        };
        let bounds =
            Bounds { ranks: 2, epochs: 3, steps: 10, updates: 13, scales_loss: false, has_ranges: false };
        (position, bounds)
    }

    #[test]
    fn a_position_that_fits_passes() {
        let (mut position, mut bounds) = position();
        assert_eq!(position.check(&bounds), Ok(()));
        position.loss_scale = Some(LossScale { skipped_steps: 2, ..LossScale::default() });
        (bounds.updates, bounds.scales_loss) = (11, true);
        assert_eq!(position.check(&bounds), Ok(()));
    }

    #[test]
    fn each_value_out_of_range_is_named() {
        type Edit = fn(&mut Position, &mut Bounds);
        let edits: [(Edit, &str); 18] = [
            (|p, _| p.compared_from = 2, "`compared_from` is 2, after 1 epochs"),
            (|p, _| p.epoch = 4, "4 epochs are done, and the run has 3"),
            (|p, _| p.step_in_epoch = 10, "`step_in_epoch` 10 after 1 epochs of 10 steps"),
            (|p, _| p.step = 14, "`step` is 14"),
            (|p, b| (p.epoch, b.epochs) = (usize::MAX, usize::MAX), "`step` is 13"),
            (|_, b| b.updates = u64::MAX, "`updates` is"),
            (|_, b| b.updates = 12, "`updates` is 12 after 13 steps, of which 0 had none"),
            (|p, _| Arc::make_mut(&mut p.history).clear(), "`history` has 0 epochs, of 1"),
            (|p, _| Arc::make_mut(&mut p.history)[0].test_accuracy = 100.5, "out of range in epoch 1"),
            (|p, _| p.best_step = Some(14), "is after step 13"),
            (|p, _| p.epoch_tallies.clear(), "`epoch_tallies` has 0 ranks, and the run 2"),
            (|p, _| p.test_tallies[1].correct = 5.0, "`test_tallies` has counts"),
            (|p, _| p.int8_tallies = vec![Tally::default()], "`int8_tallies` has 1 ranks, and the run 2"),
            (|p, _| p.train_seconds = -1.0, "a time is negative"),
            (|p, _| p.inference_seconds = Some([1.0, -1.0]), "a time is negative"),
            (|p, _| p.comm_seconds.truncate(1), "`comm_seconds` has 1 ranks"),
            (|_, b| b.scales_loss = true, "`loss_scale` is None, and the run needs one"),
            (|_, b| b.has_ranges = true, "the run needs them (--quantize qat)"),
        ];
        for (edit, expected) in edits {
            let (mut position, mut bounds) = position();
            edit(&mut position, &mut bounds);
            let error = position.check(&bounds).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
