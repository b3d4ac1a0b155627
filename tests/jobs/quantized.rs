//! Quantization-aware training.

use std::collections::HashMap;
use std::process::{Command, Stdio};

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
    let made = Command::new(binary())
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
            // Four of the 500 images.
            assert!((float - int8).abs() <= 0.81 && float > 80.0, "{ranks} ranks: {float}, int8 {int8}");
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bits() {
    let lab = Lab::new();
    let options = ["--quantized", "--epochs=12", "--shuffle", "--train-batch-size=16"];
    let expected = lab.train(2, "whole", &options);
    let mut command = lab.command(2, "cut", &[&options[..], &["--checkpoint-every=7"]].concat());
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let epochs = lab.path("cut").join("epochs.csv");
    wait_until(&mut job, "the first epoch", || {
        std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
    });
    kill_all(job);
    assert_eq!(lab.run_json("cut")["status"], "running");
    let output = run(on_ranks(2, binary()).args(["train", "--resume"]).arg(lab.path("cut")));
    assert!(output.status.success(), "{}", text(&output));
    let resumed = lab.run_json("cut");
    for key in ["weights_sha256", "int8_test_accuracy", "test_accuracy"] {
        assert_eq!(resumed[key], expected[key], "{key}");
    }
    assert_eq!(ranges(&lab, "cut"), ranges(&lab, "whole"));
}

/// `epochs.csv` as rows of cells by column.
fn epochs(lab: &Lab, name: &str) -> Vec<HashMap<String, String>> {
    let file = csv::Reader::from_path(lab.path(name).join("epochs.csv"));
    file.unwrap().deserialize().map(|row| row.expect("a row")).collect()
}

/// The int8 file of the last checkpoint, and the test accuracy that `quantize` prints for the one it
/// makes on one rank. The two files are equal.
fn quantized_again(lab: &Lab, name: &str, options: &[&str]) -> (Vec<u8>, String) {
    let file = || {
        let last = lab.checkpoints(name).pop().expect("a checkpoint");
        std::fs::read(last.join("int8.safetensors")).expect("an int8 model")
    };
    let before = file();
    let output = run(Command::new(binary()).arg("quantize").arg(lab.path(name)).args(options));
    assert!(output.status.success(), "{}", text(&output));
    assert!(file() == before, "{name}: training and quantize make the same model");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let accuracy = lines.lines().nth(1).and_then(|line| line.split("test accuracy ").nth(1));
    (before, accuracy.and_then(|line| line.split('%').next()).expect("an accuracy").to_owned())
}

#[test]
fn float_trainings_have_an_int8_model_after_every_epoch() {
    let lab = Lab::new();
    let base = ["--epochs=2", "--train-samples=1025", "--train-batch-size=16", "--test-batch-size=500"];
    let ptq = ["--quantize", "ptq", "--calibration", "200"];
    for ranks in [1, 3] {
        let plain = lab.train(ranks, "plain", &[&base[..], &["--overwrite"]].concat());
        for (kind, options) in [("ptq", &ptq[2..]), ("dynamic", &[])] {
            let name = format!("{kind}{ranks}");
            let run = lab.train(ranks, &name, &[&base[..], &["--quantize", kind], options].concat());
            assert_eq!(run["weights_sha256"], plain["weights_sha256"], "{name}: trained in floats");
            let accuracy = run["int8_test_accuracy"].as_f64().expect("an accuracy");
            let rows = epochs(&lab, &name);
            assert!(
                rows.len() == 2 && rows.iter().all(|row| !row["int8_test_accuracy"].is_empty()),
                "{rows:?}"
            );
            assert_eq!(rows[1]["int8_test_accuracy"].parse(), Ok(accuracy));
            let (_, again) = quantized_again(&lab, &name, &[&["--kind", kind], options].concat());
            // The scales of dynamic models are those of a batch, which is one share here.
            if ranks == 1 || kind == "ptq" {
                assert_eq!(again, format!("{accuracy:.2}"), "{name}");
            }
        }
    }
    // The last epoch is trained again, to the same model.
    let (whole, _) = quantized_again(&lab, "ptq3", &["--calibration", "200"]);
    let before = lab.run_json("ptq3");
    std::fs::remove_dir_all(lab.checkpoints("ptq3").pop().unwrap()).unwrap();
    let output = run(on_ranks(3, binary()).args(["train", "--resume"]).arg(lab.path("ptq3")));
    assert!(output.status.success(), "{}", text(&output));
    assert!(
        text(&output).contains("epoch 2") && text(&output).contains("int8 test accuracy"),
        "{}",
        text(&output)
    );
    assert_eq!(lab.run_json("ptq3")["int8_test_accuracy"], before["int8_test_accuracy"]);
    assert!(quantized_again(&lab, "ptq3", &["--calibration", "200"]).0 == whole);
}

/// Weights that become infinite in the last step are a training's error, not quantization's.
#[test]
fn infinite_weights_are_reported_as_such() {
    let lab = Lab::new();
    for kind in ["qat", "ptq"] {
        let options = ["--quantize", kind, "--train-samples", "64", "--optimizer", "sgd", "--lr", "1e30"];
        let output = must_fail(lab.command(2, kind, &options));
        let errors = errors(&output);
        assert!(
            errors.len() == 1 && errors[0].contains("test loss is not finite after epoch 1"),
            "{errors:?}"
        );
    }
}

/// A rate so high that the first convolution's output is 0 everywhere.
#[test]
fn an_epoch_without_an_int8_model_is_trained_and_kept() {
    let lab = Lab::new();
    let options = ["--quantize", "ptq", "--optimizer", "sgd", "--lr", "30", "--train-samples", "640"];
    let mut command = lab.command(2, "run", &options);
    let output = run(command.args(["--epochs", "2"]));
    assert!(output.status.success(), "{}", text(&output));
    let printed = text(&output);
    for epoch in [1, 2] {
        let warning = format!("no int8 model of epoch {epoch}: conv2: the scale overflows");
        assert_eq!(printed.matches(&warning).count(), 1, "{printed}");
    }
    let rows = std::fs::read_to_string(lab.path("run").join("epochs.csv")).unwrap();
    assert!(rows.lines().skip(1).all(|row| row.ends_with(',')), "no int8 accuracy: {rows}");
    assert!(lab.run_json("run")["int8_test_accuracy"].is_null());
    let checkpoint = lab.checkpoints("run").pop().expect("a checkpoint");
    assert!(checkpoint.join("model.safetensors").exists() && !checkpoint.join("int8.safetensors").exists());
}

/// Published figures of quantized trainings are beside quantized runs, and others beside others.
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
    let report = run(Command::new(binary()).current_dir(lab.path("")).args([
        "report",
        "--reference",
        "figures",
        "--format",
        "markdown",
        "--out",
        "tables",
    ]));
    assert!(report.status.success(), "{}", text(&report));
    let table = std::fs::read_to_string(lab.path("tables/runs-published.csv")).unwrap();
    let rows: Vec<HashMap<String, String>> =
        csv::Reader::from_reader(table.as_bytes()).deserialize().map(Result::unwrap).collect();
    let number = |row: usize, column: &str| rows[row][column].parse::<f64>().expect("a number");
    let expected = [("float", "test_accuracy"), ("qat", "int8_test_accuracy")];
    assert_eq!(rows.len(), expected.len(), "{table}");
    for (row, (name, accuracy)) in expected.into_iter().enumerate() {
        let run = lab.run_json(&format!("results/{name}"));
        assert!(
            (number(row, "test_accuracy_ours") - run[accuracy].as_f64().unwrap()).abs() < 1e-3,
            "{table}"
        );
        assert!(
            (number(row, "train_seconds_ours") / run["train_seconds"].as_f64().unwrap() - 1.0).abs() < 1e-4
        );
    }
    let picture = std::fs::read_to_string(lab.path("tables/runs-accuracy.svg")).unwrap();
    assert_eq!(
        picture.matches(", int8<").count() + picture.matches(", int8\n").count(),
        2,
        "two dashed curves"
    );
}

#[test]
fn what_cannot_be_quantized_is_rejected_with_exit_code_2() {
    let lab = Lab::new();
    for (options, expected) in [
        (&["--quantized", "--activation", "gelu"][..], "layer activation1 cannot be quantized: gelu"),
        (
            &["--quantized", "--device", "ndarray"],
            "--quantize qat: integers need --device flex, and the device is ndarray",
        ),
        (&["--quantized", "--fused", "off"], "--quantize qat: integers need fused operators"),
        (&["--quantize", "ptq", "--activation", "tanh"], "layer activation1 cannot be quantized: tanh"),
        (&["--quantize", "dynamic", "--activation", "gelu"], "layer activation1 cannot be quantized: gelu"),
        (
            &["--quantize", "ptq", "--calibration", "6401"],
            "--calibration 6401: the run trains on 6400 samples",
        ),
        (&["--weight-scheme", "tensor"], "--weight-scheme tensor: requires --quantize"),
    ] {
        let output = must_fail(lab.command(2, "out", options));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {}", text(&output));
    }
}
