//! Output to a closed pipe or a full disk.

use std::fs::{self, OpenOptions};
use std::io::pipe;
use std::process::Command;

use crate::harness::*;

/// A pipe whose reader has closed it, like `| head` after its lines.
fn closed_pipe() -> std::io::PipeWriter {
    pipe().expect("a pipe").1
}

fn mpiburn(lab: &Lab, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env_remove("RUST_LOG").current_dir(lab.path("")).args(words);
    command
}

#[test]
fn a_closed_pipe_ends_no_command() {
    let lab = Lab::new();
    let data = digits().to_str().unwrap();
    let short = ["--data-root", data, "--epochs", "1", "--train-samples", "320", "--log-every", "1"];
    let train = [&["train", "--out", "results/run"], &short[..]].concat();
    let sweep = lab.path("sweep.toml");
    fs::write(&sweep, "title = \"two\"\n[vary]\nepochs = [1, 2]\n").unwrap();
    let commands: [&[&str]; 7] = [
        &train,
        &["eval", "--checkpoint", "results/run"],
        &["bench", "step", "--steps", "2"],
        &["report"],
        &["data", "info", data],
        &["launch", "1x1", "--dry-run", "--", "train"],
        &["sweep", "sweep.toml", "--dry-run"],
    ];
    for words in commands {
        // Standard error as well: `2>&1 | head`.
        let status = mpiburn(&lab, words)
            .stdout(closed_pipe())
            .stderr(closed_pipe())
            .status()
            .expect("mpiburn starts");
        assert_eq!(status.code(), Some(0), "{words:?}");
    }
    assert_eq!(lab.run_json("results/run")["status"], "completed");
}

#[test]
fn a_failure_keeps_its_exit_code_with_a_closed_pipe() {
    let lab = Lab::new();
    let status = mpiburn(&lab, &["report"]).stderr(closed_pipe()).status().expect("mpiburn starts");
    assert_eq!(status.code(), Some(1), "there is nothing to report");
}

#[test]
fn lost_output_on_a_full_disk_is_a_failure() {
    let lab = Lab::new();
    let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full is there");
    let command = &mut mpiburn(&lab, &["launch", "1x1", "--dry-run", "--", "train"]);
    let output = command.stdout(full).output().expect("mpiburn starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(errors(&output).len(), 1, "{}", text(&output));
    assert!(errors(&output)[0].contains("cannot write to stdout: No space left"), "{}", text(&output));
}
