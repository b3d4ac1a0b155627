//! Starts a failed training again from its last checkpoint.
//!
//! An attempt is one start of the training. After each attempt, [`restart`] reads from the run directory how
//! many steps were done and which checkpoint is the newest. It makes no other attempt in these cases:
//! - The job succeeded, a signal stopped it, or the run is complete.
//! - Another attempt would fail in the same way, for example because of wrong options.
//! - The same fault repeats at the same step.
//! - Several attempts in a row do not reach their first step.
//! - All restarts are used.
//! - No other attempt can start, for example because a checkpoint is missing, or because another process uses
//!   the run directory.
//!
//! Ranks of the ended attempt may still write to the run directory. The directory is therefore locked during
//! the decision, unless the run in it is older than the first attempt.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use run_record::checkpoint::verify;
use run_record::files::FolderLock;
use run_record::{FailedAttempt, Intact, RecordError, RunDir, RunDirState, Status, lock, now, set_aside};

use super::cause::{Cause, Kind};
use super::job::NODE_LOST;
use super::shrink::Shrinking;
use super::{
    EXIT_RESUMABLE, EXIT_USAGE, Launch, MpiFlavour, Outcome, StopRequest, Streams, explain, line, quirks,
};

/// Maximum wait until the ranks of an ended attempt no longer use the run directory. These ranks end when
/// they notice the loss of the launcher or of another rank.
const LEAVE: Duration = Duration::from_secs(120);
/// Interval between tries to lock the directory.
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of attempts in a row that do not reach their first step. It is more than one, because a
/// lost host may not be back at the first restart.
const IDLE: usize = 3;
/// Exit code of a job that was stopped with a checkpoint.
const RESUMABLE_CODE: i32 = EXIT_RESUMABLE as i32;
/// Exit code of a job with wrong options.
const USAGE_CODE: i32 = EXIT_USAGE as i32;
/// Why a job that failed after its last step is not started again.
const COMPLETE: &str = "the run is complete";

/// A training whose run directory is known before it starts.
pub struct Training {
    /// The run directory.
    pub dir: PathBuf,
    /// Whether the training resumes the run in the directory.
    pub resumes: bool,
    /// Whether the training replaces the run in the directory.
    pub overwrites: bool,
    /// Whether attempts that resume the run leave out machines that do not answer.
    pub shrinks: bool,
    /// The file for the training's time line, if the training records one.
    pub trace: Option<PathBuf>,
    /// The program's arguments.
    pub words: Vec<String>,
    /// Returns the program's arguments for continuing from a checkpoint of the given step.
    pub resume_after: Box<dyn Fn(usize) -> Vec<String>>,
}

/// Starts `training`, and starts it again up to `max_restarts` times. Returns the exit code of the last
/// attempt. `say` gets the lines for the user. If the training resumes a run and shrinks, asks the machines of
/// the host file first; otherwise call [`check`](super::check) before.
///
/// # Errors
/// If an attempt cannot be started, or the run directory cannot be used.
pub fn restart(
    launch: &mut Launch,
    training: &Training,
    max_restarts: u32,
    stop: &StopRequest,
    say: impl Fn(&str),
) -> anyhow::Result<i32> {
    let original = RunDirState::read(&training.dir)?;
    let (words, resumes, before) = (training.words.clone(), training.resumes, original.clone());
    let mut attempt = JobAttempt { number: 1, words, resumes, before };
    let failed = if resumes { original.failed.clone() } else { Vec::new() };
    let shrinking = training.shrinks.then(|| Shrinking::new(launch, &training.dir)).flatten();
    if let (true, Some(shrinking)) = (resumes, &shrinking)
        && let Some(line) = shrinking.shrink(launch, &training.dir, stop)?
    {
        say(&line);
    }
    let mut restarts =
        Restarts { training, max_restarts, stop, original, began: false, failed, last_fault: None, idle: 0 };
    loop {
        let ended = attempt.run(launch, stop)?;
        match restarts.decide(&attempt, &ended) {
            Next::End(line) => {
                line.iter().for_each(|line| say(line));
                return Ok(ended.outcome.code);
            }
            Next::Again(next, line) => {
                say(&line);
                if let Some(file) = training.trace.as_ref().filter(|_| !next.has_trace()) {
                    say(&format!(
                        "launch: {}: not written, because the steps that --trace records were done before the restart",
                        file.display()
                    ));
                }
                if let Some(shrinking) = &shrinking {
                    let machines = if next.resumes {
                        shrinking.shrink(launch, &training.dir, stop)
                    } else {
                        shrinking.require_all(launch, stop).map(|()| None)
                    };
                    match machines {
                        Ok(line) => line.iter().for_each(|line| say(line)),
                        Err(error) => {
                            say(&format!("launch: not started again: {error:#}"));
                            return Ok(ended.outcome.code);
                        }
                    }
                }
                attempt = next;
            }
        }
    }
}

/// One start of the training, as a job. If it fails, it is noted as a [`FailedAttempt`].
struct JobAttempt {
    /// Number of the attempt, from 1.
    number: u32,
    /// The program's arguments.
    words: Vec<String>,
    /// Whether the attempt continues from a checkpoint.
    resumes: bool,
    /// The state of the run directory before the attempt.
    before: RunDirState,
}

/// How an attempt ended.
struct Ended {
    started_at: String,
    ended_at: String,
    outcome: Outcome,
    /// The line with the cause, if there is one.
    cause: Option<Cause>,
    /// The beginning of the line for the user: the number of the attempt and its exit code.
    headline: String,
    /// The cause in the line for the user: the text of `cause`, or what the exit code says.
    cause_text: String,
}

/// What follows an attempt.
enum Next {
    /// No other attempt. The line has the reason; after a success there is no line.
    End(Option<String>),
    /// Another attempt. The line announces it.
    Again(JobAttempt, String),
}

impl JobAttempt {
    fn run(&self, launch: &mut Launch, stop: &StopRequest) -> anyhow::Result<Ended> {
        launch.program.truncate(1);
        launch.program.extend(self.words.iter().cloned());
        log::info!("$ {}", line(&launch.command()?));
        let started_at = now();
        let (outcome, cause) = launch.run(Streams::Watched, stop)?;
        let cause_text =
            cause.as_ref().map_or_else(|| no_cause(outcome.code, launch.mpi), |cause| cause.text.clone());
        let headline = format!("launch: attempt {} ended with exit code {}", self.number, outcome.code);
        Ok(Ended { started_at, ended_at: now(), outcome, cause, headline, cause_text })
    }

    fn has_trace(&self) -> bool {
        self.words.iter().any(|word| word == "--trace" || word.starts_with("--trace="))
    }
}

/// Describes a failure by its exit code. Used if no line of the output has the cause, for example because a
/// signal ended the launcher.
fn no_cause(code: i32, mpi: MpiFlavour) -> String {
    match code {
        _ if quirks::may_be_signal(code, mpi) => {
            format!("no rank printed a cause; a rank was ended by signal {code}, or exited with code {code}")
        }
        129..160 => format!("no rank printed a cause; signal {} ended the launcher or a rank", code - 128),
        _ => "no rank printed a cause".to_owned(),
    }
}

/// Where an attempt failed. The same fault has repeated if two attempts in a row reached their first step and
/// all fields are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Fault {
    /// Number of steps of the run that were done.
    step: usize,
    /// Step of the newest checkpoint, if there is one.
    checkpoint: Option<usize>,
    /// Whether the attempt reached its first step.
    began: bool,
}

/// The attempts of a training so far.
struct Restarts<'a> {
    training: &'a Training,
    max_restarts: u32,
    stop: &'a StopRequest,
    /// The state of the run directory before the first attempt.
    original: RunDirState,
    /// Whether an attempt has written or changed run.json.
    began: bool,
    failed: Vec<FailedAttempt>,
    last_fault: Option<Fault>,
    /// Number of attempts in a row that have not reached their first step.
    idle: usize,
}

impl Restarts<'_> {
    /// Decides what follows `attempt`. Meanwhile, holds the lock of the run directory if
    /// [`owns`](Self::owns) is true.
    fn decide(&mut self, attempt: &JobAttempt, ended: &Ended) -> Next {
        let dir = &self.training.dir;
        if ended.cause.as_ref().is_some_and(|cause| cause.kind == Kind::InUse) {
            let line = format!("not started again: another process uses {}", dir.display());
            return Next::End(Some(line));
        }
        let (_lock, after) = match self.look(attempt) {
            Ok(seen) => seen,
            Err(error) => return Next::End(self.line_of_unknown(ended, &error)),
        };
        if let Some(reason) = self.no_fault(attempt, ended.outcome, &after) {
            self.note();
            return Next::End(self.line_of_no_fault(ended.outcome.code, reason));
        }
        let fault = self.fault(attempt, &after);
        self.failed.push(FailedAttempt {
            started_at: ended.started_at.clone(),
            ended_at: ended.ended_at.clone(),
            from_step: attempt.before.checkpoint.filter(|_| attempt.resumes).unwrap_or(0),
            step: fault.step,
            exit_code: ended.outcome.code,
            cause: ended.cause.as_ref().map(|cause| cause.text.clone()),
        });
        self.note();
        self.after_fault(attempt, ended, fault)
    }

    /// Decides what follows an attempt with a fault, after [`decide`](Self::decide) has recorded the fault.
    fn after_fault(&mut self, attempt: &JobAttempt, ended: &Ended, fault: Fault) -> Next {
        let (number, max_restarts) = (attempt.number, self.max_restarts);
        let place = if fault.began {
            format!("after step {}", fault.step)
        } else {
            "before its first step".to_owned()
        };
        let line = format!("{} {place}: {}", ended.headline, ended.cause_text);
        // The state is read after `note` has changed run.json, so that every later change of run.json comes
        // from the next attempt.
        let start = self.next_start(&fault).and_then(|start| {
            Ok((start, RunDirState::read(&self.training.dir).map_err(|error| error.to_string())?))
        });
        match self.limit(number, fault).map_or(start, Err) {
            Err(reason) => Next::End(Some(format!("{line}; not started again: {reason}"))),
            Ok(((words, from), before)) => Next::Again(
                JobAttempt { number: number + 1, words, resumes: fault.checkpoint.is_some(), before },
                format!("{line}; starting again from {from} (restart {number} of {max_restarts})"),
            ),
        }
    }

    /// Returns the line for the user about a job with exit code `code` that is not started again. `reason` is
    /// the text of [`no_fault`](Self::no_fault). `None` after a success.
    fn line_of_no_fault(&self, code: i32, reason: &str) -> Option<String> {
        match reason {
            _ if code == 0 => None,
            COMPLETE => Some(format!("{COMPLETE}; the job ended with exit code {code} afterwards")),
            _ => Some(format!("{}{reason}", explain(code, self.stop.signal()))),
        }
    }

    /// Returns the line for the user if the run directory cannot be read or locked after an attempt; `None`
    /// after a success.
    fn line_of_unknown(&self, ended: &Ended, error: &RecordError) -> Option<String> {
        if ended.outcome.code == 0 {
            if !self.failed.is_empty() {
                log::warn!("cannot record failed attempts in run.json: {error}");
            }
            return None;
        }
        let why = match (self.stop.signal(), error) {
            (Some(signal), RecordError::InUse { .. }) => {
                format!("{signal} came while another process still used {}", self.training.dir.display())
            }
            _ => error.to_string(),
        };
        Some(format!("{}: {}; not started again: {why}", ended.headline, ended.cause_text))
    }

    /// Returns whether the run in the directory belongs to these attempts: an attempt has written run.json,
    /// or the training resumes the run. If neither is true, a run in the directory is older than these
    /// attempts.
    fn owns(&self) -> bool {
        self.began || (self.training.resumes && self.original.run_json.is_some())
    }

    /// Reads the run directory after an attempt. Locks it if the run belongs to these attempts.
    fn look(&mut self, attempt: &JobAttempt) -> Result<(Option<FolderLock>, RunDirState), RecordError> {
        let dir = &self.training.dir;
        self.began |= RunDirState::read(dir)?.run_json != attempt.before.run_json;
        let lock = self.lock()?;
        Ok((lock, RunDirState::read(dir)?))
    }

    /// Waits until no rank writes to the run directory, and locks it. Does nothing if the run does not belong
    /// to these attempts.
    fn lock(&self) -> Result<Option<FolderLock>, RecordError> {
        if !self.owns() {
            return Ok(None);
        }
        let (since, mut told) = (Instant::now(), false);
        loop {
            match lock(&self.training.dir) {
                Err(RecordError::InUse { folder, holder })
                    if since.elapsed() < LEAVE && self.stop.number().is_none() =>
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

    /// Returns where `attempt` failed. `after` is the state of the run directory after the attempt.
    fn fault(&self, attempt: &JobAttempt, after: &RunDirState) -> Fault {
        let checkpoint = after.checkpoint.filter(|_| self.owns());
        // A new run writes run.json before its ranks connect to each other, and the step file (`noted`) after
        // they have connected. So the attempt has begun only if it has changed run.json and the step file is
        // there.
        let began = after.run_json != attempt.before.run_json && after.noted.is_some();
        // If the attempt has not begun, the step file is from an earlier attempt.
        let step = after.noted.filter(|_| began).max(checkpoint).unwrap_or(0);
        Fault { step, checkpoint, began }
    }

    /// Returns why no other attempt follows `outcome`; `None` if the attempt failed and may be repeated. The
    /// text is a part of the line for the user.
    fn no_fault(&self, attempt: &JobAttempt, outcome: Outcome, after: &RunDirState) -> Option<&'static str> {
        const REPEATS: &str = "; not started again: it would end in the same way";
        // If this attempt has not written run.json, the status is from an earlier process and says nothing
        // about this attempt.
        let status = after.status.filter(|_| after.run_json != attempt.before.run_json);
        let taken = self.original.occupied && !self.training.resumes && !self.training.overwrites;
        match (outcome.code, status) {
            (0 | RESUMABLE_CODE, _) => Some(""),
            _ if outcome.stopped => Some(""),
            // Shells and launchers return 126 and 127 for a program that is not executable, or missing.
            (USAGE_CODE | 126 | 127, _) => Some(REPEATS),
            _ if taken => Some(REPEATS),
            // mpirun sends SIGTERM to the ranks that are left, and they stop with a checkpoint.
            (NODE_LOST, Some(Status::Stopped)) => None,
            (_, Some(Status::Stopped)) => Some("; not started again: a signal stopped the run"),
            (_, Some(Status::Completed)) => Some(COMPLETE),
            _ => None,
        }
    }

    /// Writes the failed attempts to run.json if [`owns`](Self::owns) is true. Always writes the whole list,
    /// because an attempt from the beginning replaces run.json and loses the earlier entries.
    fn note(&self) {
        if !self.owns() || self.failed.is_empty() {
            return;
        }
        // The restarts go on without this note: they need only the checkpoint.
        if let Err(error) = RunDir::note_failed(&self.training.dir, &self.failed) {
            log::warn!("cannot record failed attempts in run.json: {error}");
        }
    }

    /// Returns why there is no other attempt after `attempts` attempts; `None` if another attempt is allowed.
    /// The last attempt failed with `fault`.
    fn limit(&mut self, attempts: u32, fault: Fault) -> Option<String> {
        self.idle = if fault.began { 0 } else { self.idle + 1 };
        let repeats = self.last_fault.replace(fault) == Some(fault) && fault.began;
        if self.stop.number().is_some() {
            Some("a signal requested a stop".to_owned())
        } else if repeats {
            Some("two attempts in a row failed at this step".to_owned())
        } else if self.idle == IDLE {
            Some(format!("{IDLE} attempts in a row have not reached their first step"))
        } else {
            let max = self.max_restarts;
            (attempts > max).then(|| format!("--restart {max} is used up"))
        }
    }

    /// Returns the arguments of the next attempt and where it starts. The error says why no attempt can
    /// start.
    fn next_start(&self, fault: &Fault) -> Result<(Vec<String>, String), String> {
        let Training { dir, resumes, overwrites, words, resume_after, .. } = self.training;
        let beginning = || "the beginning".to_owned();
        if let Some(step) = fault.checkpoint {
            // Without an intact checkpoint, every further attempt would end when rank 0 reads it.
            let newest = Intact::newest(&dir.join("checkpoints"), verify);
            if let Err(RecordError::NoneIntact(_)) = newest {
                return Err(format!("no checkpoint in {} is intact", dir.display()));
            }
            return Ok((resume_after(step), format!("step {step}")));
        }
        if *resumes {
            return Err(format!("there is no checkpoint in {} to start from", dir.display()));
        }
        if !self.owns() {
            // Remove the folder `checkpoints`, because a new run is rejected if its directory has content. A
            // rank makes the folder before it writes run.json, and may have been killed in between.
            // `remove_dir` keeps a folder that has content.
            if !self.original.occupied {
                let _ = std::fs::remove_dir(dir.join("checkpoints"));
            }
            return Ok((words.clone(), beginning()));
        }
        match set_aside(dir).map_err(|error| error.to_string())? {
            None => {
                let overwrite = (!overwrites).then(|| "--overwrite".into());
                Ok((words.iter().cloned().chain(overwrite).collect(), beginning()))
            }
            Some(path) => Err(format!(
                "there is no checkpoint, and a start from the beginning would delete {}: move it away",
                path.display()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::{Binding, LauncherKind};

    /// Runs the shell script `script` as the training, with restarts. Returns the exit code, the lines, and
    /// the number of attempts.
    fn restarted(script: &str, max_restarts: u32) -> (i32, Vec<String>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let starts = folder.path().join("starts");
        let mut launch = Launch {
            topology: "1x1".parse().unwrap(),
            launcher: LauncherKind::Alone,
            mpi: MpiFlavour::OpenMpi,
            hosts: None,
            by: None,
            count_cores: || [1, 1],
            threads: 1,
            binding: Binding::Core,
            program: vec!["sh".into()],
        };
        let training = Training {
            dir: folder.path().join("run"),
            resumes: false,
            overwrites: false,
            shrinks: false,
            trace: None,
            words: vec!["-c".into(), format!("cd {}; echo >>starts; {script}", folder.path().display())],
            resume_after: Box::new(|step| vec![format!("from {step}")]),
        };
        let lines = RefCell::new(Vec::new());
        let say = |line: &str| lines.borrow_mut().push(line.to_owned());
        let code = restart(&mut launch, &training, max_restarts, &StopRequest::default(), say).unwrap();
        let starts = std::fs::read_to_string(starts).unwrap().lines().count();
        (code, lines.into_inner(), starts)
    }

    #[test]
    fn attempts_without_a_first_step_are_few() {
        let (code, lines, starts) =
            restarted(r"printf 'mpiburn: \036failed: \037no network\n' >&2; exit 1", 5);
        assert_eq!((code, starts), (1, 3), "{lines:?}");
        let start =
            "launch: attempt 1 ended with exit code 1 before its first step: no network; starting again from";
        assert_eq!(lines[0], format!("{start} the beginning (restart 1 of 5)"));
        let end = "no network; not started again: 3 attempts in a row have not reached their first step";
        assert!(lines.len() == 3 && lines[2].ends_with(end), "{lines:?}");
        let damaged = "mkdir -p run/checkpoints/step-00000001; echo {} >run/run.json; exit 1";
        let (_, lines, starts) = restarted(damaged, 5);
        let end = "/run is intact";
        assert!(starts == 1 && lines[0].ends_with(end), "{lines:?}");
        let (_, lines, starts) = restarted("exit 1", 1);
        let end = "no rank printed a cause; not started again: --restart 1 is used up";
        assert!(starts == 2 && lines[1].ends_with(end), "{lines:?}");
    }

    #[test]
    fn a_lost_node_is_a_fault_although_mpirun_stops_the_other_ranks() {
        let stopped = |code| {
            let write = r#"mkdir -p run; echo "{\"status\": \"stopped\", \"at\": $$}" >run/run.json"#;
            restarted(&format!("{write}; exit {code}"), 1)
        };
        let (_, lines, starts) = stopped(205);
        assert!(starts == 2 && lines[0].contains("starting again"), "{lines:?}");
        let (_, lines, starts) = stopped(1);
        assert!(starts == 1 && lines[0].ends_with("a signal stopped the run"), "{lines:?}");
    }

    #[test]
    fn some_ends_are_no_fault() {
        for (script, end) in [
            ("exit 75", "stopped with a checkpoint: continue with --resume"),
            ("exit 2", "; not started again: it would end in the same way"),
        ] {
            let (code, lines, starts) = restarted(script, 5);
            assert!(starts == 1 && lines.len() == 1 && lines[0].ends_with(end), "{code}: {lines:?}");
        }
        assert_eq!(restarted("exit 0", 5), (0, Vec::new(), 1));
        let (_, lines, starts) =
            restarted(r"printf 'mpiburn: \036in-use: \037another has it\n' >&2; exit 1", 5);
        assert!(starts == 1 && lines[0].starts_with("not started again: another process "), "{lines:?}");
    }
}
