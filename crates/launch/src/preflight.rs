//! Checks before a job starts: that its launcher is installed, and that each machine
//! can be resolved, accepts ssh and has the same binary.
//!
//! mpirun reports these errors as well, in twenty lines, and some only after minutes.

use std::cell::LazyCell;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail, ensure};
use rustix::process::{Resource, getrlimit};

use super::command::{
    find, has_own_name, is_executable, keeps_full_names, needs_launcher, own_name, without_user,
};
use super::reach::{Agent, Patience, addresses, output};
use super::{Binding, Hosts, Launch, LauncherKind, MpiFlavour, Topology, quoted};
use crate::StopRequest;

/// Variables in a rank's environment with which Open MPI's mpirun does not start (4.1.4; each alone).
const OF_A_JOB: [&str; 2] = ["OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess_base_jobid"];

/// Checks what `launch` needs, and sets what its ranks are bound to: not to cores if a machine has fewer of them.
///
/// # Errors
/// The first check that fails, or where `stop` came.
pub fn check(launch: &mut Launch, stop: &StopRequest) -> anyhow::Result<()> {
    if let Some(first) = launch.command()?.first() {
        let file = find(first).with_context(|| {
            let hint = match (&launch.by, launch.launcher) {
                (Some(_), _) => "check the path",
                (None, LauncherKind::Srun) => "srun comes with Slurm; use --launcher mpirun without it",
                (None, _) => "make setup installs it",
            };
            format!("{first} not found: {hint}")
        })?;
        ensure!(
            is_executable(&file),
            "{} is not an executable file: name a program or a script, and make it executable (chmod +x {})",
            file.display(),
            quoted(file.display().to_string())
        );
    }
    // A script in the launcher's place has its own list of machines, and so has
    // Slurm.
    if launch.by.is_some() || launch.launcher != LauncherKind::Mpirun {
        return Ok(());
    }
    if launch.mpi == MpiFlavour::OpenMpi {
        if let Some(variable) = OF_A_JOB.into_iter().find(|name| std::env::var_os(name).is_some()) {
            bail!(
                "{variable} is set: this shell is part of a job, and mpirun does not start another one inside; use a \
                 new shell, or in bash: unset ${{!OMPI_@}} ${{!PMIX_@}}"
            );
        }
        check_space(&temporary(), SPACE_MB)?;
        check_file_size(getrlimit(Resource::Fsize).current)?;
    }
    bind_here(launch)?;
    let Some(hosts) = &launch.hosts else { return Ok(()) };
    let names = hosts.for_topology(launch.topology)?;
    let mut own = None;
    let patience = Patience::until(stop);
    let agent = LazyCell::new(|| Agent::of(launch.mpi).map_err(|error| error.to_string()));
    let agent = || agent.as_ref().map_err(|error| anyhow!("{error}"));
    let mut needed = launch.binding;
    for host in &names {
        let mut ask = || {
            let here: Vec<IpAddr> = match addresses(host, patience) {
                // A socket can be bound only to an address of this machine.
                Ok(all) => all.into_iter().filter(|&ip| UdpSocket::bind((ip, 0)).is_ok()).collect(),
                // A name that ssh or another agent alone may know.
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
                check_own(host, &here, own.replace(*host), &names, hosts)?;
            }
            Ok((launch.count_cores)())
        };
        let counts = ask();
        if let (Err(_), Some(signal)) = (&counts, stop.signal()) {
            bail!("{signal} came before {host} answered: no job was started");
        }
        needed = needed.max(binding(launch.topology.ranks_per_node, counts?));
    }
    launch.binding = needed;
    Ok(())
}

/// Checks that Open MPI takes `host` for this machine, which has its addresses `here`, and that it is the only one.
fn check_own(
    host: &str,
    here: &[IpAddr],
    other: Option<&str>,
    names: &[&str],
    hosts: &Hosts,
) -> anyhow::Result<()> {
    let path = hosts.path.display();
    if let Some(other) = other {
        bail!(
            "{other} and {host} of {path} are both this machine, which Open MPI counts as one: write one line with the \
             sum of their slots"
        );
    }
    // It knows the addresses of interfaces, of which 127.0.1.1 in Debian's /etc/hosts is none (4.1.4).
    let is_known = |ip: &IpAddr| !ip.is_loopback() || *ip == Ipv4Addr::LOCALHOST || ip.is_ipv6();
    ensure!(
        here.iter().any(is_known) || has_own_name(host, keeps_full_names(names)),
        "{host} of {path} is this machine by the address {}, which Open MPI would reach by ssh as another one: write {} \
         in its place",
        here[0],
        own_name()
    );
    Ok(())
}

/// Sets what the ranks are bound to, as far as this machine tells; returns the hosts that only an answer tells of.
///
/// # Errors
/// If the hosts have too few slots.
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
        launch.binding = binding(launch.topology.ranks_per_node, (launch.count_cores)());
    }
    Ok(others)
}

/// What `ranks` can be bound to on a machine with that many cores, and CPUs that they may use.
fn binding(ranks: usize, [cores, cpus]: [usize; 2]) -> Binding {
    match ranks {
        _ if ranks > cpus => Binding::Overload,
        _ if ranks > cores => Binding::HardwareThread,
        _ => Binding::Core,
    }
}

/// Space for the temporary files of a job of Open MPI 4.1: two ranks need 6 to 10 MB.
const SPACE_MB: f64 = 16.0;

/// Size of the largest of these files, in MB: of PMIx and of shared memory, 4 MB each.
const FILE_MB: u64 = 5;

/// Checks the limit of file sizes in bytes: mpirun 4.1 prints lines of PMIx below it, and never ends.
fn check_file_size(limit: Option<u64>) -> anyhow::Result<()> {
    let too_small = limit.filter(|bytes| *bytes < FILE_MB << 20);
    too_small.map_or(Ok(()), |bytes| {
        bail!(
            "the limit of file sizes is {} kB, of {FILE_MB} MB that Open MPI's temporary files need, and its mpirun \
             hangs below: raise it (ulimit -f)",
            bytes >> 10
        )
    })
}

/// The folder of temporary files, as Open MPI finds it.
fn temporary() -> PathBuf {
    let named = ["TMPDIR", "TEMP", "TMP"].into_iter().find_map(std::env::var_os);
    named.map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Checks that `folder` has `needed_mb` free: mpirun 4.1 prints lines of PMIx where it is full, and never ends.
fn check_space(folder: &Path, needed_mb: f64) -> anyhow::Result<()> {
    let Ok(disk) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let free_mb = disk.f_bavail as f64 * disk.f_frsize as f64 / f64::from(1 << 20);
    ensure!(
        free_mb >= needed_mb,
        "{} has {free_mb:.1} MB free, of {needed_mb} that Open MPI's temporary files may need, and its mpirun \
         hangs where they do not fit: free space there, or set TMPDIR to another folder",
        folder.display()
    );
    Ok(())
}

/// How to get several machines.
const MACHINES: &str =
    "make hosts HOSTS=\"alpha beta\", or emulate two machines with make slurm-up and CLUSTER=lab";

/// Why a job on `topology` by `launcher` cannot be made here, and what it takes; `None` if
/// nothing speaks against it. `hostfile` is where its host file would be, for the launcher of `mpi`.
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
                "several machines need host files, and {folder} has none for them: write them with {MACHINES}"
            ))
        }
        LauncherKind::Mpirun if topology.nodes > 1 => unknown_host(topology, mpi, hostfile).map(|host| {
            format!(
                "{} names {host}, which is no machine that is known here: write the names of yours with {MACHINES}",
                hostfile.display()
            )
        }),
        LauncherKind::Mpirun => None,
        LauncherKind::Srun => no_slurm("srun", "sinfo").map(|reason| {
            format!(
                "srun needs Slurm, and {reason}: start the sweep on a Slurm cluster, or emulate one with make slurm-up \
                 and CLUSTER=lab"
            )
        }),
    }
}

/// A machine of the host file that has no address: the files of a fresh checkout name examples. A
/// file that cannot be read, or is too short, is an error of the run.
fn unknown_host(topology: Topology, mpi: MpiFlavour, hostfile: &Path) -> Option<String> {
    let hosts = Hosts::read(hostfile, mpi).ok()?;
    let agent = LazyCell::new(|| Agent::of(mpi).ok());
    let stop = StopRequest::default();
    let patience = Patience::until(&stop);
    let may_know = |host: &str| agent.as_ref().is_some_and(|agent| agent.may_know(host, patience));
    let unknown = |host: &&str| addresses(host, patience).is_err() && !may_know(host);
    hosts.for_topology(topology).ok()?.into_iter().find(unknown).map(ToOwned::to_owned)
}

/// Why there is no Slurm here: its srun is not installed, or sinfo gets no answer.
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
            binding: Binding::Core,
            program: vec!["/bin/true".into()],
        }
    }

    #[test]
    fn this_machine_is_checked_without_ssh_and_overload_is_detected() {
        let mut fits = launch("localhost");
        check(&mut fits, &StopRequest::default()).unwrap();
        let mut crowded = launch("127.0.0.1");
        crowded.topology.ranks_per_node = 1000;
        check(&mut crowded, &StopRequest::default()).unwrap();
        assert_eq!(crowded.binding, Binding::Overload);
        let all = [[2, 2], [1, 2], [8, 1]].map(|counts| binding(2, counts));
        assert_eq!(all, [Binding::Core, Binding::HardwareThread, Binding::Overload]);
    }

    #[test]
    fn an_unresolvable_host_is_named_with_its_file() {
        let message =
            check(&mut launch("no-such-host.invalid"), &StopRequest::default()).unwrap_err().to_string();
        let start = "cannot resolve host no-such-host.invalid of hostfiles/1x2 (";
        assert!(message.starts_with(start), "{message}");
    }

    /// As of Debian's /etc/hosts, and of a typing error.
    #[test]
    fn a_loopback_address_that_open_mpi_does_not_know_is_named() {
        for host in ["127.0.1.1", "me@127.0.0.2"] {
            let message = check(&mut launch(host), &StopRequest::default()).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{host} of hostfiles/1x2 is this machine by the")),
                "{message}"
            );
            assert!(message.ends_with(&format!("write {} in its place", own_name())), "{message}");
        }
        let own = own_name();
        let full = format!("{own}.lan");
        let debian = [IpAddr::from([127, 0, 1, 1])];
        let hosts = launch("x").hosts.unwrap();
        let check = |host: &str, names: &[&str]| check_own(host, &debian, None, names, &hosts).is_ok();
        assert!(check(&full, &[&full]) && check(&own, &[&own, "alpha.lan"]));
        assert!(!check(&full, &[&full, "alpha.lan"]), "both are then compared as a whole");
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
            "/nowhere/lab.sh not found: check the path"
        );
    }

    #[test]
    fn a_limit_of_file_sizes_below_the_launchers_files_is_named() {
        let line = |limit| check_file_size(limit).map_err(|error| error.to_string());
        assert_eq!((line(None), line(Some(5 << 20))), (Ok(()), Ok(())));
        let error = line(Some(2 << 20)).unwrap_err();
        assert!(error.starts_with("the limit of file sizes is 2048 kB, of 5 MB"), "{error}");
    }

    #[test]
    fn too_little_space_for_the_launchers_files_is_named() {
        let folder = tempfile::tempdir().unwrap();
        check_space(folder.path(), 0.0).unwrap();
        let error = check_space(folder.path(), f64::INFINITY).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} has ", folder.path().display())), "{error}");
        assert!(error.contains("MB free, of inf that Open MPI"), "{error}");
    }
}

#[cfg(test)]
mod possible_tests {
    use super::*;

    #[test]
    fn several_machines_need_a_host_file() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("2x1");
        let of = |topology: &str, launcher| {
            impossible(topology.parse().unwrap(), launcher, MpiFlavour::OpenMpi, &file)
        };
        let reason = of("2x1", LauncherKind::Mpirun).expect("there is no host file");
        assert!(
            reason.contains(&root.path().display().to_string()) && reason.contains("make hosts"),
            "{reason}"
        );
        assert_eq!((of("1x2", LauncherKind::Mpirun), of("1x1", LauncherKind::Alone)), (None, None));
        for several in ["1x3", "3x1"] {
            let reason = of(several, LauncherKind::Alone).expect("several ranks need a launcher");
            assert!(reason.starts_with(&format!("{several} needs a launcher")), "{reason}");
        }
        std::fs::write(&file, "localhost slots=1\nno-such-host.invalid slots=1\n").unwrap();
        let reason = of("2x1", LauncherKind::Mpirun).expect("one of the machines is unknown");
        assert!(
            reason.contains("2x1 names no-such-host.invalid") && reason.contains("make hosts"),
            "{reason}"
        );
        std::fs::write(&file, "localhost slots=1\n127.0.0.1 slots=1\n").unwrap();
        assert_eq!(of("2x1", LauncherKind::Mpirun), None);
        std::fs::write(&file, "localhost slots=1\n").unwrap();
        assert_eq!(of("2x1", LauncherKind::Mpirun), None, "too short a file is an error of the run");
    }

    #[test]
    fn a_slurm_without_a_cluster_is_none() {
        assert_eq!(no_slurm("/nowhere/srun", "true").as_deref(), Some("it is not installed here"));
        assert_eq!(no_slurm("true", "false").as_deref(), Some("no cluster answers"));
        assert_eq!(no_slurm("true", "true"), None);
    }
}
