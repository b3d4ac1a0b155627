//! Tests inside an epoch, and the time to a target accuracy.

use std::fs;

use crate::harness::*;

/// Three steps per epoch, and dropout and batch norm, which behave differently in a test.
fn options(ranks: usize) -> Vec<String> {
    let samples = format!("--train-samples={}", 2 * 16 * ranks + 1);
    let rest = "--epochs=3 --train-batch-size=16 --test-samples=60 --batch-norm --dropout=0.3 --lr=3e-3 --log-every=1";
    rest.split(' ').map(str::to_owned).chain([samples]).collect()
}

/// The steps and accuracies of a run's tests, mean over ranks that all have as many test samples.
fn tests(lab: &Lab, name: &str, ranks: usize) -> Vec<(usize, f64)> {
    let of_rank = |rank: usize| -> Vec<(usize, f64)> {
        let text = fs::read_to_string(lab.path(name).join(format!("rank{rank}/test.acc"))).unwrap();
        let point = |line: &str| {
            let (step, accuracy) = line.split_once(' ').expect("two numbers");
            (step.parse().expect("a step"), accuracy.parse().expect("an accuracy"))
        };
        text.lines().map(point).collect()
    };
    let all: Vec<_> = (0..ranks).map(of_rank).collect();
    let mean = |at: usize| all.iter().map(|points| points[at].1).sum::<f64>() / ranks as f64;
    all[0].iter().enumerate().map(|(at, point)| (point.0, mean(at))).collect()
}

#[test]
fn tests_inside_an_epoch_change_only_the_test_curve() {
    let lab = Lab::new();
    for ranks in 1..=4 {
        let options = options(ranks);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (plain, tested) = (&format!("plain{ranks}"), &format!("tested{ranks}"));
        let expected = lab.train(ranks, plain, &options);
        let run = lab.train(ranks, tested, &[&options[..], &["--eval-every=2"]].concat());
        for key in ["weights_sha256", "test_accuracy", "test_loss", "train_loss", "steps"] {
            assert_eq!(run[key], expected[key], "{ranks} ranks: {key}");
        }
        assert!(run["target_reached"].is_null(), "there is no target");
        let steps = |name| tests(&lab, name, ranks).into_iter().map(|(step, _)| step).collect::<Vec<_>>();
        assert_eq!((steps(plain), steps(tested)), (vec![3, 6, 9], vec![2, 3, 4, 6, 8, 9]), "{ranks} ranks");
    }
}

/// The target is the accuracy of a test inside an epoch that is above those of all earlier tests.
#[test]
fn a_target_ends_all_ranks_at_the_test_that_reaches_it_also_after_interruptions() {
    let lab = Lab::new();
    for ranks in 1..=3 {
        let options = options(ranks);
        let options: Vec<&str> = options.iter().map(String::as_str).chain(["--eval-every=1"]).collect();
        let name = |kind: &str| format!("{kind}{ranks}");
        let (never, noted, whole, cut) = (&name("never"), &name("noted"), &name("whole"), &name("cut"));
        let run = lab.train(ranks, never, &[&options[..], &["--target-accuracy=100"]].concat());
        assert_eq!((&run["target_reached"], &run["steps"]), (&false.into(), &9.into()));
        assert!(["steps", "epochs", "seconds"].iter().all(|of| run[format!("{of}_to_target")].is_null()));

        let found = tests(&lab, never, ranks);
        let best = |before: usize| found[..before].iter().map(|test| test.1).fold(0.0, f64::max);
        let at = (0..9).rev().find(|&at| (at + 1) % 3 != 0 && found[at].1 > best(at)).expect("a new best");
        let target = &format!("--target-accuracy={}", found[at].1 - 1e-9);
        let run = lab.train(ranks, noted, &[&options[..], &[target]].concat());
        assert_eq!((&run["steps_to_target"], &run["steps"]), (&(at + 1).into(), &9.into()));
        let numbers = ["epochs_to_target", "seconds_to_target", "train_seconds"].map(|of| run[of].as_f64());
        let [Some(epochs), Some(seconds), Some(all)] = numbers else { panic!("{numbers:?}") };
        assert!((epochs - (at + 1) as f64 / 3.0).abs() < 1e-9 && 0.0 < seconds && seconds < all);

        let options = [&options[..], &[target, "--stop-at-target"]].concat();
        let run = lab.train(ranks, whole, &options);
        let counts =
            ["steps", "steps_to_target", "epochs_run"].map(|key| run[key].as_u64().unwrap() as usize);
        assert_eq!(counts, [at + 1, at + 1, at / 3 + 1]);
        assert!((run["test_accuracy"].as_f64().unwrap() - found[at].1).abs() < 1e-9);
        assert!(run["stopped_early_after"].is_null());
        assert_eq!(tests(&lab, whole, ranks), found[..=at], "the last test is recorded once");
        // The run, and the run that is stopped after each of its steps, have the same bits.
        for step in 1..=at + 1 {
            let job = match step {
                1 => lab.command(ranks, cut, &options),
                _ => lab.resume(ranks, cut, &[]),
            };
            job.stops[step % ranks].request(libc::SIGUSR1);
            assert_eq!(must_fail(job).status.code(), Some(75), "step {step}");
        }
        output_of(lab.resume(ranks, cut, &[]));
        lab.assert_same(cut, whole);
        assert_eq!(lab.completed(cut)["steps_to_target"], at + 1);

        // The incomplete epoch has a value in the training curve, as the others have.
        let curve = fs::read_to_string(lab.path(whole).join("rank0/train.loss")).unwrap();
        assert_eq!(curve.lines().count(), at + 1, "{curve}");
        assert!(output_of(lab.resume(ranks, whole, &[])).contains("complete"));
        refused(lab.resume(ranks, whole, &["--epochs=9"]), 2, &["--stop-at-target", "start a new run"]);
        refused(lab.resume(ranks, whole, &["--target-accuracy=1"]), 2, &["--target-accuracy 1: "]);
        succeeds(job(1).arg("report").args([whole, cut, noted, never].map(|run| lab.path(run))));
    }
}

/// A target that was reached on other test samples does not count.
#[test]
fn a_change_of_the_test_set_begins_the_target_anew() {
    let lab = Lab::new();
    let options =
        ["--epochs=1", "--train-samples=1280", "--lr=5e-3", "--eval-every=1", "--target-accuracy=100"];
    let run = lab.train(2, "run", &[&options[..], &["--test-samples=2"]].concat());
    assert_eq!(run["target_reached"], true, "two samples are soon recognised");
    let lines = output_of(lab.resume(2, "run", &["--epochs=2", "--test-samples=500"]));
    assert!(lines.contains("warn: --target-accuracy "), "{lines}");
    let run = lab.completed("run");
    assert_eq!((&run["target_reached"], run["steps_to_target"].is_null()), (&false.into(), true));
}

#[test]
fn a_run_that_stopped_before_the_first_line_has_a_value_and_early_stopping_names_its_epoch() {
    let lab = Lab::new();
    let options = ["--train-samples=640", "--test-samples=60", "--eval-every=3", "--target-accuracy=1e-9"];
    lab.train(2, "run", &[&options[..], &["--stop-at-target", "--early-stopping=2"]].concat());
    for rank in 0..2 {
        let curve = fs::read_to_string(lab.path(&format!("run/rank{rank}/train.loss"))).unwrap();
        assert!(curve.starts_with("3 ") && curve.lines().count() == 1, "{curve}");
    }
    let lines = output_of(lab.on(2, &["eval"], "run"));
    assert!(lines.contains("epoch 1 of 1"), "{lines}");
}

#[test]
fn an_infinite_loss_in_a_test_inside_an_epoch_is_named_with_its_step() {
    let lab = Lab::new();
    let options = ["--train-samples=640", "--optimizer=sgd", "--lr=1e20", "--eval-every=1", "--epochs=2"];
    refused(lab.command(2, "run", &options), 1, &["test loss is NaN or infinite at epoch 1, step 1"]);
}
