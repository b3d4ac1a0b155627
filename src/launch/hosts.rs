//! Host files: one machine per line, with its number of slots.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use run_record::files::read_text;

/// The machines of a host file, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// The file.
    pub path: PathBuf,
    /// Host names and their slots, in file order.
    pub entries: Vec<(String, usize)>,
}

impl Hosts {
    /// Reads a host file in Open MPI's format (`alpha slots=2`) or MPICH's
    /// (`alpha:2`); `#` starts a comment.
    ///
    /// # Errors
    /// When it cannot be read or a line has neither format.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = read_text(path).map_err(|reason| {
            let path = path.display();
            anyhow!(
                "cannot read the host file {path}: {reason}; write it with make hosts HOSTS=\"alpha beta\""
            )
        })?;
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            entries.push(parse(line).with_context(|| {
                let (path, number) = (path.display(), index + 1);
                format!(
                    "{path}, line {number}: {line}: expected a host name and its slots, such as `alpha slots=2`"
                )
            })?);
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    /// The machines that `topology` uses: the first ones.
    ///
    /// # Errors
    /// When there are too few, or one has too few slots.
    pub fn for_topology(&self, topology: Topology) -> anyhow::Result<&[(String, usize)]> {
        let Topology { nodes, ranks_per_node } = topology;
        let hosts = &self.entries[..nodes.min(self.entries.len())];
        let problem = match hosts.iter().find(|(_, slots)| *slots < ranks_per_node) {
            _ if hosts.len() < nodes => format!("it lists {} of {nodes} machines", hosts.len()),
            Some((host, slots)) => format!("{host} has {slots} of {ranks_per_node} slots"),
            None => return Ok(hosts),
        };
        let path = self.path.display();
        bail!(
            "{path} is too small for {topology}: {problem}; rewrite it with make hosts HOSTS=\"alpha beta\""
        )
    }
}

fn parse(line: &str) -> Option<(String, usize)> {
    let mut words = line.split_whitespace();
    let (host, mut slots) = match words.next()?.split_once(':') {
        Some((host, slots)) => (host, slots.parse().ok()?),
        None => (line.split_whitespace().next()?, 1),
    };
    for word in words {
        slots = word.strip_prefix("slots=")?.parse().ok()?;
    }
    // ssh and mpirun would take a word that begins with a dash as an option.
    (!host.is_empty() && !host.starts_with('-')).then(|| (host.to_owned(), slots))
}

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

    fn hosts(text: &str) -> anyhow::Result<Hosts> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Hosts::read(file.path())
    }

    #[test]
    fn both_formats_are_read_and_comments_ignored() {
        let hosts = hosts("# two machines\nalpha slots=2\n\nbeta:3 # the other\ngamma\n").unwrap();
        let expected = [("alpha", 2), ("beta", 3), ("gamma", 1)].map(|(h, n)| (h.to_owned(), n));
        assert_eq!(hosts.entries, expected);
        let two = Topology { nodes: 2, ranks_per_node: 2 };
        assert_eq!(hosts.for_topology(two).unwrap().len(), 2);
    }

    #[test]
    fn errors_name_the_line_and_the_missing_slots() {
        for line in ["alpha slots=two", "-x slots=2", "-oProxyCommand=true", ":2"] {
            let message = hosts(line).unwrap_err().to_string();
            assert!(message.contains(&format!("line 1: {line}: expected a host name")), "{message}");
        }
        let hosts = hosts("alpha slots=1").unwrap();
        let message = |nodes, ranks_per_node| {
            hosts.for_topology(Topology { nodes, ranks_per_node }).unwrap_err().to_string()
        };
        assert!(message(2, 1).contains("too small for 2x1: it lists 1 of 2 machines"), "{}", message(2, 1));
        assert!(message(1, 2).contains("alpha has 1 of 2 slots"), "{}", message(1, 2));
        let message = Hosts::read(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(message.contains("/nowhere") && message.contains("make hosts"), "{message}");
    }
}

#[cfg(test)]
mod topology_tests {
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
