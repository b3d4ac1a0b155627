//! Checks before a job starts: that its launcher is installed, and that each machine
//! can be resolved, accepts ssh and has the same binary.
//!
//! mpirun reports these errors as well, in twenty lines, and some only after minutes.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail, ensure};
use run_record::files;

use super::command::{find, is_executable};
use super::{Hosts, Launch, LauncherKind, MpiFlavour, Topology};

/// Variables in a rank's environment with which Open MPI's mpirun does not start (4.1.4; each alone).
const OF_A_JOB: [&str; 2] = ["OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess_base_jobid"];

/// Checks what `launch` needs, and sets `overload` if a machine has fewer cores than
/// ranks.
///
/// # Errors
/// The first check that fails.
pub fn check(launch: &mut Launch) -> anyhow::Result<()> {
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
            "{0} is not an executable file: name a program or a script, and make it executable (chmod +x {0})",
            file.display()
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
    }
    let here = std::thread::available_parallelism().map_or(1, |n| n.get());
    let ranks = launch.topology.ranks_per_node;
    let Some(hosts) = &launch.hosts else {
        launch.overload = ranks > here;
        return Ok(());
    };
    let mut overload = false;
    for (host, _) in hosts.for_topology(launch.topology)? {
        let cores = match is_this_machine(host, hosts)? {
            true => here,
            false => cores_of(host, Path::new(&launch.program[0]))?,
        };
        overload |= ranks > cores;
    }
    launch.overload = overload;
    Ok(())
}

/// Space for the temporary files of a job of Open MPI 4.1: two ranks need 6 to 10 MB.
const SPACE_MB: f64 = 16.0;

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

/// Whether an address of `host` is one of this machine's.
fn is_this_machine(host: &str, hosts: &Hosts) -> anyhow::Result<bool> {
    let found = (host, 0).to_socket_addrs().map_err(|error| {
        let (path, reason) = (hosts.path.display(), error.to_string());
        let reason = reason.trim_start_matches("failed to lookup address information: ");
        anyhow!(
            "cannot resolve host {host} of {path} ({reason}): check its spelling, or add it to /etc/hosts"
        )
    })?;
    let addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    // A socket can be bound only to an address of this machine.
    Ok(addresses.iter().any(|&ip| UdpSocket::bind((ip, 0)).is_ok()))
}

/// Number of cores of `host`; it must have the same binary at the same path.
fn cores_of(host: &str, program: &Path) -> anyhow::Result<usize> {
    let program = std::path::absolute(program).unwrap_or_else(|_| program.to_owned());
    let path = program.display();
    // mpirun's own agent, so that the check uses what mpirun will use.
    let agent = std::env::var("OMPI_MCA_plm_rsh_agent").unwrap_or_else(|_| "ssh".into());
    let mut words = agent.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("ssh"));
    command.args(words);
    if agent == "ssh" {
        command.args(["-o", "BatchMode=yes", "-o", "ConnectTimeout=5"]);
    }
    let script = format!("nproc && if test -x '{path}'; then sha256sum '{path}'; else echo none; fi");
    let output = command.arg(host).arg(script).stdin(Stdio::null()).output();
    let output = output.map_err(|reason| anyhow!("cannot start {agent}: {reason}"))?;
    let [stdout, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    let mut lines = stdout.lines();
    let cores = lines.next().and_then(|line| line.trim().parse().ok()).with_context(|| {
        let reason = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no answer").trim();
        format!(
            "cannot ssh to {host}: {reason}; mpirun starts its ranks there over ssh without a password: \
             try `ssh {host} true`, then ssh-copy-id {host}"
        )
    })?;
    let there = lines.next().unwrap_or_default().split_whitespace().next().unwrap_or_default();
    let here = std::fs::read(&program).map(|bytes| files::sha256(&bytes));
    let what = match here {
        _ if there == "none" => "no",
        Ok(here) if here != there => "a different",
        _ => return Ok(cores),
    };
    bail!("{host} has {what} {path}; copy it with make deploy HOSTS={host}")
}

/// How to get several machines.
const MACHINES: &str =
    "make hosts HOSTS=\"alpha beta\", or emulate two machines with make slurm-up and CLUSTER=lab";

/// Why a job on `topology` by `launcher` cannot be made here, and what it takes; `None` if
/// nothing speaks against it. `hostfile` is where its host file would be.
pub fn impossible(topology: Topology, launcher: LauncherKind, hostfile: &Path) -> Option<String> {
    match launcher {
        LauncherKind::Alone => None,
        LauncherKind::Mpirun if topology.nodes > 1 && !hostfile.exists() => {
            let folder = hostfile.parent().unwrap_or(Path::new("")).display();
            Some(format!(
                "several machines need host files, and {folder} has none for them: write them with {MACHINES}"
            ))
        }
        LauncherKind::Mpirun if topology.nodes > 1 => unknown_host(topology, hostfile).map(|host| {
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
fn unknown_host(topology: Topology, hostfile: &Path) -> Option<String> {
    let hosts = Hosts::read(hostfile).ok()?;
    let unknown = |host: &&String| (host.as_str(), 0).to_socket_addrs().is_err();
    hosts.for_topology(topology).ok()?.iter().map(|(host, _)| host).find(unknown).cloned()
}

/// Why there is no Slurm here: its srun is not installed, or sinfo gets no answer.
fn no_slurm(srun: &str, sinfo: &str) -> Option<String> {
    if find(srun).is_none() {
        return Some("it is not installed here".into());
    }
    let output = Command::new(sinfo).arg("--noheader").stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => None,
        _ => Some("no cluster answers".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(host: &str) -> Launch {
        Launch {
            topology: "1x2".parse().unwrap(),
            launcher: LauncherKind::Mpirun,
            mpi: MpiFlavour::of_this_build(),
            hosts: Some(Hosts { path: "hostfiles/1x2".into(), entries: vec![(host.into(), 1000)] }),
            by: None,
            overload: false,
            program: vec!["/bin/true".into()],
        }
    }

    #[test]
    fn this_machine_is_checked_without_ssh_and_overload_is_detected() {
        let mut fits = launch("localhost");
        check(&mut fits).unwrap();
        let mut crowded = launch("127.0.0.1");
        crowded.topology.ranks_per_node = 1000;
        check(&mut crowded).unwrap();
        assert!(crowded.overload);
    }

    #[test]
    fn an_unresolvable_host_is_named_with_its_file() {
        let message = check(&mut launch("no-such-host.invalid")).unwrap_err().to_string();
        let start = "cannot resolve host no-such-host.invalid of hostfiles/1x2 (";
        assert!(message.starts_with(start), "{message}");
    }

    #[test]
    fn a_missing_script_is_named() {
        let mut launch = launch("localhost");
        launch.by = Some("/nowhere/lab.sh".into());
        assert_eq!(check(&mut launch).unwrap_err().to_string(), "/nowhere/lab.sh not found: check the path");
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
        let of = |topology: &str, launcher| impossible(topology.parse().unwrap(), launcher, &file);
        let reason = of("2x1", LauncherKind::Mpirun).expect("there is no host file");
        assert!(
            reason.contains(&root.path().display().to_string()) && reason.contains("make hosts"),
            "{reason}"
        );
        assert_eq!((of("1x2", LauncherKind::Mpirun), of("1x1", LauncherKind::Alone)), (None, None));
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
