//! Rank information: host, process id and cores of each rank.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Where one rank runs, as shown in the run header and `run.json`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Place {
    /// Rank in the world.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Cores that this process may run on, such as `0` or `0-3,8`.
    pub binding: String,
    /// Online cores of the host.
    pub cores: usize,
    /// Identifies the machine if host names do not: containers and network
    /// namespaces of one machine share it.
    pub boot_id: String,
}

impl Place {
    /// The information of this process.
    pub fn of_this_process(rank: usize) -> Self {
        Self {
            rank,
            host: read_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".into()),
            pid: std::process::id(),
            binding: status_field("Cpus_allowed_list:").unwrap_or_else(|| "unknown".into()),
            cores: online_cores(),
            boot_id: read_line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        }
    }

    /// The cores of `binding`, as numbers; none if it is unknown.
    fn bound_cores(&self) -> BTreeSet<usize> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        self.binding.split(',').filter_map(range).flatten().collect()
    }
}

/// Whether ranks share cores, so that they wait for each other's time slices
/// and timings are not representative: a machine has more ranks than cores, or
/// binding puts more ranks on some cores than there are.
pub fn oversubscribed(places: &[Place], threads: usize) -> bool {
    places.iter().any(|place| {
        let machine = || places.iter().filter(|p| p.boot_id == place.boot_id);
        let own = place.bound_cores();
        let crowd = machine().filter(|p| !own.is_empty() && p.bound_cores().is_subset(&own)).count();
        machine().count() * threads > place.cores || (crowd > 0 && crowd * threads > own.len())
    })
}

/// Online cores, independent of this process's binding.
pub(crate) fn online_cores() -> usize {
    // SAFETY: sysconf reads a number and has no preconditions.
    let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cores).unwrap_or(1).max(1)
}

fn read_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn status_field(name: &str) -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    Some(line[name.len()..].trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: usize, host: &str, boot_id: &str) -> Place {
        let binding = (rank % 2).to_string();
        Place { rank, host: host.into(), pid: 1, binding, cores: 2, boot_id: boot_id.into() }
    }

    #[test]
    fn two_host_names_of_one_machine_share_its_cores() {
        let apart: Vec<_> = (0..4).map(|r| place(r, ["alpha", "beta"][r / 2], ["a", "b"][r / 2])).collect();
        assert!(!oversubscribed(&apart, 1) && oversubscribed(&apart, 2));
        let lab: Vec<_> = (0..4).map(|r| place(r, ["node0", "node1"][r / 2], "same")).collect();
        assert!(oversubscribed(&lab, 1));
        assert!(!oversubscribed(&lab[..2], 1));
    }

    #[test]
    fn ranks_bound_to_one_core_share_it_however_many_there_are() {
        let mut places = [place(0, "node0", "same"), place(1, "node1", "same")];
        places.iter_mut().for_each(|place| place.cores = 8);
        assert!(!oversubscribed(&places, 1));
        places[1].binding = "0".into();
        assert!(oversubscribed(&places, 1));
        places.iter_mut().for_each(|place| place.binding = "0-2,5".into());
        assert_eq!(places[0].bound_cores(), BTreeSet::from([0, 1, 2, 5]));
        assert!(!oversubscribed(&places, 2));
        assert!(oversubscribed(&places, 3));
    }

    #[test]
    fn this_process_knows_its_place() {
        let here = Place::of_this_process(0);
        assert!(!here.host.is_empty() && here.cores > 0 && here.binding != "unknown");
    }
}
