//! Checks that all ranks of a job run the same binary and the same subcommand with the same options.
//!
//! The comparison is the first collective of every process of a job. A process with an invalid command line
//! takes part too, and sends its error text instead. If it did not take part, the other ranks would wait for
//! it.

use std::fs::File;
use std::thread::JoinHandle;

use burn_fused::simd::Level;
use burn_mpi::{CommError, Launcher, SharedError, World};
use serde::{Deserialize, Serialize};

use super::Refused;
use run_record::files::sha256_with;

/// The subcommand that a rank is about to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Does {
    /// The subcommand, such as `bench step`.
    pub command: String,
    /// Its options with their values.
    pub options: Vec<(String, String)>,
}

/// The values of one rank that are compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RankStart {
    /// The subcommand, or the error text that the rank would print.
    does: Result<Does, String>,
    /// SHA-256 of the executable.
    program: String,
    level: Level,
}

/// The result of the comparison for one rank.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// All ranks run the subcommand.
    Run,
    /// All ranks have the same text to print; rank 0 prints it for all.
    Print(String),
    /// Ranks differ, and the command does not run. Contains the line that this rank prints, or `None` if only
    /// other ranks print.
    Refuse(Option<String>),
}

/// Whether this process is one of several that a launcher started.
pub fn has_peers() -> bool {
    Launcher::detect().is_some_and(|launcher| launcher.has_peers())
}

/// Compares the subcommand, its options and the binary of this rank with those of the other ranks.
///
/// Also makes all ranks use the highest SIMD level that the processors of all ranks have. Hosts may have
/// different processors, and a run must give the same bits for any placement of its ranks.
///
/// # Errors
/// If an option differs between ranks, or the transport fails.
pub fn compare(
    world: &World,
    does: Result<Does, String>,
    program: Option<Fingerprint>,
) -> Result<Verdict, CommError> {
    let program = program.and_then(|digest| digest.join().ok()).unwrap_or_default();
    let all = world.gather(&RankStart { does, program, level: Level::current() })?;
    let level = Level::shared(&all.iter().map(|start| start.level).collect::<Vec<_>>());
    level.use_level();
    log::debug!("SIMD level {level}");
    let hosts: Vec<&str> = world.places().iter().map(|place| place.host.as_str()).collect();
    verdict(&all, &hosts, world.rank())
}

fn verdict(all: &[RankStart], hosts: &[&str], rank: usize) -> Result<Verdict, CommError> {
    let name = |rank: usize| format!("rank {rank} on {}", hosts[rank]);
    let first = &all[0];
    let Ok(does) = all.iter().map(|start| start.does.as_ref()).collect::<Result<Vec<&Does>, _>>() else {
        return Ok(match &first.does {
            Err(text) if all.iter().all(|start| start.does == first.does) => Verdict::Print(text.clone()),
            _ => {
                let own = all[rank].does.as_ref().err();
                Verdict::Refuse(own.map(|text| format!("{}: {}", name(rank), text.trim_end())))
            }
        });
    };
    let refuse = |line: String| Ok(Verdict::Refuse((rank == 0).then_some(line)));
    // Check the binary first: a different binary may explain a different subcommand.
    if let Some(other) = all.iter().position(|start| start.program != first.program) {
        return refuse(format!(
            "{} and {} run different binaries (SHA-256 {:.12}… and {:.12}…): copy one binary to all machines",
            name(other),
            name(0),
            all[other].program,
            first.program
        ));
    }
    if let Some(other) = does.iter().position(|does_other| does_other.command != does[0].command) {
        return refuse(format!(
            "ranks run different subcommands: {} runs mpiburn {}, {} runs mpiburn {}; start all ranks with \
             the same subcommand",
            name(0),
            does[0].command,
            name(other),
            does[other].command
        ));
    }
    for (rank, other) in does.iter().enumerate() {
        let differs = other.options.iter().zip(&does[0].options).find(|(own, first)| own != first);
        if let Some(((what, found), (_, expected))) = differs {
            let [what, found, expected] = [what, found, expected].map(Clone::clone);
            let host = hosts[rank].to_owned();
            return Err(CommError::Shared(SharedError::Diverged { what, rank, host, found, expected }));
        }
    }
    Ok(Verdict::Run)
}

/// A thread that computes SHA-256 of this executable while MPI starts. If the executable cannot be read, the
/// error text replaces the digest and is compared in its place.
pub type Fingerprint = JoinHandle<String>;

/// Starts to read the executable, if there are other ranks to compare it with.
pub fn fingerprint() -> Option<Fingerprint> {
    let digest = || sha256_with(&[], File::open("/proc/self/exe")?);
    has_peers().then(|| std::thread::spawn(move || digest().unwrap_or_else(|error| error.to_string())))
}

/// Returns the error for the subcommand `name`, which runs in one process, but was started by a launcher.
pub fn in_one_process(name: &str) -> Refused {
    Refused(format!("{name} runs in one process: start it without mpirun or srun"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::tells;

    fn starts(does: [Result<&str, &str>; 3]) -> Vec<RankStart> {
        let start = |does: Result<&str, &str>| RankStart {
            does: does
                .map(|command| Does { command: command.into(), options: Vec::new() })
                .map_err(Into::into),
            program: "abc".into(),
            level: Level::Portable,
        };
        does.map(start).into()
    }

    fn verdicts(starts: &[RankStart]) -> Vec<Verdict> {
        (0..3).map(|rank| verdict(starts, &["alpha", "alpha", "beta"], rank).unwrap()).collect()
    }

    #[test]
    fn the_program_is_not_named_twice() {
        let printed = format!("mpiburn: {}", in_one_process("data digits"));
        assert_eq!(
            (printed.matches("mpiburn").count(), printed.contains("data digits")),
            (1, true),
            "{printed}"
        );
    }

    #[test]
    fn ranks_with_the_same_start_run_or_print_once() {
        assert_eq!(verdicts(&starts([Ok("train"); 3])), [Verdict::Run, Verdict::Run, Verdict::Run]);
        let prints = |verdict: &Verdict| *verdict == Verdict::Print("no such option".into());
        assert!(verdicts(&starts([Err("no such option"); 3])).iter().all(prints));
    }

    #[test]
    fn each_rank_prints_its_own_usage_error() {
        let found = verdicts(&starts([Ok("train"), Err("no --a\n"), Err("no --b\n")]));
        let refuse = |text: Option<&str>| Verdict::Refuse(text.map(str::to_owned));
        assert_eq!(
            found,
            [refuse(None), refuse(Some("rank 1 on alpha: no --a")), refuse(Some("rank 2 on beta: no --b"))]
        );
    }

    #[test]
    fn another_subcommand_and_another_binary_are_named_by_rank_0() {
        let mut starts = starts([Ok("train"), Ok("train"), Ok("bench step")]);
        let [Verdict::Refuse(Some(line)), others @ ..] = &verdicts(&starts)[..] else {
            panic!("rank 0 refuses");
        };
        assert!(
            tells(line, "… rank 0 on alpha … mpiburn train … rank 2 on beta … mpiburn bench step"),
            "{line}"
        );
        assert_eq!(others, [Verdict::Refuse(None), Verdict::Refuse(None)]);
        starts[1].program = "abd".into();
        let Ok(Verdict::Refuse(Some(line))) = verdict(&starts, &["alpha", "beta", "beta"], 0) else {
            panic!("another binary is refused");
        };
        assert!(tells(&line, "rank 1 on beta … rank 0 on alpha … SHA-256 abd… … abc…"), "{line}");
    }

    #[test]
    fn the_first_differing_option_is_named_with_both_values() {
        let mut starts = starts([Ok("train"); 3]);
        let hosts = ["alpha", "alpha", "beta"];
        for (rank, start) in starts.iter_mut().enumerate() {
            let lr = if rank == 2 { "0.1" } else { "0.5" };
            let options = [("--epochs", "3"), ("--lr", lr), ("--seed", lr)];
            let options = options.map(|(option, value)| (option.to_owned(), value.to_owned()));
            start.does.as_mut().unwrap().options = options.into();
        }
        let error = verdict(&starts, &hosts, 0).unwrap_err().to_string();
        assert_eq!(error, "--lr differs between ranks: rank 2 on beta has 0.1, rank 0 has 0.5");
        assert_eq!(verdict(&starts[..2], &hosts, 0).unwrap(), Verdict::Run);
    }
}
