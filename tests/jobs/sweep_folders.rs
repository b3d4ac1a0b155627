//! What a sweep may not do with a folder, with options after `--`, and with files of a run.

use std::process::Command;

use crate::harness::*;
use crate::sweep::{mpiburn, output, sweep, sweep_file};

const VARY: &str = "[vary]\nbackend = [\"mpi\", \"gloo\"]\n";
const RUNS: &str = "[vary]\nbucket-mb = [1, 2]\n";

fn refused(mut command: Command, code: i32, words: &str) {
    let output = output(&mut command);
    assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    let errors = errors(&output);
    assert!(errors.len() == 1 && errors[0].contains(words), "{words}: {}", text(&output));
}

#[test]
fn finished_runs_do_not_vanish_from_the_report_without_a_line() {
    let lab = Lab::new();
    let file = sweep_file(&lab, RUNS);
    assert!(output(&mut sweep(&lab, &file, &[])).status.success());
    let root = lab.path("runs");

    // Another sweep there would hide them all.
    let other = lab.path("other.toml");
    std::fs::write(&other, "title = \"other\"\n[base]\nepochs = 1\n[vary]\nlr = [1e-3]\n").unwrap();
    refused(sweep(&lab, &other, &[]), 1, "has 4 finished runs of the sweep small, which its report");
    let mut in_run = mpiburn(&["sweep"]);
    in_run.arg(&file).arg("--out").arg(root.join("bucket-mb-1-1"));
    refused(in_run, 1, "is the directory of a run: choose another folder with --out");
    assert!(!root.join("bucket-mb-1-1/sweep.json").exists());

    // The same one with fewer repeats hides two, and says so.
    let text_of_file = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text_of_file.replace("repeats = 2", "repeats = 1")).unwrap();
    let fewer = output(&mut sweep(&lab, &file, &[]));
    let line = "2 finished runs in ";
    assert!(fewer.status.success() && text(&fewer).contains(line), "{}", text(&fewer));
    let table = text(&output(mpiburn(&["report"]).arg(&root)));
    let note = "2 runs not in the sweep as it was last started: bucket-mb-1-2, bucket-mb-2-2";
    assert!(table.contains(note), "{table}");
}

#[test]
fn options_of_one_run_and_varied_ones_are_refused_after_the_dashes() {
    let lab = Lab::new();
    let file = sweep_file(&lab, VARY);
    for (options, words) in [
        (&["--resume", "x"][..], "--resume after `--`: it is an option of a single run"),
        (&["--out=x"], "--out after `--`: it is an option of a single run"),
        (&["--set", "lr=1"], "--set after `--`"),
        (&["--backend", "gloo"], "--backend after `--`: "),
        (&["--help"], "after `--`: unexpected argument '--help' found"),
        (&["--lr"], "after `--`: a value is required for '--lr <X>'"),
    ] {
        refused(sweep(&lab, &file, &[&["--"], options].concat()), 1, words);
    }
    refused(sweep(&lab, &file, &["--only", "nope"]), 1, "--only nope: no run has this in its name; runs are");
    let listed = output(&mut sweep(&lab, &file, &["--dry-run", "--", "--lr", "1e-3"]));
    assert!(listed.status.success() && text(&listed).contains("--lr 1e-3"), "{}", text(&listed));
    let file = sweep_file(&lab, "[vary]\nlr = [\"a\\nb\"]\n");
    refused(sweep(&lab, &file, &[]), 1, "invalid value 'a b' for '--lr <X>'");
    std::fs::write(&file, "title = \"T\"\nrepeats = -1\n").unwrap();
    refused(sweep(&lab, &file, &[]), 1, "line 2: ");
    refused(sweep(&lab, &file, &[]), 1, ", in repeats = -1");
    assert!(!lab.path("runs").exists(), "nothing was created");
}

#[test]
fn a_limit_above_the_data_set_is_told_and_is_no_other_configuration() {
    let lab = Lab::new();
    let limits = ["--epochs", "1", "--train-samples", "999999", "--test-samples", "99999"];
    let output = run(lab.command(1, "beyond", &limits));
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let all = lab.train(1, "all", &["--epochs", "1"]);
    for (option, typed) in [("train", "999999"), ("test", "99999")] {
        let available = &all["data"][format!("{option}_available")];
        let line = format!("--{option}-samples {typed}: the data set has {available}; all are used");
        assert!(printed.contains(&line), "{printed}");
    }
    let paths = ["beyond", "all"].map(|name| lab.path(name).display().to_string());
    let csv = shown(&lab, &["--format", "csv", &paths[0], &paths[1]]);
    assert_eq!((csv.lines().count(), column(&csv, 1, "runs")), (2, "2"), "{csv}");
    assert!(!csv.contains("999999"), "{csv}");
}

#[test]
fn no_output_replaces_a_file_of_a_run() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    let run = lab.path("run");
    let state = lab.checkpoints("run").pop().unwrap().join("state.json");
    let kept = [run.join("run.json"), run.join("epochs.csv"), state];
    let before = kept.clone().map(|file| std::fs::read(file).unwrap());
    let words: [&[&str]; 4] = [
        &["profile", "--batches", "2", "--json"],
        &["profile", "--batches", "2", "--csv"],
        &["bench", "allreduce", "--sizes", "4", "--iterations", "5", "--csv"],
        &["bench", "fused", "--train-samples", "64", "--csv"],
    ];
    for (words, file) in words.iter().zip(kept.iter().cycle()) {
        let mut command = mpiburn(words);
        command.arg(file);
        if words[0] == "profile" {
            command.arg("--checkpoint").arg(&run);
        }
        refused(command, 1, "it is a file of a run or a sweep, which is not replaced; choose another name");
    }
    assert_eq!(kept.map(|file| std::fs::read(file).unwrap()), before);
    // Beside them, it may be.
    let mut beside = mpiburn(&["profile", "--batches", "2", "--json"]);
    beside.arg(run.join("profile.json")).arg("--checkpoint").arg(&run);
    assert!(output(&mut beside).status.success() && run.join("profile.json").exists());
}
