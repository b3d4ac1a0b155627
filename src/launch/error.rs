//! Why a job cannot be started.

use std::io;
use std::path::PathBuf;

use super::Topology;

/// A job that would not start, found out before it is tried: what, where, and
/// what to do.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The host file cannot be read.
    #[error("cannot read the host file {path}: {reason}; make hosts HOSTS=\"alpha beta\" writes it")]
    NoHostFile {
        /// The file.
        path: PathBuf,
        /// The system's. Not the error's source, which would be printed twice.
        reason: io::Error,
    },
    /// A line of the host file.
    #[error("{path}, line {line}: {text}: expected a host name and its slots, as `alpha slots=2`")]
    HostLine {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Too few machines or slots.
    #[error("{path} does not hold {topology}: {problem}; make hosts HOSTS=\"alpha beta\" writes it anew")]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        topology: Topology,
        /// What is missing.
        problem: String,
    },
    /// A host name that means nothing here.
    #[error("host {host} of {path} is unknown here ({reason}): check its spelling, or add it to /etc/hosts")]
    UnknownHost {
        /// The host.
        host: String,
        /// The host file.
        path: PathBuf,
        /// The resolver's reason.
        reason: String,
    },
    /// A host that lets no one in.
    #[error(
        "no ssh to {host}: {reason}; mpirun starts its ranks there by ssh without a password: \
         try `ssh {host} true`, and ssh-copy-id {host}"
    )]
    NoSsh {
        /// The host.
        host: String,
        /// ssh's last words.
        reason: String,
    },
    /// A host without the binary, or with another one.
    #[error("{host} has {what} {path}; make deploy HOSTS={host} puts it there")]
    Program {
        /// The host.
        host: String,
        /// `no` or `another`.
        what: &'static str,
        /// The binary.
        path: PathBuf,
    },
    /// No such launcher on this machine.
    #[error("no {command} here: {hint}")]
    NoLauncher {
        /// The command.
        command: String,
        /// What to do.
        hint: &'static str,
    },
    /// One process, more asked for.
    #[error("{0} needs a launcher: `alone` starts one process, without MPI's mpirun or srun")]
    NotAlone(Topology),
    /// The command did not start.
    #[error("cannot start {command}: {reason}")]
    Start {
        /// The command.
        command: String,
        /// The system's. Not the error's source, which would be printed twice.
        reason: io::Error,
    },
}
