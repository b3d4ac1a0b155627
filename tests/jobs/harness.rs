//! Starts jobs and reads their run directories.

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

/// A small data set in MNIST's layout, generated once by the program. It stays in the build folder: nobody
/// would remove a temporary one at the tests' end.
pub fn digits() -> &'static Path {
    static DATA: OnceLock<PathBuf> = OnceLock::new();
    DATA.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits");
        let made = Command::new(binary())
            .args(["-q", "data", "digits", "--train", "6400", "--test", "500", "--overwrite", "--out"])
            .arg(&root)
            .status()
            .expect("the binary starts");
        assert!(made.success());
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

/// `mpirun` with `ranks` ranks of `program`, bound like in the make targets.
pub fn mpirun(ranks: usize, program: &str) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut command = Command::new("mpirun");
    command
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
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
        let mut command = mpirun(ranks, binary());
        command.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(self.path(name)).args(options);
        command
    }

    /// Runs that training to its end and returns its `run.json`.
    pub fn train(&self, ranks: usize, name: &str, options: &[&str]) -> Value {
        let output = self.command(ranks, name, options).output().expect("mpirun starts");
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

/// Runs `command`, which must fail by itself within `limit`.
pub fn fails_within(limit: Duration, mut command: Command) -> Output {
    // mpirun kills the other ranks of a failed job. By default it sends SIGTERM and then sleeps for
    // a second, even if all of them have ended.
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "0");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
    let (started, pid) = (Instant::now(), child.id().to_string());
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    let output = ended.recv_timeout(limit).unwrap_or_else(|_| {
        // A hanging job is killed, so that the test fails instead of hanging.
        let _ = Command::new("kill").arg(&pid).status();
        ended.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("{pid} does not end"))
    });
    let output = output.expect("its output can be read");
    assert!(started.elapsed() < limit, "took {:.1?}: {}", started.elapsed(), text(&output));
    assert!(!output.status.success(), "it should have failed: {}", text(&output));
    output
}

/// Waits until `ready`, while `child` runs.
pub fn wait_until(child: &mut Child, what: &str, ready: impl Fn() -> bool) {
    let started = Instant::now();
    while !ready() {
        let ended = child.try_wait().expect("the job's state can be read");
        assert!(ended.is_none(), "the job ended before {what}: {ended:?}");
        assert!(started.elapsed() < Duration::from_secs(60), "timeout while waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The processes that a process has started.
pub fn children(pid: u64) -> Vec<u64> {
    let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Sends a signal, as `-KILL`, to a process.
pub fn signal(pid: impl Into<u64>, signal: &str) {
    let pid = pid.into();
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status();
    assert!(sent.expect("kill starts").success(), "{signal} to {pid}");
}

/// Ends a job at once, as a power failure does: mpirun and all its ranks. Ranks that lose mpirun alone
/// notice after 2 to 3 seconds, in which a fast machine completes the run.
pub fn kill_all(mut job: Child) {
    let ranks = children(job.id().into());
    assert!(!ranks.is_empty(), "the job has ended");
    let shared: Vec<PathBuf> = ranks.iter().flat_map(shared_memory).collect();
    let all = [&[job.id().into()][..], &ranks].concat();
    let killed = Command::new("kill").arg("-KILL").args(all.iter().map(u64::to_string)).status();
    assert!(killed.expect("kill starts").success(), "{all:?}");
    job.wait().expect("mpirun was started here");
    let runs = |rank: &u64| std::fs::read_link(format!("/proc/{rank}/exe")).is_ok();
    let started = Instant::now();
    while ranks.iter().any(runs) {
        assert!(started.elapsed() < Duration::from_secs(10), "ranks outlive SIGKILL: {ranks:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Nobody else removes it. Some is removed already, as ranks map it.
    shared.iter().for_each(|file| drop(std::fs::remove_file(file)));
}

/// Files of shared memory that a rank of Open MPI has mapped.
fn shared_memory(rank: &u64) -> Vec<PathBuf> {
    let maps = std::fs::read_to_string(format!("/proc/{rank}/maps")).unwrap_or_default();
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    files.filter(|file| file.starts_with("/dev/shm/")).map(PathBuf::from).collect()
}
