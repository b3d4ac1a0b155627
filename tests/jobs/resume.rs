//! Interrupted runs that are resumed give the same bits.

use std::process::{Child, Stdio};

use crate::harness::*;

/// Long enough for a kill to arrive after the first epoch.
const OPTIONS: [&str; 5] = ["--epochs=20", "--shuffle", "--log-every", "5", "--train-batch-size=16"];

/// Sends SIG`name` to mpirun, which takes a second to pass it on. A fast machine would complete the run
/// before, so one rank is held until the signal is there.
fn signal_ranks(job: &Child, name: &str) {
    let rank = children(job.id().into())[1];
    let status = || std::fs::read_to_string(format!("/proc/{rank}/status")).unwrap_or_default();
    let stopped = || status().contains("\nState:\tT");
    // What waits for the process; mpirun sends SIGCONT before SIGTERM, and the rank goes on.
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
    for ranks in [1, 2, 4] {
        let (whole, cut) = (format!("whole{ranks}"), format!("cut{ranks}"));
        let expected = lab.train(ranks, &whole, &OPTIONS);

        // The other run has none, because each waits for the disk.
        let often = [&OPTIONS[..], &["--checkpoint-every", "7"]].concat();
        let mut command = lab.command(ranks, &cut, &often);
        let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // After the first epoch, in the middle of the second.
        let epochs = lab.path(&cut).join("epochs.csv");
        wait_until(&mut job, "the first epoch", || {
            std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
        });
        let at_epoch = lab.checkpoints(&cut).len();
        wait_until(&mut job, "a checkpoint in the second", || {
            lab.checkpoints(&cut).len() != at_epoch || at_epoch == 3
        });
        kill_all(job);
        assert_eq!(lab.run_json(&cut)["status"], "running");

        let mut command = on_ranks(ranks, binary());
        let output = run(command.args(["train", "--resume"]).arg(lab.path(&cut)));
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("going on after step"), "{}", text(&output));
        let resumed = lab.run_json(&cut);
        assert_eq!(resumed["weights_sha256"], expected["weights_sha256"], "{ranks} ranks");
        assert_eq!(resumed["test_accuracy"], expected["test_accuracy"]);
        assert_eq!(resumed["train_accuracy"], expected["train_accuracy"]);
        for rank in 0..ranks {
            for curve in ["train.loss", "train.acc", "test.loss", "test.acc"] {
                assert_eq!(
                    lab.curve(&cut, rank, curve),
                    lab.curve(&whole, rank, curve),
                    "rank {rank}, {curve}"
                );
            }
        }
    }
}

/// The signal of a batch system before its time limit. mpirun forwards SIGUSR1 to all
/// ranks; after SIGTERM, it ends them with that signal itself.
#[test]
fn a_signal_stops_all_ranks_with_a_checkpoint_that_resumes_to_the_same_bits() {
    let lab = Lab::new();
    for backend in ["mpi", "gloo"] {
        let options = ["--epochs", "15", "--shuffle", "--backend", backend, "--fused", "off"];
        let expected = lab.train(2, &format!("whole-{backend}"), &options);
        for sent in ["USR1", "TERM"] {
            let name = format!("{backend}-{sent}");
            let mut command = lab.command(2, &name, &options);
            let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let epochs = lab.path(&name).join("epochs.csv");
            wait_until(&mut job, "the first epoch", || {
                std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
            });
            signal_ranks(&job, sent);
            let output = ended(job);
            let run = lab.run_json(&name);
            assert_eq!(run["status"], "stopped", "{}", text(&output));
            let error = run["error"].as_str().unwrap();
            assert!(error.contains(&format!("stopped by SIG{sent} after step")), "{error}");
            if sent == "USR1" {
                assert_eq!(output.status.code(), Some(75), "{}", text(&output));
                assert_eq!(errors(&output), [format!("mpiburn: {error}")], "{}", text(&output));
            } else {
                assert!(!output.status.success());
            }
            let mut command = on_ranks(2, binary());
            let output = crate::harness::run(command.args(["train", "--resume"]).arg(lab.path(&name)));
            assert!(output.status.success(), "{}", text(&output));
            assert_eq!(lab.run_json(&name)["weights_sha256"], expected["weights_sha256"], "{name}");
        }
    }
}

#[test]
fn another_world_size_is_rejected_with_both_numbers() {
    let lab = Lab::new();
    lab.train(2, "run", &["--epochs", "1", "--train-samples", "64"]);
    let mut command = on_ranks(1, binary());
    command.args(["train", "--resume"]).arg(lab.path("run"));
    let output = must_fail(command);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", text(&output));
    assert!(errors[0].contains("the run has 2 ranks and this job 1"), "{}", errors[0]);
    assert_eq!(output.status.code(), Some(2));
    // What was typed is named, not what it brings with it.
    let mut command = on_ranks(2, binary());
    command.args(["train", "--set", "schedule=step", "--resume"]).arg(lab.path("run"));
    let output = must_fail(command);
    assert!(text(&output).contains("--set schedule=step: the run is complete after"), "{}", text(&output));
}

/// Inside an epoch, each rank has running statistics of its own.
#[test]
fn checkpoints_inside_an_epoch_change_nothing_with_batch_norm() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        for extra in [&[][..], &["--quantize", "qat"]] {
            let name = |kind: &str| format!("{kind}-{ranks}-{}", extra.len());
            let options = |more: &[&'static str]| {
                let words =
                    ["--batch-norm", "--epochs", "2", "--train-batch-size", "16", "--train-samples", "500"];
                [&words, extra, more].concat()
            };
            let expected = lab.train(ranks, &name("plain"), &options(&[]));
            let often = lab.train(ranks, &name("often"), &options(&["--checkpoint-every", "3"]));
            assert_eq!(often["weights_sha256"], expected["weights_sha256"], "{ranks} ranks, {extra:?}");

            // From the middle of the last epoch again: the checkpoint of its end is removed.
            let checkpoints = lab.checkpoints(&name("often"));
            let last = checkpoints.last().expect("checkpoints");
            std::fs::remove_dir_all(last).unwrap();
            let output =
                run(on_ranks(ranks, binary()).args(["train", "--resume"]).arg(lab.path(&name("often"))));
            assert!(text(&output).contains(", in epoch 2"), "{}", text(&output));
            let resumed = lab.run_json(&name("often"));
            assert_eq!(resumed["weights_sha256"], expected["weights_sha256"], "{ranks} ranks, {extra:?}");
            assert_eq!(resumed["test_loss"], expected["test_loss"], "{ranks} ranks, {extra:?}");
        }
    }
}
