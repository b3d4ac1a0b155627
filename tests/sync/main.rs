//! Compares averaged gradients of random modules with plain Burn's:
//! `mpirun -n W target/release/examples/check_sync --cases N --seed S`.
//!
//! Seed and case index determine a case: a module with shared, unused and frozen parameters, branches by step
//! and by rank, ranks without samples, micro-batches, transport, wire type and bucket sizes. A failure prints
//! seed and index K; `--seed S --first-case K --cases 1` repeats that case.

mod case;
mod check;
mod draw;
mod job;
mod network;
mod plan;
mod reference;
mod samples;
mod watchdog;

use burn_mpi::World;
use clap::Parser;
use mpiburn::train::BackendKind;

use case::Case;

#[derive(Parser)]
struct Arguments {
    /// Number of cases
    #[arg(long, default_value_t = 60)]
    cases: u64,
    /// Index of the first case
    #[arg(long, default_value_t = 0)]
    first_case: u64,
    /// Seed of all cases
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The transport of all cases, instead of a random one of mpi and gloo
    #[arg(long)]
    backend: Option<BackendKind>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let Arguments { cases, first_case, seed, backend } = Arguments::parse();
    let world = World::init()?;
    let (rank, size) = (world.rank(), world.size());
    watchdog::start(rank);
    for index in first_case..first_case + cases {
        let mut case = Case::draw(seed, index, size);
        case.backend = backend.unwrap_or(case.backend);
        watchdog::begin(format!("seed {seed}, case {index}, {size} ranks: {case:?}"));
        if let Err(what) = job::run(&world, &case, &watchdog::progress) {
            watchdog::fail(rank, &what);
        }
    }
    watchdog::end();
    world.barrier()?;
    if world.is_root() {
        println!("ok - {cases} cases of seed {seed} at {size} ranks");
    }
    Ok(())
}
