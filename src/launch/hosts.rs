//! Host files: one machine per line, with its number of slots.

use std::path::{Path, PathBuf};

use super::{LaunchError, Topology};
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
    pub fn read(path: &Path) -> Result<Self, LaunchError> {
        let text =
            read_text(path).map_err(|reason| LaunchError::NoHostFile { path: path.to_owned(), reason })?;
        let mut entries = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let entry = parse(line).ok_or_else(|| LaunchError::HostLine {
                path: path.to_owned(),
                line: index + 1,
                text: line.to_owned(),
            })?;
            entries.push(entry);
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    /// The machines that `topology` uses: the first ones.
    ///
    /// # Errors
    /// When there are too few, or one has too few slots.
    pub fn for_topology(&self, topology: Topology) -> Result<&[(String, usize)], LaunchError> {
        let too_small =
            |problem: String| LaunchError::TooSmall { path: self.path.clone(), topology, problem };
        let hosts = self.entries.get(..topology.nodes).ok_or_else(|| {
            too_small(format!("it lists {} of {} machines", self.entries.len(), topology.nodes))
        })?;
        match hosts.iter().find(|(_, slots)| *slots < topology.ranks_per_node) {
            Some((host, slots)) => {
                Err(too_small(format!("{host} has {slots} of {} slots", topology.ranks_per_node)))
            }
            None => Ok(hosts),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Result<Hosts, LaunchError> {
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
