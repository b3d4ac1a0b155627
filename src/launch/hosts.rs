//! Host files: one machine per line, with its number of slots.

use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

use super::Topology;
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
