//! The subcommands, one file each. Errors of the libraries get their context here.

mod bench;
mod brightness;
mod checkpoint;
mod covered;
mod data;
mod eval;
mod export;
mod failure;
mod gpu;
mod launch;
pub mod logging;
mod memory;
mod outcome;
mod outputs;
mod predict;
mod profile;
mod progress;
mod quantize;
mod standard_input;
pub mod start;
mod subject;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod trace;
mod train;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use clap::CommandFactory;

use crate::device::DeviceKind;
use crate::model::ModelKind;
use crate::options::{
    BenchArgs, BenchKind, Cli, Command, ConfigError, RunConfig, Words, is_of_value, one_line,
};
use crate::train::{MixedPrecision, spec};
use ::data::{Description, SampleSource, Split};
use ::launch::{OPTIONS, StopRequest};
use burn_fused::precision::{Bf16Products, bf16_products, limit_bf16_products};
use burn_mpi::messages::{self, FAILED};
use burn_mpi::{Launcher, World};
pub use failure::{CommandError, Ending, Refused};
use failure::{InUse, is_shared, kind, with_hint};
use start::{Does, Fingerprint, Verdict};

/// Tells the library which option sets the deadline of collectives, and its value, which applies
/// from MPI's start on.
pub fn set_deadline(command: &Command) {
    let (config, stall) = match command {
        Command::Train(args) => (&args.config, &args.stall),
        Command::Profile(args) => (&args.config, &args.stall),
        Command::Bench(BenchArgs { kind: BenchKind::Step(args) }) => (&args.config, &args.stall),
        _ => return burn_mpi::name_deadline("fixed"),
    };
    burn_mpi::name_deadline("--comm-timeout");
    burn_mpi::set_deadline(config.communication.timeout());
    burn_mpi::set_stall_warning(Duration::from_secs_f64(stall.stall_warning));
}

/// Runs a subcommand; returns the exit code of one that started other jobs.
///
/// # Errors
/// The error of the subcommand.
pub fn run(cli: Cli) -> Result<u8, CommandError> {
    use Command::{Bench, Eval, Export, Predict, Profile, Quantize, Train};
    let program = start::fingerprint();
    let stop = match &cli.command {
        // From here on: a signal while MPI starts requests a checkpoint as well.
        Train(args) => {
            if args.note_steps {
                messages::tag_lines();
            }
            StopRequest::listen().map(told).context("cannot listen to signals").map_err(CommandError::own)?
        }
        Eval(_) | Predict(_) | Export(_) | Quantize(_) | Bench(_) | Profile(_) => StopRequest::default(),
        _ => return run_alone(&cli, program),
    };
    let world = World::init().map_err(|error| CommandError {
        ending: if error.is_rank_0s() { Ending::Shared } else { Ending::Own },
        error: error.into(),
    })?;
    run_as_rank(&world, &cli, program, &stop).map(|()| 0)
}

/// Logs that signals from here on are recorded, with the rank before MPI has started.
fn told(stop: StopRequest) -> StopRequest {
    let rank = Launcher::detect().map_or(0, |launcher| launcher.rank);
    log::debug!("rank {rank}: signal handlers are installed");
    stop
}

/// Runs a subcommand that has no ranks. Several are told so; what the shell has inherited from another job does not
/// matter.
fn run_alone(cli: &Cli, program: Option<Fingerprint>) -> Result<u8, CommandError> {
    if let Some(launcher) = Launcher::detect().filter(Launcher::has_peers) {
        match World::init() {
            Ok(world) if world.size() > 1 => {
                return run_as_rank(&world, cli, program, &StopRequest::default()).map(|()| 0);
            }
            // Another MPI's ranks do not know each other. One that fails before rank 0 has printed ends the job.
            Err(_) if launcher.leaves_printing_to_rank_0() => return Ok(0),
            Err(_) if launcher.has_started_this_process() => {
                return Err(CommandError::own(start::in_one_process(&cli.name).into()));
            }
            _ => {}
        }
    }
    let ended = match &cli.command {
        Command::Data(args) => data::run(args).map(|()| 0),
        Command::Launch(args) => launch::run(args, cli.verbosity()),
        Command::Sweep(args) => sweep::run(args),
        Command::Report(args) => run_report::run(args).map(|()| 0),
        Command::Cores => {
            let [cores, cpus] = burn_mpi::lab::cores_and_cpus();
            println!("{} {cores} {cpus}", ::launch::CORES);
            Ok(0)
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "mpiburn", &mut text);
            print!("{}", String::from_utf8_lossy(&text));
            Ok(0)
        }
        Command::Man { folder } => {
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
            let problem = || format!("cannot write manual pages to {}", folder.display());
            written.map(|()| 0).with_context(problem)
        }
        _ => unreachable!("it has ranks"),
    };
    ended.map(|code| u8::try_from(code).unwrap_or(1)).map_err(CommandError::own)
}

/// What a rank does, with the options that all ranks have in common: values as they are stored, and of a run that
/// is resumed or profiled those that are given.
///
/// # Errors
/// If an option of a training is wrong, which one rank alone may have.
fn does(cli: &Cli) -> Result<Does, String> {
    let (config, typed, changes) = match &cli.command {
        Command::Train(args) => (&args.config, &args.typed, args.resume.is_some()),
        Command::Profile(args) => (&args.config, &args.typed, args.run.path().is_some()),
        Command::Bench(BenchArgs { kind: BenchKind::Step(args) }) => (&args.config, &args.typed, false),
        _ => return Ok(Does { command: cli.name.clone(), options: cli.options.clone() }),
    };
    let completed = || {
        let config = config.clone().completed()?;
        config.check_built()?;
        Ok(config)
    };
    let refused = |error: ConfigError| with_hint(&error.into());
    typed.check().map_err(refused)?;
    let config = if changes { config.clone() } else { completed().map_err(refused)? };
    let of_job = |option: &&(String, String)| spec(option.0.trim_start_matches("--")).is_none();
    let of_job = cli.options.iter().filter(of_job).cloned();
    Ok(Does {
        command: cli.name.clone(),
        options: of_job.chain(config.compared(changes.then_some(typed))).collect(),
    })
}

/// Runs a subcommand as one rank of `world`, if all ranks are to run the same one.
///
/// # Errors
/// The error of the subcommand.
pub fn run_as_rank(
    world: &World,
    cli: &Cli,
    program: Option<Fingerprint>,
    stop: &StopRequest,
) -> Result<(), CommandError> {
    let command = &cli.command;
    let end = |error: anyhow::Error| {
        if is_shared(&error) {
            print_own(world, kind(&error), world.is_root().then(|| with_hint(&error)).as_deref());
            return CommandError { error, ending: Ending::Shared };
        }
        // A rank without others has nobody to abort, and MPI_Abort prints a box of lines.
        CommandError { error, ending: if world.size() > 1 { Ending::Abort } else { Ending::Own } }
    };
    match start::compare(world, does(cli), program).map_err(|error| end(error.into()))? {
        Verdict::Run => {}
        Verdict::Print(text) => return Err(end(Refused(text).into())),
        Verdict::Refuse(line) => {
            print_own(world, FAILED, line.as_deref());
            let error = Refused(line.unwrap_or_default()).into();
            return Err(CommandError { error, ending: Ending::Shared });
        }
    }
    let result = match command {
        Command::Train(args) => train::run(world, args, stop.clone()),
        Command::Eval(args) => eval::run(world, args),
        Command::Predict(args) => predict::run(world, args),
        Command::Export(args) => export::run(world, args),
        Command::Quantize(args) => quantize::run(world, args),
        Command::Bench(args) => bench::run(world, args),
        Command::Profile(args) => profile::run(world, args),
        _ => Err(start::in_one_process(&cli.name).into()),
    };
    result.map_err(end)
}

/// All ranks compute bf16 products in the way of the slowest, since ways differ in rounding.
/// Warns if 16 bits save memory alone: the linear layers of vgg are 2% of its products. libtorch chooses its products itself.
fn agree_on_products(world: &World, config: &RunConfig) -> anyhow::Result<()> {
    let ranks: Vec<u8> = world.gather(&(bf16_products() as u8))?;
    let least =
        ranks.into_iter().min().map_or(Bf16Products::Widened, |least| Bf16Products::ALL[usize::from(least)]);
    limit_bf16_products(least);
    if !world.is_root() || config.device != DeviceKind::Flex {
        return Ok(());
    }
    match config.precision {
        MixedPrecision::Bf16 if least == Bf16Products::Widened => log::warn!(
            "--precision bf16: not every rank's processor has bf16 instructions; values are rounded to bf16, and \
             products run in f32"
        ),
        MixedPrecision::Bf16 if least == Bf16Products::Avx512 && config.model == ModelKind::Vgg => {
            log::warn!(
                "--precision bf16: not every rank's processor has AMX, so convolutions run in f32 on values that are \
             rounded to bf16: this saves memory, and no time"
            )
        }
        MixedPrecision::Fp16 => log::warn!(
            "--precision fp16: processors do not compute in f16; values are rounded to f16, and products run in f32, \
             so times are not those of f16 hardware"
        ),
        _ => {}
    }
    Ok(())
}

/// Prepares this rank for work with `config`: deadline, GPU, threads, algorithm of convolutions.
fn set_up(world: &World, config: &RunConfig) -> anyhow::Result<()> {
    world.set_deadline(config.communication.timeout());
    gpu::choose(world, config.device)?;
    config.conv.use_algorithm();
    use_threads(config.threads.get())
}

/// One thread per rank unless more are requested. The calling thread is the first of
/// them, so with one thread no work moves to another.
fn use_threads(threads: usize) -> anyhow::Result<()> {
    // A rank that is a thread may run several commands.
    if rayon::current_thread_index().is_none() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread();
        // For as long as the thread runs, which other ranks' threads do not share.
        std::mem::forget(pool.build().context("cannot start threads")?);
    }
    Ok(())
}

/// The data set in `root` on every rank, of one description on all: what options have to fit is the same everywhere.
fn open_data(world: &World, root: &Path) -> anyhow::Result<SampleSource> {
    let source = world.agree(::data::open(root))?;
    let data = source.description();
    let [train, test] = Split::ALL.map(|split| source.len(split));
    let Description { shape: [channels, height, width], classes, .. } = data;
    // Names of classes and normalisation may be long.
    let others = data.digest("");
    world.check_equal(
        "the data set",
        &format!(
            "{channels}x{height}x{width} in {classes} classes, {train} and {test} samples, names and normalisation {}",
            &others[..12]
        ),
    )?;
    Ok(source)
}

/// What rank 0 alone does, on whose disk runs are; `None` on the others.
///
/// # Errors
/// Rank 0's on every rank: [`Refused`] where it is a user's.
fn on_root<T>(world: &World, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    if world.size() == 1 {
        return work().map(Some);
    }
    let mine = world.is_root().then(work).transpose();
    let is_refusal = |error: &&anyhow::Error| failure::is_refusal(error);
    let refusal = mine.as_ref().err().filter(is_refusal).map(|error| format!("{error:#}"));
    match world.broadcast(&refusal)? {
        Some(reason) => Err(Refused(reason).into()),
        None => {
            let is_in_use = mine.as_ref().is_err_and(failure::is_in_use);
            let agreed = world.agree(mine.map_err(|error| format!("{error:#}")));
            agreed.map_err(|error| if is_in_use { InUse(error).into() } else { error.into() })
        }
    }
}

/// Warns of options that were `typed` and have no effect on what the command `does`.
fn warn_of_ignored(world: &World, does: &str, typed: &Words, is_ignored: impl Fn(&str) -> bool) {
    let ignored = typed.0.keys().filter(|option| is_ignored(option));
    let options: Vec<String> = ignored.map(|option| format!("--{option}")).collect();
    if world.is_root() && !options.is_empty() {
        log::warn!("{does}; without effect: {}", options.join(" "));
    }
}

/// Prints this rank's line of this kind, if it has one. The barrier keeps ranks without one from exiting
/// first: a launcher ends the job as soon as one rank has failed.
fn print_own(world: &World, kind: &str, line: Option<&str>) {
    if let Some(line) = line {
        logging::error(kind, line);
    }
    let _ = world.barrier();
}

/// Prints an error of the command line, once for all ranks that have it; returns the exit code.
pub fn usage(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    // MPI starts once: a program that the same rank runs next needs it.
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        if !Launcher::detect().is_some_and(|launcher| launcher.leaves_printing_to_rank_0()) {
            terminal::console::note_lost(error.print().and_then(|()| std::io::stdout().flush()));
        }
        return u8::from(terminal::console::lost());
    }
    let program = start::fingerprint();
    let world = start::has_peers().then(World::init).and_then(Result::ok);
    // A line, as of other errors of options; any other error of the command line has clap's tips, which quote it twice.
    let text = error.to_string();
    let is_long = terminal::console::message(&text).len() < text.len();
    let wrong_value = (is_of_value(error) || is_long).then(|| one_line(error));
    let text = wrong_value.clone().unwrap_or(text);
    let verdict = world.as_ref().map(|world| start::compare(world, Err(text), program));
    match verdict {
        Some(Ok(Verdict::Refuse(line))) => line.iter().for_each(|line| logging::error(FAILED, line)),
        _ if world.as_ref().is_none_or(World::is_root) => match wrong_value {
            Some(line) => logging::error(FAILED, &line),
            None => _ = error.print(),
        },
        _ => {}
    }
    // As in `print_own`.
    if let Some(world) = world {
        let _ = world.barrier();
    }
    OPTIONS
}

/// Checks that several random batches of this size fit into memory.
fn check_random_batch(config: &RunConfig) -> Result<(), ConfigError> {
    const LARGEST: usize = 65_536;
    let size = config.data.train_batch_size.get();
    if size > LARGEST {
        let problem = format!("random batches are kept in memory: at most {LARGEST}");
        return Err(ConfigError::new("train-batch-size", size, problem));
    }
    Ok(())
}
