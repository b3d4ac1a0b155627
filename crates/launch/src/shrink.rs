//! `launch --restart N --shrink`: goes on without the machines that do not answer any more.
//!
//! Before each attempt that resumes a run, the machines of the host file are asked in the order of the file. A
//! machine that was left out takes part again as soon as it answers.
//!
//! The training is resumed with `--reshard`, which needs a number of ranks that divides the samples of a
//! step. If the number of ranks that are left does not, fewer ranks take part.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use run_record::files::write_here;
use run_record::{HOSTS, RunDir, RunRecord, count};

use super::hosts::Slots;
use super::preflight::{ask_hosts, binding};
use super::{Hosts, Launch, StopRequest, Topology};

/// The machines that answer, with their answers, and a text about each that does not.
type Answers = (Vec<(String, [usize; 2])>, Vec<String>);

/// The machines of the first attempt, and its topology.
pub(super) struct Shrinking {
    topology: Topology,
    hosts: Hosts,
    /// Host file of the machines that are left, in the run directory. Open MPI reads it.
    file: PathBuf,
}

impl Shrinking {
    /// Returns what the later attempts of `launch` choose from; `None` without a host file. `dir` is the run
    /// directory.
    pub fn new(launch: &Launch, dir: &Path) -> Option<Self> {
        let hosts = launch.hosts.clone()?;
        Some(Self { topology: launch.topology, hosts, file: dir.join(HOSTS) })
    }

    /// Checks that all machines of the first attempt answer, for an attempt that begins again. A run chooses
    /// its batch size for them, and without a checkpoint there is nothing to reshard.
    ///
    /// # Errors
    /// If a machine does not answer, or a signal comes before.
    pub fn require_all(&self, launch: &Launch, stop: &StopRequest) -> anyhow::Result<()> {
        let (_, lost) = self.ask(launch, self.topology.nodes, stop)?;
        let remedy = "without a checkpoint, the run can begin again only on all machines: save one earlier with \
                      --checkpoint-every";
        anyhow::ensure!(lost.is_empty(), "{}; {remedy}", lost.join("; "));
        Ok(())
    }

    /// Asks the machines of the host file, at most the first `most`, until the topology is complete. Returns
    /// those that answer with their answers, and a text about each that does not.
    fn ask(&self, launch: &Launch, most: usize, stop: &StopRequest) -> anyhow::Result<Answers> {
        let Self { topology, hosts, .. } = self;
        let fits = |(_, slots): &&(String, Slots)| slots.at_most() >= topology.ranks_per_node;
        let all = hosts.entries.iter().filter(fits).take(most);
        let names: Vec<&str> = all.map(|(name, _)| name.as_str()).collect();
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        let then = |host: &str, counts: anyhow::Result<[usize; 2]>| {
            match counts {
                Ok(counts) => left.push((host.to_owned(), counts)),
                Err(error) => lost.push(format!("{host} does not answer ({error:#})")),
            }
            Ok(left.len() < topology.nodes)
        };
        ask_hosts(launch, hosts, &names, stop, then)?;
        Ok((left, lost))
    }

    /// Makes `launch` start on the machines that answer. Returns a line for the user if this is not the
    /// topology of the first attempt.
    ///
    /// # Errors
    /// If no machine answers, if a signal comes before, or if `run.json` or the host file cannot be used.
    pub fn shrink(
        &self,
        launch: &mut Launch,
        dir: &Path,
        stop: &StopRequest,
    ) -> anyhow::Result<Option<String>> {
        let Self { topology, hosts, file } = self;
        let (mut left, lost) = self.ask(launch, usize::MAX, stop)?;
        anyhow::ensure!(!left.is_empty(), "no machine answers: {}", lost.join("; "));
        let batch = samples_of_a_step(dir)?;
        let most = Topology { nodes: left.len(), ..*topology };
        let part = largest(most, batch);
        left.truncate(part.nodes);
        let before = std::mem::replace(&mut launch.topology, part);
        let threads = launch.threads_of_machine();
        launch.binding =
            left.iter().map(|(_, counts)| binding(threads, *counts)).max().unwrap_or(launch.binding);
        if lost.is_empty() && part == *topology {
            launch.hosts = Some(hosts.clone());
            let back = || format!("launch: all machines answer again; continuing on {part}");
            return Ok((before != part).then(back));
        }
        let entry = |(name, _): (String, _)| (name, Slots::Given(topology.ranks_per_node));
        let entries: Vec<(String, Slots)> = left.into_iter().map(entry).collect();
        let line = |(name, _): &(String, Slots)| format!("{name} slots={}\n", topology.ranks_per_node);
        let text: String = entries.iter().map(line).collect();
        write_here(file, text.as_bytes()).with_context(|| format!("cannot write {}", file.display()))?;
        launch.hosts = Some(Hosts { path: file.clone(), entries });
        let uneven = if part == most {
            String::new()
        } else {
            format!(", because {most} cannot divide a batch of {} evenly", count(batch, "sample"))
        };
        let begin: String = lost.iter().map(|reason| format!("{reason}; ")).collect();
        let ranks = count(part.ranks(), "rank");
        Ok(Some(format!("launch: {begin}continuing on {part} ({ranks}){uneven}")))
    }
}

impl Drop for Shrinking {
    fn drop(&mut self) {
        // It is there only if a machine was left out.
        let _ = fs::remove_file(&self.file);
    }
}

/// Returns the samples of a training step of the run in `dir`, over all ranks, without accumulation.
fn samples_of_a_step(dir: &Path) -> anyhow::Result<usize> {
    let (_, record): (_, RunRecord) = RunDir::open(dir)?;
    let batch = record.config.get("train_batch_size").and_then(|batch| batch.as_u64()).unwrap_or(1) as usize;
    Ok(batch.saturating_mul(record.world_size).max(1))
}

/// Returns the topology with the most ranks that divide `batch`, with at most the machines and processes of
/// `most`.
fn largest(most: Topology, batch: usize) -> Topology {
    let all = (1..=most.nodes).flat_map(|nodes| {
        (1..=most.ranks_per_node).map(move |ranks_per_node| Topology { nodes, ranks_per_node })
    });
    let divides = |topology: &Topology| batch.is_multiple_of(topology.ranks());
    all.filter(divides).max_by_key(|topology| (topology.ranks(), topology.nodes)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_number_of_ranks_that_divides_the_batch_is_chosen() {
        for (most, batch, expected) in
            [("3x2", 24, "3x2"), ("3x2", 32, "2x2"), ("3x1", 4, "2x1"), ("1x3", 7, "1x1"), ("2x3", 9, "1x3")]
        {
            let part = largest(most.parse().unwrap(), batch);
            assert_eq!(part.to_string(), expected, "{most} of {batch}");
        }
    }
}
