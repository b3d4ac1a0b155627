//! Composes the command line that starts a job with a launcher: mpirun of Open MPI or MPICH, or srun.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::ValueEnum;

use super::{Hosts, Topology, quirks, quoted};

/// How the ranks are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum LauncherKind {
    /// mpirun of the MPI that this binary is built for.
    Mpirun,
    /// Slurm's srun. Outside of an allocation, srun requests one.
    Srun,
    /// No launcher: one process.
    Alone,
}

/// An MPI library, which has a launcher and a format of host files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpiFlavour {
    /// Open MPI.
    OpenMpi,
    /// MPICH.
    Mpich,
}

impl MpiFlavour {
    /// Returns the library's name. `launch` sets it as the environment variable `MPI`, for scripts that start
    /// the ranks instead of the launcher.
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "openmpi",
            Self::Mpich => "mpich",
        }
    }
}

/// What each thread of a rank is bound to. All machines of a job have the same binding, which is possible on
/// each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Binding {
    /// One core.
    Core,
    /// One hardware thread: two threads may share a core.
    HardwareThread,
    /// One core, which several ranks share and take turns on; with MPICH, or with several threads, nothing.
    Overload,
}

/// Returns why `topology` cannot be started without a launcher; `None` if it is a single process.
pub(super) fn needs_launcher(topology: Topology) -> Option<String> {
    (topology.ranks() > 1)
        .then(|| format!("{topology} needs a launcher: `alone` starts one process only; use mpirun or srun"))
}

/// A job to start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Machines x processes per machine.
    pub topology: Topology,
    /// How the job is started, unless `by` names a command.
    pub launcher: LauncherKind,
    /// The MPI that the program is built for.
    pub mpi: MpiFlavour,
    /// The machines of mpirun's host file. With `None`, mpirun starts all ranks on this machine. srun and the
    /// command `by` ignore this field and choose the machines themselves.
    pub hosts: Option<Hosts>,
    /// A command that starts the ranks instead of the launcher, called as `COMMAND NxC PROGRAM ARGS…`.
    pub by: Option<PathBuf>,
    /// Returns two numbers: the cores of this machine, and the CPUs that a job may use.
    pub count_cores: fn() -> [usize; 2],
    /// Number of threads of a rank.
    pub threads: usize,
    /// What each thread is bound to.
    pub binding: Binding,
    /// The program and its arguments.
    pub program: Vec<String>,
}

impl Launch {
    /// Returns the whole command line.
    ///
    /// # Errors
    /// If the topology needs more machines or slots than the hosts have, or if a job of several ranks has no
    /// launcher.
    pub fn command(&self) -> anyhow::Result<Vec<String>> {
        let mut words: Vec<String> = match (&self.by, self.launcher) {
            (Some(script), _) => vec![script.display().to_string(), self.topology.to_string()],
            (None, LauncherKind::Mpirun) => match self.mpi {
                MpiFlavour::OpenMpi => self.open_mpi()?,
                MpiFlavour::Mpich => self.mpich()?,
            },
            (None, LauncherKind::Srun) => self.srun(),
            (None, LauncherKind::Alone) => match needs_launcher(self.topology) {
                Some(problem) => bail!(problem),
                None => Vec::new(),
            },
        };
        words.extend(self.program.iter().cloned());
        Ok(words)
    }

    fn open_mpi(&self) -> anyhow::Result<Vec<String>> {
        let (ranks, threads) = (self.topology.ranks_per_node, self.threads);
        let mut words = vec![installed("mpirun.openmpi", "mpirun")];
        let mut add = |more: &[&str]| words.extend(more.iter().map(ToString::to_string));
        if rustix::process::geteuid().is_root() {
            add(&["--allow-run-as-root"]);
        }
        if let Some(hosts) = &self.hosts {
            let names = hosts.for_topology(self.topology)?;
            add(&["--hostfile", &hosts.path.display().to_string()]);
            if quirks::keeps_full_names(&names) {
                add(&["--mca", "orte_keep_fqdn_hostnames", "1"]);
            }
        }
        let each = match self.binding {
            Binding::Overload => String::new(),
            _ if threads == 1 => String::new(),
            _ => format!(":PE={threads}"),
        };
        add(&["-n", &self.topology.ranks().to_string(), "--map-by", &format!("ppr:{ranks}:node{each}")]);
        match self.binding {
            // Waiting ranks must yield the core to the ranks that share it.
            Binding::Overload => {
                let to = if threads == 1 { "core:overload-allowed" } else { "none" };
                add(&["--oversubscribe", "--bind-to", to, "--mca", "mpi_yield_when_idle", "1"]);
            }
            // `PE` counts cores, unless hardware threads count as cores.
            Binding::HardwareThread if threads > 1 => add(&["--use-hwthread-cpus", "--bind-to", "hwthread"]),
            Binding::HardwareThread => add(&["--bind-to", "hwthread"]),
            Binding::Core => add(&["--bind-to", "core"]),
        }
        if self.topology.nodes > 1 {
            quirks::KEEPALIVES.iter().for_each(|(name, value)| add(&["--mca", name, value]));
            // Use two connections: a single connection rarely transfers in both directions at once.
            add(&["--mca", "btl_tcp_links", "2"]);
        }
        Ok(words)
    }

    fn mpich(&self) -> anyhow::Result<Vec<String>> {
        let topology = self.topology;
        let mut words = vec![installed("mpirun.mpich", "mpirun")];
        if let Some(hosts) = &self.hosts {
            let names = hosts.for_topology(topology)?;
            words.extend(["-hosts".to_owned(), names.join(",")]);
        }
        let per_node = topology.ranks_per_node.to_string();
        words.extend(["-ppn".to_owned(), per_node, "-n".to_owned(), topology.ranks().to_string()]);
        match self.binding {
            Binding::Overload => {}
            Binding::HardwareThread => words.extend(["-bind-to".to_owned(), self.counted("hwthread")]),
            Binding::Core => words.extend(["-bind-to".to_owned(), self.counted("core")]),
        }
        Ok(words)
    }

    /// Returns what MPICH binds a rank to: one `unit` for each thread.
    fn counted(&self, unit: &str) -> String {
        if self.threads == 1 { unit.to_owned() } else { format!("{unit}:{}", self.threads) }
    }

    fn srun(&self) -> Vec<String> {
        let protocol = match self.mpi {
            MpiFlavour::OpenMpi => "pmix",
            MpiFlavour::Mpich => "pmi2",
        };
        let mut words = vec![
            "srun".to_owned(),
            format!("--nodes={}", self.topology.nodes),
            format!("--ntasks-per-node={}", self.topology.ranks_per_node),
        ];
        words.extend((self.threads > 1).then(|| format!("--cpus-per-task={}", self.threads)));
        words.extend([
            format!("--mpi={protocol}"),
            "--cpu-bind=cores".to_owned(),
            "--kill-on-bad-exit=1".to_owned(),
        ]);
        words
    }
}

/// Returns `exact` if this command is installed, and otherwise `usual`. If several MPIs are installed, the
/// command `usual` may belong to the wrong MPI.
fn installed(exact: &str, usual: &str) -> String {
    if find(exact).is_some() { exact } else { usual }.to_owned()
}

/// Finds a command in `PATH`: the first executable file of this name, or else the first file of this name. A
/// command with a slash is a path of a file or folder, and `PATH` is not searched. Returns `None` if nothing
/// is found.
pub(super) fn find(command: &str) -> Option<PathBuf> {
    if command.contains('/') {
        return Path::new(command).exists().then(|| PathBuf::from(command));
    }
    let folders = std::env::var_os("PATH")?;
    let files = std::env::split_paths(&folders).map(|folder| folder.join(command));
    let files: Vec<PathBuf> = files.filter(|file| file.is_file()).collect();
    files.iter().find(|file| is_executable(file)).or(files.first()).cloned()
}

/// Returns whether this process may execute a file.
pub(super) fn is_executable(file: &Path) -> bool {
    file.is_file() && rustix::fs::access(file, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Joins the words of a command into one line, quoted for a shell.
pub fn line(words: &[String]) -> String {
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns whether `host` is the name of this machine. If `whole` is false, names that are equal up to the
/// first dot are accepted too.
pub(super) fn has_own_name(host: &str, whole: bool) -> bool {
    let (own, name) = (own_name(), without_user(host));
    own == name || (!whole && own.split('.').next() == name.split('.').next())
}

/// Returns the name of this machine.
pub(super) fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns a host of a host file without its user: `me@alpha` becomes `alpha`.
pub(super) fn without_user(host: &str) -> &str {
    host.rsplit('@').next().unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::super::hosts::Slots;
    use super::*;

    fn launch(topology: &str) -> Launch {
        let entries = ["alpha", "beta"].map(|name| (name.to_owned(), Slots::Given(2))).into();
        let hosts = Hosts { path: "hostfiles/2x2".into(), entries };
        Launch {
            topology: topology.parse().unwrap(),
            launcher: LauncherKind::Mpirun,
            mpi: MpiFlavour::OpenMpi,
            hosts: Some(hosts),
            by: None,
            count_cores: || [1, 1],
            threads: 1,
            binding: Binding::Core,
            program: vec!["mpiburn".into(), "train".into()],
        }
    }

    #[test]
    fn each_thread_of_a_rank_has_a_core() {
        let with = |mpi, binding, launcher| {
            let launch = Launch { threads: 3, mpi, binding, launcher, ..launch("1x2") };
            launch.command().unwrap().join(" ")
        };
        let (open, mpich, run) = (MpiFlavour::OpenMpi, MpiFlavour::Mpich, LauncherKind::Mpirun);
        for (mpi, binding, expected) in [
            (open, Binding::Core, "-n 2 --map-by ppr:2:node:PE=3 --bind-to core mpiburn train"),
            (
                open,
                Binding::HardwareThread,
                "-n 2 --map-by ppr:2:node:PE=3 --use-hwthread-cpus --bind-to hwthread mpiburn train",
            ),
            (
                open,
                Binding::Overload,
                "--map-by ppr:2:node --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 mpiburn train",
            ),
            (mpich, Binding::Core, "-ppn 2 -n 2 -bind-to core:3 mpiburn train"),
            (mpich, Binding::Overload, "-ppn 2 -n 2 mpiburn train"),
        ] {
            let line = with(mpi, binding, run);
            assert!(line.ends_with(expected), "{line}");
        }
        let line = with(open, Binding::Core, LauncherKind::Srun);
        assert!(line.contains("--ntasks-per-node=2 --cpus-per-task=3 --mpi=pmix --cpu-bind=cores"), "{line}");
    }

    #[test]
    fn open_mpi_command_has_hosts_mapping_and_binding() {
        let line = launch("2x2").command().unwrap().join(" ");
        let expected =
            "--hostfile hostfiles/2x2 -n 4 --map-by ppr:2:node --bind-to core --mca oob_tcp_keepalive";
        assert!(line.contains(expected) && line.ends_with("mpiburn train"), "{line}");
        assert!(!line.contains("fqdn"), "{line}");
        let mut dotted = launch("1x2");
        let own = format!("{}.example.com", own_name().split('.').next().unwrap());
        for (name, keeps) in [("10.0.0.1", false), ("alpha.example.com", true), (&*own, false)] {
            dotted.hosts.as_mut().unwrap().entries[0].0 = name.into();
            let line = dotted.command().unwrap().join(" ");
            assert_eq!(line.contains("--mca orte_keep_fqdn_hostnames 1"), keeps, "{line}");
        }
        let line = Launch { binding: Binding::HardwareThread, ..launch("1x2") }.command().unwrap().join(" ");
        assert!(line.ends_with("--map-by ppr:2:node --bind-to hwthread mpiburn train"), "{line}");
        let line = Launch { binding: Binding::Overload, ..launch("1x2") }.command().unwrap().join(" ");
        assert!(line.contains("--bind-to core:overload-allowed --mca mpi_yield_when_idle 1"), "{line}");
        assert!(!line.contains("keepalive"), "{line}");
    }

    #[test]
    fn mpich_srun_and_script_commands_have_the_same_topology() {
        let mpich = Launch { mpi: MpiFlavour::Mpich, ..launch("2x1") };
        let line = mpich.command().unwrap().join(" ");
        assert!(line.ends_with("-hosts alpha,beta -ppn 1 -n 2 -bind-to core mpiburn train"), "{line}");
        let srun = Launch { launcher: LauncherKind::Srun, ..launch("2x1") };
        let expected = "srun --nodes=2 --ntasks-per-node=1 --mpi=pmix --cpu-bind=cores --kill-on-bad-exit=1 mpiburn train";
        assert_eq!(srun.command().unwrap().join(" "), expected);
        let script = Launch { by: Some("lab.sh".into()), ..launch("2x1") };
        assert_eq!(script.command().unwrap().join(" "), "lab.sh 2x1 mpiburn train");
        let alone = |topology| Launch { launcher: LauncherKind::Alone, ..launch(topology) }.command();
        assert_eq!(alone("1x1").unwrap().join(" "), "mpiburn train");
        assert!(alone("1x2").unwrap_err().to_string().contains("needs a launcher"));
    }
}
