//! Checks before a job starts: the launcher is installed; each machine's name can be resolved; each machine
//! accepts ssh and has the same binary.
//!
//! mpirun reports these errors too, but in twenty lines, and some errors only after minutes.

use std::cell::LazyCell;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail, ensure};

use super::command::{find, has_own_name, is_executable, needs_launcher, without_user};
use super::reach::{Agent, Patience, addresses, output};
use super::{Binding, Hosts, Launch, LauncherKind, MpiFlavour, Topology, quirks, quoted};
use crate::StopRequest;

/// Checks that the job `launch` can start, and sets its binding: each rank is bound to one core, unless a
/// machine has too few cores.
///
/// # Errors
/// If a check fails, or if `stop` interrupts it.
pub fn check(launch: &mut Launch, stop: &StopRequest) -> anyhow::Result<()> {
    check_here(launch)?;
    // Only mpirun reads the host file. A script in the launcher's place has its own list of machines, and so
    // has Slurm.
    if launch.by.is_none() && launch.launcher == LauncherKind::Mpirun {
        launch.binding = check_hosts(launch, stop)?;
    }
    Ok(())
}

/// Makes the checks of [`check`] that need no other machine.
///
/// # Errors
/// If a check fails.
pub fn check_here(launch: &mut Launch) -> anyhow::Result<()> {
    check_command(launch)?;
    let is_mpirun = launch.by.is_none() && launch.launcher == LauncherKind::Mpirun;
    if is_mpirun && launch.mpi == MpiFlavour::OpenMpi {
        quirks::check_environment()?;
    }
    bind_here(launch).map(drop)
}

/// Checks that the launcher, or the script in its place, is installed.
fn check_command(launch: &Launch) -> anyhow::Result<()> {
    let command = launch.command()?;
    let Some(first) = command.first() else { return Ok(()) };
    let option = match (&launch.by, launch.launcher) {
        (None, _) => "",
        (Some(_), LauncherKind::Srun) => "--srun-by ",
        (Some(_), _) => "--mpirun-by ",
    };
    ensure!(
        launch.by.is_none() || !Path::new(first).is_dir(),
        "{option}{first}: is a folder: name a script, or a program"
    );
    let file = find(first).with_context(|| {
        let hint = match (&launch.by, launch.launcher) {
            (Some(by), _) if by.is_file() => &format!("to name the file in this folder, write ./{first}"),
            (Some(_), _) => "check the path",
            (None, LauncherKind::Srun) => "srun comes with Slurm; without Slurm, use --launcher mpirun",
            (None, _) => "make setup installs it",
        };
        format!("{option}{first}: not found: {hint}")
    })?;
    ensure!(
        is_executable(&file),
        "{option}{}: is not an executable file: name a program or a script, and make it executable (chmod +x {})",
        file.display(),
        quoted(file.display().to_string())
    );
    Ok(())
}

/// Checks that mpirun reaches each machine, and that each machine has the same binary. Returns what the ranks
/// can be bound to on all machines.
fn check_hosts(launch: &Launch, stop: &StopRequest) -> anyhow::Result<Binding> {
    let mut needed = launch.binding;
    let Some(hosts) = &launch.hosts else { return Ok(needed) };
    let names = hosts.for_topology(launch.topology)?;
    let then = |_: &str, counts: anyhow::Result<[usize; 2]>| {
        needed = needed.max(binding(launch.threads_of_machine(), counts?));
        Ok(true)
    };
    ask_hosts(launch, hosts, &names, stop, then)?;
    Ok(needed)
}

/// Asks the machines `names` of `hosts` for their number of cores, and the number of CPUs that the ranks may
/// use. Checks that mpirun reaches each machine, and that each machine has the same binary. `then` gets a
/// machine and its answer, and returns whether to ask the next machine.
///
/// # Errors
/// If a signal comes, or `then` returns an error.
pub(super) fn ask_hosts(
    launch: &Launch,
    hosts: &Hosts,
    names: &[&str],
    stop: &StopRequest,
    mut then: impl FnMut(&str, anyhow::Result<[usize; 2]>) -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut own = None;
    let patience = Patience::until(stop);
    let agent = LazyCell::new(|| Agent::for_mpi(launch.mpi).map_err(|error| error.to_string()));
    let agent = || agent.as_ref().map_err(|error| anyhow!("{error}"));
    for host in names {
        let mut ask = || {
            let here: Vec<IpAddr> = match addresses(host, patience) {
                // A socket can be bound only to an address of this machine.
                Ok(all) => all.into_iter().filter(|&ip| UdpSocket::bind((ip, 0)).is_ok()).collect(),
                // The name has no address here, but the agent may know one. The agent is the command by which
                // mpirun reaches other machines, usually ssh.
                Err(_) if agent()?.may_know(host, patience) => Vec::new(),
                Err(reason) => bail!(
                    "cannot resolve host {host} of {} ({reason}): check its spelling, or add it to /etc/hosts or \
                     ~/.ssh/config",
                    hosts.path.display()
                ),
            };
            if here.is_empty() {
                return agent()?.ask(host, Path::new(&launch.program[0]), patience);
            }
            if launch.mpi == MpiFlavour::OpenMpi {
                quirks::check_own(host, &here, own.replace(*host), names, hosts)?;
            }
            Ok((launch.count_cores)())
        };
        let counts = ask();
        if let (Err(_), Some(signal)) = (&counts, stop.signal()) {
            bail!("{signal} came before {host} answered: no job was started");
        }
        if !then(host, counts)? {
            break;
        }
    }
    Ok(())
}

/// Sets the binding of the ranks from the cores of this machine alone, without asking other machines. Returns
/// the names of the other machines, whose numbers of cores are not known.
///
/// # Errors
/// If the topology needs more machines or slots than the hosts have.
pub fn bind_here(launch: &mut Launch) -> anyhow::Result<Vec<String>> {
    if launch.by.is_some() || launch.launcher != LauncherKind::Mpirun {
        return Ok(Vec::new());
    }
    let names = launch.hosts.as_ref().map(|hosts| hosts.for_topology(launch.topology)).transpose()?;
    let is_own =
        |host: &&str| ["localhost", "127.0.0.1"].contains(&without_user(host)) || has_own_name(host, false);
    let (own, others): (Vec<&str>, Vec<&str>) = names.iter().flatten().copied().partition(is_own);
    let others = others.into_iter().map(ToOwned::to_owned).collect();
    if names.is_none() || !own.is_empty() {
        launch.binding = binding(launch.threads_of_machine(), (launch.count_cores)());
    }
    Ok(others)
}

/// Returns what each of the ranks' `threads` on a machine can be bound to. `cores` is the number of its cores,
/// `cpus` the number of CPUs that the ranks may use.
pub(super) fn binding(threads: usize, [cores, cpus]: [usize; 2]) -> Binding {
    match threads {
        _ if threads > cpus => Binding::Overload,
        _ if threads > cores => Binding::HardwareThread,
        _ => Binding::Core,
    }
}

impl Launch {
    /// Number of threads of all ranks of a machine.
    pub(super) fn threads_of_machine(&self) -> usize {
        self.topology.ranks_per_node * self.threads
    }
}

/// Commands that provide several machines.
const MACHINES: &str = "make hosts HOSTS=\"alpha beta\", or emulate two machines with make cluster-up and --mpirun-by tests/cluster/mpirun.sh";

/// Returns why `launcher` cannot start a job on `topology` here, and what is missing; `None` if no reason is
/// known. `hostfile` is the path of the topology's host file, in the format of `mpi`.
pub fn impossible(
    topology: Topology,
    launcher: LauncherKind,
    mpi: MpiFlavour,
    hostfile: &Path,
) -> Option<String> {
    match launcher {
        LauncherKind::Alone => needs_launcher(topology),
        LauncherKind::Mpirun if topology.nodes > 1 && !hostfile.exists() => {
            let folder = hostfile.parent().unwrap_or(Path::new("")).display();
            Some(format!(
                "several machines need host files, but {folder} does not contain them: create them with {MACHINES}"
            ))
        }
        LauncherKind::Mpirun if topology.nodes > 1 => unknown_host(topology, mpi, hostfile).map(|host| {
            format!(
                "{} names {host}, which cannot be resolved here: write the names of your machines with {MACHINES}",
                hostfile.display()
            )
        }),
        LauncherKind::Mpirun => None,
        LauncherKind::Srun => no_slurm("srun", "sinfo").map(|reason| {
            format!(
                "srun needs Slurm, but {reason}: start the sweep on a Slurm cluster, or emulate one with make slurm-up \
                 and --srun-by tests/slurm/srun.sh"
            )
        }),
    }
}

/// Returns a machine of the host file whose name cannot be resolved. The host files of a fresh checkout name
/// such machines, as examples. Returns `None` if the file cannot be read or names too few machines, because
/// the run reports these errors.
fn unknown_host(topology: Topology, mpi: MpiFlavour, hostfile: &Path) -> Option<String> {
    let hosts = Hosts::read(hostfile, mpi).ok()?;
    let agent = LazyCell::new(|| Agent::for_mpi(mpi).ok());
    let stop = StopRequest::default();
    let patience = Patience::until(&stop);
    let may_know = |host: &str| agent.as_ref().is_some_and(|agent| agent.may_know(host, patience));
    let unknown = |host: &&str| addresses(host, patience).is_err() && !may_know(host);
    hosts.for_topology(topology).ok()?.into_iter().find(unknown).map(ToOwned::to_owned)
}

/// Returns why Slurm cannot be used here: srun is not installed, or sinfo gets no answer. Returns `None` if
/// Slurm can be used.
fn no_slurm(srun: &str, sinfo: &str) -> Option<String> {
    if find(srun).is_none() {
        return Some("it is not installed here".into());
    }
    let mut command = Command::new(sinfo);
    command.arg("--noheader").stdin(Stdio::null());
    match output(command, sinfo, Patience::until(&StopRequest::default())) {
        Ok(Some(output)) if output.status.success() => None,
        _ => Some("no cluster answers".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::command::own_name;
    use super::super::hosts::Slots;
    use super::*;

    fn launch(host: &str) -> Launch {
        Launch {
            topology: "1x2".parse().unwrap(),
            launcher: LauncherKind::Mpirun,
            mpi: MpiFlavour::OpenMpi,
            hosts: Some(Hosts {
                path: "hostfiles/1x2".into(),
                entries: vec![(host.into(), Slots::Given(1000))],
            }),
            by: None,
            count_cores: || [2, 4],
            threads: 1,
            binding: Binding::Core,
            program: vec!["/bin/true".into()],
        }
    }

    #[test]
    fn this_machine_is_checked_without_ssh_and_overload_is_detected() {
        let checked = |launch: &Launch| check_hosts(launch, &StopRequest::default()).unwrap();
        assert_eq!(checked(&launch("localhost")), Binding::Core);
        let mut crowded = launch("127.0.0.1");
        crowded.topology.ranks_per_node = 1000;
        assert_eq!(checked(&crowded), Binding::Overload);
        let all = [[2, 2], [1, 2], [8, 1]].map(|counts| binding(2, counts));
        assert_eq!(all, [Binding::Core, Binding::HardwareThread, Binding::Overload]);
    }

    #[test]
    fn an_unresolvable_host_is_named_with_its_file() {
        let launch = launch("no-such-host.invalid");
        let message = check_hosts(&launch, &StopRequest::default()).unwrap_err().to_string();
        let start = "cannot resolve host no-such-host.invalid of hostfiles/1x2 (";
        assert!(message.starts_with(start), "{message}");
    }

    /// The first address is in Debian's /etc/hosts; the second is a typing error.
    #[test]
    fn a_loopback_address_that_open_mpi_does_not_know_is_named() {
        for host in ["127.0.1.1", "me@127.0.0.2"] {
            let message = check_hosts(&launch(host), &StopRequest::default()).unwrap_err().to_string();
            let address = host.trim_start_matches("me@");
            assert!(message.starts_with(&format!("{host} of hostfiles/1x2 ")), "{message}");
            assert!(message.contains(&format!(" {address}, an address of this machine")), "{message}");
            assert!(message.contains(&format!(": write {} ", own_name())), "{message}");
        }
    }

    #[test]
    fn a_dry_run_knows_this_machine_and_names_the_others() {
        let mut mixed = launch("localhost");
        mixed.topology = "2x1000".parse().unwrap();
        mixed.hosts.as_mut().unwrap().entries.push(("alpha".into(), Slots::Given(1000)));
        assert_eq!(bind_here(&mut mixed).unwrap(), ["alpha"]);
        assert_eq!(mixed.binding, Binding::Overload);
    }

    #[test]
    fn a_missing_script_is_named() {
        let mut launch = launch("localhost");
        launch.by = Some("/nowhere/lab.sh".into());
        assert_eq!(
            check(&mut launch, &StopRequest::default()).unwrap_err().to_string(),
            "--mpirun-by /nowhere/lab.sh: not found: check the path"
        );
        launch.launcher = LauncherKind::Srun;
        for (by, fact) in [("src", "is a folder"), ("Cargo.toml", "write ./Cargo.toml")] {
            launch.by = Some(by.into());
            let message = check(&mut launch, &StopRequest::default()).unwrap_err().to_string();
            assert!(message.starts_with(&format!("--srun-by {by}: ")) && message.contains(fact), "{message}");
        }
    }
}

#[cfg(test)]
mod possible_tests {
    use super::*;

    #[test]
    fn several_machines_need_a_host_file() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("2x1");
        let problem = |topology: &str, launcher| {
            impossible(topology.parse().unwrap(), launcher, MpiFlavour::OpenMpi, &file)
        };
        let reason = problem("2x1", LauncherKind::Mpirun).expect("there is no host file");
        assert!(
            reason.contains(&root.path().display().to_string()) && reason.contains("make hosts"),
            "{reason}"
        );
        assert!(reason.contains("make cluster-up") && reason.contains("--mpirun-by "), "{reason}");
        assert_eq!((problem("1x2", LauncherKind::Mpirun), problem("1x1", LauncherKind::Alone)), (None, None));
        for several in ["1x3", "3x1"] {
            let reason = problem(several, LauncherKind::Alone).expect("several ranks need a launcher");
            assert!(reason.starts_with(&format!("{several} needs a launcher")), "{reason}");
        }
        std::fs::write(&file, "localhost slots=1\nno-such-host.invalid slots=1\n").unwrap();
        let reason = problem("2x1", LauncherKind::Mpirun).expect("one of the machines is unknown");
        assert!(
            reason.contains("2x1 names no-such-host.invalid") && reason.contains("make hosts"),
            "{reason}"
        );
        std::fs::write(&file, "localhost slots=1\n127.0.0.1 slots=1\n").unwrap();
        assert_eq!(problem("2x1", LauncherKind::Mpirun), None);
        std::fs::write(&file, "localhost slots=1\n").unwrap();
        assert_eq!(problem("2x1", LauncherKind::Mpirun), None, "too short a file is an error of the run");
    }

    #[test]
    fn a_slurm_without_a_cluster_is_none() {
        assert_eq!(no_slurm("/nowhere/srun", "true").as_deref(), Some("it is not installed here"));
        assert_eq!(no_slurm("true", "false").as_deref(), Some("no cluster answers"));
        assert_eq!(no_slurm("true", "true"), None);
    }
}
