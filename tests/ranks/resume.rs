//! Stopped runs that are resumed give the same bits.

use std::process::Command;

use crate::harness::*;

/// A run that is stopped after each of its steps in turn, by a request that another rank has each time, and
/// runs that are stopped once. Ranks have as many steps, and in the last of an epoch one sample for all.
#[test]
fn a_run_that_is_stopped_after_every_step_has_the_bits_of_an_uninterrupted_one() {
    let lab = Lab::new();
    for ranks in 1..=5 {
        let samples = format!("--train-samples={}", 3 * 8 * ranks + 1);
        let options = [
            "--epochs=2",
            "--train-batch-size=8",
            &samples,
            "--test-samples=37",
            "--log-every=3",
            "--shuffle",
        ];
        let options = [&options[..], &["--batch-norm", "--dropout=0.3"]].concat();
        let name = |kind: &str| format!("{kind}{ranks}");
        let (whole, cut) = (&name("whole"), &name("cut"));
        assert_eq!(lab.train(ranks, whole, &options)["steps"], 8);
        for step in 1..=8 {
            let job = match step {
                1 => lab.command(ranks, cut, &options),
                _ => lab.resume(ranks, cut, &[]),
            };
            job.stops[step % ranks].request(libc::SIGUSR1);
            let output = run(job);
            let last = lab.checkpoints(cut).pop().expect("a checkpoint");
            assert!(last.ends_with(format!("step-{step:08}")), "{}", text(&output));
            if step == 8 {
                assert!(output.status.success(), "{}", text(&output));
                continue;
            }
            assert_eq!(output.status.code(), Some(75), "{}", text(&output));
            let by = if step % ranks == 0 { "SIGUSR1" } else { "a signal to another rank" };
            let error = lab.run_json(cut)["error"].as_str().expect("an error").to_owned();
            assert!(error.contains(&format!("stopped by {by} after step {step};")), "{error}");
            assert_eq!(errors(&output), [format!("mpiburn: {error}")]);
            let rest = &name(&format!("rest{step}-"));
            let copied = Command::new("cp").arg("-a").args([lab.path(cut), lab.path(rest)]).status();
            assert!(copied.expect("cp starts").success());
            output_of(lab.resume(ranks, rest, &[]));
            lab.assert_same(rest, whole);
        }
        lab.assert_same(cut, whole);
    }
}

#[test]
fn another_world_size_is_rejected_with_both_numbers() {
    let lab = Lab::new();
    lab.train(2, "run", &["--epochs", "1", "--train-samples", "64"]);
    let output = fails_with(lab.resume(1, "run", &[]), &["the run has 2 ranks and this job 1"]);
    assert_eq!(output.status.code(), Some(2));
    // What was typed is named, not what it brings with it.
    let output = must_fail(lab.resume(2, "run", &["--set", "schedule=step"]));
    assert!(text(&output).contains("--set schedule=step: the run is complete after"), "{}", text(&output));
}

/// As in a new run.
#[test]
fn limits_above_the_data_set_become_its_samples_in_a_resumed_run() {
    let lab = Lab::new();
    let data = lab.data("digits", 64, 20);
    lab.train(2, "run", &["--epochs=1", "--data-root", &data, "--test-samples=10"]);
    let resume = |value: &str, epochs: &str| {
        let sets =
            ["--set".to_owned(), format!("test-samples={value}"), "--set".into(), format!("epochs={epochs}")];
        let printed = output_of(lab.on(2, &["train", "--resume"], "run").args(sets));
        (printed, lab.completed("run"))
    };
    let (printed, run) = resume("1000", "2");
    assert!(printed.contains("the data set has 20; all are used, which run.json notes"), "{printed}");
    assert_eq!(run["config"]["test_samples"], 20);
    let manifest = std::fs::read(lab.newest("run").join("manifest.json")).expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!(manifest["config"]["test_samples"], 20);
    let noted = |run: &serde_json::Value, attempt: usize| run["history"][attempt]["changed"].to_string();
    assert!(noted(&run, 1).contains(r#""field":"test_samples","from":10,"to":20"#), "{}", noted(&run, 1));
    let (_, run) = resume("2000", "3");
    assert!(!noted(&run, 2).contains("test_samples"), "it has not changed: {}", noted(&run, 2));
}

/// Inside an epoch, each rank has running statistics of its own.
#[test]
fn checkpoints_inside_an_epoch_change_nothing_with_batch_norm() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        for extra in [&[][..], &["--quantize", "qat"]] {
            let words = ["--epochs=2", "--train-batch-size=16", "--train-samples=500", "--overwrite"];
            let options = [&["--batch-norm"], &words[..], extra].concat();
            let expected = lab.train(ranks, "plain", &options);
            let often = lab.train(ranks, "often", &[&options[..], &["--checkpoint-every", "3"]].concat());
            assert_eq!(often["weights_sha256"], expected["weights_sha256"], "{ranks} ranks, {extra:?}");

            // From the middle of the last epoch again: the checkpoint of its end is removed.
            std::fs::remove_dir_all(lab.checkpoints("often").pop().expect("checkpoints")).unwrap();
            let printed = output_of(lab.resume(ranks, "often", &[]));
            assert!(printed.contains(", in epoch 2"), "{printed}");
            let resumed = lab.run_json("often");
            for result in ["weights_sha256", "test_loss"] {
                assert_eq!(resumed[result], expected[result], "{ranks} ranks, {extra:?}");
            }
        }
    }
}
