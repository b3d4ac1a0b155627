//! Inputs of a report: tables of `bench allreduce`, different paths to one run, edited values.

use std::fs;
use std::os::unix::fs::symlink;

use crate::harness::*;
use crate::report::{contains, fails, has_row_1x1};

/// Options of a short training.
pub const FEW: [&str; 3] = ["--epochs=1", "--train-samples=320", "--test-samples=20"];

#[test]
fn a_table_of_the_all_reduce_is_reported_alone_and_with_runs() {
    let lab = Lab::new();
    let bench = ["bench", "allreduce", "--sizes", "4,64KiB", "--iterations", "20"];
    succeeds(job(2).args(bench).args(["--backends", "mpi,ordered", "--csv"]).arg(lab.path("ar.csv")));

    let alone = shown(&lab, &["ar.csv"]);
    contains(&alone, &["All-reduce in ar.csv", "  mpi: ", "ordered MB/s"]);
    assert!(table_rows(&alone).iter().any(|row| row[0] == "64 KiB"), "{alone}");
    assert!(!alone.contains("no finished run"), "{alone}");
    shown(&lab, &["ar.csv", "--format", "html"]);
    let page = fs::read_to_string(lab.path("results/report/report.html")).unwrap();
    contains(&page, &["id=\"bench-allreduce-1\"", "id=\"allreduce-1-ar\""]);
    let csv = fs::read_to_string(lab.path("results/report/bench-allreduce-1.csv")).unwrap();
    assert_eq!((csv.lines().count(), column(&csv, 2, "bytes")), (3, "65536"), "{csv}");

    lab.train(1, "run", &FEW);
    let output = report(&lab, &["run", "ar.csv", "--format", "csv"]);
    contains(&text(&output), &["1 table of profiles and benchmarks"]);

    // If a quote is not closed, the rows below it must not disappear.
    let open = fs::read_to_string(lab.path("ar.csv")).unwrap().replacen("\nmpi,", "\n\"mpi,", 1);
    fs::write(lab.path("open.csv"), open).unwrap();
    let printed = shown(&lab, &["ar.csv", "open.csv"]);
    contains(&printed, &["not shown: open.csv: is damaged (line 2: "]);
}

#[test]
fn two_paths_to_one_run_or_table_are_one_with_a_line() {
    let lab = Lab::new();
    lab.train(1, "a/run", &FEW);
    let header = "operator,layers,channels,batch,steps,forward_ms,backward_ms,test_accuracy";
    fs::write(lab.path("a/x.csv"), format!("{header}\nfused,2,1,32,200,1.0,1.0,86.0\n")).unwrap();
    symlink(lab.path("a/x.csv"), lab.path("a/link.csv")).unwrap();
    symlink(lab.path("a/run"), lab.path("link")).unwrap();

    let printed = shown(&lab, &["a", "a/../a/x.csv", "link", "a/run/run.json"]);
    assert_eq!(printed.matches(": a step's time by operator").count(), 1, "{printed}");
    for line in [
        "not shown: a/../a/x.csv: is the same as a/x.csv,",
        "not shown: a/link.csv: is the same as a/x.csv,",
        "not shown: link: is the same as a/run,",
    ] {
        assert!(printed.lines().any(|found| found.starts_with(line)), "{line} is missing: {printed}");
    }
    let is_one = |paths: &[&str]| {
        let csv = shown(&lab, &[paths, &["--format", "csv"]].concat());
        assert_eq!((csv.lines().count(), column(&csv, 1, "runs")), (2, "1"), "{csv}");
    };
    is_one(&["link", "a/run", "a/../a/run/run.json"]);

    fs::create_dir(lab.path("copy")).unwrap();
    for name in ["run.json", "epochs.csv"] {
        fs::copy(lab.path("a/run").join(name), lab.path("copy").join(name)).unwrap();
    }
    let printed = shown(&lab, &["a/run", "copy"]);
    let line = "not shown: copy: is a copy of a/run,";
    assert!(printed.lines().any(|found| found.starts_with(line)), "{printed}");
    assert_eq!(printed.matches("not shown").count(), 1, "in one line: {printed}");
    is_one(&["a/run", "copy"]);

    let alone = report(&lab, &["a/run/run.json"]);
    assert!(alone.status.success() && !text(&alone).contains("profile"), "{}", text(&alone));
    let mut inside = std::process::Command::new(binary());
    let inside = inside.current_dir(lab.path("a/run")).args(["report", "run.json"]).output().unwrap();
    assert!(inside.status.success() && has_row_1x1(&text(&inside)), "{}", text(&inside));
}

#[test]
fn absurd_values_of_run_json_are_named_and_left_out() {
    let lab = Lab::new();
    lab.train(1, "sound", &FEW);
    let sound = lab.run_json("sound");
    for (field, value, expected) in [
        ("steps", 0.into(), "steps: 0 must be above 0"),
        ("ms_per_step", 0.0.into(), "ms_per_step: 0.0 must be above 0"),
        ("world_size", 0.into(), "world_size: 0 must be above 0"),
        (
            "world_size",
            1_000_000_000_000_u64.into(),
            "world_size is 1000000000000, but the length of hosts is 1",
        ),
        ("checkpoint_seconds", (-3.5).into(), "checkpoint_seconds: -3.5 is outside 0 to 1e12"),
        ("test_seconds", "x".into(), "test_seconds: expected a number, found \"x\""),
        ("train_loss", serde_json::Value::Null, "train_loss: expected a number, found null"),
    ] {
        let mut edited = sound.clone();
        edited[field] = value;
        fs::create_dir_all(lab.path("edited/checkpoints")).unwrap();
        fs::copy(lab.path("sound/epochs.csv"), lab.path("edited/epochs.csv")).unwrap();
        fs::write(lab.path("edited/run.json"), edited.to_string()).unwrap();
        let printed = shown(&lab, &["sound", "edited"]);
        let line = format!("not shown: edited/run.json: is damaged ({expected}): ");
        assert!(printed.lines().any(|found| found.starts_with(&line)), "{line} is missing: {printed}");
        contains(&fails(&lab, 1, &["edited"]), &[expected, "no finished run"]);
    }
}
