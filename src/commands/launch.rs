//! `mpiburn launch`: starts a job on a topology (machines x processes per machine, such as 2x2) and waits
//! until the job ends.

mod training;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use burn_mpi::internals::messages::FAILED;

use crate::options::{
    BenchArgs, BenchKind, Cli, Command, ConfigError, HowArgs, LaunchArgs, is_of_value, one_line,
};
use launch::{
    Binding, EXIT_USAGE, Hosts, Launch, LauncherKind, MpiFlavour, StopRequest, Topology, hostfile, line,
};
use run_record::{NamedRun, RunDir, RunRecord};

/// Starts the job and returns its exit code. The ranks' command gets `verbosity`, the `-v` or `-q` of
/// `mpiburn launch`, unless it has one of these options already.
///
/// # Errors
/// If the job does not start.
pub fn run(args: &LaunchArgs, verbosity: Vec<String>) -> anyhow::Result<i32> {
    args.how.check(args.launcher)?;
    if let Some(code) = reject(&args.program, args.topology)? {
        return Ok(code);
    }
    let program = with_verbosity(verbosity, &args.program);
    let stop = StopRequest::listen_as_launcher()
        .map(super::run::log_listening)
        .context("cannot install signal handlers")?;
    let file = args.hostfile.clone().or_else(|| hostfile(Path::new("hostfiles"), args.topology));
    let mut launch = prepare(args.topology, args.launcher, &args.how, file, program.clone())?;
    if args.shrink {
        check_shrink(args, &launch)?;
    }
    let training = match args.restart {
        Some(_) => training::from_program(&program, args.shrink)?,
        None => None,
    };
    if args.dry_run {
        if let Some(training) = training {
            launch.program.truncate(1);
            launch.program.extend(training.words);
        }
        print_dry(&mut launch)?;
        return Ok(0);
    }
    let checked = match &training {
        // The machines that do not answer are left out.
        Some(training) if training.shrinks && training.resumes => launch::check_here(&mut launch),
        _ => launch::check(&mut launch, &stop),
    };
    let failed = |error: anyhow::Error| {
        let Some(signal) = stop.number() else { return Err(error) };
        super::print_error(FAILED, &error.to_string());
        Ok(128 + signal)
    };
    if let Err(error) = checked {
        return failed(error);
    }
    if let (Some(restarts), Some(training)) = (args.restart, training) {
        let say = |text: &str| eprintln!("mpiburn: {text}");
        return launch::restart(&mut launch, &training, restarts, &stop, say).or_else(failed);
    }
    log::info!("$ {}", line(&launch.command()?));
    let (outcome, _) = launch.run(launch::Streams::Own, &stop)?;
    if outcome.code != 0 {
        eprintln!("mpiburn: {}", launch::explain(outcome.code, stop.signal()));
    }
    Ok(outcome.code)
}

/// Rejects `--shrink` where no machine can be left out.
fn check_shrink(args: &LaunchArgs, launch: &Launch) -> Result<(), ConfigError> {
    let problem = if args.restart.is_none() {
        "requires --restart N"
    } else if args.how.mpirun_by.is_some() {
        "cannot be combined with --mpirun-by: the script chooses the machines"
    } else if launch.hosts.is_none() {
        "requires a host file, and mpirun as the launcher: name one with --hostfile FILE"
    } else {
        return Ok(());
    };
    Err(ConfigError::new("shrink", "", problem))
}

/// Rejects invalid options of the ranks' command before the job starts; a launcher would surround the error
/// with its own lines. If clap has already printed the error, returns the exit code. Returns `None` if the
/// job may start.
fn reject(program: &[String], topology: Topology) -> Result<Option<i32>, ConfigError> {
    match read(program) {
        Err(error) if is_of_value(&error) => Err(ConfigError::Message(one_line(&error))),
        Err(error) if error.use_stderr() => {
            // If standard error is closed, the exit code still shows the error.
            let _ = error.print();
            Ok(Some(EXIT_USAGE.into()))
        }
        Ok(Cli { command: Command::Train(args), .. }) if args.resume.is_none() => {
            args.typed.check()?;
            args.config.completed().map(|_| None)
        }
        Ok(cli) if topology.ranks() > 1 && !cli.command.has_ranks() => {
            Err(ConfigError::Message(format!("{} runs in one process: start it without launch", cli.name)))
        }
        _ => Ok(None),
    }
}

fn read(program: &[String]) -> Result<Cli, clap::Error> {
    Cli::read(std::iter::once("mpiburn").chain(program.iter().map(String::as_str)).map(OsString::from))
}

/// Returns the number of threads of a rank. A resumed training has the threads of the run, unless it has its
/// own option.
fn threads_of(program: &[String]) -> usize {
    let of_run = |run: &Path| {
        let folder = NamedRun::at(run).map_or_else(|_| run.to_owned(), |run| run.folder);
        let (_, record): (_, RunRecord) = RunDir::open(&folder).ok()?;
        record.config.get("threads")?.as_u64()?.try_into().ok()
    };
    match read(program).map(|cli| cli.command) {
        Ok(Command::Train(args)) => match &args.resume {
            // If the run cannot be read, the ranks will report it.
            Some(run) if !args.typed.has("threads") => of_run(run).unwrap_or(1),
            _ => args.config.threads.get(),
        },
        Ok(Command::Profile(args)) => args.config.threads.get(),
        Ok(Command::Bench(BenchArgs { kind: BenchKind::Step(args) })) => args.config.threads.get(),
        _ => 1,
    }
}

fn with_verbosity(verbosity: Vec<String>, program: &[String]) -> Vec<String> {
    let has_own = read(program).is_ok_and(|cli| cli.quiet || cli.verbose > 0);
    let verbosity = if has_own { Vec::new() } else { verbosity };
    verbosity.into_iter().chain(program.iter().cloned()).collect()
}

/// Returns the MPI implementation of this build.
pub(super) fn mpi_flavour() -> MpiFlavour {
    if burn_mpi::internals::MPI_FLAVOUR == "mpich" { MpiFlavour::Mpich } else { MpiFlavour::OpenMpi }
}

/// Prepares a launch of this program with `program` as its arguments.
pub(super) fn prepare(
    topology: Topology,
    launcher: LauncherKind,
    how: &HowArgs,
    hostfile: Option<PathBuf>,
    program: Vec<String>,
) -> anyhow::Result<Launch> {
    let by = how.script(launcher);
    let hostfile = hostfile.filter(|_| by.is_none() && launcher == LauncherKind::Mpirun);
    let mpi = mpi_flavour();
    let hosts = hostfile.map(|file| Hosts::read(&file, mpi)).transpose()?;
    let own = std::env::current_exe().context("cannot determine the path of this program")?;
    // Ranks run in the same working directory as this process, so a path relative to this directory is valid.
    let here = std::env::current_dir().ok();
    let own = match here.as_deref().and_then(|here| own.strip_prefix(here).ok()) {
        Some(inside) => format!("./{}", inside.display()),
        None => own.display().to_string(),
    };
    let threads = threads_of(&program);
    let program = std::iter::once(own).chain(program).collect();
    let count_cores = burn_mpi::internals::cores_and_cpus;
    Ok(Launch { topology, launcher, mpi, hosts, by, count_cores, threads, binding: Binding::Core, program })
}

/// Prints the command line of a launch for `--dry-run`.
pub(super) fn print_dry(launch: &mut Launch) -> anyhow::Result<()> {
    let unknown = launch::bind_here(launch)?;
    let threads = launch.topology.ranks_per_node * launch.threads;
    if !unknown.is_empty() && threads > 1 {
        log::info!(
            "the number of cores of {} is unknown with --dry-run; if a host has fewer than {} cores, the \
             launch uses another --bind-to",
            unknown.join(", "),
            threads
        );
    }
    println!("{}", line(&launch.command()?));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::RunConfig;

    #[test]
    fn ranks_have_the_verbosity_of_the_launch_unless_they_have_their_own() {
        for (launch, program, expected) in [
            ("", "train --epochs 1", "train --epochs 1"),
            ("-q", "train --epochs 1", "-q train --epochs 1"),
            ("-v -v", "train", "-v -v train"),
            ("-q", "train -v", "train -v"),
            ("-v", "-q train", "-q train"),
            ("-q", "train --epochs x", "-q train --epochs x"),
        ] {
            let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(
                with_verbosity(words(launch), &words(program)),
                words(expected),
                "{launch} launch {program}"
            );
        }
    }

    #[test]
    fn options_of_the_ranks_are_rejected_before_they_start() {
        let reject = |line: &str| {
            reject(&line.split(' ').map(str::to_owned).collect::<Vec<_>>(), "1x2".parse().unwrap())
        };
        for (line, expected) in [
            ("train --epochs abc", "--epochs abc: must be a whole number from 1"),
            ("train --momentum 0.5", "--momentum 0.5: "),
            ("train --quantized --quantize none", "--quantized: "),
            ("bench step --steps 0", "--steps 0: "),
            ("data info d", "data info "),
            ("report r", "report "),
        ] {
            let error = reject(line).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
        assert_eq!(reject("trian"), Ok(Some(2)));
        for line in
            ["train --epochs 1", "train --resume runs/a --momentum 0.5", "train --help", "eval runs/a"]
        {
            assert_eq!(reject(line), Ok(None), "{line}");
        }
    }

    #[test]
    fn a_rank_has_the_threads_of_its_command_or_of_the_run_that_it_resumes() {
        let folder = tempfile::tempdir().unwrap();
        let config = RunConfig::read(["--threads=3"]).unwrap();
        let run = crate::options::tests::completed(&config, "1x1".parse().unwrap(), "mpirun");
        let stored = serde_json::to_vec(&run.record).unwrap();
        std::fs::write(folder.path().join("run.json"), stored).unwrap();
        let run = folder.path().display();
        for (line, threads) in [
            ("train".to_owned(), 1),
            ("train --threads 4".to_owned(), 4),
            ("bench step --threads 2".to_owned(), 2),
            ("profile --model mlp --threads 5".to_owned(), 5),
            ("bench allreduce".to_owned(), 1),
            (format!("train --resume {run}"), 3),
            (format!("train --resume {run} --threads 2"), 2),
            ("train --resume no-such-run".to_owned(), 1),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(threads_of(&words), threads, "{line}");
        }
    }

    /// Ranks tag a message with its kind, such as `FAILED`, and the launcher reads the tag. The crates
    /// `burn-mpi` and `launch` each define the tags, because neither crate depends on the other.
    #[test]
    fn the_launcher_reads_the_tags_of_ranks() {
        use burn_mpi::internals::messages::{NOTICED, WAITS, tag, tag_lines};
        tag_lines();
        for kind in [WAITS, NOTICED, FAILED, launch::IN_USE] {
            assert_eq!(tag(kind).replace(['\u{1e}', '\u{1f}'], ""), format!("{kind}: "), "is readable");
            let words =
                ["sh", "-c", "printf 'mpiburn: %s\\n' \"$1\" >&2", "sh", &format!("{}why", tag(kind))];
            let launch = Launch {
                topology: "1x1".parse().unwrap(),
                launcher: LauncherKind::Alone,
                mpi: mpi_flavour(),
                hosts: None,
                by: None,
                count_cores: || [1, 1],
                threads: 1,
                binding: Binding::Core,
                program: words.map(str::to_owned).into(),
            };
            let (_, cause) = launch.run(launch::Streams::Watched, &StopRequest::default()).unwrap();
            assert_eq!(cause.map(|cause| cause.text).as_deref(), Some("why"), "{kind}");
        }
    }
}
