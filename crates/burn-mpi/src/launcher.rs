//! Detection of the launcher from environment variables, before MPI starts.
//!
//! MPI gets its world from its launcher. A binary that is built for one MPI and started by another MPI's
//! `mpirun` finds no launcher that it supports. Every rank then starts as a world of one: each process would
//! silently train a separate copy. The launcher's variables reveal this.

use std::os::unix::process::parent_id;

use crate::CommError;

/// A launcher, and the rank and size that it assigned to this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// The launcher's name, such as `Open MPI's mpirun`.
    pub name: &'static str,
    /// The command that starts it, such as `mpirun` or `srun`.
    pub command: &'static str,
    /// Rank of this process in the job that the launcher started.
    pub rank: usize,
    /// Number of processes in that job, if the launcher sets it.
    pub size: Option<usize>,
    /// Number of the job's processes on this host, if the launcher sets it.
    pub local_size: Option<usize>,
    /// The variables that the rank and the size were read from, such as `PMI_RANK=1, PMI_SIZE=2`.
    pub variables: String,
}

/// The known launchers. Each row has the launcher's name and command; the variables of the rank, of the size
/// and of the size on this host (an empty string if the launcher sets no such variable); and a variable that
/// must be set. If that variable is not set, the rank belongs to another launcher, or is not a rank of MPI.
///
/// The first row whose variables are set is this process's launcher. The order matters. Flux, PALS and srun
/// set the variables of PMI or PMIx too. Hydra and Open MPI start their daemons with srun, and ranks inherit
/// srun's variables. A shell in a Slurm allocation has SLURM_PROCID, but only a step, which srun starts, has
/// SLURM_STEP_NUM_TASKS. PMI_ID is set by mpiexec -pmi-port.
#[rustfmt::skip]
const LAUNCHERS: [[&str; 6]; 11] = [
    ["Open MPI's mpirun", "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_RANK"],
    ["MVAPICH2's mpirun_rsh", "mpirun_rsh", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_RANK"],
    ["Flux", "flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "", "FLUX_TASK_RANK"],
    ["PALS's mpiexec", "mpiexec", "PALS_RANKID", "PMI_SIZE", "PMI_LOCAL_SIZE", "PALS_RANKID"],
    ["jsrun", "jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_RANK"],
    ["MPICH's mpirun (Hydra)", "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPI_LOCALNRANKS"],
    ["Slurm's srun", "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS"],
    ["MPICH's mpirun (Hydra)", "mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_RANK"],
    ["MPICH's mpirun (Hydra)", "mpirun", "PMI_ID", "", "MPI_LOCALNRANKS", "PMI_PORT"],
    ["ALPS's aprun", "aprun", "ALPS_APP_PE", "", "", "ALPS_APP_PE"],
    ["a launcher with PMIx", "mpirun", "PMIX_RANK", "", "", "PMIX_RANK"],
];

/// Prefixes of the names of programs that start ranks as their children.
const DAEMONS: [&str; 9] = [
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prte",
    "hydra_pmi_proxy",
    "slurmstepd",
    "mpispawn",
    "flux-shell",
];

impl Launcher {
    /// Returns the launcher whose variables are in this process's environment; `None` if there is none.
    pub fn detect() -> Option<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Returns the launcher of a process that is about to start MPI; `None` for a process that was started
    /// alone.
    ///
    /// # Errors
    /// [`CommError::ByHand`] if there is no launcher, but torchrun's variables RANK and WORLD_SIZE are set
    /// for several processes; [`CommError::Cleared`] if a launcher started this process, but its variables
    /// are missing.
    pub(crate) fn detect_or_refuse() -> Result<Option<Self>, CommError> {
        let get = |name: &str| std::env::var(name).ok();
        let launcher = Self::detect();
        match by_hand(get) {
            _ if launcher.is_some() => Ok(launcher),
            Some((rank, size)) => Err(CommError::ByHand { rank, size }),
            None => daemon()
                .filter(|_| is_cleared(get))
                .map_or(Ok(None), |daemon| Err(CommError::Cleared { daemon })),
        }
    }

    pub(crate) fn from_variables(get: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| get(name)?.trim().parse::<usize>().ok();
        LAUNCHERS.into_iter().find_map(|[name, command, rank_in, size_in, local_size_in, needed]| {
            get(needed)?;
            let (rank, size, local_size) = (number(rank_in)?, number(size_in), number(local_size_in));
            let size_variable = size.map(|size| format!(", {size_in}={size}"));
            let variables = format!("{rank_in}={rank}{}", size_variable.unwrap_or_default());
            Some(Self { name, command, rank, size, local_size, variables })
        })
    }

    /// Returns the name of the variable that contains the rank.
    pub(crate) fn rank_variable(&self) -> &str {
        self.variables.split('=').next().unwrap_or_default()
    }

    /// Returns whether the launcher belongs to `mpi_library`, such as `Open MPI v4.1.4`.
    pub fn is_of(&self, mpi_library: &str) -> bool {
        [("Open MPI's", "Open MPI"), ("MPICH's", "MPICH"), ("MVAPICH2's", "MVAPICH")]
            .iter()
            .any(|(name, library)| self.name.starts_with(name) && mpi_library.starts_with(library))
    }

    /// Returns whether this process may be one of several. True if the size is unknown.
    pub fn has_peers(&self) -> bool {
        self.size != Some(1)
    }

    /// Returns whether a launcher is the parent of this process. If not, the process may have inherited the
    /// variables from a shell.
    pub fn has_started_this_process(&self) -> bool {
        daemon().is_some()
    }

    /// Returns whether rank 0 prints an error that all ranks have. If so, this process need not print it.
    /// True for a rank above 0 that the launcher started. A process that inherited the variables from a shell
    /// has no rank 0, and prints its errors itself.
    pub fn leaves_printing_to_rank_0(&self) -> bool {
        self.rank > 0 && self.has_started_this_process()
    }

    /// Rejects a world of one process if the launcher may have started several.
    ///
    /// # Errors
    /// [`CommError::ForeignLauncher`] if the launcher may have started several processes, and MPI reports
    /// one.
    pub fn check(&self, world_size: usize, mpi_library: &str) -> Result<(), CommError> {
        // If the launcher sets no size, trust the world size of 1 that its own MPI reports to rank 0.
        let is_alone = self.size.is_none() && self.rank == 0 && self.is_of(mpi_library);
        if self.has_peers() && world_size == 1 && !is_alone {
            return Err(CommError::ForeignLauncher { launcher: self.clone(), mpi: mpi_library.to_owned() });
        }
        Ok(())
    }
}

/// Returns the name of the program that started this process; `None` if the program is not a launcher.
fn daemon() -> Option<String> {
    let parent = parent_id().to_string();
    // If the parent is a script, the link `exe` names the shell, but `stat` names the script. `stat` is
    // therefore read only if the link cannot be read. This is so if the program runs as another user, as
    // slurmstepd does.
    let program = std::fs::read_link(format!("/proc/{parent}/exe")).ok();
    let name = match program.as_deref().and_then(|path| path.file_name()) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => stat(&parent)?.0,
    };
    DAEMONS.iter().any(|daemon| name.starts_with(daemon)).then_some(name)
}

/// Returns whether no launcher's rank variable is set. A batch script of Slurm is not rejected: its parent is
/// a launcher's daemon too, but SLURM_PROCID is set.
fn is_cleared(get: impl Fn(&str) -> Option<String>) -> bool {
    LAUNCHERS.iter().all(|[_, _, rank, ..]| get(rank).is_none())
}

/// Returns the rank and the number of processes in torchrun's variables; `None` if they are not set, or name
/// a single process.
fn by_hand(get: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let number = |name: &str| get(name)?.trim().parse::<usize>().ok();
    Some((number("RANK")?, number("WORLD_SIZE").filter(|&size| size > 1)?))
}

/// Reads `/proc/PID/stat`: the name of the program (15 bytes of it), and the fields from the third on (the
/// state, the parent, …).
pub(crate) fn stat(process: &str) -> Option<(String, Vec<String>)> {
    parse_stat(std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?.trim_end())
}

/// Parses `PID (NAME) STATE PARENT …`, where the name may contain any character.
fn parse_stat(stat: &str) -> Option<(String, Vec<String>)> {
    let (head, tail) = stat.rsplit_once(") ")?;
    let (_, name) = head.split_once(" (")?;
    Some((name.to_owned(), tail.split(' ').map(str::to_owned).collect()))
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
        let ranks = |rank: &str, size: &str| {
            by_hand(|name| match name {
                "RANK" => Some(rank.to_owned()).filter(|text| !text.is_empty()),
                "WORLD_SIZE" => Some(size.to_owned()),
                _ => None,
            })
        };
        assert_eq!((ranks("1", "2"), ranks("0", "1"), ranks("", "2")), (Some((1, 2)), None, None));
    }

    #[test]
    fn hydra_under_an_open_mpi_build_is_refused_and_both_are_named() {
        let launcher = detect(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).expect("Hydra's variables");
        assert_eq!((launcher.rank, launcher.size), (1, Some(2)));
        let message = launcher.check(1, "Open MPI v4.1.4").unwrap_err().to_string();
        assert!(message.contains("Hydra") && message.contains("Open MPI v4.1.4"), "{message}");
        assert!(launcher.check(2, "MPICH 4").is_ok());
    }

    /// The variables as launchers set them, including the variables of inner protocols and of outer
    /// launchers.
    #[test]
    fn each_launcher_is_named_by_its_own_variables() {
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_TASKS_PER_NODE", "2")];
        let pmix = [("PMIX_RANK", "1")];
        for (name, command, variables) in [
            ("Open MPI's mpirun", "mpirun", &[&[("OMPI_COMM_WORLD_RANK", "1")], &pmix[..], &step].concat()),
            ("MVAPICH2's mpirun_rsh", "mpirun_rsh", &vec![("MV2_COMM_WORLD_RANK", "1")]),
            ("Flux", "flux", &[&[("FLUX_TASK_RANK", "1"), ("FLUX_JOB_SIZE", "2")], &pmi[..]].concat()),
            ("PALS's mpiexec", "mpiexec", &[&[("PALS_RANKID", "1")], &pmi[..]].concat()),
            ("jsrun", "jsrun", &[&[("JSM_NAMESPACE_RANK", "1")], &pmix[..]].concat()),
            ("MPICH's mpirun (Hydra)", "mpirun", &[&pmi[..], &[("MPI_LOCALNRANKS", "2")], &step].concat()),
            ("MPICH's mpirun (Hydra)", "mpirun", &pmi.to_vec()),
            ("MPICH's mpirun (Hydra)", "mpirun", &vec![("PMI_PORT", "a:7"), ("PMI_ID", "1")]),
            ("ALPS's aprun", "aprun", &vec![("ALPS_APP_PE", "1")]),
            ("Slurm's srun", "srun", &[&pmi[..], &step].concat()),
            ("Slurm's srun", "srun", &[&pmix[..], &step].concat()),
            ("a launcher with PMIx", "mpirun", &pmix.to_vec()),
        ] {
            let launcher = detect(variables).unwrap_or_else(|| panic!("{variables:?}"));
            assert_eq!((launcher.name, launcher.command, launcher.rank), (name, command, 1));
            let line = launcher.check(1, "LAM 7.1").unwrap_err().to_string();
            let rank = launcher.rank_variable();
            assert!(line.starts_with(name) && line.contains(&format!("{rank}=1")), "{line}");
            assert!(line.ends_with(&format!("unset {rank}")), "{line}");
        }
    }

    /// The error must not propose another mpirun or another build: neither would help.
    #[test]
    fn the_launcher_of_the_same_mpi_is_told_as_variables_of_another_job() {
        for (variables, mpi, unset) in [
            (
                &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"],
                "Open MPI v4.1.4",
                "unset ${!OMPI_@} ${!PMIX_@}",
            ),
            (&["PMI_RANK", "PMI_SIZE"], "MPICH 4.0.2", "unset ${!PMI_@} ${!PMIX_@}"),
        ] {
            let launcher = detect(&[(variables[0], "1"), (variables[1], "2")]).unwrap();
            let line = launcher.check(1, mpi).unwrap_err().to_string();
            assert!(line.starts_with(&format!("{} did not start", launcher.name)), "{line}");
            assert!(line.contains("inherited from another job") && line.ends_with(unset), "{line}");
            assert!(!line.contains("build"), "{line}");
        }
    }

    #[test]
    fn rank_0_of_a_launcher_that_sets_no_size_is_alone_if_its_own_mpi_says_so() {
        let hydra = |rank| detect(&[("PMI_PORT", "a:7"), ("PMI_ID", rank)]).unwrap();
        assert!(hydra("0").check(1, "MPICH 4.0.2").is_ok() && hydra("1").check(1, "MPICH 4.0.2").is_err());
        assert!(hydra("0").check(1, "Open MPI v4.1.4").is_err());
    }

    #[test]
    fn a_shell_in_an_allocation_and_one_process_of_any_launcher_are_a_world_of_one() {
        assert_eq!(detect(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")]), None);
        let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        for variables in [&step[..], &[&step[..], &[("PMIX_RANK", "0")]].concat()] {
            assert!(detect(variables).unwrap().check(1, "Open MPI").is_ok());
        }
    }

    #[test]
    fn a_batch_script_is_no_rank_without_its_variables() {
        let is = |set: &str| is_cleared(|name| (name == set).then(|| "0".to_owned()));
        assert!(is("HOME") && !is("SLURM_PROCID") && !is("PMIX_RANK"));
    }

    /// Without a launcher there is no rank 0 that would print the errors.
    #[test]
    fn a_process_that_no_launcher_has_started_prints_its_errors() {
        let launcher = detect(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]).unwrap();
        assert!(!launcher.leaves_printing_to_rank_0());
    }

    #[test]
    fn names_with_brackets_and_blanks_are_read_to_their_end() {
        let fields = ["S", "7", "12", "0"].map(str::to_owned).to_vec();
        assert_eq!(parse_stat("12 (a) (b c) S 7 12 0"), Some(("a) (b c".to_owned(), fields)));
        assert_eq!(parse_stat("12"), None);
    }
}
