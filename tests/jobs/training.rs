//! Trainings whose processes differ.

use std::process::Command;

use crate::harness::*;

#[test]
fn eval_needs_the_run_directory_on_rank_0_only() {
    let lab = Lab::new();
    let run = lab.train(2, "here/run", &["--epochs", "1", "--test-samples", "333"]);
    std::fs::create_dir(lab.path("elsewhere")).unwrap();
    // mpirun starts another program for each part between colons.
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    for (i, folder) in ["here", "elsewhere"].into_iter().enumerate() {
        if i > 0 {
            command.arg(":");
        }
        command.args(["-n", "1", "--wdir"]).arg(lab.path(folder));
        command.args([binary(), "eval", "--checkpoint", "run"]);
    }
    let output = crate::harness::run(command);
    assert!(output.status.success(), "{}", text(&output));
    let expected = format!("test accuracy {:.2}%", run["test_accuracy"].as_f64().unwrap());
    assert!(text(&output).contains(&expected), "{} lacks {expected}", text(&output));
    assert!(text(&output).contains("of 333 samples"), "{}", text(&output));
}
