//! Runs a launcher (mpirun, srun, or a script instead of them) until the job ends, forwards signals to the
//! launcher, and explains its exit code.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cause::{Cause, Watched};
use super::{Launch, LauncherKind, MpiFlavour, line, quirks};
use crate::StopRequest;

/// Exit code of Open MPI's mpirun if a node is lost.
pub(super) const NODE_LOST: i32 = 205;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The launcher's exit code; 128 plus the signal's number if a signal ended the launcher.
    pub code: i32,
    /// Whether this process received a stop signal and forwarded it.
    pub stopped: bool,
}

/// Interval at which the job is polled, and its standard error copied.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// Time after which SIGUSR1 is sent again. mpirun drops the signal if its ranks have not started yet.
const AGAIN: Duration = Duration::from_secs(5);

/// Where a job's output goes.
#[derive(Debug)]
pub enum Streams {
    /// To the output of this process.
    Own,
    /// To the output of this process. Standard error is searched for the cause of a failure, and the tags of
    /// ranks are removed from it.
    Watched,
    /// To a file.
    Log(std::fs::File),
}

impl Launch {
    /// Runs the job until its launcher exits. Forwards incoming signals to the launcher, so that ranks have
    /// time to write a checkpoint; a second signal ends most launchers. Returns how the job ended and, for
    /// [`Streams::Watched`], the line with the cause.
    ///
    /// # Errors
    /// If [`Launch::command`] returns an error, or if the launcher does not start.
    pub fn run(&self, streams: Streams, stop: &StopRequest) -> anyhow::Result<(Outcome, Option<Cause>)> {
        run(&self.command()?, self.launcher, self.mpi, streams, stop)
    }
}

fn run(
    command: &[String],
    launcher: LauncherKind,
    mpi: MpiFlavour,
    streams: Streams,
    stop: &StopRequest,
) -> anyhow::Result<(Outcome, Option<Cause>)> {
    let failed = |reason: io::Error| anyhow::anyhow!("cannot start {}: {reason}", line(command));
    let mut job = Command::new(&command[0]);
    // The launcher runs in a separate process group, so that a terminal's Ctrl-C reaches this process only
    // and is forwarded once. mpirun takes a second signal as a request to abort.
    job.args(&command[1..]).stdin(Stdio::null()).process_group(0);
    // A script in the launcher's place reads this variable.
    job.env("MPI", mpi.name());
    match streams {
        Streams::Own => {}
        Streams::Watched => drop(job.stderr(Stdio::piped())),
        Streams::Log(log) => drop(job.stdout(log.try_clone().map_err(failed)?).stderr(log)),
    }
    let mut child = job.spawn().map_err(failed)?;
    let mut watched = child.stderr.take().map(Watched::new);
    let (mut passed_on, mut ended): (Option<(Signal, Instant)>, _) = (None, false);
    loop {
        let status = child.try_wait().map_err(failed)?;
        // Called after `try_wait`: once the job has ended, this reads all the rest of its output.
        watched.iter_mut().for_each(Watched::pass_on);
        if let Some(status) = status {
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            let outcome = Outcome { code, stopped: passed_on.is_some() };
            return Ok((outcome, watched.and_then(Watched::cause)));
        }
        if let Some(signal) = stop.take().and_then(Signal::from_named_raw) {
            let signal = for_launcher(launcher, signal, passed_on.is_none());
            pass_on(&child, signal);
            passed_on = Some((signal, Instant::now()));
        }
        if let Some((Signal::USR1, at)) = passed_on
            && at.elapsed() > AGAIN
        {
            pass_on(&child, Signal::USR1);
            passed_on = Some((Signal::USR1, Instant::now()));
        }
        if !ended && watched.as_ref().and_then(Watched::gone_for).is_some_and(|since| since > quirks::LINGER)
        {
            let (launcher, seconds) = (&command[0], quirks::LINGER.as_secs());
            log::warn!("{launcher} is still running {seconds} s after a process of the job ended: ending it");
            // By now, the launcher has ended all ranks, so no rank needs it.
            let _ = child.kill();
            ended = true;
        }
        std::thread::sleep(TICK);
    }
}

/// Returns the signal that a launcher gets for `signal`.
///
/// srun ends the ranks at once on SIGTERM, asks the user on SIGINT, and passes SIGUSR1 on to the ranks. srun
/// therefore gets SIGUSR1 for the first signal, and SIGTERM for a second signal. SIGHUP (the terminal was
/// closed) and SIGQUIT (Ctrl-\\) would end every launcher. For these two signals, every launcher therefore
/// gets what srun gets. No launcher ends the ranks at once on SIGUSR1. SIGUSR2 becomes SIGUSR1: launchers
/// pass SIGUSR1 and SIGUSR2 on in the same way.
fn for_launcher(launcher: LauncherKind, signal: Signal, is_first: bool) -> Signal {
    let ends_it = launcher == LauncherKind::Srun || [Signal::HUP, Signal::QUIT].contains(&signal);
    match (ends_it, is_first) {
        (true, true) => Signal::USR1,
        (true, false) => Signal::TERM,
        (false, _) if signal == Signal::USR2 => Signal::USR1,
        (false, _) => signal,
    }
}

fn pass_on(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // Fails if the process has exited. The process then needs no signal.
        let _ = kill_process(pid, signal);
    }
}

/// Describes an exit code of a launcher or its ranks, and what to do. `signal` is the name of the signal that
/// was forwarded to the launcher; `None` if no signal was forwarded.
pub fn explain(code: i32, signal: Option<&str>) -> String {
    let meaning = match (code, signal) {
        (75, _) => "stopped with a checkpoint: continue with --resume",
        (_, Some(signal)) => {
            return format!(
                "the job exited with code {code} after {signal}; if it wrote a checkpoint, continue with --resume"
            );
        }
        (2, _) => "unknown option or invalid value",
        (3, _) => {
            "a collective exceeded the deadline (--comm-timeout); checkpoints are intact: continue with --resume"
        }
        (126, _) => "the program cannot be executed on one of the hosts; see mpirun's lines above",
        (127, _) => "a program is missing on one of the hosts; make deploy copies it",
        (137, _) => {
            "a rank was killed, often because memory ran out; continue from the last checkpoint with --resume"
        }
        (NODE_LOST, _) => {
            "a node is lost or unreachable; when it is back, continue from the last checkpoint with --resume"
        }
        _ => "see the lines above",
    };
    format!("the job exited with code {code}: {meaning}")
}

#[cfg(test)]
mod tests {
    use super::super::cause::Kind;
    use super::*;

    /// Prints the error of a rank.
    const WHY: &str = r"printf 'mpiburn: \036failed: \037why\n' >&2";

    const MPI: MpiFlavour = MpiFlavour::OpenMpi;

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(ToString::to_string).to_vec()
    }

    #[test]
    fn exit_codes_and_output_are_returned() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        let stop = StopRequest::default();
        let script = sh("echo $MPI; echo two >&2; exit 75");
        let outcome = run(&script, LauncherKind::Alone, MpiFlavour::Mpich, Streams::Log(file), &stop);
        assert_eq!(outcome.unwrap().0, Outcome { code: 75, stopped: false });
        assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "mpich\ntwo\n");
        assert!(explain(75, None).contains("--resume"));
        let run = |script: &[String], streams| run(script, LauncherKind::Alone, MPI, streams, &stop);
        let outcome = run(&sh("kill -KILL $$"), Streams::Own).unwrap();
        assert_eq!(outcome.0.code, 137);
        let (outcome, cause) = run(&sh(&format!("{WHY}; exit 3")), Streams::Watched).unwrap();
        let why = Cause { kind: Kind::Failed, text: "why".into() };
        assert_eq!((outcome, cause), (Outcome { code: 3, stopped: false }, Some(why)));
        let error = run(&["/nowhere/mpirun".into()], Streams::Own).unwrap_err().to_string();
        assert!(error.contains("/nowhere/mpirun"), "{error}");
    }

    #[test]
    fn a_process_that_is_left_behind_with_the_output_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        // The process ends when the folder is removed.
        let behind = format!("(while [ -e {} ]; do sleep 0.01; done) &", folder.path().display());
        let script = sh(&format!("{behind} {WHY}; exit 3"));
        let (stop, streams) = (StopRequest::default(), Streams::Watched);
        let (outcome, cause) = run(&script, LauncherKind::Alone, MPI, streams, &stop).unwrap();
        assert_eq!((outcome.code, cause.unwrap().text), (3, "why".to_owned()));
    }

    #[test]
    fn srun_gets_the_signal_that_it_passes_on_and_then_one_that_ends_it() {
        use LauncherKind::{Mpirun, Srun};
        for (launcher, signals, expected) in [
            (Srun, &[Signal::INT][..], "USR1"),
            (Srun, &[Signal::INT, Signal::INT], "USR1 TERM"),
            (Mpirun, &[Signal::USR1], "USR1"),
            (Mpirun, &[Signal::USR2], "USR1"),
            (Mpirun, &[Signal::HUP, Signal::HUP], "USR1 TERM"),
            (Mpirun, &[Signal::QUIT], "USR1"),
            (Srun, &[Signal::HUP], "USR1"),
            (Mpirun, &[Signal::TERM, Signal::TERM], "TERM TERM"),
        ] {
            // No case forwards SIGINT: a shell in the background ignores SIGINT, and cannot trap it.
            let folder = tempfile::tempdir().unwrap();
            let (seen, stop) = (folder.path().join("seen"), StopRequest::default());
            // SIGUSR1 may be sent again, so the script notes it once.
            let script = format!(
                "trap 'grep -q USR1 {0} || echo USR1 >>{0}' USR1; trap 'echo TERM >>{0}' TERM; echo ready >{0}; \
                 while [ $(wc -l <{0}) -le {1} ]; do sleep 0.01; done; exit 75",
                seen.display(),
                signals.len()
            );
            let job = {
                let stop = stop.clone();
                std::thread::spawn(move || run(&sh(&script), launcher, MPI, Streams::Own, &stop))
            };
            let lines = || std::fs::read_to_string(&seen).unwrap_or_default().lines().count();
            for (at, signal) in signals.iter().enumerate() {
                while lines() <= at {
                    std::thread::sleep(TICK);
                }
                stop.request(signal.as_raw());
            }
            let (outcome, _) = job.join().unwrap().unwrap();
            assert_eq!(outcome, Outcome { code: 75, stopped: true });
            let seen = std::fs::read_to_string(&seen).unwrap();
            assert_eq!(seen.split_whitespace().skip(1).collect::<Vec<_>>().join(" "), expected);
        }
    }
}
