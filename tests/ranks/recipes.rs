//! Optimizers, schedules, regularisation and augmentation: the same result on several ranks, and after an
//! interruption.

use std::collections::BTreeSet;
use std::path::Path;

use crate::harness::*;

#[test]
fn two_ranks_with_any_recipe_compute_the_same_as_one() {
    let lab = Lab::new();
    let base = ["--epochs", "1", "--train-samples", "325", "--test-samples", "50", "--overwrite"];
    let mut found = BTreeSet::new();
    for recipe in [
        "--optimizer adam --lr 1e-3 --label-smoothing 0.1 --class-weights balanced",
        "--optimizer adamw --lr 1e-3 --l1 1e-3 --weight-decay 0.1",
        "--optimizer sgd --lr 0.1 --momentum 0.9 --clip-norm 0.5",
        "--optimizer sgd --lr 0.1 --schedule onecycle --max-lr 0.1 --l2 1e-3",
        "--optimizer rmsprop --lr 1e-3 --augment crop,flip,jitter,rotate --shuffle",
        "--optimizer lamb --lr 1e-2 --weight-decay 0.1 --warmup-epochs 0.5",
    ] {
        let options: Vec<&str> = base.into_iter().chain(recipe.split(' ')).collect();
        let run = lab.train(1, "one", &[&options[..], &["--train-batch-size", "32"]].concat());
        lab.train(2, "two", &[&options[..], &["--train-batch-size", "8", "--accumulate", "2"]].concat());
        let off = lab.weights_apart("one", "two");
        // Where a gradient is near 0, Adam and RMSprop amplify its rounding error to a fraction of their step
        // size.
        assert!(off < 3e-4, "{recipe}: {off}");
        let digest = run["weights_sha256"].as_str().expect("a digest").to_owned();
        assert!(found.insert(digest), "every recipe has an effect: {recipe}");
    }
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
        "--optimizer lamb --lr 5e-3 --lr-scaling linear --warmup-epochs 1.25 --eval-every 3",
    ] {
        let options: Vec<&str> = base.split(' ').chain(recipe.split(' ')).collect();
        let expected = lab.train(2, "run", &options);
        assert!(lab.newest("run").ends_with("step-00000020"), "{}", lab.newest("run").display());
        lab.cut("run");
        lab.resumed(2, "run");
        for key in ["weights_sha256", "test_loss"] {
            assert_eq!(lab.run_json("run")[key], expected[key], "{recipe}");
        }
    }
}

#[test]
fn augmented_images_differ_in_every_epoch() {
    let lab = Lab::new();
    // The learning rate is 0, so the losses of two epochs differ only if the images differ.
    let options = ["--epochs", "2", "--train-samples", "320", "--lr", "0", "--weight-decay", "0"];
    lab.train(1, "plain", &options);
    lab.train(1, "changed", &[&options[..], &["--augment", "crop,jitter"]].concat());
    let losses = |name| ["train_loss", "test_loss"].map(|title| lab.column::<String>(name, title));
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
    let losses: Vec<f64> = lab.column("run", "test_loss");
    let best = (0..losses.len()).min_by(|&a, &b| losses[a].total_cmp(&losses[b])).unwrap() + 1;
    assert!(losses.len() < 40, "it overfits: {losses:?}");
    assert_eq!(run["best_epoch"], best);
    assert_eq!(run["stopped_early_after"], best + 4);
    assert_eq!(losses.len(), best + 4);
    for rank in 0..3 {
        assert_eq!(lab.curve("run", rank, "test.loss").len(), best + 4);
    }

    // The printed loss has six digits, and is a sum over another number of ranks.
    let eval = |path: &Path, expected: f64| {
        let printed = output_of(job(2).args(["eval", "--checkpoint"]).arg(path));
        let loss = printed.split("test loss ").nth(1).and_then(|rest| rest.split_whitespace().next());
        let loss: f64 = loss.expect("a loss").parse().expect("a number");
        assert!((loss - expected).abs() < 2e-6, "{printed} {losses:?}");
        printed
    };
    assert_eq!(lab.checkpoints("run").len(), 4, "the last three and the best");
    let printed = eval(&lab.path("run"), losses[best - 1]);
    assert!(printed.contains(&format!("taking epoch {best} of {}", best + 4)), "{printed}");
    eval(&lab.newest("run"), losses[best + 3]);

    // After the run is resumed without its last epoch, it continues to count epochs.
    lab.cut("run");
    lab.resumed(3, "run");
    for name in ["weights_sha256", "best_epoch", "stopped_early_after"] {
        assert_eq!(lab.run_json("run")[name], run[name]);
    }
}

#[test]
fn incompatible_options_are_rejected_with_one_line() {
    let lab = Lab::new();
    let features = lab.data("features", 64, 20);
    let features = ["--model", "mlp", "--augment", "flip", "--data-root", &features];
    for (options, words) in [
        (&["--momentum", "0.9"][..], ["--momentum 0.9", "leave it out"]),
        (&["--max-lr", "0.1"], ["--max-lr 0.1", "--schedule onecycle"]),
        (&["--schedule", "onecycle"], ["--schedule onecycle", "--max-lr"]),
        (&["--augment", "flip,blur"], ["--augment flip,blur", "crop,flip,jitter,rotate"]),
        (&features, ["--augment flip", ".npy pairs"]),
    ] {
        refused(lab.command(2, "out", options), 2, &words);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
}
