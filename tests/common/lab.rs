//! What the tests of jobs (`tests/jobs`) and of ranks (`tests/ranks`) share: folders, run directories, and
//! the limit of all waits.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use run_record::Curve;
use serde_json::Value;
use tempfile::TempDir;

/// A temporary folder, one for each test.
pub struct Lab {
    pub root: TempDir,
}

/// A small data set in MNIST's file format, which the program of this build generates once. It is in the
/// build folder, because nobody would remove a temporary folder after the last test.
pub fn digits() -> &'static Path {
    static DATA: OnceLock<PathBuf> = OnceLock::new();
    DATA.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("digits");
        // Tests are processes that run at the same time: one of them generates the data set, and the others
        // wait for it.
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

impl Lab {
    pub fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The `run.json` of a run that must be complete.
    pub fn completed(&self, name: &str) -> Value {
        let record = self.run_json(name);
        assert_eq!(record["status"], "completed");
        // Tests compare these values between runs. If the values were missing in two runs, they would be
        // equal.
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

    /// A curve of one rank, as pairs of step and value.
    pub fn curve(&self, name: &str, rank: usize, curve: &str) -> Vec<(usize, f64)> {
        let file = self.path(name).join(format!("rank{rank}")).join(curve);
        let text = std::fs::read_to_string(file).expect("the curve exists");
        let pair = |line: &str| {
            let (step, value) = line.split_once(' ').expect("step and value");
            (step.parse().expect("a step"), value.parse().expect("a value"))
        };
        text.lines().map(pair).collect()
    }

    /// Checks that two runs have the same bits: weights, results, and the curves of all ranks.
    pub fn assert_same(&self, a: &str, b: &str) {
        let (one, other) = (self.completed(a), self.completed(b));
        for name in ["weights_sha256", "steps", "test_loss", "test_accuracy", "train_loss", "train_accuracy"]
        {
            assert_eq!(one[name], other[name], "{name} of {a} and {b}");
        }
        let quantized = !one["config"]["quantize"].is_null();
        let written = Curve::ALL.into_iter().filter(|curve| quantized || *curve != Curve::Int8);
        for rank in 0..one["world_size"].as_u64().expect("a number") as usize {
            for curve in written.clone().flat_map(Curve::files) {
                let [one, other] = [a, b].map(|name| self.curve(name, rank, curve));
                assert_eq!(one, other, "{curve} of rank {rank} of {a} and {b}");
            }
        }
    }

    /// Writes the file of a sweep with two repeats of short trainings; `body` is the rest of the file.
    pub fn sweep_file(&self, body: &str) -> PathBuf {
        let base = "epochs = 1\ntrain-samples = 320\n";
        let text = format!(
            "title = \"a small sweep\"\nrepeats = 2\n[base]\ndata-root = {:?}\n{base}{body}",
            digits()
        );
        let path = self.path("small.toml");
        std::fs::write(&path, text).expect("the file can be written");
        path
    }

    /// The complete checkpoints of a run, oldest first.
    pub fn checkpoints(&self, name: &str) -> Vec<PathBuf> {
        run_record::checkpoint::list(&self.path(name).join("checkpoints")).expect("it can be read")
    }
}

/// The output of a command (stdout, then stderr, then the signal that ended it), for messages of assertions.
pub fn text(output: &Output) -> String {
    let ended = output.status.code().map_or_else(|| format!("({})", output.status), |_| String::new());
    format!("{}{}{ended}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs `mpiburn report` in the lab's folder; without paths it reports on the folder `results`.
pub fn report(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_remove("RUST_LOG").current_dir(lab.path("")).arg("report").args(arguments);
    command.output().expect("it starts")
}

/// What a report prints. Panics if the report fails.
pub fn shown(lab: &Lab, arguments: &[&str]) -> String {
    let output = report(lab, arguments);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The program's error lines, without mpirun's lines.
pub fn errors(output: &Output) -> Vec<String> {
    let lines = String::from_utf8_lossy(&output.stderr).into_owned();
    lines.lines().filter(|l| l.starts_with("mpiburn: ") || l.starts_with("error: ")).map(Into::into).collect()
}

/// The only time limit of tests. It exists only to end a test that hangs: no job takes nearly as long, even
/// on a busy machine. Scripts in shell and Python read the same file.
pub fn limit() -> Duration {
    Duration::from_secs(include_str!("../limit_s").trim().parse().expect("a number of seconds"))
}

/// Waits until `ready` returns true. Panics, and names `what`, if this takes longer than `limit`.
pub fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let started = Instant::now();
    while !ready() {
        assert!(started.elapsed() < limit(), "{what}: waited for {} s", limit().as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The cells of every row of the tables in `printed`, headers included.
pub fn table_rows(printed: &str) -> Vec<Vec<&str>> {
    let rows = printed.lines().filter_map(|line| line.strip_prefix('│')?.strip_suffix('│'));
    rows.map(|row| row.split('┆').map(str::trim).collect()).collect()
}
