//! Termination of MPICH's mpirun (Hydra) after a guard has ended its rank.
//!
//! Hydra's mpirun then ends the other ranks and waits for each host to confirm.
//! It sets no keepalives, so it waits indefinitely for a host that is cut off.
//! A rank on mpirun's own host can end it: Hydra's proxy there is mpirun's
//! child, and the ranks are the proxy's.

use std::os::unix::process::{CommandExt, parent_id};
use std::process::{Command, Stdio};

use crate::launcher::stat;

/// Ends process `$0` after 3 seconds, in which Hydra ends the job by itself if
/// it can. It may forward a first signal and wait again.
const END: &str = r#"
    sleep 3
    for signal in TERM KILL; do
        case $(cat "/proc/$0/comm") in mpiexec*|mpirun*) kill -s $signal "$0" ;; *) exit ;; esac
        sleep 1
    done
"#;

/// Ends mpirun soon, if it is MPICH's and runs on this host. A child process
/// does it, since this rank exits first.
pub(crate) fn end_mpirun() {
    let Some(mpirun) = mpirun() else { return };
    // If this fails, mpirun waits: the error cannot be reported.
    let _ = Command::new("sh")
        .args(["-c", END, &mpirun.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
}

/// The process id of Hydra's mpirun: the parent of the proxy that is this
/// rank's ancestor, possibly with a wrapper between them.
fn mpirun() -> Option<u32> {
    let mut ancestor = parent_id();
    for _ in 0..4 {
        let (name, parent) = name_and_parent(ancestor)?;
        if name == "hydra_pmi_proxy" {
            let (name, _) = name_and_parent(parent)?;
            return (name.starts_with("mpiexec") || name.starts_with("mpirun")).then_some(parent);
        }
        ancestor = parent;
    }
    None
}

/// A process's program name and parent.
fn name_and_parent(pid: u32) -> Option<(String, u32)> {
    let (name, fields) = stat(&pid.to_string())?;
    Some((name, fields.get(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_parent_that_is_no_mpirun() {
        let (name, parent) = name_and_parent(std::process::id()).expect("/proc/self");
        assert!(!name.is_empty() && parent == parent_id());
        assert_eq!(mpirun(), None);
    }
}
