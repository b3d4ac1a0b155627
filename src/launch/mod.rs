//! Starting an MPI job on a topology: host files, command lines of the launchers,
//! checks before the start, and the meaning of exit codes.
//!
//! The launcher starts the ranks, and each gets its rank from MPI; the process that
//! runs this code is not part of the job.

mod cause;
mod command;
mod hosts;
mod job;
mod preflight;
mod reach;

/// What precedes the number of cores and of CPUs that `mpiburn cores` prints, for the check of another machine.
pub const CORES: &str = "mpiburn-cores";

pub use command::{Binding, Launch, LauncherKind, MpiFlavour, line};
pub use hosts::{Hosts, Topology};
pub use job::{Outcome, Streams, explain, run};
pub use preflight::{bind_here, check, impossible};
pub use run_record::quoted;
