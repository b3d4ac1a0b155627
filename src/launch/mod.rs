//! Starting an MPI job on a topology: from a host file to a launcher's command
//! line, the checks before it, and what its exit code means.
//!
//! The program itself is started by the launcher and learns its rank from MPI;
//! nothing here is part of the job.

mod command;
mod error;
mod hosts;
mod job;
mod preflight;
mod topology;

pub use command::{Launch, LauncherKind, MpiFlavour};
pub use error::LaunchError;
pub use hosts::Hosts;
pub use job::{Outcome, explain, run};
pub use preflight::check;
pub use topology::Topology;
