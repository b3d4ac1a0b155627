//! Runs that are interrupted and resumed give the same bits as uninterrupted runs.

use std::process::{Child, Stdio};

use crate::harness::*;

/// A training long enough that a kill arrives after the first epoch.
const OPTIONS: [&str; 5] = ["--epochs=8", "--shuffle", "--log-every", "5", "--train-batch-size=16"];

fn has_an_epoch(lab: &Lab, name: &str) -> bool {
    let epochs = std::fs::read_to_string(lab.path(name).join("epochs.csv"));
    epochs.is_ok_and(|text| text.lines().count() > 1)
}

/// Sends SIG`name` to mpirun, which takes a second to forward it. A fast machine could complete the run in
/// that time, so one rank is stopped until the signal arrives.
fn signal_ranks(job: &Child, name: &str) {
    let rank = children(job.id().into())[1];
    let status = || std::fs::read_to_string(format!("/proc/{rank}/status")).unwrap_or_default();
    let stopped = || status().contains("\nState:\tT");
    // True if a signal waits for the stopped rank. Before SIGTERM, mpirun sends SIGCONT, which continues the
    // rank.
    let pending =
        || status().lines().any(|line| line.starts_with("ShdPnd:") && !line.ends_with("\t0000000000000000"));
    signal(rank, "-STOP");
    wait_for("a rank that is held", stopped);
    signal(job.id(), &format!("-{name}"));
    wait_for("the signal", || pending() || !stopped());
    signal(rank, "-CONT");
}

#[test]
fn a_killed_and_resumed_run_has_the_bits_of_an_uninterrupted_one() {
    let lab = Lab::new();
    lab.train(2, "whole", &OPTIONS);

    // Only this run has checkpoints inside epochs, because each checkpoint waits for the disk.
    let mut command = lab.command(2, "cut", &[&OPTIONS[..], &["--checkpoint-every", "7"]].concat());
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // Kills the job in the middle of the second epoch.
    wait_until(&mut job, "the first epoch", || has_an_epoch(&lab, "cut"));
    let at_epoch = lab.checkpoints("cut").len();
    wait_until(&mut job, "a checkpoint in the second", || {
        lab.checkpoints("cut").len() != at_epoch || at_epoch == 3
    });
    kill_all(job);
    assert_eq!(lab.run_json("cut")["status"], "running");

    let mut command = on_ranks(2, binary());
    let output = run(command.args(["train", "--resume"]).arg(lab.path("cut")));
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("resuming after step"), "{}", text(&output));
    lab.assert_same("cut", "whole");
}

/// Batch systems send a signal before their time limit. mpirun forwards SIGUSR1 to all ranks. After SIGTERM,
/// mpirun itself ends the ranks with SIGTERM.
#[test]
fn a_signal_stops_all_ranks_with_a_checkpoint_that_resumes_to_the_same_bits() {
    let lab = Lab::new();
    for backend in ["mpi", "gloo"] {
        let options = ["--train-samples", "3200", "--shuffle", "--backend", backend, "--fused", "off"];
        for sent in ["USR1", "USR2", "TERM"] {
            let name = format!("{backend}-{sent}");
            // The training is too long to end before the signal arrives.
            let mut command = lab.command(2, &name, &[&options[..], &["--epochs", "1000000"]].concat());
            let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            wait_until(&mut job, "the first epoch", || has_an_epoch(&lab, &name));
            signal_ranks(&job, sent);
            let output = ended(job);
            let run = lab.run_json(&name);
            assert_eq!(run["status"], "stopped", "{}", text(&output));
            let error = run["error"].as_str().unwrap();
            let (_, rest) = error.split_once(&format!("stopped by SIG{sent} after step ")).expect(error);
            let step: usize = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
            if sent != "TERM" {
                assert_eq!(output.status.code(), Some(75), "{}", text(&output));
                assert_eq!(errors(&output), [format!("mpiburn: {error}")], "{}", text(&output));
            } else {
                assert!(!output.status.success());
            }
            // An epoch has 50 steps. The run continues to the end of the epoch after the checkpoint's.
            let epochs = (step / 50 + 2).to_string();
            let mut command = on_ranks(2, binary());
            command.args(["train", "--epochs", &epochs, "--resume"]).arg(lab.path(&name));
            let output = crate::harness::run(&mut command);
            assert!(output.status.success(), "{}", text(&output));
            let whole = [&options[..], &["--epochs", &epochs]].concat();
            let expected = lab.train(2, &format!("whole-{name}"), &whole);
            assert_eq!(lab.run_json(&name)["weights_sha256"], expected["weights_sha256"], "{name}");
        }
    }
}
