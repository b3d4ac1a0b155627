//! Host files: one machine per line, with its number of slots. A slot is a place for one rank.
//!
//! Open MPI's mpirun reads the host file itself. This module therefore rejects a file that Open MPI would
//! read differently than this module does. MPICH's mpirun gets the host names on its command line.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, anyhow, bail, ensure};
use run_record::files::read_text;

use super::{MpiFlavour, quoted};

/// The machines of a host file, in the order of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    /// Path of the file.
    pub path: PathBuf,
    /// Hosts in file order, each once. A host with a user is `user@host`.
    pub entries: Vec<(String, Slots)>,
}

/// The slots of a host. A host on a single line without a number of slots has one slot for each core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slots {
    /// The number of slots in the file. For MPICH, the numbers of repeated lines are summed.
    Given(usize),
    /// Number of lines that name the host, if these lines have no number of slots.
    Lines(usize),
}

impl Slots {
    /// Returns the number of slots as both MPIs count them. For a host on a single line without a number,
    /// mpirun counts the cores. This function does not know the cores, and returns `usize::MAX`.
    pub(super) fn at_most(self) -> usize {
        match self {
            Self::Given(slots) => slots,
            Self::Lines(1) => usize::MAX,
            Self::Lines(lines) => lines,
        }
    }
}

impl Hosts {
    /// Reads a host file with lines such as `alpha slots=2 max_slots=4` or, for MPICH only, `alpha:2`. `#`
    /// starts a comment. If several lines name one host, their slots are summed; Open MPI
    /// allows several lines only without `slots=`.
    ///
    /// # Errors
    /// If the file cannot be read, if a line has a wrong format, or if Open MPI would reject the file or read
    /// it differently.
    pub fn read(path: &Path, mpi: MpiFlavour) -> anyhow::Result<Self> {
        let text = read_text(path).map_err(|reason| {
            let remedy = match reason.kind() {
                ErrorKind::NotFound if is_made(path) => ": create it with make hosts HOSTS=\"alpha beta\"",
                ErrorKind::NotFound => ": create it with one line for each machine, such as alpha slots=2",
                ErrorKind::PermissionDenied => ": allow this user to read it",
                _ => "",
            };
            anyhow!("cannot read the host file {}: {reason}{remedy}", path.display())
        })?;
        let mut hosts = Self { path: path.to_owned(), entries: Vec::new() };
        let shown = path.display();
        ensure!(
            mpi == MpiFlavour::Mpich || !(text.starts_with(BYTE_ORDER_MARK) || text.contains('\r')),
            "{shown}: contains a byte order mark or Windows line ends (CR LF), which Open MPI rejects: convert it with \
             sed -i '1s/^\\xef\\xbb\\xbf//; s/\\r$//' {}",
            quoted(&shown)
        );
        for (index, line) in text.trim_start_matches(BYTE_ORDER_MARK).lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let line = line.split("//").next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let place = || format!("{}, line {}: {line}", path.display(), index + 1);
            ensure!(
                mpi == MpiFlavour::Mpich || !(line.starts_with('[') || line.contains("::")),
                "{}: Open MPI does not support IPv6 addresses: write a host name or an IPv4 address",
                place()
            );
            let (host, slots) = parse(line, mpi).with_context(|| {
                let example = match mpi {
                    MpiFlavour::OpenMpi => "`alpha slots=2`",
                    MpiFlavour::Mpich => "`alpha:2` or `alpha slots=2`",
                };
                format!("{}: expected a host name and its slots, such as {example}", place())
            })?;
            let Some((_, earlier)) = hosts.entries.iter_mut().find(|(name, _)| *name == host) else {
                hosts.entries.push((host, slots));
                continue;
            };
            *earlier = match (*earlier, slots) {
                (Slots::Lines(lines), Slots::Lines(_)) => Slots::Lines(lines + 1),
                _ if mpi == MpiFlavour::OpenMpi => bail!(
                    "{}: an earlier line names {host}, and Open MPI accepts slots= only once for each host: write one \
                     line with the sum of the slots",
                    place()
                ),
                (Slots::Given(one) | Slots::Lines(one), Slots::Given(other) | Slots::Lines(other)) => {
                    Slots::Given(one.saturating_add(other))
                }
            };
        }
        Ok(hosts)
    }

    /// Returns the names of the machines that `topology` uses: the first machines of the file.
    ///
    /// # Errors
    /// If the file has too few machines, or one of the machines has too few slots.
    pub fn for_topology(&self, topology: Topology) -> anyhow::Result<Vec<&str>> {
        let Topology { nodes, ranks_per_node } = topology;
        let hosts = &self.entries[..nodes.min(self.entries.len())];
        let (problem, remedy) = match hosts.iter().find(|(_, slots)| slots.at_most() < ranks_per_node) {
            _ if hosts.len() < nodes => (
                format!("it lists {} of {nodes} machines", hosts.len()),
                format!("add a line for each missing machine, such as beta slots={ranks_per_node}"),
            ),
            Some((host, slots)) => (
                format!("{host} has {} of {ranks_per_node} slots", slots.at_most()),
                format!("replace its line by: {host} slots={ranks_per_node}"),
            ),
            None => return Ok(hosts.iter().map(|(host, _)| host.as_str()).collect()),
        };
        let path = self.path.display();
        let or =
            if is_made(&self.path) { ", or rewrite it with make hosts HOSTS=\"alpha beta\"" } else { "" };
        bail!("{path} is too small for {topology}: {problem}; {remedy}{or}")
    }
}

/// Returns whether the user can create the host file `path` with `make hosts`. `make hosts` writes to
/// `hostfiles/local`, and a file there is used instead of the file of the same name in `hostfiles`.
fn is_made(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("hostfiles") || folder.ends_with("hostfiles/local"))
}

/// Returns the path of a topology's host file in `folder`: the file that `make hosts` has written, or else
/// the example.
pub fn hostfile_place(folder: &Path, topology: Topology) -> PathBuf {
    let name = topology.to_string();
    let own = folder.join("local").join(&name);
    if own.exists() { own } else { folder.join(name) }
}

/// Returns the host file of a topology in `folder`; `None` if the topology has a single machine and the file
/// does not exist.
pub fn hostfile(folder: &Path, topology: Topology) -> Option<PathBuf> {
    let file = hostfile_place(folder, topology);
    // If the system cannot tell whether the file exists, reading the file will report the error.
    (topology.nodes > 1 || file.try_exists().unwrap_or(true)).then_some(file)
}

/// Byte order mark of UTF-8, which editors on Windows write.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Parses the host of a line and its slots; `None` if the line has a wrong format. Accepts the keys that
/// Open MPI 4.1.4 accepts (see its `hostfile_lex.l`). For MPICH, also accepts the keys of MPICH's `hydra`.
fn parse(line: &str, mpi: MpiFlavour) -> Option<(String, Slots)> {
    let line = line.replace('=', " = ");
    let mut words = line.split_whitespace();
    let name = words.next()?;
    let (mut host, mut slots) = (name.to_owned(), None);
    if let (MpiFlavour::Mpich, Some((before, number))) = (mpi, name.split_once(':')) {
        (host, slots) = (before.to_owned(), Some(number_of(number)?));
    }
    let mut most = None;
    while let Some(key) = words.next() {
        let value = words.next().filter(|word| *word == "=").and_then(|_| words.next())?;
        match key.replace('-', "_").as_str() {
            "slots" | "cpu" | "count" if slots.is_none() => slots = Some(number_of(value)?),
            "max_slots" | "slots_max" | "cpu_max" | "max_cpu" | "count_max" | "max_count" => {
                most = Some(number_of(value)?);
            }
            "username" | "user_name" if !host.contains('@') => host = format!("{value}@{host}"),
            _ if mpi == MpiFlavour::OpenMpi => return None,
            "user" if !host.contains('@') => host = format!("{value}@{host}"),
            "boards" | "sockets" | "sockets_per_board" | "cores" | "cores_per_socket" | "cpu_set"
            | "binding" => {}
            _ => return None,
        }
    }
    let slots = slots.or(most).map_or(Slots::Lines(1), Slots::Given);
    let fits = most.is_none_or(|most| slots == Slots::Lines(1) || slots.at_most() <= most);
    // A name must not begin with a dash: ssh and mpirun would take it as an
    // option. Open MPI's relative (`+n1`) and excluded (`^alpha`) hosts are rejected, because they do not
    // name a host of this file.
    let mut letters = host.chars();
    let is_name = letters.next().is_some_and(|c| c.is_ascii_alphanumeric() || c == ':')
        && letters.all(|c| c.is_ascii_alphanumeric() || "._-@:%".contains(c));
    // A host with two users makes Open MPI's mpirun end with a segmentation fault.
    let is_open_mpis = mpi == MpiFlavour::Mpich || !host.contains(':') && host.matches('@').count() < 2;
    (fits && is_name && is_open_mpis).then_some((host, slots))
}

/// Parses a number of slots. Both MPIs read digits into a C int.
fn number_of(digits: &str) -> Option<usize> {
    let number = digits.parse().ok().filter(|&number: &i32| number >= 0 && !digits.starts_with('+'))?;
    usize::try_from(number).ok()
}

/// A topology, written `2x1`: 2 machines with 1 process each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topology {
    /// Number of machines.
    pub nodes: usize,
    /// Number of processes per machine.
    pub ranks_per_node: usize,
}

impl Topology {
    /// Returns the number of ranks.
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
                "is not a topology: expected machines x processes per machine, such as 1x2 or 2x2, and at most {most} \
                 ranks"
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

    fn hosts(text: &str, mpi: MpiFlavour) -> anyhow::Result<Hosts> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Hosts::read(file.path(), mpi)
    }

    const OPEN_MPI: MpiFlavour = MpiFlavour::OpenMpi;
    const MPICH: MpiFlavour = MpiFlavour::Mpich;

    #[test]
    fn both_formats_are_read_and_comments_ignored() {
        use Slots::{Given, Lines};
        let read = |text, mpi| hosts(text, mpi).unwrap().entries;
        let entries =
            |all: &[(&str, Slots)]| all.iter().map(|(h, n)| ((*h).to_owned(), *n)).collect::<Vec<_>>();
        let text = "# two machines\nalpha slots=2\n\nbeta cpu = 3 max_slots=4 // the other\ngamma\n";
        let expected = entries(&[("alpha", Given(2)), ("beta", Given(3)), ("gamma", Lines(1))]);
        assert_eq!((read(text, OPEN_MPI), read(text, MPICH)), (expected.clone(), expected));
        let expected =
            entries(&[("root@n1.example.com", Given(2)), ("10.0.0.2", Lines(2)), ("gamma", Given(4))]);
        let text = "n1.example.com slots=2 username=root\n10.0.0.2\n10.0.0.2\ngamma max-slots=4";
        assert_eq!(read(text, OPEN_MPI), expected);
        // An editor on Windows writes a byte order mark and CR LF. The hosts are repeated.
        let text = "\u{feff}beta:3\r\nalpha slots=1\r\nbeta:2 user=me\r\nalpha\r\n";
        let expected = entries(&[("beta", Given(3)), ("alpha", Given(2)), ("me@beta", Given(2))]);
        assert_eq!(read(text, MPICH), expected);
    }

    #[test]
    fn host_files_of_this_checkout_are_preferred_to_the_examples() {
        let hostfiles = tempfile::tempdir().unwrap();
        let (topology, place) = ("2x1".parse().unwrap(), |name: &str| hostfiles.path().join(name));
        assert_eq!(hostfile(hostfiles.path(), topology), Some(place("2x1")));
        std::fs::create_dir(place("local")).unwrap();
        std::fs::write(place("local/2x1"), "").unwrap();
        assert_eq!(hostfile(hostfiles.path(), topology), Some(place("local/2x1")));
        assert_eq!(hostfile(hostfiles.path(), "1x1".parse().unwrap()), None);
    }

    #[test]
    fn errors_name_the_line_and_the_missing_slots() {
        let lines = [
            "alpha slots=two",
            "alpha slots=+2",
            "alpha slots=2147483648",
            "-x slots=2",
            "-oProxyCommand=true",
            ":2",
            "a slots=2 max_slots=1",
            "^a",
            "+n1",
        ];
        for line in
            lines.into_iter().chain(["alpha,slots=2", "alpha slots", "alpha slots=1 slots=1", "alpha two"])
        {
            for mpi in [OPEN_MPI, MPICH] {
                let message = hosts(line, mpi).unwrap_err().to_string();
                assert!(
                    message.contains(&format!("line 1: {line}: ")) && message.contains("alpha slots=2"),
                    "{message}"
                );
            }
        }
        let hosts = |text| hosts(text, OPEN_MPI);
        let message = |text| hosts(text).unwrap_err().to_string();
        for (text, facts) in [
            ("alpha:2", ["line 1: alpha:2: ", "`alpha slots=2`"]),
            ("alpha slots=1\r\n", ["CR LF", "sed -i '1s/^\\xef\\xbb\\xbf//; s/"]),
            ("\u{feff}alpha slots=1\n", ["byte order mark", "sed -i '1s/"]),
            ("alpha boards=1", ["line 1: alpha boards=1: ", "`alpha slots=2`"]),
            ("alpha cores=1", ["line 1: alpha cores=1: ", "`alpha slots=2`"]),
            ("alpha user=me", ["line 1: alpha user=me: ", "`alpha slots=2`"]),
            ("me@you@alpha", ["line 1: me@you@alpha: ", "`alpha slots=2`"]),
            ("::1 slots=2", ["line 1: ::1 slots=2: ", "IPv6"]),
            ("[::1] slots=2", ["line 1: [::1] slots=2: ", "IPv6"]),
            ("a slots=1\na slots=1\n", ["line 2: a slots=1: ", "an earlier line names a"]),
        ] {
            assert!(facts.iter().all(|fact| message(text).contains(fact)), "{}", message(text));
        }
        let needs = |text, topology: &str| {
            hosts(text).unwrap().for_topology(topology.parse().unwrap()).unwrap_err().to_string()
        };
        for (text, topology, words) in [
            ("alpha slots=1", "2x1", "too small for 2x1: it lists 1 of 2 machines"),
            ("alpha slots=1", "1x2", "alpha has 1 of 2 slots; replace its line by: alpha slots=2"),
            ("alpha\nalpha", "1x3", "alpha has 2 of 3 slots"),
        ] {
            assert!(needs(text, topology).contains(words), "{}", needs(text, topology));
            assert!(!needs(text, topology).contains("make hosts"), "make hosts would write other files");
        }
        assert_eq!(hosts("alpha\nbeta").unwrap().for_topology("1x9".parse().unwrap()).unwrap(), ["alpha"]);
        for (path, is_made) in [("/nowhere", false), ("/nowhere/hostfiles/local/2x1", true)] {
            let message = Hosts::read(Path::new(path), OPEN_MPI).unwrap_err().to_string();
            assert!(message.contains(path) && message.contains("make hosts") == is_made, "{message}");
        }
        let folder = tempfile::tempdir().unwrap();
        let message = Hosts::read(folder.path(), OPEN_MPI).unwrap_err().to_string();
        assert!(!message.contains("create it"), "it exists: {message}");
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
