//! `mpiburn bench collectives`: finds out which collective operations each backend supports. It calls each
//! operation, checks the result, and times the call.

use std::ops::Range;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{has_no_gpu, job, publish, timed, warn_if_not_representative};
use crate::commands::{on_root, outputs};
use crate::machine::topology;
use crate::options::CollectivesArgs;
use crate::train::BackendKind;
use burn_mpi::{CommError, Primitives, SharedError, Transport, Wire, World};
use run_report::allreduce::median_of;
use run_report::benchmarks;
use run_report::collectives::{CORRECT, CollectiveRow, NEEDS_2_RANKS, NOT_BUILT, NOT_SUPPORTED, WRONG};

/// Bytes that each rank sends to each other rank, or contributes to a sum.
const BYTES: usize = 1024;

/// How long the last rank sleeps before it enters the barrier that is checked.
///
/// The barrier is wrong if a rank leaves it before another rank has entered it. Clocks of ranks differ, so
/// the barrier counts as wrong only if the rank leaves much earlier: by more than half of this delay plus the
/// errors of the two ranks' clocks. A rank that is late for another reason may hide a wrong barrier, but
/// cannot make a correct barrier look wrong.
const LATE: Duration = Duration::from_millis(100);

/// Calls one operation of [`Primitives`]; the last argument is the root rank. Returns the time of the call
/// (`None` if the call is not timed on this rank), and whether the result is right.
type PrimitiveCall = fn(&mut dyn Primitives, &World, usize) -> Result<(Option<Duration>, bool), CommError>;

const OPERATIONS: [(&str, PrimitiveCall); 11] = [
    ("send", |on, world, _| with_peer(on, world, true)),
    ("recv", |on, world, _| with_peer(on, world, false)),
    ("broadcast", |on, world, root| {
        let mut buffer = message(world.rank(), 0);
        Ok((timed(world, || on.broadcast(&mut buffer, root))?.into(), buffer == message(root, 0)))
    }),
    ("all-reduce", |on, world, _| {
        let mut buffer = term(world.rank(), 1);
        Ok((timed(world, || on.all_reduce(&mut buffer))?.into(), buffer == sum(0..world.size(), 1)))
    }),
    ("reduce", |on, world, root| {
        let (mine, mut total) = (term(world.rank(), 1), zeros(1));
        let time = timed(world, || on.reduce(&mine, &mut total, root))?.into();
        Ok((time, world.rank() != root || total == sum(0..world.size(), 1)))
    }),
    ("all-gather", |on, world, _| {
        let (mine, mut all) = (message(world.rank(), 0), vec![0; BYTES * world.size()]);
        Ok((timed(world, || on.all_gather(&mine, &mut all))?.into(), all == messages_to(world, 0)))
    }),
    ("gather", |on, world, root| {
        let (mine, mut all) = (message(world.rank(), 0), vec![0; BYTES * world.size()]);
        let time = timed(world, || on.gather(&mine, &mut all, root))?.into();
        Ok((time, world.rank() != root || all == messages_to(world, 0)))
    }),
    ("scatter", |on, world, root| {
        let (mine, mut part) = (messages_from(world), vec![0; BYTES]);
        Ok((timed(world, || on.scatter(&mine, &mut part, root))?.into(), part == message(root, world.rank())))
    }),
    ("reduce-scatter", |on, world, _| {
        let (rank, size) = (world.rank(), world.size());
        let (mine, mut total) = (term(rank, size), zeros(1));
        let time = timed(world, || on.reduce_scatter(&mine, &mut total))?.into();
        Ok((time, total.bytes() == &sum(0..size, size).bytes()[rank * BYTES..(rank + 1) * BYTES]))
    }),
    ("all-to-all", |on, world, _| {
        let (mine, mut all) = (messages_from(world), vec![0; BYTES * world.size()]);
        Ok((timed(world, || on.all_to_all(&mine, &mut all))?.into(), all == messages_to(world, world.rank())))
    }),
    (BARRIER, |on, world, _| Ok((timed(world, || on.barrier())?.into(), true))),
];

const BARRIER: &str = "barrier";

/// A rank's times of an operation in µs (empty if no call is timed on the rank), or the problem: [`WRONG`] or
/// [`NOT_SUPPORTED`].
type Trial = Result<Vec<f64>, String>;

pub fn run(world: &World, args: &CollectivesArgs) -> anyhow::Result<()> {
    outputs::check_on_root(world, &[("csv", args.csv.as_ref())], &[])?;
    warn_if_not_representative(world);
    let mut rows: Vec<CollectiveRow> = Vec::new();
    let mut wrong = None;
    for &backend in BackendKind::value_variants() {
        let mut primitives = connect(world, backend)?;
        for (name, operation) in OPERATIONS {
            let result = match &mut primitives {
                Err(reason) => Err(*reason),
                Ok(on) => {
                    let mut trial = attempt(operation, on.as_mut(), world, args.iterations)?;
                    if name == BARRIER && trial.is_ok() && !barrier_waits(on.as_mut(), world)? {
                        trial = Err(WRONG.into());
                    }
                    let trials = world.gather(&trial)?;
                    if let Some(rank) = trials.iter().position(|trial| ended_with(trial, WRONG)) {
                        let reason = format!("{backend} {name} gave a wrong result");
                        let host = world.places()[rank].host.clone();
                        wrong.get_or_insert(CommError::Shared(SharedError::Elsewhere { rank, host, reason }));
                    }
                    summary(&trials)
                }
            };
            rows.push(CollectiveRow {
                operation: name.into(),
                backend: backend.to_string(),
                topology: topology(world.places()),
                bytes: BYTES,
                median_us: result.ok(),
                result: result.err().unwrap_or(CORRECT).into(),
            });
        }
    }
    on_root(world, || {
        let what = format!("median latency in µs with {BYTES} bytes per rank, {}", job(world));
        let heading = format!("{what}; a call's latency is the mean over ranks");
        publish(&heading, &benchmarks::table(&rows), args.csv.as_deref(), &rows)
    })?;
    wrong.map_or(Ok(()), |error| Err(error.into()))
}

/// Connects `backend`. The inner error says why the backend cannot be used: this build lacks it, or a rank
/// has no GPU for it.
fn connect(
    world: &World,
    backend: BackendKind,
) -> Result<Result<Box<dyn Primitives>, &'static str>, CommError> {
    if backend.check_built().is_err() {
        return Ok(Err(NOT_BUILT));
    }
    match has_no_gpu(world, backend)? {
        Some(reason) => Ok(Err(reason)),
        None => Ok(Ok(backend.connect_primitives(world, &Transport::default(), None)?)),
    }
}

fn ended_with(trial: &Trial, problem: &str) -> bool {
    trial.as_ref().is_err_and(|found| found == problem)
}

/// Returns the median time in µs of one operation. The time of a call is the mean over the ranks that timed
/// it. The error says why there is no time.
fn summary(trials: &[Trial]) -> Result<f64, &'static str> {
    for problem in [WRONG, NOT_SUPPORTED] {
        if trials.iter().any(|trial| ended_with(trial, problem)) {
            return Err(problem);
        }
    }
    let times: Vec<&Vec<f64>> = trials.iter().flatten().filter(|times| !times.is_empty()).collect();
    let mean = |i: usize| times.iter().map(|of_rank| of_rank[i]).sum::<f64>() / times.len() as f64;
    let calls = times.first().map_or(0, |times| times.len());
    median_of((0..calls).map(mean).collect()).ok_or(NEEDS_2_RANKS)
}

/// Calls `operation` on all ranks, `iterations` times after a warm-up. Continues after a wrong result: if
/// this rank stopped, the other ranks would wait for it.
fn attempt(
    operation: PrimitiveCall,
    on: &mut dyn Primitives,
    world: &World,
    iterations: usize,
) -> Result<Trial, CommError> {
    let mut times = Vec::with_capacity(iterations);
    let mut problem = None;
    for turn in 0..iterations + iterations.div_ceil(10) {
        match operation(on, world, turn % world.size()) {
            Ok((time, true)) => times.extend(time.map(|time| time.as_secs_f64() * 1e6)),
            Ok((_, false)) => problem = Some(WRONG),
            Err(CommError::Unsupported { .. }) => problem = Some(NOT_SUPPORTED),
            Err(error) => return Err(error),
        }
    }
    // Leave out the first calls, which set up connections.
    times.drain(..times.len().min(iterations.div_ceil(10)));
    Ok(problem.map_or(Ok(times), |problem| Err(problem.to_owned())))
}

/// Sends a message from each even rank to the next rank. Returns a time on the senders if `of_sender` is
/// true, and on the receivers if it is false.
fn with_peer(
    on: &mut dyn Primitives,
    world: &World,
    of_sender: bool,
) -> Result<(Option<Duration>, bool), CommError> {
    let (mine, mut part) = (message(world.rank(), 0), vec![0; BYTES]);
    let sends = world.rank().is_multiple_of(2);
    let peer = world.rank() ^ 1;
    let time = timed(world, || {
        if peer >= world.size() {
            Ok(())
        } else if sends {
            on.send(&mine, peer)
        } else {
            on.receive(&mut part, peer)
        }
    })?;
    let is_timed = peer < world.size() && sends == of_sender;
    Ok((is_timed.then_some(time), sends || part == message(peer, 0)))
}

/// When a rank entered and left a barrier, in ns on the clock of rank 0.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Passage {
    entered: i64,
    left: i64,
    /// Upper bound of the clock's error, in ns.
    error: i64,
}

/// Delays the last rank, and returns whether the barrier waits for it.
fn barrier_waits(on: &mut dyn Primitives, world: &World) -> Result<bool, CommError> {
    let since = Instant::now();
    let clock = world.clock_offsets(|| since.elapsed())?[world.rank()];
    let now = || since.elapsed().as_nanos() as i64 - clock.offset_ns;
    world.barrier()?;
    if world.rank() + 1 == world.size() {
        std::thread::sleep(LATE);
    }
    let entered = now();
    on.barrier()?;
    let passage = Passage { entered, left: now(), error: clock.error_ns as i64 };
    Ok(all_waited(&world.gather(&passage)?))
}

/// Whether every rank stayed in the barrier until the last rank entered it, within the margin that [`LATE`]
/// describes.
fn all_waited(ranks: &[Passage]) -> bool {
    let is_early = |rank: &Passage, other: &Passage| {
        let margin = rank.error + other.error + LATE.as_nanos() as i64 / 2;
        rank.left + margin < other.entered
    };
    !ranks.iter().any(|rank| ranks.iter().any(|other| is_early(rank, other)))
}

/// Returns the message of rank `from` to rank `to`.
fn message(from: usize, to: usize) -> Vec<u8> {
    (0..BYTES).map(|i| (from * 59 + to * 101 + i * 7 + 1) as u8).collect()
}

/// Returns the messages of this rank to all ranks, one after the other.
fn messages_from(world: &World) -> Vec<u8> {
    (0..world.size()).flat_map(|to| message(world.rank(), to)).collect()
}

/// Returns the messages of all ranks to rank `to`, one after the other.
fn messages_to(world: &World, to: usize) -> Vec<u8> {
    (0..world.size()).flat_map(|from| message(from, to)).collect()
}

/// Returns what `rank` contributes to a sum: `parts` parts of `BYTES` bytes.
fn term(rank: usize, parts: usize) -> Wire {
    sum(rank..rank + 1, parts)
}

fn zeros(parts: usize) -> Wire {
    Wire::F32(vec![0.0; parts * BYTES / size_of::<f32>()])
}

/// Returns the sum of what `ranks` contribute: `parts` parts of `BYTES` bytes. A reduce-scatter has one part
/// for each rank, other sums have one part. The values are small integers, so their sums are exact.
fn sum(ranks: Range<usize>, parts: usize) -> Wire {
    let value = |i: usize| ranks.clone().map(|rank| ((rank * 5 + i) % 11) as f32).sum();
    Wire::F32((0..parts * BYTES / size_of::<f32>()).map(value).collect())
}

#[cfg(test)]
#[path = "collectives_tests.rs"]
mod tests;
