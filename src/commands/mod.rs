//! The subcommands, one file each. Errors of the libraries get their context here.

// First: its macros replace the standard library's in the modules below.
#[macro_use]
pub mod console;

mod bench;
mod checkpoint;
pub mod collective;
mod data;
mod eval;
mod export;
pub mod hints;
mod launch;
pub mod logging;
mod logits;
mod outcome;
mod predict;
mod profile;
mod progress;
mod publish;
mod quantize;
mod report;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod trace;
mod train;

use anyhow::Context;

use crate::cli::{BenchArgs, BenchKind, Command, TrainArgs};
use crate::config::{ConfigError, RunConfig};
use crate::quant::QuantError;
use crate::record::RecordError;
use crate::train::{Precision, TrainError};
use burn_fused::precision::{has_bf16_products, use_bf16_products};
use burn_fused::simd::Level;
use burn_mpi::{CommError, Launcher, World};

/// Something that was typed or named cannot be done, which every rank knows.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// An error of a command, and how the process must end.
pub struct Failure {
    /// The error.
    pub error: anyhow::Error,
    /// Whether one rank has printed it for all.
    pub printed: bool,
    /// Whether other ranks may still be running and must be aborted.
    pub alone: bool,
}

/// Exit code of an interrupted command that can be continued: EX_TEMPFAIL of sysexits.h.
const RESUMABLE: u8 = 75;

impl Failure {
    /// Exit code of the process: 2 for invalid options, like clap's; the guard's is 3.
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

/// The option that sets the deadline of collectives, for the line of a job that
/// exceeds it.
pub fn deadline_option(command: &Command) -> &'static str {
    match command {
        Command::Train(_) | Command::Profile(_) | Command::Bench(BenchArgs { kind: BenchKind::Step(_) }) => {
            "--comm-timeout"
        }
        _ => "fixed",
    }
}

/// Runs a subcommand; returns the exit code of one that started other jobs.
///
/// # Errors
/// The error of the subcommand.
pub fn run(command: Command) -> Result<u8, Failure> {
    let outside_mpi = |error| Failure { error, printed: false, alone: false };
    let code_of = |code: i32| u8::try_from(code).unwrap_or(1);
    match command {
        Command::Train(args) => in_world(|world| train::run(world, &args)).map(|()| 0),
        Command::Eval(args) => in_world(|world| eval::run(world, &args)).map(|()| 0),
        Command::Export(args) => in_world(|world| export::run(world, &args)).map(|()| 0),
        Command::Quantize(args) => in_world(|world| quantize::run(world, &args)).map(|()| 0),
        Command::Bench(args) => in_world(|world| bench::run(world, &args)).map(|()| 0),
        Command::Profile(args) => in_world(|world| profile::run(world, &args)).map(|()| 0),
        Command::Data(args) => data::run(args).map(|()| 0).map_err(outside_mpi),
        Command::Launch(args) => launch::run(&args).map(code_of).map_err(outside_mpi),
        Command::Sweep(args) => sweep::run(&args).map(code_of).map_err(outside_mpi),
        Command::Report(args) => report::run(&args).map(|()| 0).map_err(outside_mpi),
    }
}

/// Runs `body` as one rank of the job.
fn in_world(body: impl FnOnce(&World) -> anyhow::Result<()>) -> Result<(), Failure> {
    let world = World::init().map_err(|error| Failure {
        // Every process that another MPI's launcher started reaches this code as a world
        // of one; the launcher's variables tell which one is the first.
        printed: Launcher::detect().is_some_and(|launcher| launcher.rank > 0),
        alone: false,
        error: error.into(),
    })?;
    agree_on_level(&world).and_then(|()| body(&world)).map_err(|error| {
        let shared = is_shared(&error);
        if shared {
            print_once(&world, &format!("mpiburn: {}", hints::with_hint(&error)));
        }
        Failure { printed: shared, alone: !shared, error }
    })
}

/// Hosts may have different processors. With the widest SIMD level that all of them
/// support, a run gives the same bits for any placement of ranks.
fn agree_on_level(world: &World) -> anyhow::Result<()> {
    let level = Level::shared(&world.gather(&Level::current())?);
    level.use_level();
    log::debug!("SIMD level {level}");
    Ok(())
}

/// Ranks have bf16 products either all or none of them, since the two differ in
/// rounding. Warns if 16 bits save memory alone.
fn agree_on_products(world: &World, precision: Precision) -> anyhow::Result<()> {
    let everywhere = world.gather(&has_bf16_products())?.into_iter().all(|has| has);
    use_bf16_products(everywhere);
    if world.is_root() {
        match precision {
            Precision::Bf16 if !everywhere => log::warn!(
                "--precision bf16: not every rank's processor has bf16 instructions; values are rounded to bf16, \
                 and products run in f32"
            ),
            Precision::Fp16 => log::warn!(
                "--precision fp16: processors do not compute in f16; values are rounded to f16, and products run in \
                 f32, so times are not those of f16 hardware"
            ),
            _ => {}
        }
    }
    Ok(())
}

/// One thread per rank unless more are requested. The calling thread is the first of
/// them, so with one thread no work moves to another.
fn use_threads(threads: usize) -> anyhow::Result<()> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
    pool.build_global().context("cannot start threads")
}

/// Options of `mpiburn train` that single steps on random samples do not depend on.
const OF_RUNS: [&str; 17] = [
    "init",
    "epochs",
    "train_samples",
    "test_samples",
    "test_batch_size",
    "num_classes",
    "shuffle",
    "augment",
    "accumulate",
    "schedule",
    "early_stopping",
    "world_size",
    "out",
    "overwrite",
    "resume",
    "log_every",
    "checkpoint_every",
];

/// Warns of typed options of training, [`OF_RUNS`] and `more`, that have no effect on what the
/// command `does`.
fn warn_of_ignored(world: &World, does: &str, args: &TrainArgs, more: &[&str]) {
    let ignored = |id: &&String| OF_RUNS.iter().chain(more).any(|option| option == id);
    let typed = args.typed.iter().filter(ignored);
    let options: Vec<String> = typed.map(|id| format!("--{}", id.replace('_', "-"))).collect();
    if world.is_root() && !options.is_empty() {
        log::warn!("{does}; without effect: {}", options.join(" "));
    }
}

/// Prints a line on rank 0 for all ranks. The barrier keeps the others from exiting
/// first: a launcher ends the job as soon as one rank has failed.
fn print_once(world: &World, line: &str) {
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

/// Prints an error of the command line, once for all ranks; returns the exit code.
pub fn usage(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    let requested = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let world = Launcher::detect().filter(|launcher| launcher.size > 1).and_then(|_| World::init().ok());
    if world.as_ref().is_none_or(World::is_root) {
        let _ = error.print();
    }
    if let Some(world) = world {
        let _ = world.barrier();
    }
    if requested { 0 } else { 2 }
}

/// Checks that several random batches of this size fit into memory.
fn check_random_batch(config: &RunConfig) -> Result<(), ConfigError> {
    const LARGEST: usize = 65_536;
    let size = config.train_batch_size;
    if size > LARGEST {
        let problem = format!("random batches are kept in memory: at most {LARGEST}");
        return Err(ConfigError::new("train-batch-size", size, problem));
    }
    Ok(())
}

/// The error between ranks that is the cause of `error`, if one is.
fn comm_error(error: &anyhow::Error) -> Option<&CommError> {
    error.chain().find_map(|cause| {
        cause.downcast_ref::<CommError>().or_else(|| match cause.downcast_ref::<TrainError>()? {
            TrainError::Comm(error) | TrainError::Record(RecordError::Comm(error)) => Some(error),
            _ => None,
        })
    })
}

/// Whether every rank of the job ends with this same error, so that none waits.
fn is_shared(error: &anyhow::Error) -> bool {
    let shared_comm = comm_error(error).is_some_and(CommError::is_shared);
    let at_one_step = matches!(
        error.downcast_ref(),
        Some(
            TrainError::NotFinite { .. }
                | TrainError::TestNotFinite { .. }
                | TrainError::Stopped { .. }
                | TrainError::OtherOptimizer { .. }
                | TrainError::OtherBuffers
                | TrainError::Quant(_)
        )
    );
    shared_comm
        || at_one_step
        || error.downcast_ref::<ConfigError>().is_some()
        || error.downcast_ref::<Refused>().is_some()
}
