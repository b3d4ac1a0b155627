//! Errors that are found before a job starts.

use std::io;
use std::path::PathBuf;

use super::Topology;

/// An error that is found before a job starts: what happened, where, and what to
/// do.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The host file cannot be read.
    #[error("cannot read the host file {path}: {reason}; write it with make hosts HOSTS=\"alpha beta\"")]
    NoHostFile {
        /// The file.
        path: PathBuf,
        /// The system's. Not the error's source, which would be printed twice.
        reason: io::Error,
    },
    /// A line of the host file.
    #[error("{path}, line {line}: {text}: expected a host name and its slots, such as `alpha slots=2`")]
    HostLine {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// The line.
        text: String,
    },
    /// Too few machines or slots.
    #[error("{path} is too small for {topology}: {problem}; rewrite it with make hosts HOSTS=\"alpha beta\"")]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        topology: Topology,
        /// What is missing.
        problem: String,
    },
    /// A host name that cannot be resolved.
    #[error("cannot resolve host {host} of {path} ({reason}): check its spelling, or add it to /etc/hosts")]
    UnknownHost {
        /// The host.
        host: String,
        /// The host file.
        path: PathBuf,
        /// The resolver's reason.
        reason: String,
    },
    /// A host that rejects ssh.
    #[error(
        "cannot ssh to {host}: {reason}; mpirun starts its ranks there over ssh without a password: \
         try `ssh {host} true`, then ssh-copy-id {host}"
    )]
    NoSsh {
        /// The host.
        host: String,
        /// Last line of ssh's output.
        reason: String,
    },
    /// A host without the binary, or with a different one.
    #[error("{host} has {what} {path}; copy it with make deploy HOSTS={host}")]
    Program {
        /// The host.
        host: String,
        /// `no` or `a different`.
        what: &'static str,
        /// The binary.
        path: PathBuf,
    },
    /// A shell inside a job.
    #[error(
        "{variable} is set: this shell is part of a job, and mpirun does not start another one inside; use a new \
         shell, or in bash: unset ${{!OMPI_@}} ${{!PMIX_@}}"
    )]
    Recursive {
        /// The variable.
        variable: &'static str,
    },
    /// No space for Open MPI's own files.
    #[error(
        "{folder} has {free_mb:.1} MB free, of {needed_mb} that Open MPI's temporary files may need, and its mpirun \
         hangs where they do not fit: free space there, or set TMPDIR to another folder"
    )]
    NoSpace {
        /// The folder of temporary files.
        folder: PathBuf,
        /// What is free there.
        free_mb: f64,
        /// What may be needed.
        needed_mb: f64,
    },
    /// The launcher is not installed on this machine.
    #[error("{command} not found: {hint}")]
    NoLauncher {
        /// The command.
        command: String,
        /// What to do.
        hint: &'static str,
    },
    /// The launcher, or a script in its place, may not be executed.
    #[error(
        "{0} is not an executable file: name a program or a script, and make it executable (chmod +x {0})"
    )]
    NotExecutable(PathBuf),
    /// The launcher `alone` with more than one process.
    #[error("{0} needs a launcher: `alone` starts one process only; use mpirun or srun")]
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
