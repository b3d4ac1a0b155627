//! `mpiburn bench collectives`: the operations that each backend supports, determined
//! by calling each and checking its result.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{job, warn_if_not_representative};
use crate::commands::{collective, outputs};
use crate::machine::topology;
use crate::options::CollectivesArgs;
use burn_mpi::lab::Primitives;
use burn_mpi::{Backend, CommError, SharedError, Transport, Wire, World};
use run_report::collectives::{CORRECT, CollectiveRow, NEEDS_2_RANKS, NOT_BUILT, NOT_SUPPORTED, WRONG};
use run_report::latency::median_of;
use run_report::table::of_collectives;
use run_report::write_csv;

/// Bytes that each rank sends to each other rank, or contributes to a sum.
const BYTES: usize = 1024;

/// Delay of one rank before the barrier that is checked, which is wrong if another rank leaves it before this one enters
/// it, by more than half of the delay and the errors of the clocks. Ranks that are late themselves may hide that, but
/// make no correct barrier wrong.
const LATE: Duration = Duration::from_millis(100);

/// An operation of [`Primitives`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Send,
    Receive,
    Broadcast,
    AllReduce,
    Reduce,
    AllGather,
    Gather,
    Scatter,
    ReduceScatter,
    AllToAll,
    Barrier,
}

const OPERATIONS: [(Operation, &str); 11] = [
    (Operation::Send, "send"),
    (Operation::Receive, "recv"),
    (Operation::Broadcast, "broadcast"),
    (Operation::AllReduce, "all-reduce"),
    (Operation::Reduce, "reduce"),
    (Operation::AllGather, "all-gather"),
    (Operation::Gather, "gather"),
    (Operation::Scatter, "scatter"),
    (Operation::ReduceScatter, "reduce-scatter"),
    (Operation::AllToAll, "all-to-all"),
    (Operation::Barrier, "barrier"),
];

/// Result of an operation on one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Trial {
    /// Its times in µs.
    Times(Vec<f64>),
    /// The rank did not take part.
    Idle,
    NotSupported,
    Wrong,
}

pub fn run(world: &World, args: &CollectivesArgs) -> anyhow::Result<()> {
    let iterations = args.iterations;
    outputs::check_on_root(world, &[("csv", args.csv.as_ref())], &[])?;
    warn_if_not_representative(world);
    let mut rows: Vec<CollectiveRow> = Vec::new();
    let mut wrong = None;
    for backend in collective::ALL {
        let mut primitives = connect(world, backend)?;
        for (operation, name) in OPERATIONS {
            let result = match &mut primitives {
                Err(reason) => Err(*reason),
                Ok(primitives) => {
                    let trials =
                        world.gather(&attempt(operation, primitives.as_mut(), world, iterations)?)?;
                    if let Some(rank) = trials.iter().position(|trial| *trial == Trial::Wrong) {
                        let reason = format!("{backend} {name} gave a wrong result");
                        let host = world.places()[rank].host.clone();
                        wrong.get_or_insert(CommError::Shared(SharedError::Elsewhere { rank, host, reason }));
                    }
                    summary(&trials)
                }
            };
            rows.push(row(world, name, backend.name(), result));
        }
    }
    if world.is_root() {
        println!(
            "median µs of {BYTES} bytes per rank, {}; mean over ranks of each call's latency",
            job(world)
        );
        println!("{}", of_collectives(&rows));
    }
    let csv = args.csv.as_ref().filter(|_| world.is_root());
    world.agree(csv.map_or(Ok(()), |path| write_csv(path, &rows)))?;
    wrong.map_or(Ok(()), |error| Err(error.into()))
}

/// The operations of `backend`, or why it has none here: it is not in this build, or a rank has no
/// GPU for it.
fn connect(world: &World, backend: Backend) -> anyhow::Result<Result<Box<dyn Primitives>, &'static str>> {
    if backend.check_built().is_err() {
        return Ok(Err(NOT_BUILT));
    }
    match collective::primitives(world, backend, &Transport::default()) {
        Ok(primitives) => Ok(Ok(primitives)),
        Err(error) => match error.downcast_ref() {
            Some(CommError::Shared(SharedError::NoNccl { reason, .. })) => {
                if world.is_root() {
                    log::info!("{backend} is left out: {error}");
                }
                Ok(Err(reason.short()))
            }
            _ => Err(error),
        },
    }
}

fn row(world: &World, operation: &str, backend: &str, result: Result<f64, &str>) -> CollectiveRow {
    CollectiveRow {
        operation: operation.into(),
        backend: backend.into(),
        topology: topology(world.places()),
        bytes: BYTES,
        median_us: result.ok(),
        result: result.err().unwrap_or(CORRECT).into(),
    }
}

/// The median in µs of all ranks' trials of one operation, or why there is none.
fn summary(trials: &[Trial]) -> Result<f64, &'static str> {
    let has = |what: &Trial| trials.contains(what);
    let times: Vec<&Vec<f64>> =
        trials.iter().filter_map(|t| if let Trial::Times(times) = t { Some(times) } else { None }).collect();
    let mean = |i: usize| times.iter().map(|of_rank| of_rank[i]).sum::<f64>() / times.len() as f64;
    match times.first() {
        _ if has(&Trial::Wrong) => Err(WRONG),
        _ if has(&Trial::NotSupported) => Err(NOT_SUPPORTED),
        None => Err(NEEDS_2_RANKS),
        Some(first) => median_of((0..first.len()).map(mean).collect()).ok_or(NEEDS_2_RANKS),
    }
}

/// Calls `operation` on all ranks. A wrong result does not end it, because the other
/// ranks would wait for this one.
fn attempt(
    operation: Operation,
    on: &mut dyn Primitives,
    world: &World,
    iterations: usize,
) -> Result<Trial, CommError> {
    let mut times = Vec::with_capacity(iterations);
    let mut outcome = None;
    for turn in 0..iterations + iterations.div_ceil(10) {
        match once(operation, on, world, turn) {
            Ok(Some((time, true))) => times.push(time.as_secs_f64() * 1e6),
            Ok(Some((_, false))) => outcome = Some(Trial::Wrong),
            Ok(None) => outcome = outcome.or(Some(Trial::Idle)),
            Err(CommError::Unsupported { .. }) => outcome = Some(Trial::NotSupported),
            Err(error) => return Err(error),
        }
    }
    if operation == Operation::Barrier && outcome.is_none() && !barrier_waits(on, world)? {
        outcome = Some(Trial::Wrong);
    }
    // The first calls set up connections.
    Ok(outcome.unwrap_or_else(|| Trial::Times(times.split_off(iterations.div_ceil(10)))))
}

/// One call: its time, and whether its result is right; nothing if this rank does not
/// take part. The root changes with `turn`.
fn once(
    operation: Operation,
    on: &mut dyn Primitives,
    world: &World,
    turn: usize,
) -> Result<Option<(Duration, bool)>, CommError> {
    let (rank, size) = (world.rank(), world.size());
    let root = turn % size;
    let timed = |call: &mut dyn FnMut() -> Result<(), CommError>| {
        world.barrier()?;
        let started = Instant::now();
        call()?;
        Ok(started.elapsed())
    };
    // Every rank's messages to all others, one after the other.
    let for_all: Vec<u8> = (0..size).flat_map(|to| message(rank, to)).collect();
    let from_all: Vec<u8> = (0..size).flat_map(|from| message(from, 0)).collect();
    let mine = message(rank, 0);
    let mut part = vec![0; BYTES];
    let mut all = vec![0; BYTES * size];
    Ok(Some(match operation {
        Operation::Send | Operation::Receive => {
            let Some(peer) = Some(rank ^ 1).filter(|&peer| peer < size) else {
                world.barrier()?;
                return Ok(None);
            };
            let sends = rank.is_multiple_of(2);
            let time = timed(&mut || match sends {
                true => on.send(&mine, peer),
                false => on.receive(&mut part, peer),
            })?;
            // Each row has the time of its own side.
            match (sends, operation) {
                (true, Operation::Send) => (time, true),
                (false, Operation::Receive) => (time, part == message(peer, 0)),
                (true, _) => return Ok(None),
                (false, _) if part == message(peer, 0) => return Ok(None),
                (false, _) => (time, false),
            }
        }
        Operation::Broadcast => {
            let mut buffer = mine;
            (timed(&mut || on.broadcast(&mut buffer, root))?, buffer == message(root, 0))
        }
        Operation::AllReduce => {
            let mut buffer = term(rank, 1);
            (timed(&mut || on.all_reduce(&mut buffer))?, buffer == sum(size, 1))
        }
        Operation::Reduce => {
            let (mine, mut total) = (term(rank, 1), zeros(1));
            let time = timed(&mut || on.reduce(&mine, &mut total, root))?;
            (time, rank != root || total == sum(size, 1))
        }
        Operation::AllGather => (timed(&mut || on.all_gather(&mine, &mut all))?, all == from_all),
        Operation::Gather => {
            let time = timed(&mut || on.gather(&mine, &mut all, root))?;
            (time, rank != root || all == from_all)
        }
        Operation::Scatter => {
            (timed(&mut || on.scatter(&for_all, &mut part, root))?, part == message(root, rank))
        }
        Operation::ReduceScatter => {
            let (mine, mut total) = (term(rank, size), zeros(1));
            let time = timed(&mut || on.reduce_scatter(&mine, &mut total))?;
            let share = total.bytes().len();
            (time, total.bytes() == &sum(size, size).bytes()[rank * share..(rank + 1) * share])
        }
        Operation::AllToAll => {
            let expected: Vec<u8> = (0..size).flat_map(|from| message(from, rank)).collect();
            (timed(&mut || on.all_to_all(&for_all, &mut all))?, all == expected)
        }
        Operation::Barrier => (timed(&mut || on.barrier())?, true),
    }))
}

/// A rank's passage through a barrier, in ns on the clock of rank 0.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Passage {
    entered: i64,
    left: i64,
    /// Bound of the clock's error.
    error: i64,
}

/// Whether the barrier waits for the last rank, which is delayed.
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

/// Whether no rank left before another entered.
fn all_waited(ranks: &[Passage]) -> bool {
    let is_early = |rank: &Passage, other: &Passage| {
        let margin = rank.error + other.error + LATE.as_nanos() as i64 / 2;
        rank.left + margin < other.entered
    };
    !ranks.iter().any(|rank| ranks.iter().any(|other| is_early(rank, other)))
}

/// The message of rank `from` to rank `to`.
fn message(from: usize, to: usize) -> Vec<u8> {
    (0..BYTES).map(|i| (from * 59 + to * 101 + i * 7 + 1) as u8).collect()
}

/// The contribution of `rank` to a sum: `parts` of `BYTES`. Small integers have exact
/// sums.
fn term(rank: usize, parts: usize) -> Wire {
    let value = |i: usize| ((rank * 5 + i) % 11) as f32;
    Wire::F32((0..parts * BYTES / size_of::<f32>()).map(value).collect())
}

fn zeros(parts: usize) -> Wire {
    Wire::F32(vec![0.0; parts * BYTES / size_of::<f32>()])
}

/// The sum of all ranks' terms.
fn sum(ranks: usize, parts: usize) -> Wire {
    let all: Vec<f32> = (0..ranks)
        .flat_map(|rank| match term(rank, parts) {
            Wire::F32(values) => values,
            _ => unreachable!("terms are f32"),
        })
        .collect();
    let mut sum = zeros(parts);
    sum.sum_of_chunks(&Wire::F32(all));
    sum
}

#[cfg(test)]
#[path = "collectives_tests.rs"]
mod tests;
