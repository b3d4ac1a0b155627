//! Quantization-aware training.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::harness::*;

/// Steps in which the last rank has no samples, for 2 and 3 ranks: 1 of 1025 is left.
const UNEVEN: [&str; 5] =
    ["--quantize", "qat", "--train-samples=1025", "--epochs=2", "--train-batch-size=16"];

/// The ranges in the run's last checkpoint.
fn ranges(lab: &Lab, name: &str) -> Value {
    let last = lab.checkpoints(name).pop().expect("a checkpoint");
    let state: Value = serde_json::from_slice(&std::fs::read(last.join("state.json")).unwrap()).unwrap();
    let ranges = state["position"]["ranges"].clone();
    let groups = ranges["groups"].as_array().expect("ranges of groups");
    assert!(groups.iter().all(|group| !group["output"].is_null() && !group["weights"].is_null()), "{ranges}");
    assert!(!ranges["input"].is_null(), "{ranges}");
    ranges
}

/// A training compares the ranges of all ranks at the end of each epoch.
#[test]
fn ranks_have_the_same_scales_whatever_carries_them() {
    let lab = Lab::new();
    for ranks in [1, 2, 3] {
        let mpi = format!("mpi{ranks}");
        let run = lab.train(ranks, &mpi, &[&UNEVEN[..], &["--reduce", "ordered"]].concat());
        assert_eq!(run["config"]["quantize"], "qat");
        assert!(run["int8_test_accuracy"].as_f64().is_some_and(|accuracy| accuracy > 10.0), "{run}");
        let expected = ranges(&lab, &mpi);
        for more in [&["--backend", "gloo"][..], &["--overlap", "off"]] {
            let options = [&UNEVEN[..], &["--reduce", "ordered", "--overwrite"], more].concat();
            let other = lab.train(ranks, "other", &options);
            assert_eq!(other["weights_sha256"], run["weights_sha256"], "{ranks} ranks, {more:?}");
            assert_eq!(other["int8_test_accuracy"], run["int8_test_accuracy"]);
            assert_eq!(ranges(&lab, "other"), expected, "{ranks} ranks, {more:?}");
        }
    }
    // Without fake quantization the weights are others.
    let plain = lab.train(1, "plain", &UNEVEN[2..]);
    assert_ne!(plain["weights_sha256"], lab.run_json("mpi1")["weights_sha256"]);
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
        ranges(&lab, "run");
    }
    let dataset = lab.path("features");
    let made = std::process::Command::new(binary())
        .args(["-q", "data", "features", "--train", "6400", "--test", "1000", "--out"])
        .arg(&dataset)
        .status();
    assert!(made.unwrap().success());
    let data = ["--model", "mlp", "--data-root", dataset.to_str().unwrap(), "--lr", "1e-3"];
    let run =
        lab.train(2, "mlp", &[&data[..], &["--quantized", "--fold-after", "2", "--epochs", "4"]].concat());
    let accuracy = |key: &str| run[key].as_f64().unwrap();
    let apart = (accuracy("int8_test_accuracy") - accuracy("test_accuracy")).abs();
    assert!(accuracy("test_accuracy") > 50.0 && apart <= 1.0, "{run}");
}

#[test]
fn integers_are_as_accurate_as_floats_after_every_epoch() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        let name = format!("r{ranks}");
        let more = ["--train-batch-size", "16", "--lr", "2e-3"];
        lab.train(ranks, &name, &[&["--quantized", "--epochs", "3"], &more[..]].concat());
        let mut epochs = csv::Reader::from_path(lab.path(&name).join("epochs.csv")).unwrap();
        let header = epochs.headers().unwrap().clone();
        let column = |name: &str| header.iter().position(|title| title == name).unwrap();
        let (float, int8) = (column("test_accuracy"), column("int8_test_accuracy"));
        assert_eq!(int8, header.len() - 1, "the last column");
        for row in epochs.records() {
            let row = row.unwrap();
            let [float, int8] = [float, int8].map(|at| row[at].parse::<f64>().unwrap());
            // 500 images: one is 0.2 points.
            assert!((float - int8).abs() <= 0.41 && float > 80.0, "{ranks} ranks: {float}, int8 {int8}");
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bits() {
    let lab = Lab::new();
    let options =
        ["--quantized", "--epochs=12", "--checkpoint-every=7", "--shuffle", "--train-batch-size=16"];
    let expected = lab.train(2, "whole", &options);
    let mut command = lab.command(2, "cut", &options);
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let epochs = lab.path("cut").join("epochs.csv");
    wait_until(&mut job, "the first epoch", || {
        std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
    });
    let kill = std::process::Command::new("kill").args(["-KILL", &job.id().to_string()]).status();
    assert!(kill.unwrap().success());
    job.wait().unwrap();
    // mpirun is gone; its ranks end when they notice.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(lab.run_json("cut")["status"], "running");
    let output =
        mpirun(2, binary()).args(["train", "--resume"]).arg(lab.path("cut")).output().expect("mpirun starts");
    assert!(output.status.success(), "{}", text(&output));
    let resumed = lab.run_json("cut");
    for key in ["weights_sha256", "int8_test_accuracy", "test_accuracy"] {
        assert_eq!(resumed[key], expected[key], "{key}");
    }
    assert_eq!(ranges(&lab, "cut"), ranges(&lab, "whole"));
}

#[test]
fn what_cannot_be_quantized_is_rejected_with_exit_code_2() {
    let lab = Lab::new();
    for (options, expected) in [
        (&["--quantized", "--activation", "gelu"][..], "layer activation1 cannot be quantized: gelu"),
        (&["--quantized", "--device", "ndarray"], "--device ndarray"),
        (&["--quantized", "--fused", "off"], "--quantize qat: integers need fused operators"),
        (&["--weight-scheme", "tensor"], "--weight-scheme tensor: requires --quantize"),
    ] {
        let output = fails_within(Duration::from_secs(20), lab.command(2, "out", options));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {}", text(&output));
    }
}
