//! Jobs whose ranks differ before the first collective. They must end at once, and name the cause.

use crate::harness::*;

/// A job in which rank 0 trains and rank 1 does `other`. Returns the one error line of the job.
fn refused(lab: &Lab, other: &Job, code: i32) -> String {
    let output = must_fail(side_by_side(&[&training(lab, &[]), other]));
    let errors = errors(&output);
    assert_eq!((errors.len(), output.status.code()), (1, Some(code)), "{}", text(&output));
    assert!(!lab.path("run").exists(), "nothing is written before ranks agree");
    errors[0].clone()
}

fn training(lab: &Lab, more: &[&str]) -> Job {
    lab.command(1, "run", &[&["--epochs", "1", "--train-samples", "640"], more].concat())
}

#[test]
fn ranks_with_different_subcommands_are_refused() {
    let lab = Lab::new();
    for (words, name) in [
        (&["bench", "step"][..], "bench step"),
        (&["report", "results"], "report"),
        (&["train", "--resume", "none"], "train --resume"),
    ] {
        let line = refused(&lab, job(1).args(words), 2);
        let commands = ["rank 0 on ", "mpiburn train", "rank 1 on ", &format!("mpiburn {name};")];
        assert!(commands.iter().all(|fact| line.contains(fact)), "{line}");
    }
}

#[test]
fn a_value_that_one_rank_alone_has_is_named_with_the_rank() {
    let lab = Lab::new();
    let line = refused(&lab, &training(&lab, &["--max-lr=1"]), 2);
    assert!(line.starts_with("mpiburn: rank 1 on ") && line.contains("--max-lr 1: requires"), "{line}");
    let line = refused(&lab, &training(&lab, &["--world-size", "3"]), 1);
    assert!(line.contains("--world-size ") && line.contains("rank 1 on "), "{line}");
}
