//! `mpiburn bench`: benchmarks of transports, training steps and operators.

mod allreduce;
mod collectives;
mod fused;
mod int8;
mod link;
mod sizes;
mod step;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::commands::program;
use crate::machine::topology;
use crate::options::{BenchArgs, BenchKind, ConfigError};
use crate::train::BackendKind;
use burn_mpi::{CommError, World, oversubscribed};
use run_record::{count, quoted};
use run_report::allreduce::median_of;
use run_report::write_csv;
use terminal::table::Table;

pub fn run(world: &World, args: &BenchArgs) -> anyhow::Result<()> {
    match &args.kind {
        BenchKind::Allreduce(args) => allreduce::run(world, args),
        BenchKind::Collectives(args) => collectives::run(world, args),
        BenchKind::Step(args) => step::run(world, args),
        BenchKind::Fused(args) => fused::run(world, args),
        BenchKind::Int8(args) => int8::run(world, args),
        BenchKind::Link(args) => link::run(world, args),
    }
}

/// Warns of conditions under which timings are not representative.
fn warn_if_not_representative(world: &World) {
    if !world.is_root() {
        return;
    }
    if world.size() == 1 {
        let program = quoted(program());
        log::warn!("a single rank does not communicate: start more ranks (mpirun -n 2 {program} bench …)");
    }
    warn_if_oversubscribed(world, 1);
}

/// Warns if ranks of `threads` threads share cores.
fn warn_if_oversubscribed(world: &World, threads: usize) {
    if world.is_root() && oversubscribed(world.places(), threads) {
        let what = if threads == 1 { "ranks" } else { "threads of ranks" };
        log::warn!("more {what} than cores: timings are not representative, because they wait for cores");
    }
}

/// Returns an error if the job has more than one rank. The error names `what`, the thing that is measured.
fn check_alone(world: &World, what: &str) -> Result<(), ConfigError> {
    if world.size() == 1 {
        return Ok(());
    }
    Err(ConfigError::Message(format!(
        "{what} is measured on one rank, but this job has {}: start the command without mpirun",
        world.size()
    )))
}

/// Returns the time of a call that all ranks begin together, after a barrier.
fn timed(world: &World, call: impl FnOnce() -> Result<(), CommError>) -> Result<Duration, CommError> {
    world.barrier()?;
    let started = Instant::now();
    call()?;
    Ok(started.elapsed())
}

/// If some rank has no GPU for `backend`, returns the reason in two words. All ranks must call this function.
#[cfg(feature = "nccl")]
fn has_no_gpu(world: &World, backend: BackendKind) -> Result<Option<&'static str>, CommError> {
    if backend != BackendKind::Nccl {
        return Ok(None);
    }
    let refusal = burn_mpi_nccl::refusal(world, None)?;
    if let Some(refusal) = &refusal
        && world.is_root()
    {
        log::info!("{backend} is left out: {refusal}");
    }
    Ok(refusal.map(|refusal| refusal.reason.short()))
}

/// Returns `None`: no backend of this build needs a GPU.
#[cfg(not(feature = "nccl"))]
fn has_no_gpu(_: &World, _: BackendKind) -> Result<Option<&'static str>, CommError> {
    Ok(None)
}

/// Prints the table, and writes `rows` to the file of `--csv`. Called on rank 0 only.
fn publish<R: Serialize>(heading: &str, table: &Table, csv: Option<&Path>, rows: &[R]) -> anyhow::Result<()> {
    println!("{heading}\n{table}");
    Ok(csv.map_or(Ok(()), |path| write_csv(path, rows))?)
}

/// Describes the job, such as `2 ranks (1x2), Open MPI v4.1.4`.
fn job(world: &World) -> String {
    format!("{} ({}), {}", count(world.size(), "rank"), topology(world.places()), world.mpi_library())
}

/// Returns the median of `times` in milliseconds, or 0 if `times` is empty.
pub fn median_ms(times: &[Duration]) -> f64 {
    median_of(times.iter().map(|time| 1e3 * time.as_secs_f64()).collect()).unwrap_or_default()
}
