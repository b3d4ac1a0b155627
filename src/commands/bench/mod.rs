//! `mpiburn bench`: benchmarks of the transports, of a step and of an operator.

mod allreduce;
mod collectives;
mod fused;
mod fused_net;
mod int8;
mod link;
mod product;
mod sizes;
mod step;
mod step_report;
mod wire;

use std::time::Duration;

use crate::machine::topology;
use crate::options::{BenchArgs, BenchKind};
use burn_mpi::{World, oversubscribed};
use run_report::latency::median_of;

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
        log::warn!("one rank does not communicate: start more (mpirun -n 2 mpiburn bench ...)");
    }
    if oversubscribed(world.places(), 1) {
        log::warn!("more ranks than cores: timings are not representative, because ranks wait for cores");
    }
}

/// Description of the job, such as `2 ranks (1x2), Open MPI v4.1.4`.
fn job(world: &World) -> String {
    let ranks = if world.size() == 1 { "rank" } else { "ranks" };
    format!("{} {ranks} ({}), {}", world.size(), topology(world.places()), world.mpi_library())
}

/// The median of `times` in milliseconds; 0 if there are none.
fn median_ms(times: &[Duration]) -> f64 {
    median_of(times.iter().map(|time| 1e3 * time.as_secs_f64()).collect()).unwrap_or_default()
}
