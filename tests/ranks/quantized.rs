//! Trainings with `--quantize`: equal ranges and int8 models on all ranks, accuracies, and reports.

use std::collections::HashMap;
use std::process::Command;

use serde_json::Value;

use crate::harness::*;

/// With 2 and 3 ranks, the last step has one sample (1 of 1025 is left), so the last rank has none.
const UNEVEN: [&str; 5] =
    ["--quantize", "qat", "--train-samples=1025", "--epochs=2", "--train-batch-size=16"];

/// Asserts that the run's last checkpoint has all ranges: for each activation, the range of its values.
fn has_ranges(lab: &Lab, name: &str) {
    let ranges = lab.position(name)["ranges"].take();
    let groups = ranges["groups"].as_array().expect("ranges of groups");
    assert!(groups.iter().all(|group| !group["output"].is_null() && !group["weights"].is_null()), "{ranges}");
    assert!(!ranges["input"].is_null(), "{ranges}");
}

/// A training compares the ranges of all ranks at the end of each epoch, and fails if they differ.
#[test]
fn ranks_have_the_same_scales_whenever_buckets_are_reduced() {
    let lab = Lab::new();
    for ranks in [1, 2, 3] {
        let name = format!("run{ranks}");
        let options = [&UNEVEN[..], &["--reduce", "ordered"]].concat();
        let run = lab.train(ranks, &name, &options);
        assert_eq!(run["config"]["quantize"], "qat");
        assert!(run["int8_test_accuracy"].as_f64().is_some_and(|accuracy| accuracy > 10.0), "{run}");
        has_ranges(&lab, &name);
        let keys = ["weights_sha256", "int8_test_accuracy", "ranges"];
        lab.trains_the_same(ranks, &name, &options, &keys);
    }
    // A training without fake quantization gives other weights.
    let plain = lab.train(1, "plain", &UNEVEN[2..]);
    assert_ne!(plain["weights_sha256"], lab.run_json("run1")["weights_sha256"]);
    assert!(plain["int8_test_accuracy"].is_null());
}

#[test]
fn narrow_gradients_accumulation_and_other_networks_are_trained_too() {
    let lab = Lab::new();
    let short = ["--quantized", "--train-samples", "500", "--epochs", "2", "--overwrite"];
    for (ranks, more) in [
        (2, &["--grad-dtype", "bf16"][..]),
        (3, &["--accumulate", "3", "--weight-scheme", "tensor"]),
        (2, &["--batch-norm", "--fold-after", "1", "--freeze-after", "1"]),
        (2, &["--dropout", "0.3", "--shuffle"]),
    ] {
        let run = lab.train(ranks, "run", &[&short[..], more].concat());
        assert!(run["int8_test_accuracy"].as_f64().is_some(), "{more:?}");
        has_ranges(&lab, "run");
    }
    let data = lab.data("features", 6400, 1000);
    let options =
        ["--model=mlp", "--data-root", &data, "--lr=1e-3", "--quantized", "--fold-after=2", "--epochs=4"];
    let run = lab.train(2, "mlp", &options);
    let accuracy = |key: &str| run[key].as_f64().unwrap();
    let apart = (accuracy("int8_test_accuracy") - accuracy("test_accuracy")).abs();
    assert!(accuracy("test_accuracy") > 50.0 && apart <= 1.0, "{run}");
}

#[test]
fn integers_are_as_accurate_as_floats_after_every_epoch() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        let options = ["--quantized", "--epochs=3", "--train-batch-size=16", "--lr=2e-3", "--overwrite"];
        lab.train(ranks, "run", &options);
        let columns = ["test_accuracy", "int8_test_accuracy"].map(|title| lab.column::<f64>("run", title));
        assert_eq!(columns.each_ref().map(Vec::len), [3, 3]);
        for (float, int8) in columns[0].iter().zip(&columns[1]) {
            // 0.8 points are four of the 500 images.
            assert!((float - int8).abs() <= 0.81 && *float > 80.0, "{ranks} ranks: {float}, int8 {int8}");
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bits() {
    let lab = Lab::new();
    let options = ["--quantized", "--epochs=3", "--train-samples=1600", "--shuffle", "--train-batch-size=16"];
    lab.train(2, "whole", &options);
    lab.train(2, "cut", &[&options[..], &["--checkpoint-every=7"]].concat());
    lab.cut("cut");
    let printed = lab.resumed(2, "cut");
    assert!(printed.contains("in epoch 3"), "{printed}");
    has_ranges(&lab, "cut");
    let keys = ["weights_sha256", "int8_test_accuracy", "test_accuracy", "ranges"];
    assert_eq!(lab.values("cut", &keys), lab.values("whole", &keys));
    lab.assert_same("cut", "whole");
}

/// Makes the int8 model of the last checkpoint again, on one rank, and asserts that its file is the same as
/// the training's. Returns the file, and the test accuracy that `quantize` prints.
fn quantized_again(lab: &Lab, name: &str, options: &[&str]) -> (Vec<u8>, String) {
    let file = || std::fs::read(lab.newest(name).join("int8.safetensors")).expect("an int8 model");
    let before = file();
    let printed = output_of(job(1).arg("quantize").arg(lab.path(name)).args(options));
    assert!(file() == before, "{name}: training and quantize make the same model");
    let accuracy = printed.lines().nth(1).and_then(|line| line.split("test accuracy ").nth(1));
    (before, accuracy.and_then(|line| line.split('%').next()).expect("an accuracy").to_owned())
}

#[test]
fn float_trainings_have_an_int8_model_after_every_epoch() {
    let lab = Lab::new();
    let base = ["--epochs=2", "--train-samples=1025", "--train-batch-size=16", "--test-batch-size=500"];
    let ptq = ["--quantize", "ptq", "--calibration", "200"];
    for ranks in [1, 3] {
        let plain = lab.train(ranks, "plain", &[&base[..], &["--overwrite"]].concat());
        let name = format!("ptq{ranks}");
        let run = lab.train(ranks, &name, &[&base[..], &ptq].concat());
        assert_eq!(run["weights_sha256"], plain["weights_sha256"], "{name}: trained in floats");
        let accuracy = run["int8_test_accuracy"].as_f64().expect("an accuracy");
        let epochs: Vec<f64> = lab.column(&name, "int8_test_accuracy");
        assert!(epochs.len() == 2 && epochs[1] == accuracy, "{accuracy}, by epoch: {epochs:?}");
        let (_, again) = quantized_again(&lab, &name, &ptq[2..]);
        assert_eq!(again, format!("{accuracy:.2}"), "{name}");
    }
    // The last epoch is trained again, and gives the same int8 model.
    let (whole, _) = quantized_again(&lab, "ptq3", &["--calibration", "200"]);
    let before = lab.run_json("ptq3");
    lab.cut("ptq3");
    let printed = lab.resumed(3, "ptq3");
    assert!(printed.contains("epoch 2") && printed.contains("int8 test loss"), "{printed}");
    assert_eq!(lab.run_json("ptq3")["int8_test_accuracy"], before["int8_test_accuracy"]);
    assert!(quantized_again(&lab, "ptq3", &["--calibration", "200"]).0 == whole);
}

/// If weights become infinite in the last step, the error is the training's, although quantization comes
/// after it.
#[test]
fn infinite_weights_are_reported_as_such() {
    let lab = Lab::new();
    for kind in ["qat", "ptq"] {
        let options = ["--quantize", kind, "--train-samples", "64", "--optimizer", "sgd", "--lr", "1e30"];
        refused(lab.command(2, kind, &options), 1, &["test loss", "after epoch 1"]);
    }
}

/// The learning rate is so high that the output of the first convolution becomes 0 everywhere.
#[test]
fn an_epoch_without_an_int8_model_is_trained_and_kept() {
    let lab = Lab::new();
    let options = ["--quantize=ptq", "--optimizer=sgd", "--lr=30", "--train-samples=640", "--epochs=2"];
    let printed = output_of(lab.command(2, "run", &options));
    for epoch in [1, 2] {
        let facts = ["warn: ", "int8 model", &format!("epoch {epoch}: "), "conv2"];
        let is_warning = |line: &&str| facts.iter().all(|fact| line.contains(fact));
        assert_eq!(printed.lines().filter(is_warning).count(), 1, "{printed}");
    }
    let rows = std::fs::read_to_string(lab.path("run").join("epochs.csv")).unwrap();
    assert!(rows.lines().next().is_some_and(|titles| titles.ends_with(INT8_COLUMNS)), "{rows}");
    assert!(rows.lines().skip(1).all(|row| row.ends_with(",,")), "no int8 results: {rows}");
    let run = lab.run_json("run");
    assert!(run["int8_test_accuracy"].is_null() && run["int8_test_loss"].is_null(), "{run}");
    assert!(lab.curve("run", 1, "test.int8.loss").is_empty());
    let checkpoint = lab.newest("run");
    assert!(checkpoint.join("model.safetensors").exists() && !checkpoint.join("int8.safetensors").exists());
}

/// Columns of `epochs.csv` that a run without quantization leaves empty.
const INT8_COLUMNS: &str = ",int8_test_accuracy,int8_test_loss";

/// Asserts that each rank's curves of the int8 model agree with its results in `run.json`, and that the
/// results of all ranks agree with the last line of `epochs.csv`.
fn int8_results_agree(lab: &Lab, name: &str, epochs: usize) {
    let run = lab.completed(name);
    let ranks = run["per_rank"].as_array().expect("results by rank");
    let samples = |rank: &Value| rank["test_samples"].as_f64().expect("a number");
    for (key, curve) in [("int8_test_loss", "test.int8.loss"), ("int8_test_accuracy", "test.int8.acc")] {
        let mut sum = 0.0;
        for (rank, record) in ranks.iter().enumerate() {
            let points = lab.curve(name, rank, curve);
            let value = record[key].as_f64().expect("a rank with samples has a value");
            assert_eq!(points.len(), epochs, "{curve} of rank {rank}");
            assert_eq!(points[epochs - 1], (run["steps"].as_u64().unwrap() as usize, value), "{curve}");
            sum += value * samples(record);
        }
        let mean = sum / ranks.iter().map(samples).sum::<f64>();
        let of_epochs: Vec<f64> = lab.column(name, key);
        assert_eq!(of_epochs.len(), epochs);
        assert_eq!(run[key].as_f64(), of_epochs.last().copied(), "{key}");
        assert!((of_epochs[epochs - 1] - mean).abs() < 1e-9 * mean, "{key}: {of_epochs:?}, {mean}");
    }
    let seconds = ["float_inference_seconds", "int8_inference_seconds"].map(|key| run[key].as_f64().unwrap());
    assert!(
        seconds.iter().all(|s| *s > 0.0) && seconds[0] + seconds[1] <= run["test_seconds"].as_f64().unwrap()
    );
}

#[test]
fn each_rank_has_loss_and_accuracy_of_the_int8_model_after_each_epoch() {
    let lab = Lab::new();
    for (ranks, kind) in [(1, "ptq"), (2, "qat"), (3, "ptq")] {
        let (name, quantize) = (format!("run{ranks}"), ["--quantize", kind]);
        // 101 test samples: with two or three ranks, shards differ by one sample.
        let options = [&quantize[..], &["--epochs=2", "--train-samples=640", "--test-samples=101"]].concat();
        lab.train(ranks, &name, &options);
        int8_results_agree(&lab, &name, 2);
        assert!(tags(&lab, &name, "mean").contains("test/int8_loss"));
        for rank in 0..ranks {
            let tags = tags(&lab, &name, &format!("rank{rank}"));
            assert!(tags.contains("test/int8_loss") && tags.contains("test/int8_accuracy"), "{kind} {rank}");
        }
    }
    lab.train(2, "float", &["--epochs=1", "--train-samples=640"]);
    assert!(!lab.path("float/rank0/test.int8.loss").exists());
}

/// The content of the TensorBoard file `name` of a run. Names of curves are plain text in it.
fn tags(lab: &Lab, run: &str, name: &str) -> String {
    let files = std::fs::read_dir(lab.path(run).join("tensorboard").join(name)).expect("a folder");
    let read = |file: std::io::Result<std::fs::DirEntry>| std::fs::read(file.unwrap().path()).unwrap();
    files.map(read).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
}

/// A report shows published figures of quantized trainings beside quantized runs, and other published figures
/// beside other runs.
#[test]
fn published_figures_are_beside_runs_of_the_same_kind() {
    let lab = Lab::new();
    let short = ["--epochs", "1", "--train-samples", "640", "--test-samples", "100"];
    for (name, more) in [("float", &[][..]), ("qat", &["--quantized"]), ("ptq", &["--quantize", "ptq"])] {
        lab.train(1, &format!("results/{name}"), &[&short[..], more].concat());
    }
    std::fs::create_dir_all(lab.path("results/reference")).unwrap();
    let figures = "model,topology,backend,quantized,published_epochs,train_seconds,test_accuracy,hardware\n\
                   convnet,1x1,mpi,no,3,186,97.77,a cluster\nconvnet,1x1,,qat,3,135,93.59,a cluster\n";
    std::fs::write(lab.path("results/reference/figures.csv"), figures).unwrap();
    // A separate process, which can have its own working directory.
    let report = Command::new(binary())
        .current_dir(lab.path(""))
        .args(["report", "--reference", "figures", "--format", "markdown", "--out", "tables"])
        .output()
        .unwrap();
    assert!(report.status.success(), "{}", text(&report));
    let table = std::fs::read_to_string(lab.path("tables/runs-published.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> =
        csv::Reader::from_reader(table.as_bytes()).deserialize().map(Result::unwrap).collect();
    let number = |row: usize, column: &str| rows[row][column].parse::<f64>().expect("a number");
    let expected = [("float", "test_accuracy"), ("qat", "int8_test_accuracy")];
    assert_eq!(rows.len(), expected.len(), "{table}");
    for (row, (name, accuracy)) in expected.into_iter().enumerate() {
        let run = lab.run_json(&format!("results/{name}"));
        let [accuracy, seconds] = [accuracy, "train_seconds"].map(|key| run[key].as_f64().unwrap());
        assert!((number(row, "test_accuracy_ours") - accuracy).abs() < 1e-3, "{table}");
        assert!((number(row, "train_seconds_ours") / seconds - 1.0).abs() < 1e-4, "{table}");
    }
    let picture = std::fs::read_to_string(lab.path("tables/runs-accuracy.svg")).unwrap();
    let dashed = picture.matches(", int8<").count() + picture.matches(", int8\n").count();
    assert_eq!(dashed, 2, "two dashed curves");
}

/// Every figure in the tables must be the figure in the run's files.
#[test]
fn accuracies_by_rank_are_beside_published_ones_and_quantized_trainings_beside_others() {
    let lab = Lab::new();
    let short = ["--epochs=2", "--train-samples=640", "--test-samples=101"];
    let float = lab.train(2, "results/float", &short);
    let qat = lab.train(2, "results/qat", &[&short[..], &["--quantized"]].concat());
    std::fs::create_dir_all(lab.path("results/reference")).unwrap();
    let figures = "topology,quantized,train_accuracy,test_accuracy,int8_test_accuracy,hardware\n\
                   1x2,no,94.5/95,93.46,,a cluster\n1x2,qat,94.62/94.71,93.59,93.65/93.53,a cluster\n";
    std::fs::write(lab.path("results/reference/figures.csv"), figures).unwrap();
    shown(&lab, &["--reference", "figures", "--out", "tables"]);
    let table = |name: &str| std::fs::read_to_string(lab.path("tables").join(name)).expect(name);
    let same = |table: &str, row: usize, name: &str, value: &Value| {
        let found: f64 = column(table, row, name).parse().expect(name);
        let expected = value.as_f64().expect("a number");
        assert!((found / expected - 1.0).abs() < 1e-4, "{name} in row {row}: {found}, and {expected}");
    };
    let [of_float, of_qat] = ["runs-ranks.csv", "runs-quantized-ranks.csv"].map(table);
    for (row, rank) in [(1, Some(0)), (2, Some(1)), (3, None)] {
        let of = |run: &Value| rank.map_or_else(|| run.clone(), |rank: usize| run["per_rank"][rank].clone());
        for name in ["train_accuracy", "test_accuracy"] {
            same(&of_float, row, name, &of(&float)[name]);
        }
        for name in ["train_accuracy", "test_accuracy", "int8_test_accuracy", "int8_test_loss"] {
            same(&of_qat, row, name, &of(&qat)[name]);
        }
    }
    let published = |table: &str, name: &str| [1, 2, 3].map(|row| column(table, row, name).to_owned());
    assert_eq!(published(&of_float, "train_accuracy_published"), ["94.5", "95", ""]);
    assert_eq!(published(&of_float, "test_accuracy_published"), ["", "", "93.46"]);
    assert_eq!(published(&of_qat, "train_accuracy_published"), ["94.62", "94.71", ""]);
    assert_eq!(published(&of_qat, "int8_test_accuracy_published"), ["93.65", "93.53", "93.59"]);

    let joint = table("runs-quantization.csv");
    assert_eq!(joint.lines().count(), 2, "{joint}");
    for (prefix, run) in [("", &float), ("quantized_", &qat)] {
        for name in ["train_seconds", "train_accuracy", "test_accuracy"] {
            same(&joint, 1, &format!("{prefix}{name}"), &run[name]);
        }
    }
    let quantized = table("runs-quantized.csv");
    for name in ["test_accuracy", "int8_test_accuracy", "test_loss", "int8_test_loss"] {
        same(&quantized, 1, name, &qat[name]);
    }
}

#[test]
fn what_cannot_be_quantized_is_rejected_with_exit_code_2() {
    let lab = Lab::new();
    for (options, expected) in [
        (&["--quantized", "--activation", "gelu"][..], &["layer activation1 ", "gelu", "relu"][..]),
        (&["--quantized", "--device", "ndarray"], &["--quantize qat: ", "--device flex", "ndarray"]),
        (&["--quantized", "--fused", "off"], &["--quantize qat: ", "--fused off"]),
        (&["--quantize", "ptq", "--activation", "tanh"], &["layer activation1 ", "tanh", "relu"]),
        (&["--quantize", "ptq", "--calibration", "6401"], &["--calibration 6401: ", "6400 samples"]),
        (&["--weight-scheme", "tensor"], &["--weight-scheme tensor: ", "--quantize"]),
    ] {
        refused(lab.command(2, "out", options), 2, expected);
    }
}
