//! What can go wrong between ranks.

use std::time::Duration;

use super::Backend;

/// An error of the world or of a collective. Its text is one line that says
/// what happened, on which rank and host, and what to do where that is known.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// A call into the transport returned an error.
    #[error(
        "rank {rank} on {host}: {operation} of {bytes} bytes failed after {:.1} s: {reason}",
        elapsed.as_secs_f64()
    )]
    Operation {
        /// Rank on which the call failed.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Backend and operation, as `mpi all-reduce`.
        operation: String,
        /// Size of the buffer.
        bytes: usize,
        /// Time since the call began.
        elapsed: Duration,
        /// The transport's own words.
        reason: String,
    },
    /// The backend has no such operation.
    #[error("{operation} is not supported by {backend}")]
    Unsupported {
        /// The operation, as `reduce-scatter`.
        operation: &'static str,
        /// The backend.
        backend: Backend,
    },
    /// MPI did not start.
    #[error("MPI did not start: {0}")]
    Start(String),
    /// The launcher belongs to another MPI than this build.
    #[error(
        "{launcher} started {started} processes, but this build uses {mpi}, which does not know that launcher: \
         every process would train alone. Start it with the mpirun of {mpi}, or build with `make build MPI=…` for the other"
    )]
    ForeignLauncher {
        /// The launcher in words.
        launcher: &'static str,
        /// Number of processes it started.
        started: usize,
        /// The MPI library of this build.
        mpi: String,
    },
    /// Ranks that were given their numbers by hand.
    #[error(
        "the environment says RANK={rank} and WORLD_SIZE={size}, and no launcher started this process: ranks started \
         by hand form no MPI job, and each would train alone. Start them together: mpirun -n {size} --bind-to core \
         mpiburn …, or mpiburn launch NxC -- …; for one process, unset RANK and WORLD_SIZE"
    )]
    ByHand {
        /// `RANK`.
        rank: usize,
        /// `WORLD_SIZE`, above 1.
        size: usize,
    },
    /// Another rank failed in a step that all ranks take together; that rank
    /// reports the reason, so that a job prints one line and not one a rank.
    #[error("rank {rank} on {host}: {reason}")]
    Elsewhere {
        /// The lowest rank that failed.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Its error.
        reason: String,
    },
    /// A network that changes its shape from step to step.
    #[error("{0}")]
    Graph(String),
    /// Ranks that should hold equal bits do not.
    #[error("{what} differs between ranks: rank {rank} on {host} has {found}, rank 0 has {expected}")]
    Diverged {
        /// What was compared.
        what: String,
        /// The first rank that differs from rank 0.
        rank: usize,
        /// Host of that rank.
        host: String,
        /// Its value.
        found: String,
        /// Rank 0's value.
        expected: String,
    },
}
