//! `mpiburn bench collectives`: which operations each backend has, found by
//! calling each and checking what it did.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{at_least_one, job, warn_of_bad_conditions};
use crate::cli::CollectivesArgs;
use crate::commands::collective;
use crate::report::latency::median_of;
use crate::report::table::table;
use burn_mpi::{CommError, Primitives, Transport, Wire, World};

/// Bytes that each rank sends to each other, or brings to a sum.
const BYTES: usize = 1024;

/// How late one rank comes to the barrier that is checked, and how long the
/// others must have waited at least: each may be late itself.
const LATE: Duration = Duration::from_millis(100);
const WAITED: Duration = Duration::from_millis(20);

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

/// What one rank saw of an operation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Trial {
    /// Its times in µs.
    Times(Vec<f64>),
    /// It had no part in it.
    Idle,
    NotSupported,
    Wrong,
}

pub fn run(world: &World, args: &CollectivesArgs) -> anyhow::Result<()> {
    let iterations = at_least_one(args.iterations)?;
    warn_of_bad_conditions(world);
    let mut header = vec!["operation".to_owned()];
    let mut rows: Vec<Vec<String>> = OPERATIONS.iter().map(|(_, name)| vec![(*name).to_owned()]).collect();
    let mut wrong = None;
    for backend in collective::ALL {
        header.push(backend.to_string());
        let built = backend.check_built().is_ok();
        let mut primitives =
            built.then(|| collective::primitives(world, backend, &Transport::default())).transpose()?;
        for ((operation, name), row) in OPERATIONS.into_iter().zip(&mut rows) {
            row.push(match &mut primitives {
                None => "not built".to_owned(),
                Some(primitives) => {
                    let trials =
                        world.gather(&attempt(operation, primitives.as_mut(), world, iterations)?)?;
                    if let Some(rank) = trials.iter().position(|trial| *trial == Trial::Wrong) {
                        let reason = format!("{backend} {name} gave a wrong result");
                        let host = world.places()[rank].host.clone();
                        wrong.get_or_insert(CommError::Elsewhere { rank, host, reason });
                    }
                    summary(&trials)
                }
            });
        }
    }
    // No backend of that name exists in this program.
    header.push("nccl".to_owned());
    rows.iter_mut().for_each(|row| row.push("not built".to_owned()));
    if world.is_root() {
        println!("median µs of {BYTES} bytes a rank, {}; mean over ranks of each call's latency", job(world));
        println!("{}", table(&header, 1, rows));
    }
    wrong.map_or(Ok(()), |error| Err(error.into()))
}

/// All ranks' trials of one operation as a cell of the table.
fn summary(trials: &[Trial]) -> String {
    let has = |what: &Trial| trials.contains(what);
    let times: Vec<&Vec<f64>> =
        trials.iter().filter_map(|t| if let Trial::Times(times) = t { Some(times) } else { None }).collect();
    match times.first() {
        _ if has(&Trial::Wrong) => "wrong result".into(),
        _ if has(&Trial::NotSupported) => "not supported".into(),
        None => "needs 2 ranks".into(),
        Some(first) => {
            let mean = |i: usize| times.iter().map(|of_rank| of_rank[i]).sum::<f64>() / times.len() as f64;
            median_of((0..first.len()).map(mean).collect()).map_or_else(String::new, |us| format!("{us:.2}"))
        }
    }
}

/// Calls `operation` on all ranks. A wrong result does not end it, since the
/// other ranks would wait for this one.
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
    // The first calls set connections up.
    Ok(outcome.unwrap_or_else(|| Trial::Times(times.split_off(iterations.div_ceil(10)))))
}

/// One call: what it took, and whether its result is right; nothing where this
/// rank has no part in it. The root changes with `turn`.
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
    // What every rank brings for every other, one after the other.
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
            // Each row shows the time of its own side.
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

/// Whether the ranks wait for the last of them, who comes late.
fn barrier_waits(on: &mut dyn Primitives, world: &World) -> Result<bool, CommError> {
    let late = world.rank() + 1 == world.size();
    world.barrier()?;
    if late {
        std::thread::sleep(LATE);
    }
    let started = Instant::now();
    on.barrier()?;
    Ok(late || started.elapsed() >= WAITED)
}

/// What rank `from` sends to rank `to`.
fn message(from: usize, to: usize) -> Vec<u8> {
    (0..BYTES).map(|i| (from * 59 + to * 101 + i * 7 + 1) as u8).collect()
}

/// What `rank` brings to a sum: `parts` of `BYTES`. Small integers have exact
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
            _ => unreachable!("terms are of f32"),
        })
        .collect();
    let mut sum = zeros(parts);
    sum.sum_of_chunks(&Wire::F32(all));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_the_median_of_means_over_the_ranks_that_took_part() {
        let times = |values: &[f64]| Trial::Times(values.to_vec());
        assert_eq!(summary(&[times(&[1.0, 2.0, 9.0]), times(&[3.0, 4.0, 9.0])]), "3.00");
        assert_eq!(summary(&[times(&[1.0]), Trial::Idle]), "1.00");
        assert_eq!(summary(&[Trial::Idle]), "needs 2 ranks");
        assert_eq!(summary(&[Trial::NotSupported, Trial::Idle]), "not supported");
        assert_eq!(summary(&[times(&[1.0]), Trial::Wrong]), "wrong result");
    }

    #[test]
    fn messages_and_terms_tell_ranks_apart() {
        assert_ne!(message(0, 1), message(1, 0));
        assert_ne!(message(0, 0), message(1, 0));
        assert_eq!(sum(1, 2), term(0, 2));
        assert_ne!(sum(2, 1), sum(3, 1));
    }
}
