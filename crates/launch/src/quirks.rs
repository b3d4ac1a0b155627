//! Workarounds for faults of particular launchers: mpirun of Open MPI, mpirun of MPICH, and srun. A comment
//! above each group of workarounds names the version that no longer needs the group.
//!
//! Delete a group when every supported system has that version or a later one.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use rustix::process::{Resource, getrlimit};

use super::command::{has_own_name, own_name, without_user};
use super::{Hosts, MpiFlavour};

// Needed until Open MPI 5. The faults are those of ORTE, the launcher of Open MPI 4, and were observed with
// 4.1.4. Open MPI 5 has PRRTE in its place.

/// Variables of a rank's environment. If one of them is set, mpirun does not start.
const OF_A_JOB: [&str; 2] = ["OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess_base_jobid"];

/// Rejects an environment in which mpirun would fail to start, or hang: variables of another job, too little
/// free space, or a low limit of file sizes.
pub(super) fn check_environment() -> anyhow::Result<()> {
    if let Some(variable) = OF_A_JOB.into_iter().find(|name| std::env::var_os(name).is_some()) {
        bail!(
            "{variable} is set: this shell is part of an MPI job, and mpirun does not start a job inside a job: use a \
             new shell, or in bash: unset ${{!OMPI_@}} ${{!PMIX_@}}"
        );
    }
    check_space(&temporary(), SPACE_MB)?;
    check_file_size(getrlimit(Resource::Fsize).current)
}

/// Free space in MB that a job's temporary files need. Two ranks need 6 to 10 MB.
const SPACE_MB: f64 = 16.0;

/// Lowest limit of file sizes, in MB, that suffices for a job's temporary files. Files of PMIx (a library of
/// mpirun) and files of shared memory have 4 MB each.
const FILE_MB: u64 = 5;

/// Checks the limit of file sizes, in bytes. With a limit below [`FILE_MB`], mpirun prints lines of PMIx and
/// never ends.
fn check_file_size(limit: Option<u64>) -> anyhow::Result<()> {
    let too_small = limit.filter(|bytes| *bytes < FILE_MB << 20);
    too_small.map_or(Ok(()), |bytes| {
        bail!(
            "the file size limit is {} KB, but Open MPI's temporary files need {needed} KB, and mpirun would hang: \
             raise the limit (in bash: ulimit -f {needed}; in a new terminal if this fails)",
            bytes >> 10,
            needed = FILE_MB << 10
        )
    })
}

/// Finds the folder of temporary files as Open MPI does.
fn temporary() -> PathBuf {
    let named = ["TMPDIR", "TEMP", "TMP"].into_iter().find_map(std::env::var_os);
    named.map_or_else(std::env::temp_dir, PathBuf::from)
}

/// Checks that `folder` has `needed_mb` MB free. If it is full, mpirun prints lines of PMIx and never ends.
fn check_space(folder: &Path, needed_mb: f64) -> anyhow::Result<()> {
    let Ok(disk) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let free_mb = disk.f_bavail as f64 * disk.f_frsize as f64 / f64::from(1 << 20);
    ensure!(
        free_mb >= needed_mb,
        "{} has {free_mb:.1} MB free, but Open MPI's temporary files may need {needed_mb} MB, and mpirun would hang \
         on a full disk: free space there, or set TMPDIR to another folder",
        folder.display()
    );
    Ok(())
}

/// Checks that Open MPI recognises `host` as this machine, and that the host file has no other name of this
/// machine. `here` are those addresses of `host` that belong to this machine. `other` is an earlier host of
/// the file that is also this machine; `None` if there is none.
pub(super) fn check_own(
    host: &str,
    here: &[IpAddr],
    other: Option<&str>,
    names: &[&str],
    hosts: &Hosts,
) -> anyhow::Result<()> {
    let path = hosts.path.display();
    if let Some(other) = other {
        bail!(
            "{other} and {host} of {path} are both this machine, and Open MPI counts them as one host: write one line \
             with the sum of their slots"
        );
    }
    // Open MPI knows the addresses of interfaces. 127.0.1.1 in Debian's /etc/hosts is not one of them.
    let is_known = |ip: &IpAddr| !ip.is_loopback() || *ip == Ipv4Addr::LOCALHOST || ip.is_ipv6();
    ensure!(
        here.iter().any(is_known) || has_own_name(host, keeps_full_names(names)),
        "{host} of {path} resolves to {}, an address of this machine that Open MPI does not recognise, so mpirun would \
         use ssh: write {} instead",
        here[0],
        own_name()
    );
    Ok(())
}

/// Returns whether mpirun needs the option that keeps whole host names. Without the option, mpirun reaches
/// node1.example.com as node1, and recognises this machine by its name up to the first dot. With the option,
/// mpirun compares whole names.
pub(super) fn keeps_full_names(hosts: &[&str]) -> bool {
    let is_ip = |name: &str| name.parse::<Ipv4Addr>().is_ok();
    hosts.iter().any(|host| host.contains('.') && !is_ip(without_user(host)) && !has_own_name(host, false))
}

/// Settings of TCP keepalives: two times in seconds, and a number of probes. Keepalives end a job within
/// seconds if a network link is broken for good; without keepalives, mpirun's daemons would wait for minutes.
/// A job survives an interruption of two seconds.
pub(super) const KEEPALIVES: [(&str, &str); 3] =
    [("oob_tcp_keepalive_time", "2"), ("oob_tcp_keepalive_intvl", "1"), ("oob_tcp_keepalive_probes", "3")];

/// How long mpirun may take to end a job after it has announced the end. mpirun was observed to run forever
/// when a rank was killed while the job started.
pub(super) const LINGER: Duration = Duration::from_secs(20);

/// How mpirun's lines about a lost host begin. The first text mentions a start, but mpirun prints it at any
/// time, even long after the start.
pub(super) const LOST_HOST: [&str; 3] = [
    "ORTE was unable to reliably start one or more daemons",
    "ORTE has lost communication with a remote daemon",
    "An ORTE daemon has unexpectedly failed",
];

// Needed with all versions of Slurm so far.

/// Returns whether a line of srun reports how a task ended: "node1: task 1: Killed", "node0: tasks 0-1:
/// Exited with exit code 1". Other errors may come from srun's plugins or its network, while the job
/// continues.
pub(super) fn ends_task(error: &str) -> bool {
    error.split(": ").nth(1).is_some_and(|word| word.starts_with("task ") || word.starts_with("tasks "))
}

// Needed with all versions of MPICH so far.

/// Returns whether an exit code may be the number of a signal. If a signal ends a rank, MPICH's mpirun prints
/// a block of lines on standard output and exits with the signal's number.
pub(super) fn may_be_signal(code: i32, mpi: MpiFlavour) -> bool {
    mpi == MpiFlavour::Mpich && (4..32).contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_this_machine_with_a_domain_is_known_unless_names_are_compared_as_a_whole() {
        let own = own_name();
        let full = format!("{own}.lan");
        let debian = [IpAddr::from([127, 0, 1, 1])];
        let hosts = Hosts { path: "hostfiles/1x2".into(), entries: Vec::new() };
        let check = |host: &str, names: &[&str]| check_own(host, &debian, None, names, &hosts).is_ok();
        assert!(check(&full, &[&full]) && check(&own, &[&own, "alpha.lan"]));
        assert!(!check(&full, &[&full, "alpha.lan"]), "both are then compared as a whole");
    }

    #[test]
    fn a_limit_of_file_sizes_below_the_launchers_files_is_named() {
        let line = |limit| check_file_size(limit).map_err(|error| error.to_string());
        assert_eq!((line(None), line(Some(5 << 20))), (Ok(()), Ok(())));
        let error = line(Some(2 << 20)).unwrap_err();
        assert!(["2048 KB", "5120 KB", "ulimit -f 5120"].iter().all(|fact| error.contains(fact)), "{error}");
    }

    #[test]
    fn too_little_space_for_the_launchers_files_is_named() {
        let folder = tempfile::tempdir().unwrap();
        check_space(folder.path(), 0.0).unwrap();
        let error = check_space(folder.path(), f64::INFINITY).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{} has ", folder.path().display())), "{error}");
        assert!(error.contains(" inf MB") && error.contains("TMPDIR"), "{error}");
    }
}
