//! Data sets of every kind, from generation to training.

use std::path::Path;
use std::process::Output;

use crate::harness::*;

fn data(words: &[&str], folder: &Path) -> Output {
    run(job(1).arg("data").args(words).arg(folder))
}

/// Generates a data set; returns its folder for `--data-root`.
fn made(lab: &Lab, kind: &str, [train, test]: [&str; 2]) -> String {
    let folder = lab.path(kind);
    let output = data(&[kind, "--train", train, "--test", test, "--out"], &folder);
    assert!(output.status.success(), "{}", text(&output));
    folder.to_str().expect("a UTF-8 path").to_owned()
}

/// Panics unless the command ended with this exit code and one line, which contains all `facts`.
fn refused(output: &Output, code: i32, facts: &[&str]) {
    let errors = errors(output);
    assert_eq!((output.status.code(), errors.len()), (Some(code), 1), "{}", text(output));
    for fact in facts {
        assert!(errors[0].contains(fact), "{fact}: {}", errors[0]);
    }
}

#[test]
fn the_mlp_learns_generated_features() {
    let lab = Lab::new();
    let root = made(&lab, "features", ["4000", "1000"]);
    let options =
        ["--data-root", &root, "--model", "mlp", "--shuffle", "--lr", "3e-3", "--weight-decay", "0"];
    let run = lab.train(2, "run", &[&options[..], &["--batch-size", "16", "--epochs", "3"]].concat());
    let accuracy = run["test_accuracy"].as_f64().expect("an accuracy");
    assert!(accuracy > 65.0, "{accuracy}");
}

#[test]
fn the_vgg_learns_generated_objects() {
    let lab = Lab::new();
    let root = made(&lab, "objects", ["60", "20"]);
    let vgg = ["--data-root", &root, "--model", "vgg"];
    let run = lab.train(2, "run", &[&vgg[..], &["--epochs", "1"]].concat());
    let loss = run["test_loss"].as_f64().expect("a loss");
    // One step changes little: predictions are still almost uniform over ten classes, with a loss near ln 10.
    assert!((loss - 10f64.ln()).abs() < 0.1, "{loss}");

    let options = ["--train-samples", "40", "--train-batch-size", "4", "--batch-norm", "--epochs", "10"];
    let recipe = ["--lr", "1e-3", "--weight-decay", "0"];
    let run = lab.train(2, "learned", &[&vgg[..], &options, &recipe].concat());
    let [loss, accuracy] = ["train_loss", "train_accuracy"].map(|name| run[name].as_f64().expect("a number"));
    // Without learning (rate 0), they are 2.28 and 7.5 %. Chance level is 10 %.
    assert!(loss < 1.5 && accuracy > 50.0, "{loss}, {accuracy}%");
}

#[test]
fn info_describes_a_folder_and_draws_samples() {
    let lab = Lab::new();
    let sheet = lab.path("sheet.png");
    let folder = made(&lab, "objects", ["50", "10"]);
    let output = data(&["info", "--sheet", sheet.to_str().unwrap()], folder.as_ref());
    let printed = text(&output);
    for part in ["CIFAR-10", "10 classes", "3 x 32 x 32", "train 50 samples", "SHA-256 ", "crescent"] {
        assert!(printed.contains(part), "{part} in {printed}");
    }
    assert!(std::fs::read(&sheet).unwrap().starts_with(b"\x89PNG"));
    // Ranks compare their training sets by the same digest.
    let other = Lab::new();
    let again = data(&["info"], made(&other, "objects", ["50", "10"]).as_ref());
    let digest = |output: &Output| text(output).lines().nth(2).map(ToOwned::to_owned);
    assert!(digest(&output).is_some() && digest(&output) == digest(&again), "{}", text(&again));
}

#[test]
fn a_data_set_is_not_mixed_with_another_nor_replaced_without_the_option() {
    let lab = Lab::new();
    let objects = made(&lab, "objects", ["50", "10"]);
    let rejected =
        |words: &[&str], code, facts: &[&str]| refused(&data(words, objects.as_ref()), code, facts);
    rejected(&["objects", "--out"], 2, &["--out ", objects.as_str(), "--overwrite"]);
    rejected(&["digits", "--overwrite", "--out"], 2, &["--out ", objects.as_str(), "CIFAR-10"]);
    made(&lab, "digits", ["20", "10"]);
    let images = "train-images-idx3-ubyte";
    std::fs::copy(lab.path("digits").join(images), lab.path("objects").join(images)).unwrap();
    let both = [objects.as_str(), "two data sets", images, "data_batch_1.bin"];
    rejected(&["info"], 1, &both);
    refused(&run(lab.command(2, "run", &["--data-root", &objects])), 1, &both);
}

#[test]
fn what_cannot_be_generated_is_refused_with_the_option() {
    let lab = Lab::new();
    let (file, folder) = (lab.path("file"), lab.path("folder"));
    std::fs::write(&file, "").unwrap();
    let most = u64::MAX.to_string();
    for (words, at, code, expected) in [
        (&["digits"][..], &file, 2, &["/file: ", "folder"][..]),
        (&["digits", "--train", &most], &folder, 1, &["13486197309440.0 GB"]),
        (&["objects", "--train", "10000000000"], &folder, 1, &["--train 10000000000", "--test 10000"]),
        (&["features", "--train", "1", "--test", "1"], &folder, 2, &["--train 1", "--test 1", "class 5"]),
        (&["digits", "--train", "10"], &"/proc/y".into(), 1, &["cannot write /proc/y"]),
    ] {
        refused(&data(&[words, &["--out"]].concat(), at), code, expected);
    }
    assert!(!folder.exists(), "nothing is written");
    // -1 is read as the value of `--train`, although no option is named `-1`.
    let negative = data(&["digits", "--train", "-1", "--out"], &folder);
    for fact in ["--train -1", "whole number"] {
        assert!(text(&negative).contains(fact), "{fact}: {}", text(&negative));
    }
}
