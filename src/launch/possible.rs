//! What this machine cannot start at all: a topology of several machines without a host file, or
//! with one whose machines are not known here, and Slurm's srun without a Slurm. A sweep skips such
//! runs; they have not failed.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::command::find;
use super::{Hosts, LauncherKind, Topology};

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
