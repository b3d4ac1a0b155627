//! Data sets of every kind, from generation to training.

use std::path::Path;
use std::process::{Command, Output};

use crate::harness::*;

fn data(words: &[&str], folder: &Path) -> Output {
    let mut command = Command::new(binary());
    command.arg("data").args(words).arg(folder).env_remove("RUST_LOG");
    run(command)
}

fn made(kind: &str, train: &str, test: &str, folder: &Path) {
    let output = data(&[kind, "--train", train, "--test", test, "--out"], folder);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn the_mlp_learns_generated_features() {
    let lab = Lab::new();
    let folder = lab.path("features");
    made("features", "4000", "1000", &folder);
    let root = folder.to_str().unwrap();
    let options = ["--data-root", root, "--model", "mlp", "--shuffle", "--lr", "3e-3", "--weight-decay", "0"];
    let run = lab.train(2, "run", &[&options[..], &["--batch-size", "16", "--epochs", "3"]].concat());
    let accuracy = run["test_accuracy"].as_f64().expect("an accuracy");
    assert!(accuracy > 65.0, "{accuracy}");
}

#[test]
fn the_vgg_learns_generated_objects() {
    let lab = Lab::new();
    let folder = lab.path("objects");
    made("objects", "60", "20", &folder);
    let root = folder.to_str().unwrap();
    let run = lab.train(2, "run", &["--data-root", root, "--model", "vgg", "--epochs", "1"]);
    let loss = run["test_loss"].as_f64().expect("a loss");
    // One step away from uniform predictions over ten classes, which have loss ln 10.
    assert!((loss - 10f64.ln()).abs() < 0.1, "{loss}");

    let options = ["--train-samples", "40", "--train-batch-size", "4", "--batch-norm", "--epochs", "10"];
    let recipe = ["--lr", "1e-3", "--weight-decay", "0", "--model", "vgg", "--data-root", root];
    let run = lab.train(2, "learned", &[&options[..], &recipe].concat());
    let number = |name: &str| run[name].as_f64().expect("a number");
    let (loss, accuracy) = (number("train_loss"), number("train_accuracy"));
    // At learning rate 0 they are 2.28 and 7.5%; chance level is 10%.
    assert!(loss < 1.5 && accuracy > 50.0, "{loss}, {accuracy}%");
}

#[test]
fn info_describes_a_folder_and_draws_samples() {
    let lab = Lab::new();
    let (folder, sheet) = (lab.path("objects"), lab.path("sheet.png"));
    made("objects", "50", "10", &folder);
    let output = data(&["info", "--sheet", sheet.to_str().unwrap()], &folder);
    let printed = text(&output);
    for part in
        ["CIFAR-10 binary batches, 10 classes", "3 x 32 x 32", "train 50 samples, SHA-256 ", "crescent"]
    {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    assert!(std::fs::read(&sheet).unwrap().starts_with(b"\x89PNG"));
    // Ranks compare their training sets by the same digest.
    let again = lab.path("again");
    made("objects", "50", "10", &again);
    let digest = |output: &Output| text(output).lines().nth(2).map(ToOwned::to_owned);
    assert_eq!(digest(&output), digest(&data(&["info"], &again)));
}

#[test]
fn a_data_set_is_not_mixed_with_another_nor_replaced_without_the_option() {
    let lab = Lab::new();
    let folder = lab.path("objects");
    made("objects", "50", "10", &folder);
    let rejected = |words: &[&str], expected: &str| {
        let output = data(words, &folder);
        let errors = errors(&output);
        assert!(!output.status.success() && errors.len() == 1, "{}", text(&output));
        assert!(errors[0].contains(expected), "{}", errors[0]);
    };
    rejected(&["objects", "--out"], "--overwrite");
    rejected(&["digits", "--overwrite", "--out"], "contains another data set, CIFAR-10 binary batches");
    made("digits", "20", "10", &lab.path("digits"));
    let digits = lab.path("digits").join("train-images-idx3-ubyte");
    std::fs::copy(digits, folder.join("train-images-idx3-ubyte")).unwrap();
    rejected(&["info"], "two data sets in");
    let command = lab.command(2, "run", &["--data-root", folder.to_str().unwrap()]);
    let output = must_fail(command);
    assert_eq!(errors(&output).len(), 1, "{}", text(&output));
    assert!(errors(&output)[0].contains("two data sets in"), "{}", text(&output));
}

#[test]
fn what_cannot_be_generated_is_refused_with_the_option() {
    let lab = Lab::new();
    let (file, folder) = (lab.path("file"), lab.path("folder"));
    std::fs::write(&file, "").unwrap();
    let most = u64::MAX.to_string();
    for (words, at, expected) in [
        (&["digits", "--out"][..], &file, "file: is no folder"),
        (&["digits", "--train", &most, "--out"], &folder, "samples take 14480694097862.0 GB, and "),
        (&["objects", "--train", "10000000000", "--out"], &folder, "--train 10000000000 --test 10000: "),
        (
            &["features", "--train", "1", "--test", "1", "--out"],
            &folder,
            "--train 1 --test 1: too few samples: ",
        ),
    ] {
        let output = data(words, at);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{}", text(&output));
    }
    // A value, and no option of that name.
    let negative = data(&["digits", "--train", "-1", "--out"], &folder);
    assert!(text(&negative).contains("invalid value '-1' for '--train <N>'"), "{}", text(&negative));
}
