//! One file a subcommand. Errors of the library get their context here.

// First: its macros take the place of the standard library's in what follows.
#[macro_use]
pub mod console;

mod bench;
mod checkpoint;
pub mod collective;
mod data;
mod eval;
mod export;
mod launch;
pub mod logging;
mod logits;
mod outcome;
mod predict;
mod progress;
mod publish;
mod quantize;
mod report;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod train;

use anyhow::Context;

use crate::cli::Command;
use crate::config::ConfigError;
use crate::quant::QuantError;
use crate::record::RecordError;
use crate::train::TrainError;
use burn_fused::simd::Level;
use burn_mpi::{CommError, Launcher, World};

/// Something that was typed or named cannot be done, which every rank knows.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Why a command failed, and how to end the process.
pub struct Failure {
    /// The error.
    pub error: anyhow::Error,
    /// Whether it has been printed, by one rank for all.
    pub printed: bool,
    /// Whether other ranks may still be at work and have to be ended.
    pub alone: bool,
}

/// Exit code where nothing is wrong and the same command goes on: EX_TEMPFAIL
/// of sysexits.h.
const RESUMABLE: u8 = 75;

impl Failure {
    /// What the process exits with: 2 for options, as clap's own; a guard's is 3.
    pub fn exit_code(&self) -> u8 {
        const FAILED: u8 = 1;
        const OPTIONS: u8 = 2;
        if is_refusal(&self.error) {
            return OPTIONS;
        }
        match self.error.chain().any(|cause| matches!(cause.downcast_ref(), Some(TrainError::Stopped { .. })))
        {
            true => RESUMABLE,
            false => FAILED,
        }
    }
}

/// Runs a subcommand to its end; returns the exit code of one that started
/// other jobs.
///
/// # Errors
/// Whatever ended it.
pub fn run(command: Command) -> Result<u8, Failure> {
    let outside_mpi = |error| Failure { error, printed: false, alone: false };
    let code_of = |code: i32| u8::try_from(code).unwrap_or(1);
    match command {
        Command::Train(args) => in_world(|world| train::run(world, &args)).map(|()| 0),
        Command::Eval(args) => in_world(|world| eval::run(world, &args)).map(|()| 0),
        Command::Export(args) => export::run(&args).map(|()| 0).map_err(outside_mpi),
        Command::Quantize(args) => in_world(|world| quantize::run(world, &args)).map(|()| 0),
        Command::Bench(args) => in_world(|world| bench::run(world, &args)).map(|()| 0),
        Command::Data(args) => data::run(args).map(|()| 0).map_err(outside_mpi),
        Command::Launch(args) => launch::run(&args).map(code_of).map_err(outside_mpi),
        Command::Sweep(args) => sweep::run(&args).map(code_of).map_err(outside_mpi),
        Command::Report(args) => report::run(&args).map(|()| 0).map_err(outside_mpi),
    }
}

/// Runs `body` as one rank of the job.
fn in_world(body: impl FnOnce(&World) -> anyhow::Result<()>) -> Result<(), Failure> {
    let world = World::init().map_err(|error| Failure {
        // Every process that another MPI's launcher started comes here, each
        // thinking that it is alone; the launcher knows which is the first.
        printed: Launcher::detect().is_some_and(|launcher| launcher.rank > 0),
        alone: false,
        error: error.into(),
    })?;
    agree_on_level(&world).and_then(|()| body(&world)).map_err(|error| {
        let shared = is_shared(&error);
        if shared {
            say_once(&world, &format!("mpiburn: {error:#}"));
        }
        Failure { printed: shared, alone: !shared, error }
    })
}

/// Hosts may have different processors. With the vector instructions that all
/// of them have, a run gives the same bits whichever rank is on which.
fn agree_on_level(world: &World) -> anyhow::Result<()> {
    let level = Level::shared(&world.gather(&Level::current())?);
    level.use_level();
    log::debug!("convolutions use {level} code");
    Ok(())
}

/// One thread a rank unless more are asked for. This thread is the first of
/// them, so that with one no work ever changes threads.
fn use_threads(threads: usize) -> anyhow::Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    pool.build_global().context("cannot start threads")
}

/// Has rank 0 print a line that is every rank's. The barrier keeps the others
/// from leaving first: a launcher ends the job as soon as one rank has failed.
fn say_once(world: &World, line: &str) {
    if world.is_root() {
        eprintln!("{line}");
    }
    let _ = world.barrier();
}

/// Whether something was typed wrong: an option, a network that has no int8 version, a
/// file of the other kind.
fn is_refusal(error: &anyhow::Error) -> bool {
    // Not where it is the cause of another: a bad line of a sweep's file.
    let first = error.chain().next();
    let is_option = first.is_some_and(|error| error.is::<ConfigError>() || error.is::<Refused>());
    is_option
        || error.chain().any(|cause| {
            cause.is::<QuantError>()
                || cause.downcast_ref::<RecordError>().is_some_and(RecordError::is_wrong_kind)
        })
}

/// Prints what is wrong with the command line, once for all ranks; returns the
/// exit code.
pub fn usage(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let world = Launcher::detect().filter(|launcher| launcher.size > 1).and_then(|_| World::init().ok());
    if world.as_ref().is_none_or(World::is_root) {
        let _ = error.print();
    }
    if let Some(world) = world {
        let _ = world.barrier();
    }
    if asked { 0 } else { 2 }
}

/// Whether every rank of the job ends with this same error, so that none waits.
fn is_shared(error: &anyhow::Error) -> bool {
    let comm = error.chain().find_map(|cause| {
        cause.downcast_ref::<CommError>().or_else(|| match cause.downcast_ref::<TrainError>()? {
            TrainError::Comm(error) | TrainError::Record(RecordError::Comm(error)) => Some(error),
            _ => None,
        })
    });
    let shared_comm = comm.is_some_and(CommError::is_shared);
    let at_one_step = matches!(
        error.downcast_ref(),
        Some(
            TrainError::NotFinite { .. }
                | TrainError::Stopped { .. }
                | TrainError::OtherOptimizer { .. }
                | TrainError::Quant(_)
        )
    );
    shared_comm
        || at_one_step
        || error.downcast_ref::<ConfigError>().is_some()
        || error.downcast_ref::<Refused>().is_some()
}
