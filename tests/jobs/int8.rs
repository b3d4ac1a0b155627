//! Quantized networks, from a run to its int8 file, its evaluation and its export.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mpiburn::record::Int8File;
use mpiburn::record::int8_file::{LayerValues, Operation};

use crate::harness::*;

pub const SHORT: [&str; 4] = ["--epochs", "1", "--train-samples", "3200"];

/// A subcommand on `ranks` ranks.
pub fn command(ranks: usize, words: &[&str], path: &Path) -> Command {
    let mut command = on_ranks(ranks, binary());
    command.args(words).arg(path);
    command
}

pub fn succeeds(command: Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A command that has to end with `code` and one line with all `words`.
pub fn refused(command: Command, code: i32, words: &[&str]) {
    let output: Output = must_fail(command);
    let errors = errors(&output);
    assert_eq!((output.status.code(), errors.len()), (Some(code), 1), "{}", text(&output));
    for word in words {
        assert!(errors[0].contains(word), "{} lacks {word}", errors[0]);
    }
}

/// The int8 file of a run's last checkpoint.
fn int8_file(lab: &Lab, run: &str) -> PathBuf {
    lab.checkpoints(run).pop().expect("a checkpoint").join("int8.safetensors")
}

/// Correct test samples in a line of `eval` or `quantize`.
pub fn correct(line: &str) -> f64 {
    let counts = line.split_once('(').expect("counts").1;
    counts.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn eval(lab: &Lab, run: &str, ranks: usize, more: &[&str]) -> Command {
    let mut command = command(ranks, &["eval", "--checkpoint"], &lab.path(run));
    command.args(more);
    command
}

#[test]
fn a_calibrated_model_predicts_the_same_on_any_number_of_ranks() {
    let lab = Lab::new();
    lab.train(1, "run", &SHORT);
    for ranks in [1, 2] {
        let lines = succeeds(command(ranks, &["quantize", "--calibration", "200"], &lab.path("run")));
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines[0].starts_with("float") && lines[1].starts_with("int8"), "{lines:?}");
        // 1.5 of 500 samples are 0.3 points.
        assert!((correct(lines[0]) - correct(lines[1])).abs() <= 5.0, "{lines:?}");
        let bytes = std::fs::read(int8_file(&lab, "run")).unwrap();
        let float = std::fs::metadata(int8_file(&lab, "run").with_file_name("model.safetensors")).unwrap();
        assert!(float.len() as f64 >= 2.8 * bytes.len() as f64, "{} and {} bytes", float.len(), bytes.len());
        let logits = |ranks: usize| {
            let file = lab.path(&format!("logits{ranks}.npy"));
            let line = succeeds(eval(&lab, "run", ranks, &["--int8", "--logits", file.to_str().unwrap()]));
            assert_eq!(correct(&line), correct(lines[1]), "{ranks} ranks: {line}");
            assert!(line.contains("of 500 samples"), "{line}");
            std::fs::read(file).unwrap()
        };
        let alone = logits(1);
        assert_eq!(alone.len(), 128 + 4 * 500 * 10);
        assert!(logits(2) == alone && logits(3) == alone, "each sample once, in order");
        assert_eq!(succeeds(eval(&lab, "run", 1, &[])).lines().count(), 1, "the float network is as it was");
    }
}

#[test]
fn the_ranges_of_a_training_make_the_model_that_it_tested() {
    let lab = Lab::new();
    let record = lab.train(2, "run", &[&SHORT[..], &["--quantize", "qat"]].concat());
    let tested = record["int8_test_accuracy"].as_f64().expect("an accuracy");
    let written = std::fs::read(int8_file(&lab, "run")).expect("training wrote it");
    let line = succeeds(eval(&lab, "run", 3, &["--int8"]));
    assert!(line.contains(&format!("test accuracy {tested:.2}%")), "{tested}: {line}");
    let lines = succeeds(command(1, &["quantize", "--kind", "qat"], &lab.path("run")));
    let int8 = lines.lines().nth(1).expect("a line");
    assert!(int8.contains(&format!("test accuracy {tested:.2}%")), "{tested}: {int8}");
    assert!(std::fs::read(int8_file(&lab, "run")).unwrap() == written, "the same model");
    lab.train(1, "float", &["--epochs", "1", "--train-samples", "64"]);
    let refusal = command(1, &["quantize", "--kind", "qat"], &lab.path("float"));
    refused(refusal, 2, &["was never calibrated", "--quantize qat"]);
}

#[test]
fn dynamic_models_run_and_are_not_exported() {
    let lab = Lab::new();
    lab.train(1, "run", &SHORT);
    let lines = succeeds(command(
        2,
        &["quantize", "--kind", "dynamic", "--weight-scheme", "tensor"],
        &lab.path("run"),
    ));
    let lines: Vec<&str> = lines.lines().collect();
    assert!((correct(lines[0]) - correct(lines[1])).abs() <= 5.0, "{lines:?}");
    assert!(succeeds(eval(&lab, "run", 2, &["--int8"])).contains("of 500 samples"));
    let out = lab.path("model.onnx");
    let export = || {
        let mut command = command(1, &["export"], &lab.path("run"));
        command.arg("--out").arg(&out);
        command
    };
    let mut int8 = export();
    int8.arg("--int8");
    refused(int8, 2, &["int8.safetensors is a dynamic model", "--kind ptq"]);
    assert!(!out.exists());
    let mut other = command(1, &["export"], &lab.path("run"));
    other.arg("--out").arg(lab.path("other.onnx"));
    refused(side_by_side(&export(), &other), 1, &["--out differs", "rank 1"]);
    let mut by_two = command(2, &["export"], &lab.path("run"));
    by_two.arg("--out").arg(lab.path("two.onnx"));
    let lines = succeeds(by_two);
    assert!(lines.lines().count() == 1 && lines.contains("opset 20"), "{lines}");
    assert!(succeeds(export()).contains("opset 20"));
    assert!(std::fs::read(&out).unwrap() == std::fs::read(lab.path("two.onnx")).unwrap());
    assert!(std::fs::metadata(&out).unwrap().len() > 4 * 4266);
}

#[test]
fn files_of_the_other_kind_and_damaged_ones_are_refused_by_name() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    for ranks in [1, 2] {
        refused(eval(&lab, "run", ranks, &["--int8"]), 2, &["int8.safetensors", "mpiburn quantize"]);
    }
    succeeds(command(1, &["quantize", "--calibration", "64"], &lab.path("run")));
    let int8 = int8_file(&lab, "run");
    let init = ["--init", int8.to_str().unwrap(), "--epochs", "1", "--train-samples", "64"];
    refused(lab.command(2, "out", &init), 2, &["int8.safetensors holds an int8 model", "float"]);
    let whole = std::fs::read(&int8).unwrap();
    std::fs::copy(int8.with_file_name("model.safetensors"), &int8).unwrap();
    for ranks in [1, 2] {
        let words = ["int8.safetensors holds a float network's weights", "mpiburn quantize"];
        refused(eval(&lab, "run", ranks, &["--int8"]), 2, &words);
    }
    refused(command(1, &["bench", "int8", "--checkpoint"], &lab.path("run")), 2, &["int8.safetensors"]);
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    std::fs::write(&int8, changed).unwrap();
    for ranks in [1, 2] {
        refused(eval(&lab, "run", ranks, &["--int8"]), 1, &["int8.safetensors", "cut short or changed"]);
    }
    std::fs::write(&int8, whole).unwrap();
    let weights = int8.with_file_name("model.safetensors");
    std::fs::copy(&int8, &weights).unwrap();
    refused(eval(&lab, "run", 2, &[]), 1, &["model.safetensors", "its digest"]);
}

#[test]
fn an_int8_file_of_another_run_and_a_pipe_are_refused() {
    let lab = Lab::new();
    for (run, seed) in [("run", "1"), ("other", "2")] {
        lab.train(1, run, &["--epochs", "1", "--train-samples", "64", "--seed", seed]);
        succeeds(command(1, &["quantize", "--calibration", "64"], &lab.path(run)));
    }
    let int8 = int8_file(&lab, "run");
    std::fs::copy(int8_file(&lab, "other"), &int8).unwrap();
    for ranks in [1, 2] {
        refused(eval(&lab, "run", ranks, &["--int8"]), 1, &["int8.safetensors", "other weights", "quantize"]);
    }
    std::fs::remove_file(&int8).unwrap();
    assert!(Command::new("mkfifo").arg(&int8).status().unwrap().success());
    refused(eval(&lab, "run", 2, &["--int8"]), 1, &["int8.safetensors", "not a regular file"]);
}

/// Edits an int8 file, with the digest of its new content.
fn edit(file: &Path, change: impl FnOnce(&mut Int8File)) {
    let mut stored = Int8File::read(file).expect("an int8 file");
    change(&mut stored);
    std::fs::write(file, stored.encode(file).expect("it can be written")).expect("a writable file");
}

#[test]
fn an_edited_file_is_no_model_of_the_runs_network() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "640", "--quantize", "ptq"]);
    let file = int8_file(&lab, "run");
    let whole = std::fs::read(&file).unwrap();
    edit(&file, |_| ());
    assert!(std::fs::read(&file).unwrap() == whole, "an edit alone changes nothing");
    fn values(stored: &mut Int8File) -> &mut LayerValues {
        stored.layers[0].values.as_mut().expect("weights of conv1")
    }
    type Edit = (fn(&mut Int8File), &'static str);
    let edits: [Edit; 8] = [
        (|stored| set_conv(stored, false, [1, 1]), "at conv1 it has"),
        (|stored| set_conv(stored, true, [0, 0]), "at conv1 it has"),
        (|stored| stored.layers.swap(0, 2), "at conv1 it has"),
        (without_last, "it ends before linear"),
        (|stored| values(stored).scales[0] *= 1.25, "conv1: weights and scales"),
        (|stored| values(stored).weights[4] ^= 3, "conv1: weights and scales"),
        (|stored| stored.activations[1].scale *= 2.0, "conv2: biases and scales"),
        (|stored| stored.activations[1].zero_point = 9, "the zero point of conv1 is 9"),
    ];
    for (change, expected) in edits {
        std::fs::write(&file, &whole).unwrap();
        edit(&file, change);
        refused(eval(&lab, "run", 1, &["--int8"]), 1, &["int8.safetensors", expected, "mpiburn quantize"]);
    }
    refused(eval(&lab, "run", 2, &["--int8"]), 1, &["the zero point of conv1"]);
    refused(command(1, &["bench", "int8", "--checkpoint"], &lab.path("run")), 1, &["the zero point"]);
}

fn without_last(stored: &mut Int8File) {
    stored.layers.pop();
    stored.activations.pop();
}

fn set_conv(stored: &mut Int8File, with_relu: bool, padded: [usize; 2]) {
    if let Operation::Conv { relu, padding, .. } = &mut stored.layers[0].op {
        (*relu, *padding) = (with_relu, padded);
    }
}

#[test]
fn an_export_replaces_no_file_of_a_run_and_no_link() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    let export = |out: &Path| {
        let mut command = command(1, &["export"], &lab.path("run"));
        command.arg("--out").arg(out);
        command
    };
    let before = lab.run_json("run");
    refused(export(&lab.path("run/run.json")), 2, &["--out", "must end in .onnx"]);
    assert_eq!(lab.run_json("run"), before);
    let (target, link) = (lab.path("target"), lab.path("link.onnx"));
    std::fs::write(&target, "kept").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    refused(export(&link), 1, &["link.onnx", "symbolic link"]);
    assert_eq!(std::fs::read_to_string(&link).unwrap(), "kept");
}

#[test]
fn what_cannot_be_quantized_is_refused() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64", "--activation", "tanh"]);
    for ranks in [1, 2] {
        let quantize = |more: &[&str]| {
            let mut command = command(ranks, &["quantize"], &lab.path("run"));
            command.args(more);
            command
        };
        refused(quantize(&[]), 2, &["layer activation1 cannot be quantized", "tanh"]);
        refused(quantize(&["--kind", "dynamic"]), 2, &["layer activation1 cannot be quantized"]);
        refused(quantize(&["--calibration", "0"]), 2, &["--calibration 0: must be at least 1"]);
        refused(quantize(&["--weight-scheme", "row"]), 2, &["--weight-scheme row"]);
    }
    assert!(!int8_file(&lab, "run").exists());
    refused(command(1, &["quantize"], &lab.path("nothing")), 1, &["neither a run directory"]);
    refused(eval(&lab, "run", 1, &["--logits", "scores.txt"]), 2, &["--logits scores.txt", ".npy"]);
}
