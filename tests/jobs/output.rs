//! Output to a closed pipe or a full disk.

use std::fs::{self, OpenOptions};
use std::io::pipe;
use std::process::Command;

use crate::harness::*;

/// A pipe whose reader has closed it, as `| head` does after its last line.
fn closed_pipe() -> std::io::PipeWriter {
    pipe().expect("a pipe").1
}

fn mpiburn(lab: &Lab, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env_remove("RUST_LOG").current_dir(lab.path("")).args(words);
    command
}

#[test]
fn a_closed_pipe_ends_no_command_and_hides_no_failure() {
    let lab = Lab::new();
    let data = digits().to_str().unwrap();
    let short = ["--data-root", data, "--epochs", "1", "--train-samples", "320", "--log-every", "1"];
    let train = [&["train", "--out", "results/run"], &short[..]].concat();
    fs::write(lab.path("sweep.toml"), "title = \"two\"\n[vary]\nepochs = [1, 2]\n").unwrap();
    let commands: [(&[&str], i32); 8] = [
        // Without runs, a report fails.
        (&["report"], 1),
        (&train, 0),
        (&["eval", "--checkpoint", "results/run"], 0),
        (&["bench", "step", "--steps", "2"], 0),
        (&["report"], 0),
        (&["data", "info", data], 0),
        (&["launch", "1x1", "--dry-run", "--", "train"], 0),
        (&["sweep", "sweep.toml", "--dry-run"], 0),
    ];
    for (words, code) in commands {
        // Standard error is closed too, as in `2>&1 | head`.
        let status = mpiburn(&lab, words).stdout(closed_pipe()).stderr(closed_pipe()).status();
        assert_eq!(status.expect("mpiburn starts").code(), Some(code), "{words:?}");
    }
    assert_eq!(lab.run_json("results/run")["status"], "completed");

    // If output is lost because a disk is full, the command fails.
    let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full is there");
    for words in [
        &["launch", "1x1", "--dry-run", "--", "train"][..],
        &["data", "info", data],
        &["--version"],
        &["train", "--help"],
    ] {
        let full = full.try_clone().expect("a descriptor");
        let output = mpiburn(&lab, words).stdout(full).output().expect("mpiburn starts");
        assert_eq!((output.status.code(), errors(&output).len()), (Some(1), 1), "{}", text(&output));
        assert!(
            ["stdout", "No space left"].iter().all(|fact| errors(&output)[0].contains(fact)),
            "{}",
            text(&output)
        );
    }
}
