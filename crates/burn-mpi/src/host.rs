//! Rank information: host, process id and cores of each rank.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cores::shared_cores;

/// Where one rank runs, as printed at the start of a run and stored in `run.json`.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq, Eq)]
pub struct Place {
    /// Rank in the world.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// Numbers of the CPUs (hardware threads) that this process may run on, such as `0` or `0-3,8`.
    pub binding: String,
    /// Number of cores of the host that its ranks share: the online cores, or fewer if a quota of CPU time
    /// allows fewer. A core may have several hardware threads.
    pub cores: usize,
    /// The kernel's boot id, which identifies the machine. Containers and network namespaces of one machine
    /// may have different host names, but they have the same boot id.
    pub boot_id: String,
}

impl Place {
    /// Reads the host, process id and cores of this process, whose rank is `rank`.
    pub fn of_this_process(rank: usize) -> Self {
        Self {
            rank,
            host: read_line("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".into()),
            pid: std::process::id(),
            binding: status_field("Cpus_allowed_list:").unwrap_or_else(|| "unknown".into()),
            cores: shared_cores(),
            boot_id: read_line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        }
    }

    /// Returns the CPU numbers in `binding`; an empty set if the binding is unknown.
    fn bound_cores(&self) -> BTreeSet<usize> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        };
        self.binding.split(',').filter_map(range).flatten().collect()
    }
}

/// Appends a number to the host name of each further machine with the same host name, such as a copy of a
/// virtual machine: `vm`, `vm#2`.
#[cfg(any(feature = "mpi", test))]
pub(crate) fn tell_apart(places: &mut [Place]) {
    let mut machines = std::collections::BTreeMap::<String, Vec<String>>::new();
    for place in places {
        let of_name = machines.entry(place.host.clone()).or_default();
        let known = of_name.iter().position(|boot_id| *boot_id == place.boot_id);
        let number = known.unwrap_or(of_name.len());
        if known.is_none() {
            of_name.push(place.boot_id.clone());
        }
        if number > 0 {
            place.host = format!("{}#{}", place.host, number + 1);
        }
    }
}

/// Returns whether ranks share cores. Such ranks wait for each other's time slices, so timings are not
/// representative.
///
/// Each rank runs `threads` threads. Ranks share cores if a machine has more threads than cores, or if the
/// threads that are bound to a set of cores outnumber the cores of the set.
pub fn oversubscribed(places: &[Place], threads: usize) -> bool {
    // Each binding is parsed once, not once for each pair of ranks.
    let bound: Vec<BTreeSet<usize>> = places.iter().map(Place::bound_cores).collect();
    places.iter().zip(&bound).any(|(place, own)| {
        let machine = || places.iter().zip(&bound).filter(|(p, _)| p.boot_id == place.boot_id);
        let crowd = machine().filter(|(_, cores)| !own.is_empty() && cores.is_subset(own)).count();
        machine().count() * threads > place.cores || (crowd > 0 && crowd * threads > own.len())
    })
}

/// Names ranks and their hosts, such as `rank 2 on alpha, ranks 4 to 9 on beta`. `hosts` has the host of each
/// rank of the job. A long list is cut.
pub(crate) fn named_ranks(ranks: &[usize], hosts: &[String]) -> String {
    /// Maximum number of names.
    const SHOWN: usize = 8;
    let follows = |a: &usize, b: &usize| *b == a + 1 && hosts[*a] == hosts[*b];
    let name = |ranks: &[usize]| match ranks {
        [first, _, .., last] => vec![(ranks.len(), format!("ranks {first} to {last} on {}", hosts[*first]))],
        few => few.iter().map(|rank| (1, format!("rank {rank} on {}", hosts[*rank]))).collect(),
    };
    let names: Vec<(usize, String)> = ranks.chunk_by(follows).flat_map(name).collect();
    let (shown, rest) = names.split_at(names.len().min(SHOWN));
    let rest: usize = rest.iter().map(|(ranks, _)| ranks).sum();
    let rest = (rest > 0).then(|| format!("{rest} more ranks"));
    shown.iter().map(|(_, name)| name.clone()).chain(rest).collect::<Vec<_>>().join(", ")
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
    fn machines_of_one_name_are_told_apart() {
        let mut places = ["a", "b", "a", "b", "c"].map(|boot_id| place(0, "vm", boot_id)).to_vec();
        places.push(place(0, "other", "b"));
        tell_apart(&mut places);
        let names: Vec<_> = places.iter().map(|place| place.host.as_str()).collect();
        assert_eq!(names, ["vm", "vm#2", "vm", "vm#2", "vm#3", "other"]);
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
    fn many_ranks_are_named_by_ranges() {
        let hosts: Vec<String> = (0..64).map(|rank| format!("node{}", rank / 32)).collect();
        let named = |ranks: &[usize]| named_ranks(ranks, &hosts);
        assert_eq!(named(&[1]), "rank 1 on node0");
        assert_eq!(named(&[0, 1, 63]), "rank 0 on node0, rank 1 on node0, rank 63 on node1");
        let all: Vec<usize> = (1..64).collect();
        assert_eq!(named(&all), "ranks 1 to 31 on node0, ranks 32 to 63 on node1");
        let odd: Vec<usize> = (0..32).map(|rank| 2 * rank + 1).collect();
        let text = named(&odd);
        assert!(
            text.starts_with("rank 1 on node0, ") && text.ends_with("rank 15 on node0, 24 more ranks"),
            "{text}"
        );
    }

    #[test]
    fn this_process_knows_its_place() {
        let here = Place::of_this_process(0);
        assert!(!here.host.is_empty() && here.cores > 0 && here.binding != "unknown");
    }
}
