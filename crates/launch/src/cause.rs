//! Copies a job's standard error to the standard error of this process, and finds the line that says why the
//! job ended.
//!
//! If one rank fails, other ranks notice and print lines as well, and so does the launcher (mpirun or srun).
//! Under `launch --restart`, ranks mark these lines with a tag, which names the [`Kind`] of the line. Lines
//! of launchers have no tags; their words tell their kind. Of the lines about one fault, the first line of
//! the greatest kind is the cause.

use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ChildStderr;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionbio;

use super::{explain, quirks};

/// Maximum time between two lines about the same fault. The first line is the error of a rank. Other ranks
/// report the loss of this rank later: the last of them does so some 20 s after the error.
const TOGETHER: Duration = Duration::from_secs(30);
/// Maximum number of bytes that are kept of a line.
const LONGEST: usize = 1000;
/// Maximum number of reads in one call of [`Watched::pass_on`]. These reads together can take more bytes than
/// a pipe holds, so one call empties the pipe.
const READS: usize = 16;

/// Byte before a rank's tag, as in `burn_mpi::internals::messages`.
const TAG: u8 = 0x1e;
/// Byte between the tag of a line and its text.
const TEXT: u8 = 0x1f;
/// Maximum number of bytes between [`TAG`] and [`TEXT`]. A longer tag, or a tag with an unknown kind, counts
/// as text.
const LONGEST_TAG: usize = 16;
/// The word in the tag of a line that says: this rank fails, because another process uses the run directory.
pub const IN_USE: &str = "in-use";

/// What a line says about the end of a job. Kinds are in ascending order: of the lines about one fault, the
/// first line of the greatest kind is the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A rank waits. The wait may still end well.
    Waits,
    /// A rank notices another rank's fault, or srun prints an error that is not about the end of a task.
    Noticed,
    /// The launcher announces the end of the job, for example because a process ended or a host was lost.
    Launcher,
    /// A rank fails.
    Failed,
    /// A rank fails because another process uses the run directory.
    InUse,
}

impl Kind {
    /// Parses the text of a tag between [`TAG`] and [`TEXT`], such as `failed: `.
    fn from_tag(tag: &[u8]) -> Option<Self> {
        match str::from_utf8(tag).ok()?.strip_suffix(": ")? {
            "waits" => Some(Self::Waits),
            "noticed" => Some(Self::Noticed),
            "failed" => Some(Self::Failed),
            IN_USE => Some(Self::InUse),
            _ => None,
        }
    }
}

/// The cause of the end of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// What the line says about the end of the job.
    pub kind: Kind,
    /// The text of the line, without the name of the program and the tag.
    pub text: String,
}

/// A job's standard error, which is copied to the standard error of this process.
pub(super) struct Watched {
    stderr: ChildStderr,
    scan: Scan,
}

impl Watched {
    pub(super) fn new(stderr: ChildStderr) -> Self {
        // Reads must not block: a process that the launcher left behind may hold the pipe open.
        let _ = ioctl_fionbio(&stderr, true);
        Self { stderr, scan: Scan::default() }
    }

    /// Copies the output since the last call, without tags.
    pub(super) fn pass_on(&mut self) {
        let mut bytes = [0; 1 << 16];
        for _ in 0..READS {
            match self.stderr.read(&mut bytes) {
                Ok(0) => return,
                Ok(read) => {
                    let text = self.scan.add(&bytes[..read], Instant::now());
                    // The job continues even if the standard error of this process is closed.
                    let _ = io::stderr().lock().write_all(&text);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    /// Returns how long ago the launcher announced the end of the job; `None` if it has not.
    pub(super) fn gone_for(&self) -> Option<Duration> {
        self.scan.gone.map(|at| at.elapsed())
    }

    /// Copies the bytes that were kept back as a possible tag, and returns the cause. Call it after the job
    /// has ended.
    pub(super) fn cause(mut self) -> Option<Cause> {
        let _ = io::stderr().lock().write_all(&self.scan.take_no_tag(Instant::now()));
        self.scan.held
    }
}

/// Finds the line with the cause in a job's output.
#[derive(Debug, Default)]
struct Scan {
    /// The current line so far; after a tag, only the text that follows it.
    line: Vec<u8>,
    /// The bytes of a tag that is not complete, starting with [`TAG`]; empty outside of a tag.
    tag: Vec<u8>,
    /// The kind of the current line, if it has a tag.
    kind: Option<Kind>,
    /// The cause so far.
    held: Option<Cause>,
    /// When the last line about a fault came.
    last: Option<Instant>,
    /// When the launcher announced the end of the job.
    gone: Option<Instant>,
}

/// Returns whether Open MPI's mpirun announces in this line that it aborts the job. The line does not say
/// why, so it cannot be the cause.
fn aborts(line: &str) -> bool {
    line.trim().starts_with("Primary job ") && line.contains(" terminated normally, but ")
}

/// Returns the kind of a launcher's line about a fault; `None` for any other line.
fn kind_of_launchers(line: &str) -> Option<Kind> {
    if let Some(error) = line.strip_prefix("srun: error: ") {
        return Some(if quirks::ends_task(error) { Kind::Launcher } else { Kind::Noticed });
    }
    // mpirun's lines begin with the name of its executable, such as mpirun.openmpi.
    let tells = (line.starts_with("mpirun") && line.contains(" noticed that process rank "))
        || line.contains("BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES")
        || line.starts_with("srun: fatal: ")
        || quirks::LOST_HOST.iter().any(|lost| line.starts_with(lost));
    tells.then_some(Kind::Launcher)
}

impl Scan {
    /// Takes the next bytes of the output, and returns them without tags. Keeps back a tag that is not
    /// complete yet.
    fn add(&mut self, bytes: &[u8], now: Instant) -> Vec<u8> {
        let mut text = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            let in_tag = !self.tag.is_empty();
            if in_tag
                && byte == TEXT
                && let Some(kind) = Kind::from_tag(&self.tag[1..])
            {
                self.kind = Some(kind);
                self.tag.clear();
                self.line.clear();
            } else if in_tag && self.tag.len() <= LONGEST_TAG && ![TAG, TEXT, b'\n'].contains(&byte) {
                self.tag.push(byte);
            } else {
                text.extend(self.take_no_tag(now));
                if byte == TAG {
                    self.tag.push(byte);
                } else {
                    text.push(byte);
                    self.end_or_add(byte, now);
                }
            }
        }
        text
    }

    /// Returns the bytes that were kept back and did not become a tag.
    fn take_no_tag(&mut self, now: Instant) -> Vec<u8> {
        let bytes = std::mem::take(&mut self.tag);
        bytes.iter().for_each(|&byte| self.end_or_add(byte, now));
        bytes
    }

    fn end_or_add(&mut self, byte: u8, now: Instant) {
        if byte == b'\n' {
            let (line, kind) = (std::mem::take(&mut self.line), self.kind.take());
            self.end_line(&String::from_utf8_lossy(&line), kind, now);
        } else if self.line.len() < LONGEST {
            self.line.push(byte);
        }
    }

    fn end_line(&mut self, line: &str, kind: Option<Kind>, now: Instant) {
        if aborts(line) {
            self.gone.get_or_insert(now);
        }
        let line = line.trim().trim_end_matches('.');
        // MPICH's mpirun frames its line with `=`.
        let of_launcher = || Some((kind_of_launchers(line)?, line.trim_matches(['=', ' '])));
        let Some((kind, text)) = kind.map(|kind| (kind, line)).or_else(of_launcher) else { return };
        let cause = Cause { kind, text: text.to_owned() };
        if kind == Kind::Waits {
            // The line of a rank that waits does not say which fault caused the wait. The line is kept only
            // until a line about a fault comes.
            self.held.get_or_insert(cause);
            return;
        }
        // All lines after the launcher's announcement are about the same fault: the launcher ends the
        // remaining ranks. srun does so 12 s later, and prints a line for each rank.
        let apart = self.gone.is_none() && self.last.is_none_or(|last| now.duration_since(last) > TOGETHER);
        self.last = Some(now);
        // Such a line announces the end of the job.
        if kind == Kind::Launcher {
            self.gone.get_or_insert(now);
        }
        if apart || self.held.as_ref().is_none_or(|held| held.kind < kind) {
            self.held = Some(cause);
        }
    }
}

/// Returns the line of a log with the reason of a failure: the program's last error, or else the first line
/// of mpirun's framed message, or else srun's last error. If the log has no such line, explains the exit
/// code.
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

    /// Makes a line of a rank, with a tag.
    fn tagged(kind: &str, text: &str) -> Vec<u8> {
        format!("mpiburn: \u{1e}{kind}: \u{1f}{text}\n").into_bytes()
    }

    #[test]
    fn the_cause_is_the_first_error_of_the_last_fault() {
        let (mut scan, start) = (Scan::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let held = |scan: &Scan| scan.held.as_ref().map(|held| held.text.clone());
        scan.add(b"epoch 1 step 3\n", at(0));
        scan.add(&tagged("failed", "the disk is full"), at(0));
        assert_eq!(held(&scan).as_deref(), Some("the disk is full"));
        scan.add(&tagged("waits", "mpi sum: rank 0 on alpha has waited for 60 s"), at(100));
        scan.add(
            b"mpirun.openmpi noticed that process rank 1 with PID 7 exited on signal 9 (Killed).\n",
            at(101),
        );
        assert!(held(&scan).unwrap().ends_with("signal 9 (Killed)"));
        scan.add(&tagged("noticed", "rank 0: gloo all-reduce failed: Connection reset by peer"), at(102));
        assert!(held(&scan).unwrap().ends_with("signal 9 (Killed)") && scan.gone == Some(at(101)));
        let line = tagged("failed", "loss is NaN");
        scan.add(&line[..20], at(102));
        scan.add(&line[20..], at(103));
        scan.add(&tagged("noticed", "rank 0 has left the job"), at(103));
        assert_eq!(held(&scan).as_deref(), Some("loss is NaN"));
        scan.add(&vec![b'x'; 5000], at(104));
        assert_eq!(scan.line.len(), LONGEST);
        scan.add(b"\n", at(104));
        assert_eq!(held(&scan).as_deref(), Some("loss is NaN"));
    }

    #[test]
    fn tags_are_taken_out_in_parts_of_any_length_and_nothing_else_is() {
        let output = [
            b"1: \x1e\x1b[1mno tag, which is too long\n".to_vec(),
            tagged("in-use", "runs/a is in use"),
            b"a \x1efail\n\x1efai".to_vec(),
            tagged("failed", "torn"),
            tagged("unknown", "b"),
            b"the end \x1efail".to_vec(),
        ];
        let output = output.concat();
        for length in [1, 2, 7, output.len()] {
            let mut scan = Scan::default();
            let mut shown: Vec<u8> =
                output.chunks(length).flat_map(|part| scan.add(part, Instant::now())).collect();
            shown.extend(scan.take_no_tag(Instant::now()));
            let shown = String::from_utf8(shown).unwrap();
            assert_eq!(
                shown,
                "1: \x1e\x1b[1mno tag, which is too long\nmpiburn: runs/a is in use\na \x1efail\n\x1efaimpiburn: torn\n\
                 mpiburn: \x1eunknown: \x1fb\nthe end \x1efail"
            );
            let cause = Cause { kind: Kind::InUse, text: "runs/a is in use".into() };
            assert_eq!(scan.held, Some(cause), "{length}");
        }
    }

    #[test]
    fn only_a_launchers_line_loses_its_frame() {
        let text_of = |output: &[u8]| {
            let mut scan = Scan::default();
            scan.add(output, Instant::now());
            scan.held.unwrap().text
        };
        assert_eq!(text_of(&tagged("failed", "cannot read lr=")), "cannot read lr=");
        let framed = "BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES";
        assert_eq!(text_of(format!("=   {framed}  =\n").as_bytes()), framed);
    }

    #[test]
    fn ranks_that_srun_ends_later_are_not_the_cause() {
        let (mut scan, now) = (Scan::default(), Instant::now());
        scan.add(&tagged("failed", "the disk is full"), now);
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
        let (mut scan, now) = (Scan::default(), Instant::now());
        scan.add(&tagged("failed", "loss is NaN"), now);
        let later = now + Duration::from_secs(20);
        scan.add(&tagged("waits", "MPI_Finalize did not return; exiting after 20 s"), later);
        assert_eq!(scan.held.unwrap().text, "loss is NaN");
    }

    #[test]
    fn an_aborted_job_and_a_lost_host_are_the_end() {
        let (mut scan, now) = (Scan::default(), Instant::now());
        scan.add(&tagged("failed", "the start of MPI exceeded the deadline of 4 s"), now);
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
