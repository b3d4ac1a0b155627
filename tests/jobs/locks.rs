//! One process at a time writes to a run directory.

use std::fs;
use std::process::{Command, Stdio};

use crate::harness::*;

#[test]
fn a_run_directory_in_use_is_refused() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "640"]);
    let mut first = lab.command(2, "run", &["--epochs", "50000", "--overwrite"]);
    let mut job = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let epochs = lab.path("run/epochs.csv");
    wait_until(&mut job, "some epochs", || {
        fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 2)
    });
    let mut resumes = on_ranks(2, binary());
    resumes.args(["train", "--resume"]).arg(lab.path("run"));
    for second in [resumes, lab.command(1, "run", &["--overwrite"])] {
        let output = must_fail(second);
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{}", text(&output));
        assert!(errors[0].contains("is in use by process ") && errors[0].contains("choose another folder"));
    }
    for topology in ["1x1", "1x2"] {
        let mut restarts = Command::new(binary());
        restarts.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        restarts.args(["launch", topology, "--restart", "3", "--", "train", "--resume"]).arg(lab.path("run"));
        let output = must_fail(restarts);
        let errors = errors(&output);
        assert!(errors.len() == 2 && errors[0].contains("is in use by process "), "{}", text(&output));
        assert!(errors[1].contains("not started again: another process"), "{}", text(&output));
        assert!(!text(&output).contains(['\u{1e}', '\u{1f}']), "{}", text(&output));
    }
    signal(job.id(), "-USR1");
    assert_eq!(job.wait().unwrap().code(), Some(75), "the first job has gone on");
    assert_eq!(lab.run_json("run")["status"], "stopped");
    let rows = fs::read_to_string(&epochs).unwrap();
    let numbers: Vec<usize> =
        rows.lines().skip(1).map(|row| row.split(',').next().unwrap().parse().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=numbers.len()), "{numbers:?}");
}

#[test]
fn a_second_sweep_in_the_same_folder_is_refused() {
    let lab = Lab::new();
    let file = lab.path("short.toml");
    let root = digits().display();
    let sweep = format!(
        "title = \"Short\"\n[base]\ndata-root = \"{root}\"\nepochs = 50000\n[vary]\ntopology = [\"1x1\"]\n"
    );
    fs::write(&file, sweep).unwrap();
    let start = || {
        let mut command = Command::new(binary());
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.arg("sweep").arg(&file).arg("--out").arg(lab.path("sweep"));
        command
    };
    let mut first = start().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let checkpoints = lab.path("sweep/1x1-1/checkpoints");
    wait_until(&mut first, "a checkpoint", || fs::read_dir(&checkpoints).is_ok_and(|all| all.count() > 0));
    // The error must not advise to remove the folder, also if the second process has other options.
    for options in [&[][..], &["--", "--lr", "0.5"]] {
        let mut second = start();
        let output = run({
            second.args(options);
            second
        });
        assert!(!output.status.success());
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{}", text(&output));
        assert!(errors[0].contains("sweep is in use by process "), "{}", errors[0]);
    }
    signal(first.id(), "-TERM");
    assert_eq!(first.wait().unwrap().code(), Some(75));
}
