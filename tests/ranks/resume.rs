//! Runs that are stopped and resumed give the same bits as uninterrupted runs.

use std::process::Command;

use crate::harness::*;

/// Checks a run that is stopped after each of its steps, each time at the request of another rank, and runs
/// that are stopped only once. All ranks have the same number of steps. The last step of an epoch has one
/// sample for all ranks together.
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
    let output = fails_with(
        lab.resume(1, "run", &[]),
        &["--resume ", "the run has 2 ranks", "this job has 1", "mpirun -n 2", "--reshard"],
    );
    assert_eq!(output.status.code(), Some(2));
    // The message names `--schedule`, which was typed, but not the options that `--schedule` changes.
    let output = must_fail(lab.resume(2, "run", &["--schedule=step"]));
    assert!(text(&output).contains("--schedule step: the run is complete"), "{}", text(&output));
}

/// Rejects changed options with which the run would end at once. `run.json` would otherwise have the accuracy
/// of an earlier epoch's weights, or of a test with other options.
#[test]
fn changed_options_never_end_a_run_inside_an_epoch_or_with_results_of_others() {
    let lab = Lab::new();
    for ranks in [1, 2, 3] {
        // Two steps per epoch.
        let samples = format!("--train-samples={}", 2 * 16 * ranks);
        let options = ["--epochs=4", &samples, "--test-samples=20", "--train-batch-size=16"];
        // Starts a run, and stops it after each of its first `steps` steps.
        let stopped = |name: &str, steps: usize| {
            for step in 1..=steps {
                let job = match step {
                    1 => lab.command(ranks, name, &options),
                    _ => lab.resume(ranks, name, &[]),
                };
                job.stops[0].request(libc::SIGUSR1);
                assert_eq!(must_fail(job).status.code(), Some(75));
            }
        };
        let name = |kind: &str| format!("{kind}{ranks}");
        let (inside, at_end) = (&name("inside"), &name("end"));
        stopped(inside, 5);
        for set in ["--epochs=1", "--epochs=2"] {
            refused(
                lab.resume(ranks, inside, &[set]),
                2,
                &[&format!("{}: ", set.replace('=', " ")), "completed 2 epochs", "at least 3"],
            );
            assert_eq!(lab.run_json(inside)["status"], "stopped");
        }
        // A single rank without a launcher fails with another error.
        if ranks > 1 {
            let job = lab.resume(ranks, inside, &["--world-size=9"]);
            let line = refused(job, 2, &[&format!("{ranks} ranks")]);
            assert!(!line.contains("-n 9"), "the run has another number: {line}");
        }
        output_of(lab.resume(ranks, inside, &["--epochs=3"]));
        assert_eq!(lab.completed(inside)["epochs_run"], 3);

        stopped(at_end, 4);
        let sets = ["--epochs=2", "--test-samples=5"];
        let words = ["after 2 epochs", "test-samples", "--epochs 3"];
        refused(lab.resume(ranks, at_end, &sets), 2, &words);
        output_of(lab.resume(ranks, at_end, &["--epochs=2"]));
        let run = lab.completed(at_end);
        assert_eq!((&run["epochs_run"], &run["steps"]), (&2.into(), &4.into()));
        refused(lab.resume(ranks, at_end, &["--early-stopping=1"]), 2, &["--early-stopping 1: ", "complete"]);
    }
}

/// The first printed line that contains `words`.
fn line_with<'t>(printed: &'t str, words: &str) -> &'t str {
    printed.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("no {words}: {printed}"))
}

#[test]
fn a_resumed_run_says_where_its_learning_rate_goes_and_writes_it_down() {
    let lab = Lab::new();
    let options = ["--epochs=2", "--train-samples=64", "--test-samples=20", "--lr=0.5"];
    let train = |name: &str, schedule: &[&str]| lab.train(2, name, &[&options[..], schedule].concat());
    train("cosine", &["--schedule=cosine"]);
    let printed = output_of(lab.resume(2, "cosine", &["--epochs=4"]));
    let line = line_with(&printed, "the learning rate was 0.25");
    assert!(line.contains("is 0.25 ") && line.contains("0.0732 ") && line.ends_with("epoch 4"), "{line}");
    assert!(printed.contains(", lr 0.0732,") && !printed.contains("warn: "), "{printed}");
    let rates: Vec<f64> = lab.column("cosine", "learning_rate");
    let expected = [0.5, 0.25, 0.25, 0.25 * (1.0 - 0.5f64.sqrt())];
    assert!(rates.iter().zip(expected).all(|(rate, right)| (rate - right).abs() < 1e-12), "{rates:?}");

    train("step", &["--schedule=step", "--step-size=1", "--gamma=1e-4"]);
    let printed = output_of(lab.resume(2, "step", &["--epochs=4"]));
    let line = line_with(&printed, "warn: epochs 3 to 4 ");
    for fact in ["5e-9", "a millionth", "0.5;", "--step-size", "--gamma"] {
        assert!(line.contains(fact), "{fact}: {line}");
    }
    assert_eq!(lab.column::<f64>("step", "learning_rate").len(), 4);
    let printed = output_of(lab.command(2, "new", &[&options[..], &["--epochs=4"]].concat()));
    assert!(!printed.contains("warn: ") && printed.contains(", lr 0.5,"), "{printed}");
    for (lr, words) in [("0", ["the learning rate is 0;", "--lr"]), ("1e-9", ["1e-9", "a millionth"])] {
        let copied = Command::new("cp").arg("-a").args([lab.path("new"), lab.path(lr)]).status();
        assert!(copied.expect("cp starts").success());
        let printed = output_of(lab.resume(2, lr, &["--epochs=6", &format!("--lr={lr}")]));
        let line = line_with(&printed, "warn: epochs 5 to 6 ");
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    // The learning rate is constant, so another number of epochs does not change it.
    let printed = output_of(lab.resume(2, "new", &["--epochs=5"]));
    assert!(!printed.contains("the learning rate was"), "{printed}");
}

/// If the test is changed, the best epoch so far was measured by another test. Early stopping neither ends a
/// run because of it nor returns to it.
#[test]
fn early_stopping_begins_anew_where_it_is_set_or_the_test_is_another() {
    let lab = Lab::new();
    // With a learning rate of 0, no epoch is better than the first one.
    let options = ["--epochs=3", "--train-samples=64", "--test-samples=20", "--keep=1"];
    let stopping = [&options[..], &["--early-stopping=5", "--lr=0"]].concat();
    for ranks in [1, 2] {
        let (without, other, added) =
            (&format!("without{ranks}"), &format!("other{ranks}"), &format!("added{ranks}"));
        lab.train(ranks, without, &stopping);
        output_of(lab.resume(ranks, without, &["--early-stopping=none", "--epochs=5", "--lr=0.01"]));
        let evaluated = output_of(lab.on(ranks, &["eval", "--checkpoint"], without));
        let loss = lab.completed(without)["test_loss"].as_f64().unwrap();
        assert!(evaluated.contains(&format!("test loss {loss:.6} ")), "{evaluated}");

        // With 30 test samples, all epochs from the fourth are equal again.
        lab.train(ranks, other, &stopping);
        let sets = ["--test-samples=30", "--epochs=5", "--early-stopping=3"];
        output_of(lab.resume(ranks, other, &sets));
        let run = lab.completed(other);
        assert_eq!((&run["epochs_run"], &run["best_epoch"]), (&5.into(), &4.into()));
        let evaluated = output_of(lab.on(ranks, &["eval", "--checkpoint"], other));
        assert!(evaluated.contains("taking epoch 4 of 5"), "{evaluated}");

        // The resumed run is killed before its first checkpoint, so only the history in run.json has the
        // change.
        let killed = &format!("killed{ranks}");
        lab.train(ranks, killed, &[&options[..3], &["--early-stopping=5", "--lr=0"]].concat());
        output_of(lab.resume(ranks, killed, &["--test-samples=30", "--epochs=4"]));
        std::fs::remove_dir_all(lab.newest(killed)).unwrap();
        output_of(lab.resume(ranks, killed, &[]));
        assert_eq!(lab.position(killed)["compared_from"], 3);
        assert_eq!(lab.completed(killed)["best_epoch"], 4);

        lab.train(ranks, added, &[&options[..], &["--lr=0"]].concat());
        output_of(lab.resume(ranks, added, &["--early-stopping=2", "--epochs=9"]));
        let run = lab.completed(added);
        assert_eq!((&run["epochs_run"], &run["best_epoch"]), (&6.into(), &4.into()));
    }
}

/// After a kill, the curves have points that were written after the last checkpoint. The resumed run replaces
/// them.
#[test]
fn tensorboard_has_each_step_once_after_a_resume_from_an_older_checkpoint() {
    let lab = Lab::new();
    let options = ["--epochs=3", "--train-samples=128", "--test-samples=20", "--log-every=1"];
    lab.train(2, "run", &options);
    let points = |folder: &str, tag: &str| {
        let files = std::fs::read_dir(lab.path("run/tensorboard").join(folder)).expect("a folder");
        let count = |text: &[u8]| text.windows(tag.len()).filter(|found| *found == tag.as_bytes()).count();
        files.map(|file| count(&std::fs::read(file.unwrap().path()).unwrap())).sum::<usize>()
    };
    let all = || {
        let of = |folder: &str| ["train/loss", "test/accuracy"].map(|tag| points(folder, tag));
        (["mean", "rank0", "rank1"].map(of), points("mean", "train/learning_rate"))
    };
    let expected = ([[6, 3]; 3], 3);
    assert_eq!(all(), expected);
    for removed in [1, 2] {
        for _ in 0..removed {
            std::fs::remove_dir_all(lab.checkpoints("run").pop().expect("a checkpoint")).unwrap();
        }
        output_of(lab.resume(2, "run", &[]));
        assert_eq!(all(), expected, "{removed} checkpoints again");
    }
}

/// As in a new run, a limit above the number of samples is recorded as the number of samples.
#[test]
fn limits_above_the_data_set_become_its_samples_in_a_resumed_run() {
    let lab = Lab::new();
    let data = lab.data("digits", 64, 20);
    lab.train(2, "run", &["--epochs=1", "--data-root", &data, "--test-samples=10"]);
    let resume = |value: &str, epochs: &str| {
        let sets = [format!("--test-samples={value}"), format!("--epochs={epochs}")];
        let printed = output_of(lab.on(2, &["train", "--resume"], "run").args(sets));
        (printed, lab.completed("run"))
    };
    let (printed, run) = resume("1000", "2");
    let line = line_with(&printed, "warn: --test-samples 1000: ");
    assert!(line.contains(" 20 ") && line.contains("run.json"), "{line}");
    assert_eq!(run["config"]["test_samples"], 20);
    let manifest = std::fs::read(lab.newest("run").join("manifest.json")).expect("a manifest");
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
    assert_eq!(manifest["config"]["test_samples"], 20);
    let noted = |run: &serde_json::Value, attempt: usize| run["history"][attempt]["changed"].to_string();
    assert!(noted(&run, 1).contains(r#""field":"test_samples","from":10,"to":20"#), "{}", noted(&run, 1));
    let (_, run) = resume("2000", "3");
    assert!(!noted(&run, 2).contains("test_samples"), "it has not changed: {}", noted(&run, 2));
}

/// The loss and accuracy of the first added epoch must be of this epoch alone, not also of the epoch before.
#[test]
fn a_complete_run_that_gets_more_epochs_has_the_lines_of_one_in_one_go() {
    let lab = Lab::new();
    let data = lab.data("digits", 64, 20);
    let options = |epochs: &str| vec![format!("--epochs={epochs}"), format!("--data-root={data}")];
    for (name, epochs) in [("whole", "3"), ("parts", "1")] {
        let options = options(epochs);
        lab.train(3, name, &options.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for epochs in ["2", "3"] {
        succeeds(lab.on(3, &["train", "--resume"], "parts").args(["--epochs", epochs]));
    }
    for title in ["epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy"] {
        let of = |name: &str| lab.column::<f64>(name, title);
        assert_eq!(of("parts"), of("whole"), "{title}");
    }
    let results = |name: &str| {
        ["train_loss", "train_accuracy", "weights_sha256"].map(|key| lab.completed(name)[key].clone())
    };
    assert_eq!(results("parts"), results("whole"));
}

/// In the middle of an epoch, ranks have different running statistics.
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

            // Removes the checkpoint of the end, so that the run continues from the middle of the last epoch.
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
