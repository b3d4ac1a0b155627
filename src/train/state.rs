//! The state of a training: where it stands, and what its optimizer remembers.
//!
//! It is what a checkpoint keeps. `record` writes it without knowing it.

use serde::{Deserialize, Serialize};

use super::Tally;
use crate::quant::Ranges;
use crate::record::Resumable;
use burn_mpi::ArrivalOrder;

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch under way, from 0.
    pub epoch: usize,
    /// Steps done of that epoch.
    pub step_in_epoch: usize,
    /// Steps done of the run.
    pub step: usize,
    /// Each rank's tally of the epoch under way.
    pub epoch_tallies: Vec<Tally>,
    /// Each rank's tally of the last finished test.
    pub test_tallies: Vec<Tally>,
    /// Each rank's tally since its last logged line.
    pub window_tallies: Vec<Tally>,
    /// Packing of the gradients, once it is known.
    pub arrival: Option<ArrivalOrder>,
    /// Finished epochs.
    pub history: Vec<EpochRow>,
    /// With early stopping: steps at the end of the best epoch, whose checkpoint
    /// is kept.
    #[serde(default)]
    pub best_step: Option<usize>,
    /// With quantization-aware training: ranges of weights and activations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranges: Option<Ranges>,
    /// Seconds of training loops so far.
    pub train_seconds: f64,
    /// Seconds of the epoch under way.
    pub epoch_seconds: f64,
    /// Seconds of tests so far.
    pub test_seconds: f64,
    /// Each rank's seconds of waiting for gradients so far.
    pub comm_seconds: Vec<f64>,
}

impl Resumable for Position {
    fn step(&self) -> usize {
        self.step
    }

    fn best_step(&self) -> Option<usize> {
        self.best_step
    }
}

/// What an optimizer remembers of each weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Moment {
    /// Its name, which its tensors' names begin with.
    pub name: String,
    /// As long as the parameters, in Burn's layouts.
    pub values: Vec<f32>,
}

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
    /// Of the integer model over the whole test set, where there is one.
    #[serde(default)]
    pub int8_test_accuracy: Option<f64>,
}
