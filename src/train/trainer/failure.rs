//! Errors that end a training on every rank at the same step: signals, NaN and infinite losses.

use super::Trainer;
use crate::train::{Precision, Recorder, Tally, TrainError};

/// What to do about values that grow beyond all bounds.
const REMEDY: &str = "lower --lr or set --clip-norm";

impl Trainer<'_> {
    /// The error of a training that a signal stopped after a checkpoint.
    pub(super) fn stopped(&self, recorder: &Recorder<'_>) -> TrainError {
        let signal = self.stop.signal().unwrap_or("a signal to another rank");
        let run = recorder.path().map_or(String::new(), |path| path.display().to_string());
        TrainError::Stopped { signal, step: self.position.step, run }
    }

    /// The error of a step in which some rank has a NaN or infinite loss; `mine` is this rank's
    /// tally.
    pub(super) fn not_finite(&self, mine: &Tally) -> Result<TrainError, TrainError> {
        // As text: JSON has no NaN.
        let losses: Vec<String> = self.world.gather(&mine.mean_loss().to_string())?;
        let is_finite = |loss: &String| loss.parse::<f64>().is_ok_and(f64::is_finite);
        let rank = losses.iter().position(|loss| !is_finite(loss)).unwrap_or(0);
        // Values that bf16 and f32 hold may be beyond f16 in the first step already, whatever the learning rate.
        let remedy = match self.options.precision {
            Precision::Fp16 => {
                "fp16 has no values beyond 65504: scale the samples, lower --lr, or train with --precision bf16"
            }
            _ => REMEDY,
        };
        let (loss, epoch, step) = (&losses[rank], self.position.epoch + 1, self.position.step + 1);
        Ok(self.ends(rank, format!("loss is {loss} at epoch {epoch}, step {step}; {remedy}")))
    }

    /// Checks each rank's test loss.
    pub(super) fn check_test(&self, tallies: &[Tally]) -> Result<(), TrainError> {
        let Some(rank) = tallies.iter().position(|tally| !tally.loss.is_finite()) else { return Ok(()) };
        let epoch = self.position.epoch + 1;
        Err(self.ends(rank, format!("test loss is not finite after epoch {epoch}; {REMEDY}")))
    }

    /// Checks each rank's running statistics: batch norm hides from the loss how large activations are.
    pub(super) fn check_statistics(&self) -> Result<(), TrainError> {
        if !self.learner.layout().has_buffers() {
            return Ok(());
        }
        let found: Vec<Option<String>> = self.world.gather(&self.learner.overflown_buffer())?;
        match found.into_iter().enumerate().find_map(|(rank, name)| Some((rank, name?))) {
            Some((rank, name)) => {
                let step = self.position.step;
                let what =
                    format!("{name} is not finite after step {step}: activations are beyond f32; {REMEDY}");
                Err(self.ends(rank, what))
            }
            None => Ok(()),
        }
    }

    /// The error that `what` of this rank ends the training.
    fn ends(&self, rank: usize, what: String) -> TrainError {
        let checkpoint = match self.checkpoint_step {
            Some(step) => format!("the last checkpoint is of step {step}"),
            None => "there is no checkpoint yet".to_owned(),
        };
        TrainError::NotFinite { rank, host: self.world.places()[rank].host.clone(), what, checkpoint }
    }
}
