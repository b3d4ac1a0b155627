//! Passes a job's standard error on, and keeps the line with the cause of its end.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ChildStderr;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;

use super::{explain, quirks};

/// Lines at most this far apart are of one fault: its first one is the cause, those after it come
/// from other ranks that notice the loss, the last guard some 20 s later.
const TOGETHER: Duration = Duration::from_secs(30);
/// Longest line that is kept, in bytes.
const LONGEST: usize = 1000;
/// Reads of one turn: more than a pipe holds.
const READS: usize = 16;

/// A job's standard error, which is copied to this process's own.
pub(super) struct Watched {
    stderr: ChildStderr,
    scan: Scan,
}

impl Watched {
    /// `waits` are parts of the lines of ranks that wait, which may end well.
    pub(super) fn new(stderr: ChildStderr, waits: &'static [&'static str]) -> Self {
        // So that an empty pipe is seen: a process that the launcher left behind may hold it open.
        let _ = ioctl_fionbio(&stderr, true);
        Self { stderr, scan: Scan { waits, ..Scan::default() } }
    }

    /// Copies what has come since the last call, unchanged.
    pub(super) fn pass_on(&mut self) {
        let mut bytes = [0; 1 << 16];
        for _ in 0..READS {
            match self.stderr.read(&mut bytes) {
                Ok(0) => return,
                Ok(read) => {
                    // A closed standard error of this process must not block the job.
                    let _ = io::stderr().lock().write_all(&bytes[..read]);
                    self.scan.add(&bytes[..read], Instant::now());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// How long ago the launcher said that a process ended, upon which it ends the job.
    pub(super) fn gone_for(&self) -> Option<Duration> {
        self.scan.gone.map(|at| at.elapsed())
    }

    /// The cause, after the job has ended.
    pub(super) fn cause(self) -> Option<String> {
        self.scan.held.map(|held| held.text)
    }
}

/// A line that may be the cause.
#[derive(Debug)]
struct Held {
    text: String,
    weight: u8,
}

/// Finds the line with the cause in a job's output.
#[derive(Debug, Default)]
struct Scan {
    waits: &'static [&'static str],
    line: Vec<u8>,
    held: Option<Held>,
    last: Option<Instant>,
    /// When the launcher said that a process ended.
    gone: Option<Instant>,
}

/// Weights, from a wait that may end well, over what another rank noticed of a fault and a launcher's
/// line on it, to an error of this program.
const WAIT: u8 = 0;
const NOTICED: u8 = 1;
const LAUNCHER: u8 = 2;
const ERROR: u8 = 3;

/// Whether Open MPI's mpirun says that it aborts the job, without a cause.
fn aborts(line: &str) -> bool {
    line.trim().starts_with("Primary job ") && line.contains(" terminated normally, but ")
}

/// The cause of the end of a job, if it is this line, and its weight.
fn classify<'l>(line: &'l str, waits: &[&str]) -> Option<(&'l str, u8)> {
    let line = line.trim().trim_end_matches('.');
    if let Some(error) = line.strip_prefix("mpiburn: ").or_else(|| line.strip_prefix("error: ")) {
        let closed = ["Connection closed by peer", "Connection reset by peer", "Broken pipe"];
        let weight = match error {
            error if waits.iter().any(|wait| error.contains(wait)) => WAIT,
            error if closed.iter().any(|closed| error.contains(closed)) => NOTICED,
            _ => ERROR,
        };
        return Some((error, weight));
    }
    if let Some(error) = line.strip_prefix("srun: error: ") {
        return Some((line, if quirks::ends_task(error) { LAUNCHER } else { NOTICED }));
    }
    // Its name is that of its file, such as mpirun.openmpi.
    let of_launcher = (line.starts_with("mpirun") && line.contains(" noticed that process rank "))
        || line.contains("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
        || line.starts_with("srun: fatal: ")
        || quirks::LOST_HOST.iter().any(|lost| line.starts_with(lost));
    let text = line.trim_matches(|c: char| c == '=' || c == ' ');
    of_launcher.then_some((text, LAUNCHER))
}

impl Scan {
    fn add(&mut self, bytes: &[u8], now: Instant) {
        for &byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    self.end_line(&String::from_utf8_lossy(&line), now);
                }
                _ if self.line.len() < LONGEST => self.line.push(byte),
                _ => {}
            }
        }
    }

    fn end_line(&mut self, line: &str, now: Instant) {
        if aborts(line) {
            self.gone.get_or_insert(now);
        }
        let Some((text, weight)) = classify(line, self.waits) else { return };
        if weight == WAIT {
            // No fault yet, or none of its own.
            self.held.get_or_insert_with(|| Held { text: text.to_owned(), weight });
            return;
        }
        // After a launcher's line there is no other fault, only the rest of its ranks, which srun ends
        // 12 s later with a line each.
        let apart = self.gone.is_none() && self.last.is_none_or(|last| now.duration_since(last) > TOGETHER);
        self.last = Some(now);
        // A process has ended, upon which the launcher ends the job.
        if weight == LAUNCHER {
            self.gone.get_or_insert(now);
        }
        if apart || self.held.as_ref().is_none_or(|held| held.weight < weight) {
            self.held = Some(Held { text: text.to_owned(), weight });
        }
    }
}

/// The line of a log with the reason of a failure: the program's error, or else the
/// first line of mpirun's framed message, or srun's error.
pub fn cause_in(log: &Path, code: i32) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let own =
        text.lines().rev().find_map(|line| line.strip_prefix("mpiburn: ").or(line.strip_prefix("error: ")));
    let mut lines = text.lines().skip_while(|line| !line.starts_with("-----"));
    let framed = lines.find(|line| !line.starts_with('-') && !line.trim().is_empty());
    let of_srun = text
        .lines()
        .rev()
        .find(|line| line.starts_with("srun: fatal: ") || line.starts_with("srun: error: "));
    own.or(framed).or(of_srun).map_or_else(|| explain(code, None), |line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_first_error_of_the_last_fault() {
        let (mut scan, start) = (Scan { waits: &["has waited for"], ..Scan::default() }, Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let held = |scan: &Scan| scan.held.as_ref().map(|held| held.text.clone());
        scan.add(b"epoch 1 step 3\nmpiburn: cannot write to stdout: full\n", at(0));
        assert_eq!(held(&scan).as_deref(), Some("cannot write to stdout: full"));
        scan.add(b"mpiburn: rank 0 has waited for 60 s in mpi sum\n", at(100));
        scan.add(
            b"mpirun.openmpi noticed that process rank 1 with PID 7 exited on signal 9 (Killed).\n",
            at(101),
        );
        assert!(held(&scan).unwrap().ends_with("signal 9 (Killed)"));
        scan.add(b"mpiburn: rank 0: gloo all-reduce failed: Connection reset by peer\n", at(102));
        assert!(held(&scan).unwrap().ends_with("signal 9 (Killed)") && scan.gone == Some(at(101)));
        scan.add(b"mpiburn: loss is ", at(102));
        scan.add(b"NaN\nmpiburn: rank 0 has left the job\n", at(103));
        assert_eq!(held(&scan).as_deref(), Some("loss is NaN"));
        scan.add(&vec![b'x'; 5000], at(104));
        assert_eq!(scan.line.len(), LONGEST);
        scan.add(b"\n", at(104));
        assert_eq!(held(&scan).as_deref(), Some("loss is NaN"));
    }

    #[test]
    fn ranks_that_srun_ends_later_are_not_the_cause() {
        let (mut scan, now) = (Scan::default(), Instant::now());
        scan.add(b"mpiburn: cannot write to stdout: full\n", now);
        let killed = now + Duration::from_secs(100);
        scan.add(b"srun: error: node1: task 1: Killed\n", killed);
        scan.add(b"srun: error: node0: task 0: Killed\n", killed + Duration::from_secs(12));
        assert_eq!(scan.held.unwrap().text, "srun: error: node1: task 1: Killed");
    }

    #[test]
    fn sruns_other_errors_end_nothing() {
        let (mut scan, now) = (Scan::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        scan.add(b"srun: error: spank: x11.so: Plugin file not found\n", now);
        scan.add(b"srun: error: unpack_header: protocol_version 65363 not supported\n", at(50));
        assert_eq!(scan.gone, None);
        scan.add(b"srun: error: node1: tasks 2-3: Out Of Memory\n", at(90));
        assert_eq!(scan.gone, Some(at(90)));
        assert!(scan.held.unwrap().text.ends_with("Out Of Memory"));
        let mut scan = Scan::default();
        scan.add(b"srun: error: res_nsearch error: Unknown host\nsrun: fatal: Could not start\n", now);
        assert_eq!(scan.held.unwrap().text, "srun: fatal: Could not start");
    }

    #[test]
    fn what_a_rank_says_of_its_way_out_is_not_the_cause() {
        let waits = &["MPI_Finalize did not return"];
        let (mut scan, now) = (Scan { waits, ..Scan::default() }, Instant::now());
        scan.add(b"mpiburn: loss is NaN\n", now);
        let later = now + Duration::from_secs(20);
        scan.add(b"mpiburn: MPI_Finalize did not return; exiting after 20 s\n", later);
        assert_eq!(scan.held.unwrap().text, "loss is NaN");
    }

    #[test]
    fn an_aborted_job_and_a_lost_host_are_the_end() {
        let (mut scan, now) = (Scan::default(), Instant::now());
        scan.add(b"mpiburn: the start of MPI exceeded the deadline of 4 s\n", now);
        assert_eq!(scan.gone, None);
        scan.add(b"Primary job  terminated normally, but 1 process returned\na non-zero exit code.\n", now);
        assert_eq!(scan.gone, Some(now));
        assert!(scan.held.unwrap().text.starts_with("the start of MPI"));
        let mut scan = Scan::default();
        scan.add(b"ORTE was unable to reliably start one or more daemons.\n", now);
        assert_eq!(scan.gone, Some(now));
        assert_eq!(scan.held.unwrap().text, "ORTE was unable to reliably start one or more daemons");
    }

    #[test]
    fn the_reason_is_the_programs_error_or_the_launchers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reason_of = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            cause_in(file.path(), 1)
        };
        assert_eq!(reason_of("srun: error: x\n-----\nframed\n-----\nmpiburn: own\n"), "own");
        assert_eq!(reason_of("a\n-----\n\nframed\n-----\nsrun: error: x\n"), "framed");
        assert_eq!(reason_of("srun: error: a\nsrun: fatal: no cluster\nbye\n"), "srun: fatal: no cluster");
        assert_eq!(reason_of("bye\n"), explain(1, None));
    }
}
