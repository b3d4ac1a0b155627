//! `mpiburn launch --restart N`: starts a failed training again from its last checkpoint.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use run_record::files::FolderLock;
use run_record::{FailedAttempt, IN_USE, NamedRun, RecordError, RunDir, Seen, Status, lock, now, set_aside};

use crate::commands::{Refused, failure};
use crate::options::{Cli, Command, Part, TrainArgs, part};
use burn_mpi::messages::{NO_ANSWER, NOT_FINALIZED, STALLED};
use launch::{Launch, MpiFlavour, Outcome, StopRequest, Streams, line};

/// How long ranks of an ended attempt may write to the run directory. They end when they notice the
/// loss of the launcher or of another rank.
const LEAVE: Duration = Duration::from_secs(120);
/// Interval at which the directory's lock is tried.
const TICK: Duration = Duration::from_millis(100);
/// Attempts in a row that may end before their first step: a host that is not back yet needs some.
const IDLE: usize = 3;
/// The exit codes of a job that was stopped, and of one with wrong options.
const RESUMABLE_CODE: i32 = failure::RESUMABLE as i32;
const OPTIONS_CODE: i32 = failure::OPTIONS as i32;
/// Of a rank's line on a wait.
const WAITS: [&str; 3] = [NOT_FINALIZED, NO_ANSWER, STALLED];
/// Why a job that failed in its very end is not started again.
const COMPLETE: &str = "the run is complete";

/// Starts `training` and starts it again up to `restarts` times; returns the exit code of its last
/// attempt.
///
/// # Errors
/// When an attempt does not start, or its run directory cannot be used.
pub fn run(
    launch: &mut Launch,
    training: &Training,
    restarts: u32,
    stop: &StopRequest,
) -> anyhow::Result<i32> {
    let dir = training.dir.as_path();
    let start = Seen::of(dir)?;
    let failed = if training.args.resume.is_some() { start.failed.clone() } else { Vec::new() };
    let mut run = Attempts { training, before: start.clone(), start, began: false, failed };
    let mut program = training.as_typed();
    let mut last: Option<Fault> = None;
    let (mut resumes, mut idle) = (training.args.resume.is_some(), 0);
    for attempt in 1.. {
        launch.program.truncate(1);
        launch.program.extend(program);
        log::info!("$ {}", line(&launch.command()?));
        let started_at = now();
        let (outcome, cause) = launch.run(Streams::Watched(&WAITS), stop)?;
        let (code, ended_at) = (outcome.code, now());
        if cause.as_deref().is_some_and(|cause| cause.contains(IN_USE)) {
            eprintln!("mpiburn: not started again: another process uses {}", dir.display());
            return Ok(code);
        }
        let shown = cause.clone().unwrap_or_else(|| no_cause(code, launch.mpi));
        let what = format!("launch: attempt {attempt} ended with exit code {code}");
        let (_lock, after) = match run.look(stop) {
            Ok(seen) => seen,
            Err(error) if code == 0 => {
                if !run.failed.is_empty() {
                    log::warn!("failed attempts are not in run.json: {error}");
                }
                return Ok(0);
            }
            Err(error) => {
                let why = match (stop.signal(), &error) {
                    (Some(signal), RecordError::InUse { .. }) => {
                        format!("{signal} ended the wait for who still uses {}", dir.display())
                    }
                    _ => error.to_string(),
                };
                eprintln!("mpiburn: {what}: {shown}; not started again: {why}");
                return Ok(code);
            }
        };
        if let Some(reason) = run.is_over(outcome, &after) {
            run.note();
            match reason {
                _ if code == 0 => {}
                COMPLETE => {
                    eprintln!("mpiburn: {COMPLETE}; the job ended with exit code {code} after it");
                }
                reason => eprintln!("mpiburn: {}{reason}", ::launch::explain(code, stop.signal())),
            }
            return Ok(code);
        }
        let fault = run.fault(&after);
        idle = if fault.began { 0 } else { idle + 1 };
        run.failed.push(FailedAttempt {
            started_at,
            ended_at,
            from_step: run.before.checkpoint.filter(|_| resumes).unwrap_or(0),
            step: fault.step,
            exit_code: code,
            cause,
        });
        run.note();
        let repeats = last.replace(fault) == Some(fault) && fault.began;
        let next = match run.next(&fault) {
            _ if stop.number().is_some() => Err("a signal ends the restarts".to_owned()),
            _ if repeats => Err("the fault repeats at this step".to_owned()),
            _ if idle == IDLE => Err(format!("{IDLE} attempts in a row have not reached their first step")),
            _ if attempt > restarts => Err(format!("{restarts} of {restarts} restarts are used")),
            next => next,
        };
        let place = match fault.began {
            true => format!("after step {}", fault.step),
            false => "before its first step".to_owned(),
        };
        match next {
            Ok((words, from)) => {
                let used = format!("{attempt} of {restarts} restarts");
                eprintln!("mpiburn: {what} {place}: {shown}; starting again from {from} ({used})");
                let is_trace = |word: &String| word == "--trace" || word.starts_with("--trace=");
                if let Some(file) = training.args.trace.trace.as_ref().filter(|_| !words.iter().any(is_trace))
                {
                    eprintln!("mpiburn: launch: no time line in {}: its steps are done", file.display());
                }
                program = words;
                resumes = fault.checkpoint.is_some();
            }
            Err(reason) => {
                eprintln!("mpiburn: {what} {place}: {shown}; not started again: {reason}");
                return Ok(code);
            }
        }
        // With the attempts noted, which is no sign of the next one.
        run.before = Seen::of(dir)?;
    }
    unreachable!("restarts are bounded")
}

/// What is known of a failure without a line: a launcher that a signal ended has no last word, and
/// MPICH's exits with the signal's number after a block of lines on standard output.
fn no_cause(code: i32, mpi: MpiFlavour) -> String {
    match code {
        4..32 if mpi == MpiFlavour::Mpich => {
            format!("no rank printed a cause; a rank was ended by signal {code}, or exited with this code")
        }
        129..160 => format!("no rank printed a cause; signal {} ended the launcher or a rank", code - 128),
        _ => "no rank printed a cause".to_owned(),
    }
}

/// Where an attempt failed: two that are equal are one fault that repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    /// Steps that were done.
    step: usize,
    /// Step of the newest checkpoint.
    checkpoint: Option<usize>,
    /// Whether the attempt reached its first step.
    began: bool,
}

/// The attempts of a training.
struct Attempts<'a> {
    training: &'a Training,
    /// The run directory before the first, and before the last one.
    start: Seen,
    before: Seen,
    /// Whether an attempt has written to the run directory.
    began: bool,
    failed: Vec<FailedAttempt>,
}

impl Attempts<'_> {
    /// Whether the run directory is that of these attempts, rather than one that was there before.
    fn owns(&self) -> bool {
        self.began || (self.training.args.resume.is_some() && self.start.run_json.is_some())
    }

    /// What the run directory is after an attempt, locked if it is that of these attempts.
    fn look(&mut self, stop: &StopRequest) -> Result<(Option<FolderLock>, Seen), RecordError> {
        let dir = &self.training.dir;
        self.began |= Seen::of(dir)?.run_json != self.before.run_json;
        let lock = self.lock(stop)?;
        Ok((lock, Seen::of(dir)?))
    }

    /// Waits until no rank writes to the run directory, and keeps others from doing so.
    fn lock(&self, stop: &StopRequest) -> Result<Option<FolderLock>, RecordError> {
        if !self.owns() {
            return Ok(None);
        }
        let (since, mut told) = (Instant::now(), false);
        loop {
            match lock(&self.training.dir) {
                Err(RecordError::InUse { folder, holder })
                    if since.elapsed() < LEAVE && stop.number().is_none() =>
                {
                    if !told && since.elapsed() > LEAVE / 24 {
                        log::info!("waiting for {holder}, which still writes to {}", folder.display());
                        told = true;
                    }
                    std::thread::sleep(TICK);
                }
                taken => return taken.map(Some),
            }
        }
    }

    /// Where the last attempt failed, which left the run directory as it is `after`.
    fn fault(&self, after: &Seen) -> Fault {
        let checkpoint = after.checkpoint.filter(|_| self.owns());
        // A new run writes run.json before it connects, and the file of steps after that.
        let began = after.run_json != self.before.run_json && after.noted.is_some();
        // The file of an earlier attempt says nothing of one that has not begun.
        let step = after.noted.filter(|_| began).max(checkpoint).unwrap_or(0);
        Fault { step, checkpoint, began }
    }

    /// Why an attempt that ended with `outcome` is no fault to start again after; `None` if it is.
    fn is_over(&self, outcome: Outcome, after: &Seen) -> Option<&'static str> {
        const REPEATS: &str = "; not started again: it would end in the same way";
        // What an earlier process has written says nothing of this attempt.
        let status = after.status.filter(|_| after.run_json != self.before.run_json);
        let taken =
            self.start.occupied && self.training.args.resume.is_none() && !self.training.args.overwrite;
        match (outcome.code, status) {
            (0 | RESUMABLE_CODE, _) => Some(""),
            _ if outcome.stopped => Some(""),
            // Of shells and launchers for a program that is not executable, or missing.
            (OPTIONS_CODE | 126 | 127, _) => Some(REPEATS),
            _ if taken => Some(REPEATS),
            (_, Some(Status::Stopped)) => Some("; not started again: a signal stopped the run"),
            (_, Some(Status::Completed)) => Some(COMPLETE),
            _ => None,
        }
    }

    /// Adds the failed attempts to run.json, which a run that began again no longer has.
    fn note(&self) {
        if !self.owns() || self.failed.is_empty() {
            return;
        }
        // The run goes on without: what matters is its checkpoint.
        if let Err(error) = RunDir::note_failed(&self.training.dir, &self.failed) {
            log::warn!("failed attempts are not in run.json: {error}");
        }
    }

    /// The arguments of the next attempt, and where it starts; otherwise why there is none.
    fn next(&self, fault: &Fault) -> Result<(Vec<String>, String), String> {
        let beginning = || "the beginning".to_owned();
        let dir: &Path = &self.training.dir;
        if let Some(step) = fault.checkpoint {
            return Ok((self.training.resume_after(step), format!("step {step}")));
        }
        if self.training.args.resume.is_some() {
            return Err(format!("there is no checkpoint in {} to start from", dir.display()));
        }
        if !self.owns() {
            // A rank that was killed between the folder and run.json; whatever has content stays.
            if !self.start.occupied {
                let _ = std::fs::remove_dir(dir.join("checkpoints"));
            }
            return Ok((self.training.as_typed(), beginning()));
        }
        match set_aside(dir).map_err(|error| error.to_string())? {
            None => Ok((self.training.begin_again(), beginning())),
            Some(path) => Err(format!(
                "there is no checkpoint, and {} would be lost with the run: move it away",
                path.display()
            )),
        }
    }
}

/// A training whose run directory is known before it starts.
pub struct Training {
    /// The run directory.
    pub dir: PathBuf,
    /// As typed.
    words: Vec<String>,
    /// `-v` and `-q`.
    verbosity: Vec<String>,
    /// As read.
    pub args: Box<TrainArgs>,
}

/// Tells the ranks to note their steps.
const NOTE_STEPS: &str = "--note-steps";

impl Training {
    /// The training that `program` is; none if its options are invalid, which the ranks report.
    ///
    /// # Errors
    /// If it is no training, or one without a run directory.
    pub fn of(program: &[String]) -> Result<Option<Self>, Refused> {
        let words = std::iter::once("mpiburn").chain(program.iter().map(String::as_str));
        let Ok(cli) = Cli::read(words.map(OsString::from)) else { return Ok(None) };
        let (name, verbosity) = (cli.name.clone(), cli.verbosity());
        let Command::Train(args) = cli.command else {
            return Err(Refused(format!(
                "--restart starts trainings again, and {name} is none: leave it out, or launch train --out DIR"
            )));
        };
        // What cannot be looked at is the ranks' error.
        let folder = |path: &PathBuf| NamedRun::of(path).map_or_else(|_| path.clone(), |run| run.folder);
        let resumed = args.resume.as_ref().map(folder);
        let Some(dir) = resumed.or_else(|| args.out.clone()) else {
            return Err(Refused(
                "--restart starts again from the checkpoints of a run directory: name it with train --out DIR".into(),
            ));
        };
        Ok(Some(Self { dir, words: program.to_vec(), verbosity, args }))
    }

    /// Its arguments, as typed.
    pub fn as_typed(&self) -> Vec<String> {
        self.words.iter().cloned().chain([NOTE_STEPS.into()]).collect()
    }

    /// Its arguments to start from the beginning, in place of an attempt without checkpoint.
    pub fn begin_again(&self) -> Vec<String> {
        let overwrite = (!self.args.overwrite).then(|| "--overwrite".into());
        self.as_typed().into_iter().chain(overwrite).collect()
    }

    /// Its arguments to go on from a checkpoint of `step`: what a resumed run was given, and no time line whose
    /// first step is done.
    pub fn resume_after(&self, step: usize) -> Vec<String> {
        let mut words = self.args.typed.clone();
        words.0.retain(|option, _| {
            (self.args.resume.is_some() && part(option) != Part::Job)
                || ["stall-warning", "trace", "trace-steps"].contains(&option.as_str())
        });
        if self.args.trace.trace_steps.as_ref().is_none_or(|range| *range.start() <= step) {
            words.0.retain(|option, _| !option.starts_with("trace"));
        }
        // One word each: a name may begin with a dash.
        words.0.insert("resume".into(), Some(self.dir.clone().into()));
        let typed = words.to_args().map(|word| word.to_string_lossy().into_owned());
        let begin = std::iter::once("train".to_owned()).chain(self.verbosity.iter().cloned());
        begin.chain(typed).chain([NOTE_STEPS.into()]).collect()
    }
}

#[cfg(test)]
mod training_tests {
    use super::*;

    fn of(line: &str) -> Result<Option<Training>, Refused> {
        Training::of(&line.split(' ').map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_restart_keeps_what_a_resume_accepts() {
        let line = "train -vv --out runs/a --epochs 3 --stall-warning=5 --trace t.json --trace-steps 40..50";
        let training = of(line).unwrap().unwrap();
        assert_eq!(training.as_typed().join(" "), format!("{line} --note-steps"));
        assert_eq!(training.begin_again().join(" "), format!("{line} --note-steps --overwrite"));
        assert_eq!(
            training.resume_after(39).join(" "),
            "train -v -v --resume=runs/a --stall-warning=5 --trace=t.json --trace-steps=40..50 --note-steps"
        );
        assert!(!training.resume_after(40).iter().any(|word| word.contains("trace")));
        let resumed = of("-q train --resume runs/a --lr 1e-4 --epochs 9").unwrap().unwrap();
        assert_eq!(
            resumed.resume_after(0).join(" "),
            "train -q --epochs=9 --lr=1e-4 --resume=runs/a --note-steps"
        );
        assert_eq!(of("train --resume runs/a/run.json").unwrap().unwrap().dir, Path::new("runs/a"));
        assert!(of("train --out runs/a --overwrite").unwrap().unwrap().args.overwrite);
    }

    #[test]
    fn only_a_training_with_a_run_directory_is_started_again() {
        assert!(of("bench allreduce").err().unwrap().to_string().contains("bench allreduce is none"));
        assert!(of("train --epochs 1").err().unwrap().to_string().contains("train --out DIR"));
        assert!(of("train --epochs many").unwrap().is_none());
    }
}
