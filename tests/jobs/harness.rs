//! Starts real jobs under mpirun and reads their run directories.

use std::borrow::BorrowMut;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

pub use crate::lab::*;

/// Path of an example, which cargo builds with the tests.
pub fn example(name: &str) -> String {
    Path::new(binary()).with_file_name("examples").join(name).to_str().expect("a UTF-8 path").to_owned()
}

/// A job of `ranks` ranks of `program`. One rank starts without mpirun, which is faster; a setting keeps Open
/// MPI from starting a daemon.
pub fn on_ranks(ranks: usize, program: &str) -> Command {
    if ranks > 1 {
        return mpirun(ranks, program);
    }
    let mut command = Command::new(program);
    command.env_remove("RUST_LOG").env("OMPI_MCA_ess_singleton_isolated", "1");
    command
}

/// A job of two ranks, each with its own command: mpirun starts one program for each part between colons.
pub fn side_by_side(first: &Command, second: &Command) -> Command {
    let mut job = mpirun(1, first.get_program().to_str().expect("a UTF-8 path"));
    job.args(first.get_args()).args([":", "-n", "1"]).arg(second.get_program()).args(second.get_args());
    job
}

/// `mpirun` with `ranks` ranks of `program`, bound as in the make targets. A rank that waits yields its core
/// to the ranks of tests that run at the same time.
pub fn mpirun(ranks: usize, program: &str) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut command = Command::new("mpirun");
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env_remove("RUST_LOG")
        .args(["-n", &ranks.to_string(), "--bind-to"]);
    if ranks > cores {
        command.args(["core:overload-allowed", "--oversubscribe"])
    } else {
        command.arg("core")
    };
    command.arg(program);
    command
}

impl Lab {
    /// A training of `ranks` ranks on the digits with `options`, into the run directory `name`.
    pub fn command(&self, ranks: usize, name: &str, options: &[&str]) -> Command {
        let mut command = on_ranks(ranks, binary());
        command.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(self.path(name)).args(options);
        command
    }

    /// Starts a job. Its standard error can be read while it runs.
    pub fn start(&self, mut command: Command) -> Running {
        let lines = tempfile::NamedTempFile::new_in(self.root.path()).expect("a file");
        let file = lines.reopen().expect("the file is there");
        let job = command.stdout(Stdio::piped()).stderr(file).spawn().expect("the job starts");
        Running { job, lines: Lines(lines) }
    }

    /// Runs the training of `command` to its end, and returns its `run.json`.
    pub fn train(&self, ranks: usize, name: &str, options: &[&str]) -> Value {
        let output = run(self.command(ranks, name, options));
        assert!(output.status.success(), "{}", text(&output));
        self.completed(name)
    }
}

/// A job that [`Lab::start`] has started.
pub struct Running {
    pub job: Child,
    lines: Lines,
}

/// The file of a job's standard error. It is shown if the test fails.
struct Lines(tempfile::NamedTempFile);

impl Lines {
    fn read(&self) -> Vec<u8> {
        std::fs::read(self.0.path()).expect("the file is there")
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", String::from_utf8_lossy(&self.read()));
        }
    }
}

impl Running {
    /// Waits until the job prints a line that contains all `words`. Returns false if the job ends before
    /// that.
    pub fn prints(&mut self, words: &[&str]) -> bool {
        let Self { job, lines } = self;
        let is_printed = || {
            let text = lines.read();
            let text = String::from_utf8_lossy(&text);
            text.lines().any(|line| words.iter().all(|word| line.contains(word)))
        };
        let mut ended = || job.try_wait().expect("the job's state can be read").is_some();
        wait_for(&format!("a line with {words:?}"), || is_printed() || ended());
        is_printed()
    }

    /// Waits until the job prints a line that contains all `words`. Panics if the job ends before that.
    pub fn wait_for_line(&mut self, words: &[&str]) {
        assert!(self.prints(words), "the job ended before a line with {words:?}");
    }

    /// Waits for the end of the job.
    pub fn ended(self) -> Output {
        let output = ended(self.job);
        Output { stderr: self.lines.read(), ..output }
    }
}

/// mpirun's lines about ranks that a signal ended.
pub fn notices(output: &Output) -> Vec<String> {
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    lines.lines().filter(|l| l.starts_with("mpirun noticed that process rank ")).map(Into::into).collect()
}

/// A deadline of collectives in seconds, for jobs that must end without it. A job that waits for it exceeds
/// the limit of tests.
pub const HOUR: &str = "3600";

/// Waits for the end of a job that was started with pipes, and reads its output.
pub fn ended(job: Child) -> Output {
    let pid = job.id();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(job.wait_with_output()));
    let output = ended.recv_timeout(limit()).unwrap_or_else(|_| {
        // The test fails: show what the job has printed so far.
        for pid in all_below(pid.into()) {
            kill(pid, "-KILL");
        }
        match ended.recv_timeout(limit()) {
            Ok(Ok(output)) => panic!("the job hangs: {}", text(&output)),
            _ => panic!("the job hangs, and its pipes stay open"),
        }
    });
    output.expect("its output can be read")
}

/// Runs `command` to its end.
pub fn run(mut command: impl BorrowMut<Command>) -> Output {
    let command = command.borrow_mut().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    ended(command.spawn().expect("the command starts"))
}

/// Runs `command`, which must fail, and must end without being killed.
pub fn must_fail(mut command: Command) -> Output {
    // mpirun kills the other ranks of a failed job. By default it sends SIGTERM and then sleeps for
    // a second, even if all of them have ended.
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "0");
    let output = run(command);
    assert!(!output.status.success(), "it should have failed: {}", text(&output));
    output
}

/// Waits until `ready` returns true. Panics if `child` ends before that.
pub fn wait_until(child: &mut Child, what: &str, ready: impl Fn() -> bool) {
    wait_for(what, || {
        // The state of `child` is read before `ready`, so that `ready` also sees what an ended job left
        // behind.
        let ended = child.try_wait().expect("the job's state can be read");
        let ready = ready();
        assert!(ready || ended.is_none(), "the job ended before {what}: {ended:?}");
        ready
    });
}

/// The processes that a process has started.
pub fn children(pid: u64) -> Vec<u64> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// A process and all its descendants; the process is the first.
pub fn all_below(pid: u64) -> Vec<u64> {
    [pid].into_iter().chain(children(pid).into_iter().flat_map(all_below)).collect()
}

/// Sends a signal to a process; returns false if there is no such process.
pub fn kill(pid: u64, signal: &str) -> bool {
    Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill starts").success()
}

/// Sends a signal, such as `-KILL`, to a process.
pub fn signal(pid: impl Into<u64>, signal: &str) {
    let pid = pid.into();
    assert!(kill(pid, signal), "{signal} to {pid}");
}

/// Ends a job at once, as a power failure does: the ranks and mpirun together. Ranks notice the loss of
/// mpirun only after 2 to 3 seconds, and a fast machine could complete the run in that time.
pub fn kill_all(mut job: Child) {
    assert!(job.try_wait().expect("the job's state can be read").is_none(), "the job has ended");
    let all = all_below(job.id().into());
    let shared: Vec<PathBuf> = all.iter().flat_map(shared_memory).collect();
    let killed = Command::new("kill").arg("-KILL").args(all.iter().map(u64::to_string)).status();
    assert!(killed.expect("kill starts").success(), "{all:?}");
    job.wait().expect("the job was started here");
    let runs = |pid: &u64| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    wait_for("the end of killed ranks", || !all.iter().any(runs));
    // Nobody else removes these files. A rank has removed some of them already, after mapping them.
    shared.iter().for_each(|file| drop(std::fs::remove_file(file)));
}

/// The shared memory files that a process of Open MPI has mapped.
fn shared_memory(pid: &u64) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files.filter(|file| file.starts_with("/dev/shm/")).map(PathBuf::from).collect()
}
