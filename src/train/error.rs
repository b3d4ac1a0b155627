//! Errors of a training.

use super::Rule;
use crate::data::DataError;
use burn_mpi::CommError;
use run_record::{RecordError, quoted};

/// An error of the training loop.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// An error between ranks.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// An error of the data set.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The samples of a step cannot be read, on one rank.
    #[error("rank {rank} ({host}): {error}; then go on with --resume")]
    Samples {
        /// The rank.
        rank: usize,
        /// Its host.
        host: String,
        /// The reason.
        error: DataError,
    },
    /// An error of the run directory.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A loss or a running statistic is NaN or infinite; every rank stops at the same step.
    #[error("rank {rank} ({host}): {what}; {checkpoint}")]
    NotFinite {
        /// The lowest rank with such a value.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// The value, where it appeared, and what to change.
        what: String,
        /// The last checkpoint, in words.
        checkpoint: String,
    },
    /// A checkpoint contains the moments of a different optimizer.
    #[error(
        "the checkpoint's moments are {found}, and those of {rule}, the optimizer in run.json, are \
         {expected}: put the run's own optimizer back, or a schedule that moves the momentum as the run's does"
    )]
    OtherOptimizer {
        /// The optimizer.
        rule: Rule,
        /// The moments in the checkpoint.
        found: String,
        /// The moments that the optimizer needs.
        expected: String,
    },
    /// A value of a checkpoint's state does not fit the run.
    #[error("the checkpoint's state.json is damaged: {0}")]
    State(String),
    /// A signal requested a stop; every rank stops after the same step, with a
    /// checkpoint of it.
    #[error("stopped by {signal} after step {step}; go on with --resume {}", quoted(run))]
    Stopped {
        /// Name of the signal.
        signal: &'static str,
        /// Step of the run, from 1.
        step: usize,
        /// The run directory; empty except on rank 0.
        run: String,
    },
}

impl TrainError {
    /// The error between ranks that it is, if it is one.
    pub fn comm_error(&self) -> Option<&CommError> {
        match self {
            Self::Comm(error) => Some(error),
            _ => None,
        }
    }

    /// Whether every rank of the job returns it at the same step.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Comm(error) => error.is_shared(),
            Self::Record(_) | Self::Data(_) | Self::Samples { .. } => false,
            _ => true,
        }
    }
}
