//! Cores of this machine as MPI libraries count them, and the limits of control groups: CPU time and memory
//! of a container or a batch job.

use std::collections::BTreeSet;
use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Returns the number of cores that ranks can be bound to, and the number of CPUs that ranks may use. A CPU
/// is a hardware thread: a core may have several. If a quota of CPU time allows fewer CPUs, the second number
/// is the quota in whole CPUs.
///
/// Open MPI and MPICH count cores with hwloc, so this function does too if the library is installed.
#[cfg(any(feature = "internals", test))]
pub fn cores_and_cpus() -> [usize; 2] {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    [by_hwloc().unwrap_or_else(online_cores), cpus]
}

/// Returns the number of cores that ranks on this machine share, independent of this process's binding: the
/// online cores, or fewer if a quota of CPU time allows fewer.
///
/// Reads the kernel's files, which takes much less time than starting hwloc. Counts with hwloc only if an
/// environment variable of hwloc replaces the machine's topology.
pub(crate) fn shared_cores() -> usize {
    let replaced = ["HWLOC_SYNTHETIC", "HWLOC_XMLFILE", "HWLOC_FSROOT"]
        .into_iter()
        .any(|name| std::env::var_os(name).is_some());
    let cores = replaced.then(by_hwloc).flatten().unwrap_or_else(online_cores);
    cpu_quota().map_or(cores, |quota| cores.min((quota.ceil() as usize).max(1)))
}

fn online_cores() -> usize {
    cores_in(Path::new("/sys/devices/system/cpu")).unwrap_or_else(|| {
        // SAFETY: sysconf reads a number and has no preconditions.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        usize::try_from(cpus).unwrap_or(1).max(1)
    })
}

/// Counts the cores in the kernel's folder of CPUs. Hardware threads of the same core have the same list of
/// siblings. A CPU that is offline has no list.
fn cores_in(folder: &Path) -> Option<usize> {
    let cpus = std::fs::read_dir(folder).ok()?.flatten();
    let siblings =
        cpus.filter_map(|cpu| read_to_string(cpu.path().join("topology/thread_siblings_list")).ok());
    Some(siblings.collect::<BTreeSet<_>>().len()).filter(|&cores| cores > 0)
}

#[cfg(not(feature = "mpi"))]
fn by_hwloc() -> Option<usize> {
    None
}

/// Counts cores with hwloc; `None` if version 2 of the library is not installed, or finds no core.
#[cfg(feature = "mpi")]
fn by_hwloc() -> Option<usize> {
    use std::ffi::{c_int, c_uint, c_void};

    type Topology = *mut c_void;
    /// `HWLOC_OBJ_CORE` of hwloc 2.
    const CORE: c_int = 2;
    // SAFETY: libhwloc.so.15 is hwloc 2, whose functions have these types (hwloc.h). `init` writes to a local
    // variable. The topology is used only after `init` succeeded, loaded once, and destroyed after its last
    // use. The library stays loaded until the end of the block.
    unsafe {
        let hwloc = libloading::Library::new("libhwloc.so.15").ok()?;
        let init =
            hwloc.get::<unsafe extern "C" fn(*mut Topology) -> c_int>(b"hwloc_topology_init\0").ok()?;
        let load = hwloc.get::<unsafe extern "C" fn(Topology) -> c_int>(b"hwloc_topology_load\0").ok()?;
        let destroy = hwloc.get::<unsafe extern "C" fn(Topology)>(b"hwloc_topology_destroy\0").ok()?;
        let depth =
            hwloc.get::<unsafe extern "C" fn(Topology, c_int) -> c_int>(b"hwloc_get_type_depth\0").ok()?;
        let count = hwloc
            .get::<unsafe extern "C" fn(Topology, c_int) -> c_uint>(b"hwloc_get_nbobjs_by_depth\0")
            .ok()?;
        let mut topology: Topology = std::ptr::null_mut();
        if init(&raw mut topology) != 0 {
            return None;
        }
        let cores = match load(topology) {
            0 => count(topology, depth(topology, CORE)) as usize,
            _ => 0,
        };
        destroy(topology);
        Some(cores).filter(|&cores| cores > 0)
    }
}

/// Returns the CPU-time quota of this process's control groups, in CPUs: the lowest quota if several groups
/// have one; `None` if no group has one.
pub fn cpu_quota() -> Option<f64> {
    let v2 = |file: &str| {
        let (quota, period) = file.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.trim().parse::<f64>().ok()?)
    };
    let v1 = |folder: &Path| {
        let number = |name| read_to_string(folder.join(name)).ok()?.trim().parse::<f64>().ok();
        Some(number("cpu.cfs_quota_us")? / number("cpu.cfs_period_us")?)
    };
    let quota = |folder: PathBuf| match read_to_string(folder.join("cpu.max")) {
        Ok(file) => v2(&file),
        Err(_) => v1(&folder),
    };
    folders("cpu").into_iter().filter_map(quota).filter(|quota| *quota > 0.0).reduce(f64::min)
}

/// Returns the lowest memory limit of this process's control groups, in bytes; `None` if no group reports a
/// limit. All processes of a group share its limit.
#[cfg(any(feature = "internals", test))]
pub fn memory_limit() -> Option<u64> {
    let files = ["memory.max", "memory.limit_in_bytes"];
    let limits = folders("memory").into_iter().flat_map(|folder| {
        files.map(|file| read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok())
    });
    limits.flatten().min()
}

/// Returns the folders of this process's control groups of `controller`, from its own group to the topmost.
fn folders(controller: &str) -> Vec<PathBuf> {
    let [groups, mounts] =
        ["cgroup", "mountinfo"].map(|name| read_to_string(format!("/proc/self/{name}")).unwrap_or_default());
    folders_of(controller, &groups, &mounts)
}

/// Finds the folders as [`folders`] does, from the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`.
///
/// A line of `groups` is `ID:CONTROLLERS:PATH` (cgroups(7)); CONTROLLERS is empty for cgroups version 2. A
/// line of `mounts` is `… … … ROOT FOLDER … - TYPE SOURCE OPTIONS` (proc(5)).
fn folders_of(controller: &str, groups: &str, mounts: &str) -> Vec<PathBuf> {
    let has = |list: &str| list.split(',').any(|name| name == controller);
    let mut found = Vec::new();
    for group in groups.lines() {
        let mut fields = group.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let mounted = mounts.lines().filter_map(|mount| {
            let (before, after) = mount.split_once(" - ")?;
            let (before, after): (Vec<&str>, Vec<&str>) =
                (before.split(' ').collect(), after.split(' ').collect());
            let is_its_own = match controllers {
                "" => *after.first()? == "cgroup2",
                list => has(list) && *after.first()? == "cgroup" && has(after.get(2)?),
            };
            is_its_own.then_some((*before.get(3)?, PathBuf::from(before.get(4)?)))
        });
        for (root, mount) in mounted {
            // In a container, the root of the mount is the process's own group, and `path` may be the group's
            // path outside the container. If `path` does not begin with `root`, the folder of the mount is
            // therefore the group's folder.
            let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            found.extend(inside.ancestors().map(|inside| mount.join(inside)));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hardware_threads_are_one_core() {
        // Uses no crate for temporary folders: cargo cannot test a package with dev-dependencies from outside
        // its workspace.
        let folder = std::env::temp_dir().join(format!("burn-mpi-cores-{}", std::process::id()));
        for (cpu, siblings) in [("cpu0", "0,2\n"), ("cpu1", "1,3\n"), ("cpu2", "0,2\n"), ("cpu3", "1,3\n")] {
            let topology = folder.join(cpu).join("topology");
            std::fs::create_dir_all(&topology).unwrap();
            std::fs::write(topology.join("thread_siblings_list"), siblings).unwrap();
        }
        // `cpu4` is a CPU that is offline, and `cpufreq` is not a CPU.
        std::fs::create_dir(folder.join("cpu4")).unwrap();
        std::fs::create_dir(folder.join("cpufreq")).unwrap();
        let found = cores_in(&folder);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Some(2));
        assert_eq!(cores_in(Path::new("/nowhere")), None);
    }

    #[test]
    fn this_machine_has_cores() {
        let [cores, cpus] = cores_and_cpus();
        assert!(cores > 0 && cpus > 0 && shared_cores() > 0, "{cores} {cpus}");
        assert!(cpu_quota().is_none_or(|quota| quota > 0.0) && memory_limit() != Some(0));
    }

    #[test]
    fn control_groups_are_followed_to_the_topmost() {
        let mounts = "35 32 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      30 20 0:30 / /sys/fs/cgroup/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct\n\
                      31 20 0:31 /docker/1 /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      25 20 0:25 / /sys rw - sysfs sysfs rw\n";
        let paths = |controller, groups| {
            let all = folders_of(controller, groups, mounts);
            all.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        let groups = "4:memory:/job/1\n1:cpu,cpuacct:/\n";
        assert_eq!(
            paths("memory", groups).replace("/sys/fs/cgroup/", "").trim_end_matches('/'),
            "memory/job/1 memory/job memory"
        );
        assert_eq!(paths("cpu", groups).trim_end_matches('/'), "/sys/fs/cgroup/cpu");
        assert_eq!(
            paths("memory", "0::/docker/1/a\n").replace("/sys/fs/cgroup/", "").trim_end_matches('/'),
            "unified/a unified"
        );
        assert_eq!(paths("memory", "nonsense\n"), "");
    }
}
