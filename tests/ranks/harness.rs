//! Runs commands of the program as functions, on ranks that are threads of the test.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::fmt::Debug;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once};

use burn_mpi::threads::{self, Options};
use burn_mpi::{CommError, World};
use launch::StopRequest;
use mpiburn::commands::{self, logging};
use mpiburn::options::{Cli, Command, is_of_value, one_line};
use serde_json::Value;
use terminal::console;

pub use crate::lab::*;

/// A command on several ranks.
#[derive(Debug, Clone)]
pub struct Job {
    /// The words of the command line of each rank.
    words: Vec<Vec<OsString>>,
    /// How the threads run, such as the seed that determines the order of their turns.
    pub options: Options,
    /// For each rank, how a test asks it to stop.
    pub stops: Vec<StopRequest>,
    /// If present, rank N works in this folder with N appended to its name.
    pub folder: Option<PathBuf>,
}

/// Options of ranks that take turns. The seed of their order is RANKS_SEED, or 0 if RANKS_SEED is not set.
pub fn options() -> Options {
    let seed = std::env::var("RANKS_SEED").map_or(0, |seed| seed.parse().expect("a number in RANKS_SEED"));
    Options::default().with_seed(seed)
}

/// A job of `ranks` ranks of the program. Its command lines have only the program's name so far.
pub fn job(ranks: usize) -> Job {
    Job {
        words: vec![vec!["mpiburn".into()]; ranks],
        options: options(),
        stops: (0..ranks).map(|_| StopRequest::default()).collect(),
        folder: None,
    }
}

/// One job with the ranks of several jobs, each rank with its own command.
pub fn side_by_side(jobs: &[&Job]) -> Job {
    Job {
        words: jobs.iter().flat_map(|job| job.words.clone()).collect(),
        stops: jobs.iter().flat_map(|job| job.stops.clone()).collect(),
        ..job(0)
    }
}

impl Job {
    /// Adds a word to every rank's command line.
    pub fn arg(&mut self, word: impl AsRef<OsStr>) -> &mut Self {
        self.words.iter_mut().for_each(|words| words.push(word.as_ref().to_owned()));
        self
    }

    /// Adds words to every rank's command line.
    pub fn args<W: AsRef<OsStr>>(&mut self, words: impl IntoIterator<Item = W>) -> &mut Self {
        words.into_iter().for_each(|word| _ = self.arg(word));
        self
    }
}

impl Lab {
    /// A training on the digits with `options`, on `ranks` ranks, into the run directory `name`.
    pub fn command(&self, ranks: usize, name: &str, options: &[&str]) -> Job {
        let mut job = job(ranks);
        job.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(self.path(name)).args(options);
        job
    }

    /// Runs the training of `command` to its end, and returns its `run.json`.
    pub fn train(&self, ranks: usize, name: &str, options: &[&str]) -> Value {
        output_of(self.command(ranks, name, options));
        self.completed(name)
    }

    /// Resumes the run `name` to its end; returns what the program prints.
    pub fn resumed(&self, ranks: usize, name: &str) -> String {
        let lines = output_of(job(ranks).args(["train", "--resume"]).arg(self.path(name)));
        self.completed(name);
        lines
    }

    /// A command whose last word is the folder `name`.
    pub fn on(&self, ranks: usize, words: &[&str], name: &str) -> Job {
        let mut job = job(ranks);
        job.args(words).arg(self.path(name));
        job
    }

    /// The job that resumes the run `name`.
    pub fn resume(&self, ranks: usize, name: &str, options: &[&str]) -> Job {
        let mut job = self.on(ranks, &["train", "--resume"], name);
        job.args(options);
        job
    }

    /// Runs the training `job` into `name`. Asks all ranks to stop after `steps` steps.
    pub fn stopped_after(&self, steps: usize, name: &str, mut job: Job) -> Output {
        job.arg("--note-steps");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ready = || self.step(name) >= steps || ended.load(Ordering::Relaxed);
                wait_for("a step", ready);
                job.stops.iter().for_each(|stop| stop.request(libc::SIGUSR1));
            });
            let output = run(&job);
            ended.store(true, Ordering::Relaxed);
            output
        })
    }

    /// A data set that the program generates; returns its folder.
    pub fn data(&self, kind: &str, train: usize, test: usize) -> String {
        let folder = self.path(kind).to_str().expect("a UTF-8 path").to_owned();
        let [train, test] = [train, test].map(|samples| samples.to_string());
        succeeds(job(1).args(["data", kind, "--train", &train, "--test", &test, "--out", &folder]));
        folder
    }

    /// The last checkpoint of a run.
    pub fn newest(&self, name: &str) -> PathBuf {
        self.checkpoints(name).pop().expect("a checkpoint")
    }

    /// Turns a complete run into a run that was killed before its last checkpoint.
    pub fn cut(&self, name: &str) {
        std::fs::remove_dir_all(self.newest(name)).expect("it can be removed");
        edit(&self.path(name).join("run.json"), |run| {
            run["status"] = "running".into();
            run.as_object_mut().expect("an object").remove("weights_sha256");
        });
    }

    /// The position in the training (epoch, step, …) at the run's last checkpoint.
    pub fn position(&self, name: &str) -> Value {
        let text = std::fs::read(self.newest(name).join("state.json")).expect("state.json exists");
        serde_json::from_slice::<Value>(&text).expect("state.json is JSON")["position"].clone()
    }

    /// The values of `keys` in the run's `run.json`, and then in the position at its last checkpoint.
    pub fn values(&self, name: &str, keys: &[&str]) -> Vec<Value> {
        let found = [self.completed(name), self.position(name)];
        found.iter().flat_map(|json| keys.iter().map(|key| json[key].clone())).collect()
    }

    /// Trains again, once with another order of turns and once without overlap. Panics if the values of
    /// `keys` are not those of the run `name`.
    pub fn trains_the_same(&self, ranks: usize, name: &str, options: &[&str], keys: &[&str]) {
        for (seed, more) in [(1, &[][..]), (0, &["--overlap", "off"])] {
            let mut command = self.command(ranks, "other", &[options, &["--overwrite"], more].concat());
            command.options.seed += seed;
            succeeds(command);
            let (other, run) = (self.values("other", keys), self.values(name, keys));
            assert_eq!(other, run, "{name}: {keys:?}, {more:?}, seed {seed}");
        }
    }

    /// Writes a file of weights: the last weights of `run`, each passed through `change(tensor, index,
    /// value)`.
    pub fn changed_weights(&self, run: &str, change: impl Fn(&str, usize, f32) -> f32) -> String {
        let mut bytes = std::fs::read(self.newest(run).join("model.safetensors")).expect("its weights");
        let weights = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let start = bytes.as_ptr() as usize;
        let tensors = weights.tensors().into_iter();
        let places = tensors
            .map(|(name, tensor)| (name, tensor.data().as_ptr() as usize - start, tensor.data().len()));
        for (name, start, length) in places.collect::<Vec<_>>() {
            for (at, value) in bytes[start..start + length].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *value = change(&name, at, f32::from_le_bytes(*value)).to_le_bytes();
            }
        }
        let file = self.path("changed.safetensors").to_str().expect("a UTF-8 path").to_owned();
        std::fs::write(&file, bytes).expect("it can be written");
        file
    }

    /// All weights of the last checkpoint, by name.
    pub fn weights(&self, name: &str) -> Vec<(String, Vec<f32>)> {
        let bytes = std::fs::read(self.newest(name).join("model.safetensors")).expect("its weights");
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
        // f32::max ignores NaN, so NaN is checked first.
        assert!(differences.iter().all(|x| x.is_finite()), "non-finite weights");
        differences.into_iter().fold(0.0, f32::max)
    }

    /// A column of a run's `epochs.csv`.
    pub fn column<T: FromStr<Err: Debug>>(&self, name: &str, title: &str) -> Vec<T> {
        let mut epochs = csv::Reader::from_path(self.path(name).join("epochs.csv")).expect("epochs.csv");
        let at = epochs.headers().expect("a header").iter().position(|found| found == title).expect(title);
        epochs.records().map(|row| row.expect("a row")[at].parse().expect("a value")).collect()
    }
}

/// Changes a file of JSON.
pub fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&std::fs::read(path).expect("the file exists")).expect("JSON");
    change(&mut json);
    std::fs::write(path, serde_json::to_vec_pretty(&json).expect("JSON")).expect("it can be written");
}

/// The cell of the column `name` in a CSV table. Row 0 is the header.
pub fn column<'t>(csv: &'t str, row: usize, name: &str) -> &'t str {
    let at = csv.lines().next().and_then(|header| header.split(',').position(|n| n == name));
    let line = csv.lines().nth(row).expect("the row exists");
    line.split(',').nth(at.expect("the column exists")).expect("the cell exists")
}

/// Sends log lines to the captured output of the thread.
struct Log;

impl log::Log for Log {
    fn enabled(&self, metadata: &log::Metadata) -> bool {
        ["mpiburn", "burn_mpi", "run_re"].iter().any(|name| metadata.target().starts_with(name))
    }

    fn log(&self, record: &log::Record) {
        if self.enabled(record.metadata()) {
            console::err(format_args!("{}\n", logging::line(record, Default::default())));
        }
    }

    fn flush(&self) {}
}

/// Sets up what each process of the program sets up before a command, such as the logger. Only the first call
/// has an effect.
pub fn set_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        burn_fused::set_poll(burn_mpi::poll);
        burn_mpi::name_program("mpiburn");
        burn_mpi::name_deadline("--comm-timeout");
        log::set_logger(&Log).expect("the only logger");
        log::set_max_level(log::LevelFilter::Info);
    });
}

/// How a command ended on one rank.
#[derive(Clone, Default)]
struct Ended {
    code: u8,
    /// What it printed on stdout and on stderr.
    printed: [String; 2],
}

/// Runs a job to its end. The output is the output of all ranks, in rank order. The exit code is the code of
/// the first rank that failed.
pub fn run(job: impl Borrow<Job>) -> Output {
    let Job { words, options, stops, folder } = job.borrow();
    set_up();
    let read: Result<Vec<Cli>, _> = words.iter().cloned().map(Cli::read).collect();
    let commands = match read {
        Ok(commands) => commands,
        // An error in one rank's command line is printed once, as if all ranks had it. Tests in which command
        // lines differ in their errors use processes (tests/jobs).
        Err(error) => {
            let text = if is_of_value(&error) {
                format!("mpiburn: {}", one_line(&error))
            } else {
                error.to_string()
            };
            return output(error.exit_code() as u8, String::new(), text);
        }
    };
    use Command::{Data, Launch, Report, Sweep};
    if let [Cli { command: Data(_) | Launch(_) | Report(_) | Sweep(_), .. }] = &commands[..] {
        let command = commands.into_iter().next().expect("one command");
        let (code, [out, err]) = console::captured(|| {
            commands::run(command).unwrap_or_else(|failure| {
                failure.print();
                failure.exit_code()
            })
        });
        return output(code, out, err);
    }
    let ends: Mutex<Vec<Ended>> = Mutex::new(vec![Ended::default(); words.len()]);
    let body = |world: &World| {
        let rank = world.rank();
        if let Some(folder) = folder {
            // SAFETY: This only gives the thread its own working directory; memory is not changed.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_FS) }, 0, "{}", std::io::Error::last_os_error());
            std::env::set_current_dir(format!("{}{rank}", folder.display())).expect("the rank's folder");
        }
        let ended = run_rank(world, &commands[rank], &stops[rank]);
        ends.lock().expect("no panic")[rank] = ended.clone();
        if ended.code == 0 { Ok(()) } else { Err(ended.printed[1].clone()) }
    };
    let result = threads::run_with_lines(words.len(), options, body);
    let ends = ends.into_inner().expect("no panic");
    let [out, mut err] =
        [0, 1].map(|stream| ends.iter().map(|end| end.printed[stream].as_str()).collect::<String>());
    let (code, lines) = match &result {
        Ok((_, lines)) => (0, lines),
        Err(failure) if failure.error.contains("panicked") => {
            err.push_str(&failure.error);
            (101, &failure.lines)
        }
        Err(failure) => (ends[failure.rank].code, &failure.lines),
    };
    lines.iter().for_each(|line| err.push_str(&format!("mpiburn: {line}\n")));
    output(code, out, err)
}

/// Runs a command as one rank.
fn run_rank(world: &World, command: &Cli, stop: &StopRequest) -> Ended {
    let (code, printed) = console::captured(|| {
        let Err(failure) = commands::run_as_rank(world, command, None, stop) else { return 0 };
        // The error that another rank has left is not printed: mpirun would end this rank before it could.
        let is_other = |cause: &(dyn std::error::Error + 'static)| {
            matches!(cause.downcast_ref::<CommError>(), Some(CommError::Left { .. }))
        };
        if !failure.error.chain().any(is_other) {
            failure.print();
        }
        failure.exit_code()
    });
    Ended { code, printed }
}

fn output(code: u8, out: String, err: String) -> Output {
    let status = ExitStatus::from_raw(i32::from(code) << 8);
    Output { status, stdout: out.into_bytes(), stderr: err.into_bytes() }
}

/// Runs a job that has to fail.
pub fn must_fail(job: impl Borrow<Job>) -> Output {
    let output = run(job);
    assert!(!output.status.success(), "it should have failed: {}", text(&output));
    output
}

/// Runs a job that has to succeed; returns all that it printed.
pub fn output_of(job: impl Borrow<Job>) -> String {
    let output = run(job);
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// Runs a job that has to fail with this exit code and one line, which contains all `words`; returns the line.
pub fn refused(job: impl Borrow<Job>, code: i32, words: &[&str]) -> String {
    let output = must_fail(job);
    let errors = errors(&output);
    assert_eq!((errors.len(), output.status.code()), (1, Some(code)), "{words:?}: {}", text(&output));
    assert!(words.iter().all(|word| errors[0].contains(word)), "{words:?}: {}", errors[0]);
    errors[0].clone()
}

/// Runs a job that has to succeed; returns its stdout.
pub fn succeeds(job: impl Borrow<Job>) -> String {
    let output = run(job);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Creates a named pipe, which nobody writes to.
pub fn make_fifo(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo starts").success());
}

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("the file exists")).expect("it is JSON")
}

/// Runs a job that has to fail with one line, which contains all `words`.
pub fn fails_with(job: impl Borrow<Job>, words: &[&str]) -> Output {
    let output = must_fail(job);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
    words.iter().for_each(|word| assert!(errors[0].contains(word), "{} lacks {word}", errors[0]));
    output
}
