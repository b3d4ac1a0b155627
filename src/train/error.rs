//! Errors of a training.

use burn_mpi::CommError;
use data::DataError;
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
    #[error("{0}")]
    Samples(String),
    /// An error of the run directory.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// What ends the training on every rank at the same step: a value that is NaN or infinite, or a checkpoint that
    /// does not fit the run.
    #[error("{0}")]
    Ends(String),
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
            Self::Record(_) | Self::Data(_) | Self::Samples(_) => false,
            _ => true,
        }
    }
}
