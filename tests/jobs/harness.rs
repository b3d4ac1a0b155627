//! Starts jobs and reads their run directories.

use std::borrow::BorrowMut;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A temporary folder for each test.
pub struct Lab {
    root: TempDir,
}

/// A small data set in MNIST's layout, generated once by the program of this build. It stays in the build
/// folder: nobody would remove a temporary one at the tests' end.
pub fn digits() -> &'static Path {
    static DATA: OnceLock<PathBuf> = OnceLock::new();
    DATA.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits");
        // Tests are processes that run side by side: one generates, the others wait for it.
        let done = File::options().create(true).append(true).open(root.with_extension("of")).unwrap();
        done.lock().expect("the file can be locked");
        let build = std::fs::metadata(binary()).and_then(|file| file.modified()).expect("the binary's age");
        let build = format!("{build:?}");
        if std::fs::read_to_string(root.with_extension("of")).unwrap() != build {
            let made = Command::new(binary())
                .args(["-q", "data", "digits", "--train", "6400", "--test", "500", "--overwrite", "--out"])
                .arg(&root)
                .status();
            assert!(made.expect("the binary starts").success());
            done.set_len(0).and_then(|()| (&done).write_all(build.as_bytes())).expect("it can be written");
        }
        root
    })
}

pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_mpiburn")
}

/// Path of an example, which cargo builds with the tests.
pub fn example(name: &str) -> String {
    Path::new(binary()).with_file_name("examples").join(name).to_str().expect("a UTF-8 path").to_owned()
}

/// A job of `ranks` ranks of `program`. One rank needs no mpirun, and its job is shorter without, if Open
/// MPI does not start a daemon for it.
pub fn on_ranks(ranks: usize, program: &str) -> Command {
    if ranks > 1 {
        return mpirun(ranks, program);
    }
    let mut command = Command::new(program);
    command.env_remove("RUST_LOG").env("OMPI_MCA_ess_singleton_isolated", "1");
    command
}

/// A job of two ranks with a command each: mpirun starts another program for each part between colons.
pub fn side_by_side(first: &Command, second: &Command) -> Command {
    let mut job = mpirun(1, first.get_program().to_str().expect("a UTF-8 path"));
    job.args(first.get_args()).args([":", "-n", "1"]).arg(second.get_program()).args(second.get_args());
    job
}

/// `mpirun` with `ranks` ranks of `program`, bound like in the make targets. Ranks that wait leave the core
/// to those of the test that runs beside.
pub fn mpirun(ranks: usize, program: &str) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut command = Command::new("mpirun");
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env_remove("RUST_LOG")
        .args(["-n", &ranks.to_string(), "--bind-to"]);
    match ranks > cores {
        true => command.args(["core:overload-allowed", "--oversubscribe"]),
        false => command.arg("core"),
    };
    command.arg(program);
    command
}

impl Lab {
    pub fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// A training of `ranks` ranks on the digits with `options`, into `name`.
    pub fn command(&self, ranks: usize, name: &str, options: &[&str]) -> Command {
        let mut command = on_ranks(ranks, binary());
        command.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(self.path(name)).args(options);
        command
    }

    /// Starts a job, whose standard error can be read while it runs.
    pub fn start(&self, mut command: Command) -> Running {
        let lines = tempfile::NamedTempFile::new_in(self.root.path()).expect("a file");
        let file = lines.reopen().expect("the file is there");
        let job = command.stdout(Stdio::piped()).stderr(file).spawn().expect("the job starts");
        Running { job, lines: Lines(lines) }
    }

    /// Runs that training to its end and returns its `run.json`.
    pub fn train(&self, ranks: usize, name: &str, options: &[&str]) -> Value {
        let output = run(self.command(ranks, name, options));
        assert!(output.status.success(), "{}", text(&output));
        let record = self.run_json(name);
        assert_eq!(record["status"], "completed");
        // Tests compare these between runs: two missing values would be equal.
        for name in ["weights_sha256", "test_loss", "test_accuracy", "train_loss", "train_accuracy"] {
            assert!(!record[name].is_null(), "{name} is missing in {record}");
        }
        record
    }

    pub fn run_json(&self, name: &str) -> Value {
        let file = self.path(name).join("run.json");
        serde_json::from_slice(&std::fs::read(&file).expect("run.json exists")).expect("run.json is JSON")
    }

    /// The number of steps that a run with `--note-steps` has done so far.
    pub fn step(&self, name: &str) -> usize {
        let noted = std::fs::read_to_string(self.path(name).join(".step"));
        noted.ok().and_then(|step| step.trim().parse().ok()).unwrap_or(0)
    }

    /// A curve of one rank as pairs of step and value.
    pub fn curve(&self, name: &str, rank: usize, curve: &str) -> Vec<(usize, f64)> {
        let file = self.path(name).join(format!("rank{rank}")).join(curve);
        let text = std::fs::read_to_string(file).expect("the curve exists");
        let pair = |line: &str| {
            let (step, value) = line.split_once(' ').expect("step and value");
            (step.parse().expect("a step"), value.parse().expect("a value"))
        };
        text.lines().map(pair).collect()
    }

    /// All weights of the last checkpoint, by name.
    pub fn weights(&self, name: &str) -> Vec<(String, Vec<f32>)> {
        let last = self.checkpoints(name).pop().expect("a checkpoint");
        let bytes = std::fs::read(last.join("model.safetensors")).expect("its weights");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let floats =
            |data: &[u8]| data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let mut all: Vec<_> = file.tensors().into_iter().map(|(n, t)| (n, floats(t.data()))).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// The largest difference between the weights of two runs.
    pub fn weights_apart(&self, a: &str, b: &str) -> f32 {
        let (a, b) = (self.weights(a), self.weights(b));
        let shapes = |all: &[(String, Vec<f32>)]| {
            all.iter().map(|(name, values)| (name.clone(), values.len())).collect::<Vec<_>>()
        };
        assert!(!a.is_empty());
        assert_eq!(shapes(&a), shapes(&b));
        let pairs = a.iter().zip(&b).flat_map(|((_, a), (_, b))| a.iter().zip(b));
        let differences: Vec<f32> = pairs.map(|(a, b)| (a - b).abs()).collect();
        // f32::max ignores NaN.
        assert!(differences.iter().all(|x| x.is_finite()), "non-finite weights");
        differences.into_iter().fold(0.0, f32::max)
    }

    /// Makes all checkpoints those of a version without manifests.
    pub fn remove_manifests(&self, name: &str) {
        for checkpoint in self.checkpoints(name) {
            std::fs::remove_file(checkpoint.join("manifest.json")).expect("a manifest");
            let file = checkpoint.join("state.json");
            let text = std::fs::read(&file).expect("state.json exists");
            let mut state: Value = serde_json::from_slice(&text).expect("state.json is JSON");
            state.as_object_mut().expect("an object").remove("manifest");
            std::fs::write(file, state.to_string()).expect("state.json can be written");
        }
    }

    /// Complete checkpoints, oldest first.
    pub fn checkpoints(&self, name: &str) -> Vec<PathBuf> {
        mpiburn::record::checkpoint::list(&self.path(name).join("checkpoints"))
    }
}

/// A job that [`Lab::start`] has started.
pub struct Running {
    pub job: Child,
    lines: Lines,
}

/// The file of its standard error, which is shown if the test fails.
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
    /// Waits until the job has printed a line that contains all `words`; `false` if it ends without.
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

    /// Waits until the job has printed a line that contains all `words`.
    pub fn wait_for_line(&mut self, words: &[&str]) {
        assert!(self.prints(words), "the job ended before a line with {words:?}");
    }

    /// Waits for its end.
    pub fn ended(self) -> Output {
        let output = ended(self.job);
        Output { stderr: self.lines.read(), ..output }
    }
}

/// Output of a command, for messages of assertions.
pub fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Error lines of the program, without mpirun's.
pub fn errors(output: &Output) -> Vec<String> {
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    lines.lines().filter(|l| l.starts_with("mpiburn: ") || l.starts_with("error: ")).map(Into::into).collect()
}

/// mpirun's line on a rank that a signal ended.
pub fn notices(output: &Output) -> Vec<String> {
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    lines.lines().filter(|l| l.starts_with("mpirun noticed that process rank ")).map(Into::into).collect()
}

/// The one limit of tests, against hanging alone: no job takes nearly as long, on a busy machine either.
/// Scripts in shell and Python read the same file.
pub fn limit() -> Duration {
    Duration::from_secs(include_str!("../limit_s").trim().parse().expect("a number of seconds"))
}

/// A deadline of collectives, in seconds, for jobs that have to end without it: one that waits for it
/// exceeds the limit.
pub const HOUR: &str = "3600";

/// Waits for the end of a job that was started with pipes, and reads its output.
pub fn ended(job: Child) -> Output {
    let pid = job.id();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(job.wait_with_output()));
    let output = ended.recv_timeout(limit()).unwrap_or_else(|_| {
        // What it has printed so far is the best that there is to say.
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

/// Runs `command`, which has to fail by itself.
pub fn must_fail(mut command: Command) -> Output {
    // mpirun kills the other ranks of a failed job. By default it sends SIGTERM and then sleeps for
    // a second, even if all of them have ended.
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "0");
    let output = run(command);
    assert!(!output.status.success(), "it should have failed: {}", text(&output));
    output
}

/// Waits until `ready`.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < limit(), "{what}: waited for {} s", limit().as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `ready`, while `child` runs.
pub fn wait_until(child: &mut Child, what: &str, ready: impl Fn() -> bool) {
    wait_for(what, || {
        // Asked first: what a job that has ended left behind is seen too.
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

/// A process and all that it has started, itself first.
fn all_below(pid: u64) -> Vec<u64> {
    [pid].into_iter().chain(children(pid).into_iter().flat_map(all_below)).collect()
}

/// Sends a signal to a process; returns whether that was there.
pub fn kill(pid: u64, signal: &str) -> bool {
    Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill starts").success()
}

/// Sends a signal, as `-KILL`, to a process.
pub fn signal(pid: impl Into<u64>, signal: &str) {
    let pid = pid.into();
    assert!(kill(pid, signal), "{signal} to {pid}");
}

/// Ends a job at once, as a power failure does: its ranks, and mpirun with them. Ranks that lose mpirun alone
/// notice after 2 to 3 seconds, in which a fast machine completes the run.
pub fn kill_all(mut job: Child) {
    assert!(job.try_wait().expect("the job's state can be read").is_none(), "the job has ended");
    let all = all_below(job.id().into());
    let shared: Vec<PathBuf> = all.iter().flat_map(shared_memory).collect();
    let killed = Command::new("kill").arg("-KILL").args(all.iter().map(u64::to_string)).status();
    assert!(killed.expect("kill starts").success(), "{all:?}");
    job.wait().expect("the job was started here");
    let runs = |pid: &u64| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    wait_for("the end of killed ranks", || !all.iter().any(runs));
    // Nobody else removes it. Some is removed already, as ranks map it.
    shared.iter().for_each(|file| drop(std::fs::remove_file(file)));
}

/// Files of shared memory that a process of Open MPI has mapped.
fn shared_memory(pid: &u64) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files.filter(|file| file.starts_with("/dev/shm/")).map(PathBuf::from).collect()
}
