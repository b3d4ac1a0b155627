//! Running a launcher to its end.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::LaunchError;
use crate::stop::StopRequest;

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The launcher's exit code; 128 and a signal's number if that ended it.
    pub code: i32,
    /// Whether this process was asked to stop, and passed that on.
    pub stopped: bool,
}

/// How often a job is looked at.
const TICK: Duration = Duration::from_millis(50);

/// Runs `command` to its end and passes on to it the signals that come in, so
/// that ranks get the time to write a checkpoint. With `log`, what it prints
/// goes there.
///
/// # Errors
/// When it does not start.
pub fn run(
    command: &[String],
    variables: &[(&str, &str)],
    log: Option<std::fs::File>,
    stop: &StopRequest,
) -> Result<Outcome, LaunchError> {
    let failed = |reason: io::Error| LaunchError::Start { command: command.join(" "), reason };
    let mut job = Command::new(&command[0]);
    // A group of its own: a terminal's Ctrl-C comes here alone, once, and is
    // passed on; mpirun takes a second one as "at once".
    job.args(&command[1..]).envs(variables.iter().copied()).stdin(Stdio::null()).process_group(0);
    if let Some(log) = log {
        job.stdout(log.try_clone().map_err(failed)?).stderr(log);
    }
    let mut child = job.spawn().map_err(failed)?;
    let mut passed_on = false;
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Outcome { code: code(status), stopped: passed_on });
        }
        if let (false, Some(signal)) = (passed_on, stop.number()) {
            pass_on(&child, signal);
            passed_on = true;
        }
        std::thread::sleep(TICK);
    }
}

fn pass_on(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, Signal::from_named_raw(signal)) {
        // It may have ended meanwhile; then there is nobody to tell.
        let _ = kill_process(pid, signal);
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// What an exit code of a launcher or of its ranks means, and what to do.
pub fn explain(code: i32) -> String {
    let meaning = match code {
        2 => "an option that mpiburn does not know, or a value that it cannot take",
        3 => "a collective exceeded its deadline (--comm-timeout); what is saved is good: --resume goes on",
        75 => "stopped with a checkpoint: --resume goes on",
        126 => "the program cannot be executed on one of the hosts; look at mpirun's lines above",
        127 => "a program is missing on one of the hosts; make deploy puts it there",
        137 => "a rank was killed, often for want of memory; --resume goes on from the last checkpoint",
        205 => "a node is gone or cut off; when it is back, --resume goes on from the last checkpoint",
        _ => "look at the lines above",
    };
    format!("the job ended with code {code}: {meaning}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(ToString::to_string).to_vec()
    }

    #[test]
    fn exit_codes_and_output_come_back() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let file = log.reopen().unwrap();
        let stop = StopRequest::default();
        let outcome = run(&sh("echo $WHO; echo two >&2; exit 75"), &[("WHO", "one")], Some(file), &stop);
        assert_eq!(outcome.unwrap(), Outcome { code: 75, stopped: false });
        assert_eq!(std::fs::read_to_string(log.path()).unwrap(), "one\ntwo\n");
        assert!(explain(75).contains("--resume"));
        let outcome = run(&sh("kill -KILL $$"), &[], None, &stop).unwrap();
        assert_eq!(outcome.code, 137);
        let error = run(&["/nowhere/mpirun".into()], &[], None, &stop).unwrap_err().to_string();
        assert!(error.contains("/nowhere/mpirun"), "{error}");
    }
}
