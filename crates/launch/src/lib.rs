//! Starts MPI jobs of `mpiburn` on one or more machines. Reads host files, checks the machines, runs a
//! launcher (mpirun or srun), explains why a job ended, restarts failed trainings, and plans sweeps, which
//! are series of runs.
//!
//! The launcher starts processes, and each process gets its rank from MPI. The process that runs this code is
//! not part of the job, and needs no MPI.

#![forbid(unsafe_code)]

mod cause;
mod command;
mod hosts;
mod job;
mod preflight;
mod quirks;
mod reach;
mod restart;
mod shrink;
mod stop;
pub mod sweep;

/// Exit code for invalid options, the same as clap's.
pub const EXIT_USAGE: u8 = 2;
/// Exit code of an interrupted command that can be continued: EX_TEMPFAIL of sysexits.h.
pub const EXIT_RESUMABLE: u8 = 75;

/// Word that `mpiburn cores` prints before the number of cores and the number of CPUs. The check of another
/// machine searches the output for this word.
pub const CORES: &str = "mpiburn-cores";

pub use cause::{Cause, IN_USE, Kind, cause_in};
pub use command::{Binding, Launch, LauncherKind, MpiFlavour, line};
pub use hosts::{Hosts, Topology, hostfile, hostfile_place};
pub use job::{Outcome, Streams, explain};
pub use preflight::{bind_here, check, check_here, impossible};
pub use restart::{Training, restart};
pub use run_record::quoted;
pub use stop::StopRequest;
