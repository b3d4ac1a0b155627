//! `mpiburn bench link`: measures the time of a message between two ranks, for each message size.
//!
//! Both ranks send at once, as in an all-reduce. In a ping-pong each direction would be idle half of the
//! time. `--pause-us` sets the pause before a message. This pause matters, because traffic shapers and
//! switches forward a message faster after a pause.

use std::time::{Duration, Instant};

use super::{job, publish, sizes, warn_if_not_representative};
use crate::commands::{on_root, outputs};
use crate::options::{ConfigError, LinkArgs};
use burn_mpi::{CommError, Primitives, Transport, World};
use run_report::allreduce::human_size;
use run_report::link::{Link, LinkRow};
use terminal::table::table;

/// Number of untimed exchanges at the start. The first exchange opens connections. During the others, TCP's
/// window grows.
const WARM_UP: usize = 5;
/// How long the exchanges of one size should take, if `--iterations` is not given. At least 10 and at most
/// 1,000 exchanges are timed.
const BUDGET: Duration = Duration::from_secs(1);
const SIZES: &str = "4..4MiB";
/// If `--sizes` is not given, and the median time of a message exceeds this, larger messages are not
/// measured.
const LONGEST: Duration = Duration::from_millis(100);

pub fn run(world: &World, args: &LinkArgs) -> anyhow::Result<()> {
    let backend = args.backend;
    backend.check_built().map_err(|problem| ConfigError::new("backend", backend, problem))?;
    let text = args.sizes.as_deref().unwrap_or(SIZES);
    let sizes = sizes::parse(text, 1).map_err(|problem| ConfigError::new("sizes", text, problem))?;
    if world.size() != 2 {
        let problem = format!(
            "bench link measures between 2 ranks, but this job has {}: start it with mpirun -n 2; for two machines, \
             add --host alpha,beta",
            world.size()
        );
        return Err(ConfigError::Message(problem).into());
    }
    outputs::check_on_root(world, &[("csv", args.csv.as_ref())], &[])?;
    warn_if_not_representative(world);
    let pause = Duration::from_secs_f64(args.pause_us / 1e6);
    let mut primitives = backend.connect_primitives(world, &Transport::default(), None)?;
    let mut rows: Vec<LinkRow> = Vec::new();
    for bytes in sizes {
        let times = time_size(world, primitives.as_mut(), bytes, args.iterations, pause)?;
        let row = LinkRow::of_exchanges(&backend.to_string(), bytes, times);
        // Both ranks use rank 0's time, so that they stop at the same size.
        let one_way_us = world.broadcast(&row.one_way_us)?;
        rows.push(row);
        if args.sizes.is_none() && one_way_us > LONGEST.as_secs_f64() * 1e6 {
            break;
        }
    }
    on_root(world, || print(world, args, &rows))?;
    Ok(())
}

/// Returns the times of exchanges of `bytes` bytes, in µs.
fn time_size(
    world: &World,
    on: &mut dyn Primitives,
    bytes: usize,
    iterations: Option<usize>,
    pause: Duration,
) -> anyhow::Result<Vec<f64>> {
    let message = |rank: usize| (0..bytes).map(move |i| (i * 7 + rank) as u8);
    let mine: Vec<u8> = message(world.rank()).collect();
    let mut both = vec![0; 2 * bytes];
    world.barrier()?;
    let mut slowest = 0f64;
    for _ in 0..WARM_UP {
        slowest = slowest.max(exchange(on, &mine, &mut both, pause)?);
    }
    // Both ranks need the same count, so both use rank 0's time.
    let slowest = world.broadcast(&slowest)?;
    let fitting = (BUDGET.as_secs_f64() * 1e6 / slowest.max(1.0)) as usize;
    let count = iterations.unwrap_or(fitting.clamp(10, 1000));
    let times = (0..count).map(|_| exchange(on, &mine, &mut both, pause)).collect::<Result<_, _>>()?;
    world.agree(if message(0).chain(message(1)).eq(both) {
        Ok(())
    } else {
        Err(anyhow::anyhow!("a message of {bytes} bytes arrived with different content"))
    })?;
    Ok(times)
}

/// Sends each rank's message to the other, as an all-gather of two ranks. Returns the time in µs.
fn exchange(
    on: &mut dyn Primitives,
    mine: &[u8],
    both: &mut [u8],
    pause: Duration,
) -> Result<f64, CommError> {
    let idle = Instant::now();
    // Wait in a busy loop, as if computing: a sleeping rank would wake up late.
    while idle.elapsed() < pause {
        std::hint::spin_loop();
    }
    let started = Instant::now();
    on.all_gather(mine, both)?;
    Ok(started.elapsed().as_secs_f64() * 1e6)
}

fn print(world: &World, args: &LinkArgs, rows: &[LinkRow]) -> anyhow::Result<()> {
    let [from, to] = [0, 1].map(|rank: usize| &world.places()[rank].host);
    let heading = format!(
        "messages between rank 0 on {from} and rank 1 on {to}, in both directions at once, {}",
        job(world)
    );
    let lines = rows.iter().map(|row| {
        let mbit = 8.0 * row.bytes as f64 / row.one_way_us.max(1e-3);
        let numbers = [row.min_us, row.one_way_us, row.p99_us, mbit].map(|number| format!("{number:.1}"));
        [human_size(row.bytes)].into_iter().chain(numbers).collect()
    });
    let table = table(&["size", "min µs", "median µs", "p99 µs", "Mbit/s"], 1, lines);
    publish(&heading, &table, args.csv.as_deref(), rows)?;
    match Link::fit(rows) {
        Some(line) => {
            println!("latency {:.1} µs, bandwidth {:.1} Mbit/s", line.latency_us, line.bandwidth_mbit)
        }
        None => {
            log::warn!(
                "messages of all sizes take the same time: measure larger --sizes to determine the bandwidth"
            )
        }
    }
    Ok(())
}
