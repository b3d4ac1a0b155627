//! Files that nobody would expect: pipes, names that are no text, and text that commands a terminal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::*;

fn make_fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn a_pipe_in_the_place_of_a_file_is_named() {
    let lab = Lab::new();
    let data = lab.path("data");
    fs::create_dir(&data).unwrap();
    for entry in fs::read_dir(digits()).unwrap().map(Result::unwrap) {
        match entry.file_name().to_str().unwrap().starts_with("t10k-labels") {
            true => make_fifo(&data.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), data.join(entry.file_name())).unwrap()),
        }
    }
    let mut train = on_ranks(2, binary());
    train.args(["train", "--data-root"]).arg(&data).arg("--out").arg(lab.path("run"));
    let output = must_fail(train);
    let lines = errors(&output);
    assert_eq!(lines.len(), 1, "{}", text(&output));
    assert!(lines[0].contains("t10k-labels") && lines[0].contains("not a regular file"), "{}", lines[0]);

    lab.train(1, "trained", &["--epochs", "1", "--train-samples", "64"]);
    fs::rename(lab.path("trained/epochs.csv"), lab.path("epochs.csv")).unwrap();
    make_fifo(&lab.path("trained/epochs.csv"));
    let mut resume = Command::new(binary());
    resume.args(["train", "--set", "epochs=2", "--resume"]).arg(lab.path("trained"));
    let output = must_fail(resume);
    assert!(text(&output).contains("epochs.csv: it is not a regular file"), "{}", text(&output));
    assert_eq!(lab.run_json("trained")["status"], "completed", "a refused run stays as it was");
    fs::rename(lab.path("epochs.csv"), lab.path("trained/epochs.csv")).unwrap();
    fs::remove_file(lab.path("trained/run.json")).unwrap();
    make_fifo(&lab.path("trained/run.json"));
    for command in [vec!["eval", "--checkpoint"], vec!["report"], vec!["train", "--resume"]] {
        let mut job = Command::new(binary());
        job.args(&command).arg(lab.path("trained"));
        let output = must_fail(job);
        assert!(text(&output).contains("run.json: not a regular file"), "{command:?}: {}", text(&output));
    }
}

/// Files of a run that nobody expects to be pipes: the report goes on without them.
#[test]
fn a_report_does_not_wait_for_pipes() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    let replace = |file: &str| {
        fs::remove_file(lab.path("run").join(file)).unwrap();
        make_fifo(&lab.path("run").join(file));
    };
    replace("rank0/train.loss");
    make_fifo(&lab.path("link.csv"));
    let report = |options: &[&str]| {
        let mut command = Command::new(binary());
        command.arg("report").args(options).arg(lab.path("run"));
        run(command.arg("--out").arg(lab.path("report")))
    };
    for format in ["terminal", "html"] {
        let output = report(&["--format", format]);
        assert!(output.status.success(), "{format}: {}", text(&output));
    }
    let link = lab.path("link.csv");
    let output = report(&["--predict", "--link", link.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("not a regular file"), "{}", text(&output));
    replace("epochs.csv");
    let output = report(&["--format", "terminal"]);
    assert_eq!(output.status.code(), Some(1), "no run is left: {}", text(&output));
    assert!(text(&output).contains("epochs.csv: damaged (not a regular file)"), "{}", text(&output));
}

#[test]
fn a_path_that_is_not_utf_8_is_used_or_refused_by_its_option() {
    let lab = Lab::new();
    let name = OsStr::from_bytes(b"run\xff");
    let path = lab.path("").join(name);
    let train = |ranks| {
        let mut command = on_ranks(ranks, binary());
        command.args(["train", "--epochs", "1", "--train-samples", "64"]);
        command
    };
    let output = run(train(2).arg("--data-root").arg(digits()).arg("--out").arg(&path));
    assert!(output.status.success(), "{}", text(&output));
    let output = run(on_ranks(2, binary()).args(["train", "--resume"]).arg(&path));
    assert!(output.status.success(), "{}", text(&output));
    for (command, ranks) in
        [(&["eval", "--checkpoint"][..], 2), (&["quantize"], 1), (&["profile", "--checkpoint"], 2)]
    {
        let output = run(on_ranks(ranks, binary()).args(command).arg(&path));
        assert!(output.status.success(), "{command:?}: {}", text(&output));
    }
    let mut command = train(2);
    command.arg("--data-root").arg(&path);
    let output = must_fail(command);
    let lines = errors(&output);
    assert_eq!((lines.len(), output.status.code()), (1, Some(2)), "{}", text(&output));
    assert!(
        lines[0].starts_with("mpiburn: --data-root ") && lines[0].contains("is not UTF-8"),
        "{}",
        lines[0]
    );
}

#[test]
fn what_is_in_run_json_does_not_command_the_terminal() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    let file = lab.path("run/run.json");
    let with = |from: &str, to: &str| {
        let json = fs::read_to_string(&file).unwrap();
        assert!(json.contains(from));
        fs::write(&file, json.replace(from, to)).unwrap();
    };
    with("\"convnet\"", "\"\\u001b]0;owned\\u0007<b>convnet|\"");
    for format in ["terminal", "markdown", "html", "csv"] {
        let mut report = Command::new(binary());
        let output = run(report.args(["report", "--format", format]).arg(lab.path("run")));
        assert_ne!(output.status.code(), Some(2), "{format} is known: {}", text(&output));
        assert!(!text(&output).contains('\u{1b}') && !text(&output).contains('\u{7}'), "{}", text(&output));
    }
}

/// A signal while a data set is written leaves nothing under a temporary name.
#[test]
fn a_stopped_generator_removes_what_is_unfinished() {
    let lab = Lab::new();
    let out = lab.path("features");
    let mut command = Command::new(binary());
    command.args(["-q", "data", "features", "--train", "2000000", "--out"]).arg(&out);
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let parts = || {
        let folders = fs::read_dir(&out).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        files.filter(|file| file.path().extension().is_some_and(|end| end == "part")).count()
    };
    wait_until(&mut job, "a file is begun", || parts() > 0);
    signal(job.id(), "-TERM");
    let ended = job.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15), "{ended}");
    assert_eq!(parts(), 0);
}
