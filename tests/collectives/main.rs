//! Checks the collectives of mpi and gloo against arithmetic and against each other, on any number of ranks:
//! `mpirun -n 4 check_collectives`.
//!
//! With `nccl`, checks the collectives of nccl; each rank needs a GPU. With `time`, measures mpi and gloo.
//! With `timeout`, one rank stays away; with `death`, one rank is killed. With `leave`, `stay` or `stop`, and
//! an operation and a backend, one rank misses this operation (see `failures.rs`).

mod failures;
mod in_flight;
mod ordered;
mod primitives;
mod scattered;
mod sums;
mod time;
mod values;

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use burn_mpi::{Collective, Transport, World, run};
use clap::ValueEnum;
use mpiburn::train::BackendKind;

type Outcome = Result<(), Box<dyn Error>>;

/// Time limit of all tests. It only guards against hanging.
const TIMEOUT: Duration = match u64::from_str_radix(include_str!("../../tests/limit_s").trim_ascii(), 10) {
    Ok(seconds) => Duration::from_secs(seconds),
    Err(_) => panic!("tests/limit_s has no number"),
};

fn main() -> ExitCode {
    run(check)
}

fn check(world: &World) -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let interface = std::env::var("GLOO_INTERFACE").ok();
    let interface = interface.as_deref();
    match arguments[..] {
        [] => {
            sums::check(world, interface)?;
            let gloo = transport(interface, TIMEOUT);
            primitives::check(world, BackendKind::Gloo.connect_primitives(world, &gloo, None)?.as_mut())?;
            for backend in [BackendKind::Mpi, BackendKind::Gloo] {
                let mut collective = over(world, backend, interface, TIMEOUT)?;
                ordered::check(world, collective.as_mut())?;
                scattered::check(world, collective.as_mut())?;
                in_flight::check(world, collective.as_mut())?;
            }
            failures::unknown_interface(world)?;
            failures::timeout(world, interface)
        }
        ["nccl"] => {
            let nccl = transport(interface, TIMEOUT);
            primitives::check(world, BackendKind::Nccl.connect_primitives(world, &nccl, None)?.as_mut())?;
            let mut collective = over(world, BackendKind::Nccl, interface, TIMEOUT)?;
            println!("rank {}: {}", world.rank(), collective.connection().unwrap_or_default());
            sums::of_all_types(world, collective.as_mut())?;
            ordered::check(world, collective.as_mut())?;
            scattered::check(world, collective.as_mut())?;
            in_flight::check(world, collective.as_mut())
        }
        ["time"] => time::compare(world, interface),
        ["timeout"] => failures::timeout(world, interface),
        ["death"] => failures::death(world, interface),
        [how, operation, backend] => {
            let deadline = if how == "leave" { TIMEOUT } else { failures::DEADLINE };
            let mut collective = over(world, BackendKind::from_str(backend, false)?, interface, deadline)?;
            failures::miss(world, collective.as_mut(), how, operation)
        }
        _ => Err(format!("unknown check {}", arguments.join(" ")).into()),
    }
}

fn over(
    world: &World,
    backend: BackendKind,
    interface: Option<&str>,
    timeout: Duration,
) -> Result<Box<dyn Collective>, Box<dyn Error>> {
    Ok(backend.connect(world, &transport(interface, timeout), None)?)
}

fn transport(interface: Option<&str>, timeout: Duration) -> Transport {
    Transport::default().with_interface(interface.map(str::to_owned)).with_timeout(timeout)
}

/// Waits for all ranks, and prints `text` on rank 0.
fn report(world: &World, text: &str) -> Outcome {
    world.barrier()?;
    if world.is_root() {
        println!("ok: {text}");
    }
    Ok(())
}
