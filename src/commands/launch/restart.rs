//! `mpiburn launch --restart N`: starts a failed training again from its last checkpoint.

use std::path::Path;
use std::time::{Duration, Instant};

use super::training::Training;
use super::{explain, line, variables};
use crate::commands::failure::{OPTIONS, RESUMABLE};
use crate::launch::{self, Launch, MpiFlavour, Outcome, Streams};
use crate::stop::StopRequest;
use run_record::files::FolderLock;
use run_record::{FailedAttempt, RecordError, RunDir, Seen, Status, lock, now, set_aside};

/// How long ranks of an ended attempt may write to the run directory. They end when they notice the
/// loss of the launcher or of another rank.
const LEAVE: Duration = Duration::from_secs(120);
/// Interval at which the directory's lock is tried.
const TICK: Duration = Duration::from_millis(100);
/// Attempts in a row that may end before their first step: a host that is not back yet needs some.
const IDLE: usize = 3;
/// What the ranks say of a run directory that another process writes to.
const IN_USE: &str = " is in use by ";
/// Why a job that failed in its very end is not started again.
const COMPLETE: &str = "the run is complete";
/// Exit codes of shells and launchers for a program that is not executable, or missing.
const NOT_STARTED: [i32; 2] = [126, 127];

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
    let mut run = Attempts { training, start: start.clone(), began: false, failed: Vec::new() };
    if training.resumes() {
        run.failed = start.failed.clone();
    }
    let mut program = training.as_typed();
    let mut before = start;
    let mut last: Option<Fault> = None;
    let (mut resumes, mut idle) = (training.resumes(), 0);
    for attempt in 1.. {
        launch.program.truncate(1);
        launch.program.extend(program);
        let command = launch.command()?;
        log::info!("$ {}", line(&command));
        let started_at = now();
        let (outcome, cause) =
            launch::run(&command, &variables(launch), launch.launcher, Streams::Watched, stop)?;
        let ended_at = now();
        if cause.as_deref().is_some_and(|cause| cause.contains(IN_USE)) {
            eprintln!("mpiburn: not started again: another process uses {}", dir.display());
            return Ok(outcome.code);
        }
        let (_lock, after) = match run.look(&before, stop) {
            Ok(seen) => seen,
            Err(error) if outcome.code == 0 => {
                if !run.failed.is_empty() {
                    log::warn!("failed attempts are not in run.json: {error}");
                }
                return Ok(0);
            }
            Err(error) => {
                let (code, cause) =
                    (outcome.code, cause.unwrap_or_else(|| no_cause(outcome.code, launch.mpi)));
                let why = match (stop.signal(), &error) {
                    (Some(signal), RecordError::InUse { .. }) => {
                        format!("{signal} ended the wait for who still uses {}", dir.display())
                    }
                    _ => error.to_string(),
                };
                eprintln!(
                    "mpiburn: launch: attempt {attempt} ended with exit code {code}: {cause}; not started again: {why}"
                );
                return Ok(code);
            }
        };
        if let Some(reason) = run.is_over(outcome, &before, &after) {
            run.note();
            match outcome.code {
                0 => {}
                code if reason == COMPLETE => {
                    eprintln!("mpiburn: the run is complete; the job ended with exit code {code} after it");
                }
                code => eprintln!("mpiburn: {}{reason}", explain(code, stop)),
            }
            return Ok(outcome.code);
        }
        let fault = run.fault(&before, &after);
        idle = if fault.began { 0 } else { idle + 1 };
        run.failed.push(FailedAttempt {
            started_at,
            ended_at,
            from_step: before.checkpoint.filter(|_| resumes).unwrap_or(0),
            step: fault.step,
            exit_code: outcome.code,
            cause: cause.clone(),
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
        let what = format!(
            "launch: attempt {attempt} ended with exit code {} {place}: {}",
            outcome.code,
            cause.unwrap_or_else(|| no_cause(outcome.code, launch.mpi))
        );
        match next {
            Ok((words, from)) => {
                eprintln!("mpiburn: {what}; starting again from {from} ({attempt} of {restarts} restarts)");
                if let Some(file) = training
                    .trace()
                    .filter(|_| !words.iter().any(|word| word == "--trace" || word.starts_with("--trace=")))
                {
                    eprintln!("mpiburn: launch: no time line in {}: its steps are done", file.display());
                }
                program = words;
                resumes = fault.checkpoint.is_some();
            }
            Err(reason) => {
                eprintln!("mpiburn: {what}; not started again: {reason}");
                return Ok(outcome.code);
            }
        }
        // With the attempts noted, which is no sign of the next one.
        before = Seen::of(dir)?;
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
    /// The run directory before the first.
    start: Seen,
    /// Whether an attempt has written to the run directory.
    began: bool,
    failed: Vec<FailedAttempt>,
}

impl Attempts<'_> {
    /// Whether the run directory is that of these attempts, rather than one that was there before.
    fn owns(&self) -> bool {
        self.began || (self.training.resumes() && self.start.run_json.is_some())
    }

    /// What the run directory is after an attempt that found it as it was `before`, locked if it is that of
    /// these attempts.
    fn look(&mut self, before: &Seen, stop: &StopRequest) -> Result<(Option<FolderLock>, Seen), RecordError> {
        let dir = &self.training.dir;
        self.began |= Seen::of(dir)?.run_json != before.run_json;
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

    /// Where an attempt failed that found the run directory as it was `before`, and left it as it is
    /// `after`.
    fn fault(&self, before: &Seen, after: &Seen) -> Fault {
        let checkpoint = after.checkpoint.filter(|_| self.owns());
        // A new run writes run.json before it connects, and the file of steps after that.
        let began = after.run_json != before.run_json && after.noted.is_some();
        // The file of an earlier attempt says nothing of one that has not begun.
        let step = after.noted.filter(|_| began).max(checkpoint).unwrap_or(0);
        Fault { step, checkpoint, began }
    }

    /// Why an attempt that ended with `outcome` is no fault to start again after; `None` if it is.
    fn is_over(&self, outcome: Outcome, before: &Seen, after: &Seen) -> Option<&'static str> {
        const REPEATS: &str = "; not started again: it would end in the same way";
        // What an earlier process has written says nothing of this attempt.
        let status = after.status.filter(|_| after.run_json != before.run_json);
        let taken = self.start.occupied && !self.training.resumes() && !self.training.overwrites();
        match outcome.code {
            0 => Some(""),
            code if outcome.stopped || code == i32::from(RESUMABLE) => Some(""),
            code if code == i32::from(OPTIONS) || NOT_STARTED.contains(&code) => Some(REPEATS),
            _ if taken => Some(REPEATS),
            _ if status == Some(Status::Stopped) => Some("; not started again: a signal stopped the run"),
            _ if status == Some(Status::Completed) => Some(COMPLETE),
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
        match fault.checkpoint {
            Some(step) => Ok((self.training.resume_after(step), format!("step {step}"))),
            None if self.training.resumes() => {
                Err(format!("there is no checkpoint in {} to start from", dir.display()))
            }
            None if !self.owns() => {
                // A rank that was killed between the folder and run.json; whatever has content stays.
                if !self.start.occupied {
                    let _ = std::fs::remove_dir(dir.join("checkpoints"));
                }
                Ok((self.training.as_typed(), beginning()))
            }
            None => match set_aside(dir).map_err(|error| error.to_string())? {
                Some(path) => Err(format!(
                    "there is no checkpoint, and {} would be lost with the run: move it away",
                    path.display()
                )),
                None => Ok((self.training.begin_again(), beginning())),
            },
        }
    }
}
