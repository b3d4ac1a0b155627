//! Errors that end a training on every rank at the same step: signals, NaN and infinite losses.

use super::Trainer;
use crate::train::{Precision, Recorder, Tally, TrainError};

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
        let number = |text: &String| text.parse::<f64>().unwrap_or(f64::NAN);
        let rank = losses.iter().position(|loss| !number(loss).is_finite()).unwrap_or(0);
        // Values that bf16 and f32 hold may be beyond f16 in the first step already, whatever the learning rate.
        let remedy = match self.options.precision {
            Precision::Fp16 => {
                "fp16 has no values beyond 65504: scale the samples, lower --lr, or train with --precision bf16"
            }
            _ => "lower --lr or set --clip-norm",
        };
        Ok(TrainError::NotFinite {
            remedy,
            loss: number(&losses[rank]),
            step: self.position.step + 1,
            epoch: self.position.epoch + 1,
            rank,
            host: self.host(rank),
            checkpoint: self.last_checkpoint(),
        })
    }

    /// Checks each rank's test loss.
    pub(super) fn check_test(&self, tallies: &[Tally]) -> Result<(), TrainError> {
        match tallies.iter().position(|tally| !tally.loss.is_finite()) {
            Some(rank) => {
                let epoch = self.position.epoch + 1;
                let (host, checkpoint) = (self.host(rank), self.last_checkpoint());
                Err(TrainError::TestNotFinite { epoch, rank, host, checkpoint })
            }
            None => Ok(()),
        }
    }

    /// Checks each rank's running statistics: batch norm hides from the loss how large activations are.
    pub(super) fn check_statistics(&self) -> Result<(), TrainError> {
        if !self.learner.layout().has_buffers() {
            return Ok(());
        }
        let found: Vec<Option<String>> = self.world.gather(&self.learner.overflown_buffer())?;
        match found.into_iter().enumerate().find_map(|(rank, name)| Some((rank, name?))) {
            Some((rank, name)) => {
                let (step, host, checkpoint) = (self.position.step, self.host(rank), self.last_checkpoint());
                Err(TrainError::StatisticNotFinite { name, step, rank, host, checkpoint })
            }
            None => Ok(()),
        }
    }

    /// What can be resumed.
    fn last_checkpoint(&self) -> String {
        match self.checkpoint_step {
            Some(step) => format!("the last checkpoint is of step {step}"),
            None => "there is no checkpoint yet".to_owned(),
        }
    }

    fn host(&self, rank: usize) -> String {
        self.world.places()[rank].host.clone()
    }
}
