//! Processes that form no job: one line that says why and what to do.

use std::process::Command;

use crate::harness::*;

#[test]
fn ranks_that_form_no_job_are_rejected_with_the_mpirun_command() {
    let lab = Lab::new();
    let by_hand = ["form no MPI job", "mpirun -n 2"];
    for (variables, options, words) in [
        (&[][..], &["--world-size", "2"][..], ["--world-size 2", by_hand[0], by_hand[1]]),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], &[], ["RANK=0", by_hand[0], by_hand[1]]),
        (&[("RANK", "1"), ("WORLD_SIZE", "2")], &[], ["RANK=1", by_hand[0], by_hand[1]]),
        // MPICH's mpirun sets these variables; this build's MPI is then a world of one.
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], &[], ["MPICH's mpirun", "Open MPI", "2 processes"]),
    ] {
        let mut command = Command::new(binary());
        command.arg("train").arg("--data-root").arg(digits()).arg("--out").arg(lab.path("out"));
        command.args(options).envs(variables.iter().copied());
        let output = must_fail(command);
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
        words.iter().for_each(|word| assert!(errors[0].contains(word), "{} lacks {word}", errors[0]));
    }
    assert!(!lab.path("out").exists(), "nothing was created");
    // A real job ignores such variables from elsewhere.
    let mut job = lab.command(2, "out", &["--epochs", "1", "--train-samples", "64"]);
    let ended = run(job.env("RANK", "0").env("WORLD_SIZE", "2"));
    assert!(ended.status.success(), "{}", text(&ended));
}
