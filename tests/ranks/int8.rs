//! Quantized networks: from a run to its int8 file, the evaluation of this file, and its export.

use std::fs;
use std::path::{Path, PathBuf};

use crate::harness::*;

const SHORT: [&str; 4] = ["--epochs", "1", "--train-samples", "3200"];
/// A training so short that the network learns nothing.
const FEW: [&str; 4] = ["--epochs", "1", "--train-samples", "64"];

/// A subcommand on `ranks` ranks.
fn command(ranks: usize, words: &[&str], path: &Path) -> Job {
    job(ranks).args(words).arg(path).clone()
}

/// The int8 file of a run's last checkpoint.
fn int8_file(lab: &Lab, run: &str) -> PathBuf {
    lab.checkpoints(run).pop().expect("a checkpoint").join("int8.safetensors")
}

/// The number of correct test samples in a line that `eval` or `quantize` prints.
fn correct(line: &str) -> f64 {
    let counts = line.split_once('(').expect("counts").1;
    counts.split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn eval(lab: &Lab, ranks: usize, more: &[&str]) -> Job {
    command(ranks, &["eval", "--checkpoint"], &lab.path("run")).args(more).clone()
}

/// Asserts that `eval --int8` rejects the int8 file, on one rank and on two.
fn eval_refused(lab: &Lab, code: i32, words: &[&str]) {
    for ranks in [1, 2] {
        refused(eval(lab, ranks, &["--int8"]), code, words);
    }
}

/// A lab with a trained run, `run`.
fn trained(options: &[&str]) -> Lab {
    let lab = Lab::new();
    lab.train(1, "run", options);
    lab
}

#[test]
fn a_calibrated_model_predicts_the_same_on_any_number_of_ranks() {
    let lab = trained(&SHORT);
    for ranks in [1, 2] {
        let lines = succeeds(command(ranks, &["quantize", "--calibration", "200"], &lab.path("run")));
        let lines: Vec<&str> = lines.lines().collect();
        assert!(lines[0].starts_with("float") && lines[1].starts_with("int8"), "{lines:?}");
        // 5 of 500 samples are 1 point.
        assert!((correct(lines[0]) - correct(lines[1])).abs() <= 5.0, "{lines:?}");
        let bytes = fs::read(int8_file(&lab, "run")).unwrap();
        let float = fs::metadata(int8_file(&lab, "run").with_file_name("model.safetensors")).unwrap();
        assert!(float.len() as f64 >= 2.8 * bytes.len() as f64, "{} and {} bytes", float.len(), bytes.len());
        let logits = |ranks: usize| {
            let file = lab.path(&format!("logits{ranks}.npy"));
            let line = succeeds(eval(&lab, ranks, &["--int8", "--logits", file.to_str().unwrap()]));
            assert_eq!(correct(&line), correct(lines[1]), "{ranks} ranks: {line}");
            assert!(line.contains("of 500 samples"), "{line}");
            fs::read(file).unwrap()
        };
        let alone = logits(1);
        assert_eq!(alone.len(), 128 + 4 * 500 * 10);
        assert!(logits(2) == alone && logits(3) == alone, "each sample once, in order");
        assert_eq!(succeeds(eval(&lab, 1, &[])).lines().count(), 1, "the float network is as it was");
    }
}

#[test]
fn the_ranges_of_a_training_make_the_model_that_it_tested() {
    let lab = Lab::new();
    let record = lab.train(2, "run", &[&SHORT[..], &["--quantize", "qat"]].concat());
    let tested = record["int8_test_accuracy"].as_f64().expect("an accuracy");
    let written = fs::read(int8_file(&lab, "run")).expect("training wrote it");
    let line = succeeds(eval(&lab, 3, &["--int8"]));
    assert!(line.contains(&format!("test accuracy {tested:.2}%")), "{tested}: {line}");
    let lines = succeeds(command(1, &["quantize", "--kind", "qat"], &lab.path("run")));
    let int8 = lines.lines().nth(1).expect("a line");
    assert!(int8.contains(&format!("test accuracy {tested:.2}%")), "{tested}: {int8}");
    assert!(fs::read(int8_file(&lab, "run")).unwrap() == written, "the same model");
    lab.train(1, "float", &FEW);
    let other = command(1, &["quantize", "--kind", "qat"], &lab.path("float"));
    refused(other, 2, &["--kind qat: ", "--quantize qat", "ptq"]);
}

#[test]
fn an_export_on_several_ranks_writes_what_one_writes() {
    let lab = trained(&SHORT);
    let (out, two) = (lab.path("model.onnx"), lab.path("two.onnx"));
    let export =
        |ranks, out: &Path| command(ranks, &["export"], &lab.path("run")).arg("--out").arg(out).clone();
    refused(side_by_side(&[&export(1, &out), &export(1, &two)]), 1, &["--out differs", "rank 1"]);
    let lines = succeeds(export(2, &two));
    assert!(lines.lines().count() == 1 && lines.contains("opset 7, IR version 4"), "{lines}");
    assert!(succeeds(export(1, &out)).contains("opset 7, "));
    assert!(fs::read(&out).unwrap() == fs::read(&two).unwrap());
    let file = fs::read(&out).unwrap();
    assert!(file.len() > 4 * 4266 && file.windows(11).any(|text| text == b"class_names"));
}

#[test]
fn files_of_the_other_kind_and_damaged_ones_are_refused_by_name() {
    let lab = trained(&FEW);
    eval_refused(&lab, 2, &["int8.safetensors", "mpiburn quantize"]);
    succeeds(command(1, &["quantize", "--calibration", "64"], &lab.path("run")));
    let int8 = int8_file(&lab, "run");
    let mut train = lab.command(2, "out", &FEW);
    refused(train.arg("--init").arg(&int8), 2, &["int8.safetensors: contains an int8 model", "float"]);
    let whole = fs::read(&int8).unwrap();
    fs::copy(int8.with_file_name("model.safetensors"), &int8).unwrap();
    eval_refused(&lab, 2, &["int8.safetensors: contains float weights", "mpiburn quantize"]);
    refused(command(1, &["bench", "int8", "--checkpoint"], &lab.path("run")), 2, &["int8.safetensors"]);
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&int8, changed).unwrap();
    eval_refused(&lab, 1, &["int8.safetensors", "cut short or changed", "mpiburn quantize"]);
    fs::write(&int8, whole).unwrap();
    fs::copy(&int8, int8.with_file_name("model.safetensors")).unwrap();
    refused(eval(&lab, 2, &[]), 1, &["model.safetensors", "SHA-256"]);
}

#[test]
fn an_int8_file_of_another_run_and_a_pipe_are_refused() {
    let lab = Lab::new();
    for (run, seed) in [("run", "1"), ("other", "2")] {
        lab.train(1, run, &[&FEW[..], &["--seed", seed]].concat());
        succeeds(command(1, &["quantize", "--calibration", "64"], &lab.path(run)));
    }
    let int8 = int8_file(&lab, "run");
    fs::copy(int8_file(&lab, "other"), &int8).unwrap();
    eval_refused(&lab, 1, &["int8.safetensors", "other weights", "quantize"]);
    fs::remove_file(&int8).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&int8).status().unwrap().success());
    eval_refused(&lab, 1, &["int8.safetensors", "not a regular file"]);
}

#[test]
fn an_export_replaces_no_file_of_a_run_and_no_link() {
    let lab = trained(&FEW);
    let export = |out: &Path| command(1, &["export"], &lab.path("run")).arg("--out").arg(out).clone();
    let before = lab.run_json("run");
    refused(export(&lab.path("run/run.json")), 2, &["--out", "must end in .onnx"]);
    assert_eq!(lab.run_json("run"), before);
    let (target, link) = (lab.path("target"), lab.path("link.onnx"));
    fs::write(&target, "kept").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    refused(export(&link), 1, &["link.onnx", "symbolic link"]);
    assert_eq!(fs::read_to_string(&link).unwrap(), "kept");
}

#[test]
fn what_cannot_be_quantized_is_refused() {
    let lab = trained(&[&FEW[..], &["--activation", "tanh"]].concat());
    for ranks in [1, 2] {
        for (more, words) in [
            (&[][..], &["layer activation1 cannot be quantized", "tanh"][..]),
            (&["--kind", "dynamic"], &["--kind dynamic: choose qat, ptq"]),
            (&["--calibration", "0"], &["--calibration 0: must be a whole number from 1"]),
            (&["--weight-scheme", "row"], &["--weight-scheme row: choose channel, tensor"]),
        ] {
            refused(command(ranks, &["quantize"], &lab.path("run")).args(more), 2, words);
        }
    }
    assert!(!int8_file(&lab, "run").exists());
    refused(command(1, &["quantize"], &lab.path("nothing")), 1, &["there is no run"]);
    refused(eval(&lab, 1, &["--logits", "scores.txt"]), 2, &["--logits scores.txt", ".npy"]);
}

#[test]
fn an_int8_model_is_measured_beside_its_float_network() {
    let lab = trained(&SHORT);
    let lines = succeeds(command(1, &["quantize"], &lab.path("run")));
    // The accuracy on the run's own test samples, which `quantize` and `eval` use too.
    let tested: Vec<f64> = lines.lines().take(2).map(|line| 100.0 * correct(line) / 500.0).collect();
    let (csv, json) = (lab.path("int8.csv"), lab.path("int8.json"));
    let mut bench = command(1, &["bench", "int8", "--iterations", "3", "--checkpoint"], &lab.path("run"));
    assert!(succeeds(bench.arg("--csv").arg(&csv).arg("--json").arg(&json)).contains("bytes allocated"));
    let text = fs::read_to_string(&csv).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "model,batch,median_ms,bytes_allocated,checkpoint_bytes,test_accuracy");
    let rows: Vec<Vec<&str>> = lines[1..].iter().map(|line| line.split(',').collect()).collect();
    let keys: Vec<String> = rows.iter().map(|row| row[..2].join(" ")).collect();
    let models = ["float-fused", "float-burn", "int8"];
    let expected: Vec<String> =
        ["1", "32", "128"].iter().flat_map(|batch| models.map(|model| format!("{model} {batch}"))).collect();
    assert_eq!(keys, expected);
    let number = |row: &[&str], i: usize| row[i].parse::<f64>().expect("a number");
    for row in &rows {
        assert!(number(row, 2) > 0.0, "{row:?}");
        assert_eq!(number(row, 5), tested[usize::from(row[0] == "int8")], "{row:?} {lines:?}");
        assert_eq!(number(row, 3) == 0.0, row[0] == "int8", "{row:?}");
    }
    assert!(number(&rows[0], 4) >= 2.8 * number(&rows[2], 4), "{rows:?}");
    let figures = read_json(&json);
    assert_eq!((&figures["method"], figures["rows"].as_array().unwrap().len()), (&"ptq".into(), 9));
    refused(command(2, &["bench", "int8", "--checkpoint"], &lab.path("run")), 2, &["without mpirun"]);
    refused(command(1, &["bench", "int8", "--iterations", "0", "--csv"], &csv), 2, &["--iterations 0"]);
    let (plain, around) = (lab.path("both"), lab.path("./both"));
    let mut same = command(1, &["bench", "int8", "--csv"], &plain);
    refused(same.arg("--json").arg(around), 2, &["--json", "file of --csv"]);
    assert!(!plain.exists());
}
