//! Runs a subcommand from start to end, in one process or as one rank of several.
//!
//! The hard part is the end of a failed job. If one rank fails alone, it must abort the other ranks, because
//! they would wait for it forever. If all ranks have the same error, one rank prints it and all ranks exit
//! without an abort, because an abort would add the launcher's own lines. [`Ending`] names these cases. The
//! type of the error decides which case applies.

use std::io::Write;

use anyhow::Context;
use burn_mpi::internals::MPI_FLAVOUR;
use burn_mpi::internals::messages::{self, FAILED, NOTICED};
use burn_mpi::{CommError, Launcher, World};
use clap::CommandFactory;
use run_record::RecordError;
use run_report::UsageError;
use terminal::console;

use super::start::{self, Does, Fingerprint, Verdict};
use super::{bench, data, eval, export, launch, logging, predict, profile, quantize, sweep, train};
use crate::options::{BenchArgs, BenchKind, Cli, Command, ConfigError, is_of_value, one_line};
use crate::quant::QuantError;
use crate::train::{TrainError, spec};
use ::data::DataError;
use ::launch::sweep::SweepError;
use ::launch::{EXIT_RESUMABLE, EXIT_USAGE, IN_USE, StopRequest};

/// Runs a subcommand and returns its exit code.
///
/// # Errors
/// Returns the error of the subcommand.
pub fn run(cli: Cli) -> Result<u8, CommandError> {
    let program = start::fingerprint();
    let stop = match &cli.command {
        // Listen before MPI starts, so that a signal during the start of MPI also requests a checkpoint.
        Command::Train(args) => {
            if args.note_steps {
                messages::tag_lines();
            }
            StopRequest::listen()
                .map(log_listening)
                .context("cannot install signal handlers")
                .map_err(CommandError::own)?
        }
        command if command.has_ranks() => StopRequest::default(),
        _ => return run_alone(&cli, program),
    };
    let world = World::init().map_err(|error| CommandError {
        ending: if error.is_rank_0s() { Ending::Shared } else { Ending::Own },
        error: error.into(),
    })?;
    run_as_rank(&world, &cli, program, &stop).map(|()| 0)
}

/// Logs that the signal handlers are installed. MPI has not started yet, so the rank comes from the
/// launcher's variables.
pub(super) fn log_listening(stop: StopRequest) -> StopRequest {
    let rank = Launcher::detect().map_or(0, |launcher| launcher.rank);
    log::debug!("rank {rank}: signal handlers are installed");
    stop
}

/// Runs a subcommand that runs in one process. If a launcher started several processes, they end with an
/// error. Environment variables of a launcher that a shell has inherited from another job do not count.
fn run_alone(cli: &Cli, program: Option<Fingerprint>) -> Result<u8, CommandError> {
    if let Some(launcher) = Launcher::detect().filter(Launcher::has_peers) {
        match World::init() {
            Ok(world) if world.size() > 1 => {
                return run_as_rank(&world, cli, program, &StopRequest::default()).map(|()| 0);
            }
            // The launcher of another MPI started these processes, so they cannot communicate. The launcher's
            // rank 0 prints the error. The others exit with 0, because a failure before rank 0 has printed
            // would end the job.
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
            let [cores, cpus] = burn_mpi::internals::cores_and_cpus();
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

/// Returns what this rank will do, for a comparison with the other ranks: the subcommand and its options.
/// Equal values of a training's options have equal text, such as `0.1` for `1e-1`. If a run is resumed or
/// profiled, an option that was not typed has no value here, because the value is the run's own.
///
/// # Errors
/// If an option is wrong, which may be the case on only one rank.
fn does(cli: &Cli) -> Result<Does, String> {
    let (config, typed, changes) = match &cli.command {
        Command::Train(args) => (&args.config, &args.typed, args.resume.is_some()),
        Command::Profile(args) => (&args.config, &args.typed, args.run.path().is_some()),
        Command::Bench(BenchArgs { kind: BenchKind::Step(args) }) => (&args.config, &args.typed, false),
        _ => return Ok(Does { command: cli.name.clone(), options: cli.options.clone() }),
    };
    let completed = || {
        let config = config.clone().completed()?;
        // This check comes before the check of the build: no other build would accept options that conflict.
        if let Command::Profile(args) = &cli.command {
            profile::check(&config, args)?;
        }
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

/// Runs a subcommand as one rank of `world`, after a check that all ranks run the same subcommand.
///
/// # Errors
/// Returns the error of the subcommand, or of the check.
pub fn run_as_rank(
    world: &World,
    cli: &Cli,
    program: Option<Fingerprint>,
    stop: &StopRequest,
) -> Result<(), CommandError> {
    let command = &cli.command;
    let ended_with = |error: anyhow::Error| {
        if is_shared(&error) {
            print_shared(world, kind(&error), world.is_root().then(|| with_hint(&error)).as_deref());
            return CommandError { error, ending: Ending::Shared };
        }
        // A single rank has no other rank to abort, and MPI_Abort would print several lines.
        CommandError { error, ending: if world.size() > 1 { Ending::Abort } else { Ending::Own } }
    };
    match start::compare(world, does(cli), program).map_err(|error| ended_with(error.into()))? {
        Verdict::Run => {}
        Verdict::Print(text) => return Err(ended_with(Refused(text).into())),
        Verdict::Refuse(line) => {
            print_shared(world, FAILED, line.as_deref());
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
    result.map_err(ended_with)
}

/// The user asked for something that cannot be done. Every rank has this error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// Another process uses the run directory. Every rank has this error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InUse(pub CommError);

/// How a process ends after its command failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Prints the error and exits: no other rank waits for this one.
    Own,
    /// Prints the error and aborts the other ranks, which may still be running.
    Abort,
    /// Exits without a message: all ranks have the error, and one of them has printed it.
    Shared,
}

/// An error of a command, and how the process ends.
pub struct CommandError {
    /// The error.
    pub error: anyhow::Error,
    /// How the process ends.
    pub ending: Ending,
}

impl CommandError {
    /// Makes an error that does not concern other ranks.
    pub fn own(error: anyhow::Error) -> Self {
        Self { error, ending: Ending::Own }
    }

    /// Prints the error, unless one rank has printed it for all.
    pub fn print(&self) {
        if self.ending != Ending::Shared {
            print_error(kind(&self.error), &with_hint(&self.error));
        }
    }

    /// Exit code of the process. (The guard thread of burn-mpi, which ends a job after its deadline, exits
    /// with 3.)
    pub fn exit_code(&self) -> u8 {
        const EXIT_FAILED: u8 = 1;
        if is_refusal(&self.error) {
            return EXIT_USAGE;
        }
        if self.error.chain().any(|cause| matches!(cause.downcast_ref(), Some(TrainError::Stopped { .. }))) {
            EXIT_RESUMABLE
        } else {
            EXIT_FAILED
        }
    }
}

/// Whether the user's input is the cause: a wrong option, a network that has no int8 version, a file of the
/// wrong kind.
pub fn is_refusal(error: &anyhow::Error) -> bool {
    // Only the outermost error counts: an option error inside another error may come from an edited run.json.
    let is_option = error.chain().next().is_some_and(|error| {
        error.is::<ConfigError>()
            || error.is::<UsageError>()
            || error.is::<Refused>()
            || error.is::<SweepError>()
    });
    is_option
        || matches!(error.downcast_ref(), Some(DataError::Option { .. }))
        || error.chain().any(|cause| {
            cause.is::<QuantError>()
                || cause.downcast_ref::<RecordError>().is_some_and(RecordError::is_wrong_kind)
        })
}

/// Returns the communication error that caused `error`, or `None` if another error caused it.
pub fn comm_error(error: &anyhow::Error) -> Option<&CommError> {
    error.chain().find_map(|cause| {
        cause
            .downcast_ref()
            .or_else(|| cause.downcast_ref::<TrainError>().and_then(TrainError::comm_error))
            .or_else(|| cause.downcast_ref::<InUse>().map(|InUse(error)| error))
    })
}

/// Whether another process uses the run directory.
pub fn is_in_use(error: &anyhow::Error) -> bool {
    let is_locked = |error| matches!(error, &RecordError::InUse { .. });
    error.is::<InUse>() || error.downcast_ref().is_some_and(is_locked)
}

/// The kind of message with which the error is printed. `launch --restart` reads the kind to find out which
/// rank failed first, and which ranks only noticed the failure.
pub fn kind(error: &anyhow::Error) -> &'static str {
    // Messages of gloo and of the system for a lost connection: another rank has failed.
    let closed = ["Connection closed by peer", "Connection reset by peer", "Broken pipe"];
    match comm_error(error) {
        _ if is_in_use(error) => IN_USE,
        Some(CommError::Left { .. }) => NOTICED,
        Some(error) if closed.iter().any(|words| error.to_string().contains(words)) => NOTICED,
        _ => FAILED,
    }
}

/// Whether every rank of the job ends with this error, so that no rank waits for another.
pub fn is_shared(error: &anyhow::Error) -> bool {
    comm_error(error).is_some_and(CommError::is_shared)
        || error.downcast_ref().is_some_and(TrainError::is_shared)
        || error.is::<ConfigError>()
        || error.is::<Refused>()
}

/// Formats the error in one line, and appends a hint if a command of this program solves the problem.
pub fn with_hint(error: &anyhow::Error) -> String {
    match comm_error(error).and_then(hint) {
        Some(hint) => format!("{error:#}; {hint}"),
        None => format!("{error:#}"),
    }
}

/// Returns the hint for an error of burn-mpi. The library's own messages cannot name commands of this
/// program.
fn hint(error: &CommError) -> Option<String> {
    match error {
        CommError::ByHand { .. } => Some("mpiburn launch NxC -- … starts all ranks".into()),
        CommError::ForeignLauncher { launcher, mpi } if !launcher.is_of(mpi) => {
            let other = if MPI_FLAVOUR == "openmpi" { "mpich" } else { "openmpi" };
            Some(format!("to build mpiburn for {other}, run `make build MPI={other}`"))
        }
        _ => None,
    }
}

/// Prints an error as a message of this [kind](burn_mpi::internals::messages).
pub fn print_error(kind: &str, text: &str) {
    console::error("mpiburn", &messages::tag(kind), text, logging::has_colour());
}

/// Prints `line`, unless it is `None`, then waits for all ranks. The launcher ends the job as soon as one
/// rank exits with an error. Without the wait, a rank that prints nothing could exit before the other ranks
/// have printed.
fn print_shared(world: &World, kind: &str, line: Option<&str>) {
    if let Some(line) = line {
        print_error(kind, line);
    }
    let _ = world.barrier();
}

/// Prints an error of the command line, and returns the exit code. If all ranks have the same error, only one
/// of them prints it.
pub fn usage(error: &clap::Error) -> u8 {
    use clap::error::ErrorKind;
    // Help must not start MPI: MPI can start only once per rank, and a program that the same rank runs next
    // may need MPI.
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        if !Launcher::detect().is_some_and(|launcher| launcher.leaves_printing_to_rank_0()) {
            console::note_lost(error.print().and_then(|()| std::io::stdout().flush()));
        }
        return u8::from(console::lost());
    }
    let program = start::fingerprint();
    let world = start::has_peers().then(World::init).and_then(Result::ok);
    // Errors of values are printed in one line, like other errors of options. Other errors keep clap's text
    // with its tips, unless the text is so long that it would be cut.
    let text = error.to_string();
    let is_long = console::message(&text).len() < text.len();
    let wrong_value = (is_of_value(error) || is_long).then(|| one_line(error));
    let text = wrong_value.clone().unwrap_or(text);
    let verdict = world.as_ref().map(|world| start::compare(world, Err(text), program));
    match verdict {
        Some(Ok(Verdict::Refuse(line))) => line.iter().for_each(|line| print_error(FAILED, line)),
        _ if world.as_ref().is_none_or(World::is_root) => match wrong_value {
            Some(line) => print_error(FAILED, &line),
            None => _ = error.print(),
        },
        _ => {}
    }
    // Wait for all ranks, for the reason given at `print_shared`.
    if let Some(world) = world {
        let _ = world.barrier();
    }
    EXIT_USAGE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_adds_its_own_commands_to_the_librarys_errors() {
        let by_hand = || CommError::ByHand { rank: 0, size: 2 };
        let line = with_hint(&anyhow::Error::from(TrainError::Comm(by_hand())).context("train"));
        assert!(
            line.starts_with(&format!("train: {}", by_hand())) && line.contains("mpiburn launch NxC"),
            "{line}"
        );
        assert!(!by_hand().to_string().contains("NxC"));
        let other = anyhow::Error::from(CommError::Start("no network".into()));
        assert_eq!(with_hint(&other), other.to_string());
    }
}
