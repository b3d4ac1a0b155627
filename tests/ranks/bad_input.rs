//! Invalid input. The program prints one line that says what is wrong, where, and what to do. It leaves no
//! rank waiting, and it deletes nothing.

use std::fs;
use std::path::Path;

use crate::harness::*;

/// A training of one step on two ranks.
const SHORT: [&str; 2] = ["--epochs=1", "--train-samples=64"];

/// Copies the digits into the folder `name`, and changes the copies with `change`.
fn changed_data(lab: &Lab, name: &str, change: impl Fn(&Path)) {
    let data = lab.path(name);
    let _ = fs::remove_dir_all(&data);
    fs::create_dir(&data).unwrap();
    for entry in fs::read_dir(digits()).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), data.join(entry.file_name())).unwrap();
    }
    change(&data);
}

fn edit(path: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
}

#[test]
fn invalid_data_files_are_named_with_the_reason() {
    let lab = Lab::new();
    let (images, labels) = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    type Case<'a> = (&'a dyn Fn(&Path), [&'a str; 2]);
    let cases: [Case; 7] = [
        (&|data| fs::remove_file(data.join(images)).unwrap(), [images, "mpiburn data digits"]),
        (&|data| edit(&data.join(images), |b| b.truncate(b.len() - 1)), [images, "truncated"]),
        (
            &|data| edit(&data.join("t10k-labels-idx1-ubyte"), |b| b.push(0)),
            ["t10k-labels-idx1-ubyte", "too long"],
        ),
        (&|data| edit(&data.join(labels), |b| b[3] = 9), [labels, "magic number"]),
        (&|data| _ = fs::copy(data.join(labels), data.join(images)).unwrap(), [images, "images of [28, 28]"]),
        (
            &|data| {
                edit(&data.join(labels), |b| {
                    b.pop();
                    let count = (b.len() - 8) as u32;
                    b[4..8].copy_from_slice(&count.to_be_bytes());
                });
            },
            ["6400 images", "6399 labels"],
        ),
        (&|data| edit(&data.join(labels), |b| b[8 + 11] = 10), [labels, "label 10 of sample 11"]),
    ];
    for (change, words) in cases {
        changed_data(&lab, "data", change);
        fails_with(lab.command(2, "out", &["--data-root", lab.path("data").to_str().unwrap()]), &words);
    }
    assert!(!lab.path("out").join("epochs.csv").exists());
}

/// Errors that are possible at the start happen before the old run is deleted.
#[test]
fn an_old_run_stays_until_the_new_one_begins() {
    let lab = Lab::new();
    for ranks in [1, 2, 3] {
        let old = lab.train(ranks, "run", &[&SHORT[..], &["--overwrite"]].concat());
        let checkpoints = lab.checkpoints("run");
        // A wrong label, found only when the samples are read.
        changed_data(&lab, "data", |data| edit(&data.join("train-labels-idx1-ubyte"), |b| b[8 + 11] = 10));
        let data = ["--overwrite", "--data-root", lab.path("data").to_str().unwrap()].map(str::to_owned);
        let data = data.each_ref().map(String::as_str);
        let trace = ["--overwrite", "--trace", lab.path("none/t.json").to_str().unwrap()].map(str::to_owned);
        let trace = trace.each_ref().map(String::as_str);
        for (options, named) in [
            (&data[..], "label 10 of sample 11"),
            (&trace, "--trace"),
            (&["--overwrite", "--calibration", "99999", "--quantize", "ptq"], "--calibration"),
        ] {
            fails_with(lab.command(ranks, "run", options), &[named]);
            assert_eq!(lab.run_json("run"), old, "{options:?}");
            assert_eq!(lab.checkpoints("run"), checkpoints, "{options:?}");
        }
        let new = lab.train(ranks, "run", &[&SHORT[..], &["--overwrite", "--lr=0.5"]].concat());
        assert_ne!(
            (&new["started_at"], &new["weights_sha256"]),
            (&old["started_at"], &old["weights_sha256"])
        );
    }
}

/// Rank 1 has another test set, or differs in training samples that the training does not use.
#[test]
fn another_data_set_on_one_rank_is_refused() {
    let lab = Lab::new();
    // All ranks use the same relative path, each in its own folder.
    std::os::unix::fs::symlink(digits(), lab.path("data0")).unwrap();
    for (file, what) in [
        ("t10k-labels-idx1-ubyte", "the test set's digest"),
        ("train-images-idx3-ubyte", "the digest of the whole train split"),
    ] {
        changed_data(&lab, "data1", |data| edit(&data.join(file), |b| *b.last_mut().unwrap() ^= 1));
        let mut job =
            lab.command(2, "run", &["--epochs=1", "--train-samples=640", "--data-root=.", "--overwrite"]);
        job.folder = Some(lab.path("data"));
        fails_with(job, &["rank 1 on ", what]);
    }
}

#[test]
fn invalid_options_are_rejected_before_any_work() {
    let lab = Lab::new();
    let cases: [(&[&str], &[&str]); 9] = [
        (&["--train-batch-size", "0"], &["--train-batch-size 0"]),
        (&["--lr", "nan"], &["--lr nan: must be a finite number"]),
        (&["--device", "tpu"], &["--device tpu: choose flex"]),
        (&["--device", "ndarray"], &["make build DEVICES=ndarray"]),
        (&["--model", "resnet"], &["--model resnet: choose convnet, vgg, mlp"]),
        (&["--quantize", "dynamic"], &["--quantize dynamic: choose qat, ptq"]),
        (&["--world-size", "3"], &["--world-size 3", "2 ranks"]),
        (&["--num-classes", "12"], &["--num-classes 12", "10 classes"]),
        (
            &["--train-samples", "1"],
            &["--train-samples 1: ", "2 ranks", "at least 2 training samples", " has "],
        ),
    ];
    for (options, words) in cases {
        fails_with(lab.command(2, "out", options), words);
    }
    for value in ["0", "-1", "nan", "1e308"] {
        let output = fails_with(lab.command(1, "out", &["--stall-warning", value]), &[]);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let line = &errors(&output)[0];
        assert!(line.starts_with("mpiburn: --stall-warning ") && line.len() < 120, "{line}");
    }
    assert!(!lab.path("out").exists(), "nothing was created");
}

#[test]
fn a_run_directory_is_not_overwritten_without_the_option() {
    let lab = Lab::new();
    let first = lab.train(2, "run", &SHORT);
    fails_with(lab.command(2, "run", &SHORT), &["--out", "--resume", "--overwrite"]);
    assert_eq!(lab.run_json("run"), first, "untouched");
    lab.train(2, "run", &[&SHORT[..], &["--overwrite"]].concat());
    fails_with(lab.command(2, "/proc/mpiburn", &[]), &["cannot write /proc/mpiburn", "--out"]);
}

#[test]
fn other_files_and_damaged_checkpoints_are_rejected() {
    let lab = Lab::new();
    lab.train(2, "run", &SHORT);
    let weights = lab.checkpoints("run").pop().unwrap().join("model.safetensors");
    edit(&weights, |b| b.truncate(b.len() / 2));
    let init = |file: &str, words: &[&str]| fails_with(lab.command(2, "out", &["--init", file]), words);
    init(weights.to_str().unwrap(), &["model.safetensors", "not a complete safetensors file"]);
    init("/nowhere.safetensors", &["/nowhere.safetensors"]);
    fails_with(lab.resume(2, "nothing", &[]), &["--resume: there is no run "]);
    fails_with(lab.resume(2, "run", &[]), &["model.safetensors", "SHA-256"]);
}

#[test]
fn a_non_finite_loss_stops_all_ranks_at_the_same_step() {
    let lab = Lab::new();
    let command = lab.command(2, "run", &["--lr", "1e30", "--checkpoint-every", "1"]);
    fails_with(command, &["loss is", "at epoch", "rank", "--lr"]);
    let run = lab.run_json("run");
    assert_eq!(run["status"], "failed");
    assert!(run["error"].as_str().unwrap().contains("at epoch 1, step "));
    assert!(!lab.checkpoints("run").is_empty(), "checkpoints are kept");
}

#[test]
fn a_non_finite_test_loss_stops_all_ranks_after_the_epoch() {
    let lab = Lab::new();
    for ranks in [1, 2, 3] {
        // One step: its loss is the loss of the initial weights, and only the test loss is not finite.
        let samples = (32 * ranks).to_string();
        let options = ["--epochs", "1", "--train-samples", &samples, "--optimizer", "sgd", "--lr", "1e30"];
        let run = &format!("run{ranks}");
        let named = ["test loss", "epoch 1", "rank 0 (", "--lr"];
        fails_with(lab.command(ranks, run, &options), &named);
        assert_eq!(lab.run_json(run)["status"], "failed");
    }
}

#[test]
fn more_steps_than_can_be_counted_are_refused_and_the_largest_batch_is_one_step() {
    let lab = Lab::new();
    let most = usize::MAX.to_string();
    refused(lab.command(2, "out", &["--epochs", &most]), 2, &["--epochs", &most, "100 steps"]);
    let options = ["--epochs=1", "--train-batch-size", &most, "--test-batch-size", &most];
    assert_eq!(lab.train(2, "out", &options)["steps"], 1);
}
