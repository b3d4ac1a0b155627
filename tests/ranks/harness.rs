//! Runs commands as functions on ranks that are threads.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Output};
use std::sync::{Mutex, Once};

use burn_mpi::threads::{self, Options};
use burn_mpi::{CommError, World};
use mpiburn::cli::{Cli, Command};
use mpiburn::commands::{self, console, logging};
use mpiburn::stop::StopRequest;
use serde_json::Value;

pub use crate::lab::*;

/// A command on several ranks.
#[derive(Clone)]
pub struct Job {
    /// The words of each rank's command line.
    words: Vec<Vec<OsString>>,
    /// How ranks run.
    pub options: Options,
    /// What each rank is asked to stop with.
    pub stops: Vec<StopRequest>,
}

/// Ranks that take turns as the seed in RANKS_SEED draws them, 0 by default.
pub fn options() -> Options {
    let seed = std::env::var("RANKS_SEED").map_or(0, |seed| seed.parse().expect("a number in RANKS_SEED"));
    Options { seed, ..Options::default() }
}

/// A job of `ranks` ranks of the program.
pub fn job(ranks: usize) -> Job {
    Job {
        words: vec![vec!["mpiburn".into()]; ranks],
        options: options(),
        stops: (0..ranks).map(|_| StopRequest::default()).collect(),
    }
}

/// A job of the ranks of several.
pub fn side_by_side(jobs: &[&Job]) -> Job {
    Job {
        words: jobs.iter().flat_map(|job| job.words.clone()).collect(),
        options: options(),
        stops: jobs.iter().flat_map(|job| job.stops.clone()).collect(),
    }
}

impl Job {
    /// Adds a word to every rank's command line.
    pub fn arg(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.words.iter_mut().for_each(|words| words.push(word.as_ref().to_owned()));
        self
    }

    /// Adds words to every rank's command line.
    pub fn args<W: AsRef<OsStr>>(&mut self, words: impl IntoIterator<Item = W>) -> &mut Self {
        words.into_iter().for_each(|word| _ = self.arg(word));
        self
    }
}

impl Lab {
    /// A training of `ranks` ranks on the digits with `options`, into `name`.
    pub fn command(&self, ranks: usize, name: &str, options: &[&str]) -> Job {
        let mut job = job(ranks);
        job.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(self.path(name)).args(options);
        job
    }

    /// Runs that training to its end and returns its `run.json`.
    pub fn train(&self, ranks: usize, name: &str, options: &[&str]) -> Value {
        succeeds(self.command(ranks, name, options));
        self.completed(name)
    }
}

/// Writes log lines to where the thread's output goes.
struct Log;

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        metadata.target().starts_with("mpiburn") || metadata.target().starts_with("burn_mpi")
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            console::err(format_args!("{}\n", logging::line(record)));
        }
    }

    fn flush(&self) {}
}

/// What a process sets up before it runs a command.
pub fn set_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        burn_fused::set_poll(burn_mpi::poll);
        burn_mpi::name_program("mpiburn");
        burn_mpi::name_deadline("--comm-timeout");
        log::set_logger(&Log).expect("the only logger");
        log::set_max_level(log::LevelFilter::Info);
    });
}

/// How a command ended on one rank.
#[derive(Clone, Default)]
struct Ended {
    code: u8,
    /// Its lines on stdout and stderr.
    printed: [String; 2],
}

/// Runs a job to its end; its output is that of all ranks, in rank order, and its exit code that of the
/// first rank that failed.
pub fn run(job: impl Borrow<Job>) -> Output {
    let Job { words, options, stops } = job.borrow();
    set_up();
    let read: Result<Vec<Cli>, _> = words.iter().cloned().map(Cli::read).collect();
    let commands = match read {
        Ok(commands) => commands,
        // On all ranks: what differs between them needs processes.
        Err(error) => return output(error.exit_code() as u8, String::new(), error.to_string()),
    };
    if let [Cli { command: Command::Data(_) | Command::Report(_), .. }] = &commands[..] {
        let command = commands.into_iter().next().expect("one command").command;
        let (code, [out, err]) = console::captured(|| {
            commands::run(command).unwrap_or_else(|failure| {
                failure.print();
                failure.exit_code()
            })
        });
        return output(code, out, err);
    }
    let ends: Mutex<Vec<Ended>> = Mutex::new(vec![Ended::default(); words.len()]);
    let body = |world: &World| {
        let rank = world.rank();
        let (code, printed) = console::captured(|| {
            let Err(failure) = commands::run_as_rank(world, &commands[rank].command, None, &stops[rank])
            else {
                return 0;
            };
            // A launcher ends the others before they print that a rank has left.
            let is_other = failure
                .error
                .chain()
                .any(|cause| matches!(cause.downcast_ref::<CommError>(), Some(CommError::Left { .. })));
            if !is_other {
                failure.print();
            }
            failure.exit_code()
        });
        let text = printed[1].clone();
        ends.lock().expect("no panic")[rank] = Ended { code, printed };
        if code == 0 { Ok(()) } else { Err(text) }
    };
    let result = threads::run_with_lines(words.len(), options, body);
    let ends = ends.into_inner().expect("no panic");
    let [out, mut err] =
        [0, 1].map(|stream| ends.iter().map(|end| end.printed[stream].as_str()).collect::<String>());
    let (code, lines) = match &result {
        Ok((_, lines)) => (0, lines),
        Err(failure) if failure.error.contains("panicked") => {
            err.push_str(&failure.error);
            (101, &failure.lines)
        }
        Err(failure) => (ends[failure.rank].code, &failure.lines),
    };
    lines.iter().for_each(|line| err.push_str(&format!("mpiburn: {line}\n")));
    output(code, out, err)
}

fn output(code: u8, out: String, err: String) -> Output {
    let status = ExitStatus::from_raw(i32::from(code) << 8);
    Output { status, stdout: out.into_bytes(), stderr: err.into_bytes() }
}

/// Runs a job that has to fail.
pub fn must_fail(job: impl Borrow<Job>) -> Output {
    let output = run(job);
    assert!(!output.status.success(), "it should have failed: {}", text(&output));
    output
}

/// Runs a job that has to succeed; returns what it printed on stdout.
pub fn succeeds(job: impl Borrow<Job>) -> String {
    let output = run(job);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Runs a job that has to end with `code` and one line that contains all `words`.
pub fn refused(job: impl Borrow<Job>, code: i32, words: &[&str]) {
    let output = must_fail(job);
    let errors = errors(&output);
    assert_eq!((output.status.code(), errors.len()), (Some(code), 1), "{}", text(&output));
    words.iter().for_each(|word| assert!(errors[0].contains(word), "{} lacks {word}", errors[0]));
}

/// A file of JSON.
pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file exists")).expect("it is JSON")
}
