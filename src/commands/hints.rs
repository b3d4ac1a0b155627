//! What the program's user can do about an error of the library, which speaks of its
//! own functions and not of this program's options.

use burn_mpi::CommError;
use burn_mpi::lab::MPI_FLAVOUR;

/// The error in one line, with what this program offers against it.
pub fn with_hint(error: &anyhow::Error) -> String {
    match super::failure::comm_error(error).and_then(hint) {
        Some(hint) => format!("{error:#}; {hint}"),
        None => format!("{error:#}"),
    }
}

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
    use crate::train::TrainError;

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
