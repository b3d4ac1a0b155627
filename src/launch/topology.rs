//! Topologies: machines x processes per machine.

use std::fmt;
use std::str::FromStr;

/// A topology, written `2x1`: 2 machines with 1 process each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topology {
    /// Machines.
    pub nodes: usize,
    /// Processes per machine.
    pub ranks_per_node: usize,
}

impl Topology {
    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.nodes * self.ranks_per_node
    }
}

impl FromStr for Topology {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('x').and_then(|(nodes, ranks)| {
            Some(Self { nodes: nodes.parse().ok()?, ranks_per_node: ranks.parse().ok()? })
        });
        // MPI counts ranks in a C int.
        let most = i32::MAX as usize;
        let is_possible =
            |topology: &Self| (1..=most).contains(&topology.nodes.saturating_mul(topology.ranks_per_node));
        parsed.filter(is_possible).ok_or_else(|| {
            format!(
                "{text} is not a topology: expected machines x processes per machine, such as 1x2 or 2x2, and at \
                 most {most} ranks"
            )
        })
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.nodes, self.ranks_per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_is_machines() {
        let topology: Topology = "2x4".parse().unwrap();
        assert_eq!((topology.nodes, topology.ranks_per_node, topology.ranks()), (2, 4, 8));
        assert_eq!(topology.to_string(), "2x4");
        for wrong in [
            "2",
            "0x2",
            "x",
            "2x",
            "ax2",
            "2x-1",
            "1x2147483648",
            "4294967296x4294967296",
            "4294967296x4294967297",
        ] {
            assert!(wrong.parse::<Topology>().is_err(), "{wrong}");
        }
    }
}
