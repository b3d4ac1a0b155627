//! Progress of a training that notes its steps for the process that starts it again.

use crate::commands::progress::Progress;
use crate::record::StepFile;
use crate::train::{EpochRow, Position, Tally, Watch};

/// Progress, and the file of the last step, on rank 0 of a training that has one.
pub struct Noted {
    pub progress: Progress,
    pub steps: Option<StepFile>,
}

impl Noted {
    /// Ends the progress of a completed training, whose steps are of no more use.
    pub fn finish(self) {
        self.progress.finish();
        if let Some(steps) = self.steps {
            steps.remove();
        }
    }
}

impl Watch for Noted {
    fn step(&mut self, position: &Position, epoch: &Tally) {
        if let Some(steps) = &self.steps {
            steps.note(position.step);
        }
        self.progress.step(position, epoch);
    }

    fn line(&mut self, position: &Position, window: &Tally) {
        self.progress.line(position, window);
    }

    fn epoch(&mut self, row: &EpochRow) {
        self.progress.epoch(row);
    }
}
