//! Optimizers, schedules, regularisation and augmentation on several ranks and with
//! interruptions.

use serde_json::Value;

use crate::harness::*;

fn resume(lab: &Lab, name: &str, ranks: usize) -> Value {
    let mut command = on_ranks(ranks, binary());
    let output = run(command.args(["train", "--resume"]).arg(lab.path(name)));
    assert!(output.status.success(), "{}", text(&output));
    lab.run_json(name)
}

#[test]
fn two_ranks_with_any_recipe_compute_the_same_as_one() {
    let lab = Lab::new();
    let base = ["--epochs", "1", "--train-samples", "325", "--test-samples", "50", "--overwrite"];
    let mut found = Vec::new();
    for recipe in [
        "--optimizer adam --lr 1e-3 --label-smoothing 0.1",
        "--optimizer adamw --lr 1e-3 --l1 1e-3 --weight-decay 0.1",
        "--optimizer sgd --lr 0.1 --momentum 0.9 --clip-norm 0.5",
        "--optimizer sgd --lr 0.1 --schedule onecycle --max-lr 0.1 --l2 1e-3",
        "--optimizer rmsprop --lr 1e-3 --augment crop,flip,jitter,rotate --shuffle",
    ] {
        let options = [&base[..], &recipe.split(' ').collect::<Vec<_>>()].concat();
        let run = lab.train(1, "one", &[&options[..], &["--train-batch-size", "32"]].concat());
        lab.train(2, "two", &[&options[..], &["--train-batch-size", "8", "--accumulate", "2"]].concat());
        let off = lab.weights_apart("one", "two");
        // Where gradients are near 0, Adam and RMSprop amplify rounding errors to a
        // fraction of their step size.
        assert!(off < 3e-4, "{recipe}: {off}");
        found.push(run["weights_sha256"].as_str().expect("a digest").to_owned());
    }
    let different: std::collections::BTreeSet<_> = found.iter().collect();
    assert_eq!(different.len(), 5, "every recipe has an effect: {found:?}");
}

#[test]
fn every_recipe_resumes_inside_an_epoch_to_the_same_bits() {
    let lab = Lab::new();
    // Ten steps per epoch: checkpoints after steps 10, 14 and 20 are kept.
    let base =
        "--epochs 2 --train-samples 320 --train-batch-size 16 --checkpoint-every 7 --shuffle --overwrite";
    for recipe in [
        "--optimizer adamw --schedule onecycle --max-lr 1e-2 --augment crop,flip,jitter,rotate",
        "--optimizer sgd --lr 0.05 --momentum 0.9 --schedule cosine --clip-norm 1",
        "--optimizer sgd --lr 0.05 --schedule step --step-size 1",
        "--optimizer rmsprop --schedule onecycle --max-lr 1e-3 --early-stopping 5 --label-smoothing 0.1",
    ] {
        let options: Vec<&str> = base.split(' ').chain(recipe.split(' ')).collect();
        let expected = lab.train(2, "run", &options);
        let last = lab.checkpoints("run").pop().unwrap();
        assert!(last.ends_with("step-00000020"), "{}", last.display());
        std::fs::remove_dir_all(last).unwrap();
        let found = resume(&lab, "run", 2);
        assert_eq!(found["weights_sha256"], expected["weights_sha256"], "{recipe}");
        assert_eq!(found["test_loss"], expected["test_loss"], "{recipe}");
    }

    // Checkpoints of versions without manifests do not cover the optimizer, but have its moments.
    lab.remove_manifests("run");
    let file = lab.path("run").join("run.json");
    let changed = std::fs::read_to_string(&file).unwrap().replace("\"rmsprop\"", "\"sgd\"");
    std::fs::write(&file, changed).unwrap();
    let mut command = on_ranks(2, binary());
    command.args(["train", "--resume"]).arg(lab.path("run"));
    let output = must_fail(command);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
    assert!(errors[0].contains("square, velocity") && errors[0].contains("sgd"), "{}", errors[0]);
}

/// Runs of versions without a choice of optimizers.
#[test]
fn a_run_without_a_recipe_resumes_with_adam() {
    let lab = Lab::new();
    let expected = lab.train(1, "run", &["--epochs", "2", "--train-samples", "320"]);
    let checkpoints = lab.checkpoints("run");
    std::fs::remove_dir_all(&checkpoints[1]).unwrap();
    lab.remove_manifests("run");
    for (file, section) in
        [(lab.path("run").join("run.json"), "config"), (checkpoints[0].join("state.json"), "")]
    {
        let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let object = if section.is_empty() { &mut json } else { &mut json[section] };
        let names =
            ["moments", "optimizer", "momentum", "schedule", "l1", "l2", "label_smoothing", "augment"];
        let removed = names.iter().filter(|&&name| object.as_object_mut().unwrap().remove(name).is_some());
        assert!(removed.count() > 0, "{}", file.display());
        std::fs::write(&file, serde_json::to_vec(&json).unwrap()).unwrap();
    }
    assert_eq!(resume(&lab, "run", 1)["weights_sha256"], expected["weights_sha256"]);
}

#[test]
fn augmented_images_differ_in_every_epoch() {
    let lab = Lab::new();
    // The learning rate is 0, so losses differ by the images only.
    let options = ["--epochs", "2", "--train-samples", "320", "--lr", "0", "--weight-decay", "0"];
    let losses = |name: &str| {
        let epochs = std::fs::read_to_string(lab.path(name).join("epochs.csv")).unwrap();
        let column =
            |at: usize| epochs.lines().skip(1).map(move |l| l.split(',').nth(at).unwrap().to_owned());
        [1, 3].map(|at| column(at).collect::<Vec<_>>())
    };
    lab.train(1, "plain", &options);
    lab.train(1, "changed", &[&options[..], &["--augment", "crop,jitter"]].concat());
    let ([train, test], [changed, same]) = (losses("plain"), losses("changed"));
    assert_eq!(train[0], train[1]);
    assert!(changed[0] != changed[1] && changed[0] != train[0], "{changed:?} {train:?}");
    assert_eq!(same, test, "test images are not augmented");
}

#[test]
fn early_stopping_ends_all_ranks_at_the_same_epoch_and_keeps_the_best() {
    let lab = Lab::new();
    let options = ["--epochs", "40", "--train-samples", "160", "--lr", "0.02", "--early-stopping", "4"];
    let run = lab.train(3, "run", &options);
    let epochs = std::fs::read_to_string(lab.path("run").join("epochs.csv")).unwrap();
    let losses: Vec<f64> =
        epochs.lines().skip(1).map(|l| l.split(',').nth(3).unwrap().parse().unwrap()).collect();
    let best = (0..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap() + 1;
    assert!(losses.len() < 40, "it overfits: {losses:?}");
    assert_eq!(run["best_epoch"], best);
    assert_eq!(run["stopped_early_after"], best + 4);
    assert_eq!(losses.len(), best + 4);
    for rank in 0..3 {
        assert_eq!(lab.curve("run", rank, "test.loss").len(), best + 4);
    }

    let eval = |path: &std::path::Path| {
        let output = crate::harness::run(on_ranks(2, binary()).args(["eval", "--checkpoint"]).arg(path));
        assert!(output.status.success(), "{}", text(&output));
        let printed = text(&output);
        let loss = printed.split("test loss ").nth(1).and_then(|rest| rest.split_whitespace().next());
        (loss.expect("a loss").parse::<f64>().expect("a number"), printed)
    };
    let checkpoints = lab.checkpoints("run");
    assert_eq!(checkpoints.len(), 4, "the last three and the best");
    let (loss, printed) = eval(&lab.path("run"));
    assert!(printed.contains(&format!("taking epoch {best} of {}", best + 4)), "{printed}");
    // Printed with six digits, and summed over another number of ranks.
    assert!((loss - losses[best - 1]).abs() < 2e-6, "{printed} {losses:?}");
    let (loss, printed) = eval(&checkpoints[3]);
    assert!((loss - losses[best + 3]).abs() < 2e-6, "{printed} {losses:?}");

    // Resumed without its last epoch, the run continues its count of epochs.
    std::fs::remove_dir_all(&checkpoints[3]).unwrap();
    let again = resume(&lab, "run", 3);
    for name in ["weights_sha256", "best_epoch", "stopped_early_after"] {
        assert_eq!(again[name], run[name]);
    }
}

#[test]
fn incompatible_options_are_rejected_with_one_line() {
    let lab = Lab::new();
    let features = lab.path("features");
    let made = std::process::Command::new(binary())
        .args(["-q", "data", "features", "--train", "64", "--test", "20", "--out"])
        .arg(&features)
        .status();
    assert!(made.unwrap().success());
    let features = ["--model", "mlp", "--augment", "flip", "--data-root", features.to_str().unwrap()];
    for (options, words) in [
        (&["--momentum", "0.9"][..], ["--momentum 0.9", "leave it out"]),
        (&["--max-lr", "0.1"], ["--max-lr 0.1", "--schedule onecycle"]),
        (&["--schedule", "onecycle"], ["--schedule onecycle", "--max-lr"]),
        (&["--augment", "flip,blur"], ["--augment flip,blur", "crop,flip,jitter,rotate"]),
        (&features, ["--augment flip", ".npy pairs"]),
    ] {
        let output = must_fail(lab.command(2, "out", options));
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
        assert!(words.iter().all(|word| errors[0].contains(word)), "{}", errors[0]);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
}
