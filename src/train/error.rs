//! Errors that end a training.

use burn_mpi::CommError;
use data::DataError;
use run_record::{RecordError, quoted};

/// An error that ends the training loop.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A collective or another exchange between ranks failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The data set is invalid or cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// One rank cannot read its samples of a step. Only that rank returns this error.
    #[error("{0}")]
    Samples(String),
    /// The run directory cannot be read or written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A value is NaN or infinite, or a checkpoint does not fit the run. Every rank returns this error at the
    /// same step.
    #[error("{0}")]
    Ends(String),
    /// A signal requested a stop. Every rank stops after the same step, and a checkpoint of this step is
    /// written.
    #[error("stopped by {signal} after step {step}; continue with --resume {}", quoted(run))]
    Stopped {
        /// Name of the signal, or `a signal to another rank`.
        signal: &'static str,
        /// Step of the run, from 1.
        step: usize,
        /// The run directory; empty except on rank 0.
        run: String,
    },
}

impl TrainError {
    /// Returns the communication error, if this is [`Comm`](Self::Comm).
    pub fn comm_error(&self) -> Option<&CommError> {
        match self {
            Self::Comm(error) => Some(error),
            _ => None,
        }
    }

    /// Whether every rank of the job returns this error at the same step.
    pub fn is_shared(&self) -> bool {
        match self {
            Self::Comm(error) => error.is_shared(),
            Self::Record(_) | Self::Data(_) | Self::Samples(_) => false,
            _ => true,
        }
    }
}
