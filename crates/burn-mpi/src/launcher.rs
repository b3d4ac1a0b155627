//! Detection of the launcher from environment variables, before MPI starts.
//!
//! MPI gets its world from its launcher. A binary that is built for one MPI and
//! started by another's `mpirun` finds no launcher that it supports and starts as
//! a world of one, on every rank: each process would silently train a separate
//! copy. The launchers' variables reveal that.

use crate::CommError;

/// A launcher, and the rank and size that it assigned to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// The launcher's name, such as `Open MPI's mpirun`.
    pub name: &'static str,
    /// The command that starts it: `mpirun` or `srun`.
    pub command: &'static str,
    /// Rank of this process in the job that the launcher started.
    pub rank: usize,
    /// Number of processes in that job.
    pub size: usize,
    /// Number of the job's processes on this host, if the launcher sets it.
    pub local_size: Option<usize>,
}

/// Name, rank, size and local size variables of each launcher.
const LAUNCHERS: [(&str, &str, &str, &str); 3] = [
    ("Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPICH's mpirun (Hydra)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    ("Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),
];

impl Launcher {
    /// The launcher whose variables this process inherited, if any.
    pub fn detect() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// The same, for a process that is to be a rank.
    ///
    /// # Errors
    /// [`CommError::ByHand`] if there is no launcher, but torchrun's variables for
    /// numbering processes are set for several.
    pub fn detect_or_refuse() -> Result<Option<Self>, CommError> {
        let launcher = Self::detect();
        match by_hand(|name| std::env::var(name).ok()) {
            Some((rank, size)) if launcher.is_none() => Err(CommError::ByHand { rank, size }),
            _ => Ok(launcher),
        }
    }

    pub(crate) fn from_variables(get: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| get(name)?.trim().parse::<usize>().ok();
        LAUNCHERS.iter().find_map(|&(name, rank, size, local)| {
            // srun --mpi=pmi2 and Hydra use the same protocol; only srun's
            // processes have a task number too.
            let by_srun =
                name.contains("srun") || (name.contains("Hydra") && get("SLURM_STEP_NUM_TASKS").is_some());
            let command = if by_srun { "srun" } else { "mpirun" };
            Some(Self { name, command, rank: number(rank)?, size: number(size)?, local_size: number(local) })
        })
    }

    /// Rejects a world that differs from the launcher's.
    ///
    /// # Errors
    /// [`CommError::ForeignLauncher`] if the launcher started more processes than
    /// MPI reports.
    pub fn check(&self, world_size: usize, mpi_library: &str) -> Result<(), CommError> {
        if self.size > 1 && world_size == 1 {
            return Err(CommError::ForeignLauncher {
                launcher: self.name,
                started: self.size,
                mpi: mpi_library.to_owned(),
            });
        }
        Ok(())
    }
}

/// Rank and number of processes in torchrun's variables, if there are several.
fn by_hand(get: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let number = |name: &str| get(name)?.trim().parse::<usize>().ok();
    Some((number("RANK")?, number("WORLD_SIZE").filter(|&size| size > 1)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(variables: &[(&str, &str)]) -> Option<Launcher> {
        Launcher::from_variables(|name| {
            variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn a_process_started_alone_has_no_launcher() {
        assert_eq!(detect(&[("HOME", "/root")]), None);
    }

    #[test]
    fn torchruns_variables_are_ranks_by_hand_only_when_they_are_several() {
        let of = |rank: &str, size: &str| {
            by_hand(|name| match name {
                "RANK" => Some(rank.to_owned()).filter(|text| !text.is_empty()),
                "WORLD_SIZE" => Some(size.to_owned()),
                _ => None,
            })
        };
        assert_eq!((of("1", "2"), of("0", "1"), of("", "2")), (Some((1, 2)), None, None));
    }

    #[test]
    fn hydra_under_an_open_mpi_build_is_refused_and_both_are_named() {
        let launcher = detect(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).expect("Hydra's variables");
        assert_eq!((launcher.rank, launcher.size), (1, 2));
        let message = launcher.check(1, "Open MPI v4.1.4").unwrap_err().to_string();
        assert!(message.contains("Hydra") && message.contains("Open MPI v4.1.4"), "{message}");
        assert!(launcher.check(2, "MPICH 4").is_ok());
    }

    #[test]
    fn one_process_under_any_launcher_is_a_world_of_one() {
        let launcher = detect(&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]).unwrap();
        assert!(launcher.check(1, "Open MPI").is_ok());
    }
}
