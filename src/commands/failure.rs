//! How a command fails: who prints the error, and with which exit code the process ends.

use super::logging;
use crate::options::ConfigError;
use crate::quant::QuantError;
use crate::train::TrainError;
use burn_mpi::CommError;
use burn_mpi::lab::MPI_FLAVOUR;
use burn_mpi::messages::{FAILED, NOTICED};
use data::DataError;
use launch::sweep::SweepError;
use launch::{OPTIONS, RESUMABLE};
use run_record::RecordError;
use run_report::UsageError;

/// Something that was typed or named cannot be done, which every rank knows.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Rank 0 cannot use a run directory that another process uses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InUse(pub CommError);

/// What a process does whose command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It prints the error, and no other rank waits for it.
    Own,
    /// It prints the error, and aborts other ranks, which may still be running.
    Abort,
    /// It exits: all ranks have the error, and one has printed it.
    Shared,
}

/// An error of a command, and what the process does.
pub struct CommandError {
    /// The error.
    pub error: anyhow::Error,
    /// What the process does.
    pub ending: Ending,
}

impl CommandError {
    /// An error that no other rank has to know.
    pub fn own(error: anyhow::Error) -> Self {
        Self { error, ending: Ending::Own }
    }

    /// Prints the error, unless one rank has for all.
    pub fn print(&self) {
        if self.ending != Ending::Shared {
            logging::error(kind(&self.error), &with_hint(&self.error));
        }
    }

    /// Exit code of the process; the guard's is 3.
    pub fn exit_code(&self) -> u8 {
        const FAILED: u8 = 1;
        if is_refusal(&self.error) {
            return OPTIONS;
        }
        if self.error.chain().any(|cause| matches!(cause.downcast_ref(), Some(TrainError::Stopped { .. }))) {
            RESUMABLE
        } else {
            FAILED
        }
    }
}

/// Whether something was typed wrong: an option, a network that has no int8 version, a
/// file of the other kind.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    // Not where it is the cause of another: an edited run.json.
    let is_option = error.chain().next().is_some_and(|error| {
        error.is::<ConfigError>()
            || error.is::<UsageError>()
            || error.is::<Refused>()
            || error.is::<SweepError>()
    });
    is_option
        || matches!(error.downcast_ref(), Some(DataError::Option { .. }))
        || error.chain().any(|cause| {
            cause.is::<QuantError>()
                || cause.downcast_ref::<RecordError>().is_some_and(RecordError::is_wrong_kind)
        })
}

/// The error between ranks that is the cause of `error`, if one is.
pub fn comm_error(error: &anyhow::Error) -> Option<&CommError> {
    error.chain().find_map(|cause| {
        cause
            .downcast_ref()
            .or_else(|| cause.downcast_ref::<TrainError>().and_then(TrainError::comm_error))
            .or_else(|| cause.downcast_ref::<InUse>().map(|InUse(error)| error))
    })
}

/// Whether another process uses the run directory.
pub fn is_in_use(error: &anyhow::Error) -> bool {
    let is_locked = |error| matches!(error, &RecordError::InUse { .. });
    error.is::<InUse>() || error.downcast_ref().is_some_and(is_locked)
}

/// The kind of the line with the error, for `launch --restart`.
pub fn kind(error: &anyhow::Error) -> &'static str {
    // Of gloo, and of the system.
    let closed = ["Connection closed by peer", "Connection reset by peer", "Broken pipe"];
    match comm_error(error) {
        _ if is_in_use(error) => launch::IN_USE,
        Some(CommError::Left { .. }) => NOTICED,
        Some(error) if closed.iter().any(|words| error.to_string().contains(words)) => NOTICED,
        _ => FAILED,
    }
}

/// Whether every rank of the job ends with this same error, so that none waits.
pub fn is_shared(error: &anyhow::Error) -> bool {
    comm_error(error).is_some_and(CommError::is_shared)
        || error.downcast_ref().is_some_and(TrainError::is_shared)
        || error.is::<ConfigError>()
        || error.is::<Refused>()
}

/// The error in one line, with what this program offers against it.
pub fn with_hint(error: &anyhow::Error) -> String {
    match comm_error(error).and_then(hint) {
        Some(hint) => format!("{error:#}; {hint}"),
        None => format!("{error:#}"),
    }
}

/// What this program's user can do about an error of the library, which speaks of its own functions.
fn hint(error: &CommError) -> Option<String> {
    match error {
        CommError::ByHand { .. } => Some("mpiburn launch NxC -- … starts a topology".into()),
        CommError::ForeignLauncher { launcher, mpi } if !launcher.is_of(mpi) => {
            let other = if MPI_FLAVOUR == "openmpi" { "mpich" } else { "openmpi" };
            Some(format!("make build MPI={other} builds for the other"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_adds_its_own_commands_to_the_librarys_errors() {
        let by_hand = || CommError::ByHand { rank: 0, size: 2 };
        let line = with_hint(&anyhow::Error::from(TrainError::Comm(by_hand())).context("train"));
        assert!(
            line.ends_with("unset RANK and WORLD_SIZE; mpiburn launch NxC -- … starts a topology"),
            "{line}"
        );
        assert!(!by_hand().to_string().contains("NxC"));
        let other = anyhow::Error::from(CommError::Start("no network".into()));
        assert_eq!(with_hint(&other), "MPI did not start: no network");
    }
}
