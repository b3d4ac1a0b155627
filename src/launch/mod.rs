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

pub use command::{Launch, LauncherKind, MpiFlavour};
pub use hosts::Hosts;
pub use hosts::Topology;
pub use job::{Outcome, Streams, explain, run};
pub use preflight::check;
pub use preflight::impossible;
