//! What this machine cannot start at all: a topology of several machines without a host file,
//! and Slurm's srun without a Slurm. A sweep skips such runs; they have not failed.

use std::path::Path;
use std::process::{Command, Stdio};

use super::command::find;
use super::{LauncherKind, Topology};

/// Why a job on `topology` by `launcher` cannot be made here, and what it takes; `None` if
/// nothing speaks against it. `hostfile` is where its host file would be.
pub fn impossible(topology: Topology, launcher: LauncherKind, hostfile: &Path) -> Option<String> {
    match launcher {
        LauncherKind::Alone => None,
        LauncherKind::Mpirun if topology.nodes > 1 && !hostfile.exists() => {
            let folder = hostfile.parent().unwrap_or(Path::new("")).display();
            Some(format!(
                "several machines need host files, and {folder} has none for them: write them with make hosts \
                 HOSTS=\"alpha beta\", or emulate two machines with make slurm-up and CLUSTER=lab"
            ))
        }
        LauncherKind::Mpirun => None,
        LauncherKind::Srun => no_slurm("srun", "sinfo").map(|reason| {
            format!(
                "srun needs Slurm, and {reason}: start the sweep on a Slurm cluster, or emulate one with make slurm-up \
                 and CLUSTER=lab"
            )
        }),
    }
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
        std::fs::write(&file, "alpha slots=1\nbeta slots=1\n").unwrap();
        assert_eq!(of("2x1", LauncherKind::Mpirun), None);
    }

    #[test]
    fn a_slurm_without_a_cluster_is_none() {
        assert_eq!(no_slurm("/nowhere/srun", "true").as_deref(), Some("it is not installed here"));
        assert_eq!(no_slurm("true", "false").as_deref(), Some("no cluster answers"));
        assert_eq!(no_slurm("true", "true"), None);
    }
}
