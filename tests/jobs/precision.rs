//! Mixed precision: agreement of ranks, loss scaling, accuracy.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::harness::*;

/// Steps in which the last rank has no samples, for 2 and 3 ranks: 1 of 1025 is left.
const UNEVEN: [&str; 3] = ["--train-samples=1025", "--epochs=2", "--train-batch-size=16"];

/// The loss scale in the run's last checkpoint.
fn loss_scale(lab: &Lab, name: &str) -> Value {
    let last = lab.checkpoints(name).pop().expect("a checkpoint");
    let state: Value = serde_json::from_slice(&std::fs::read(last.join("state.json")).unwrap()).unwrap();
    state["position"]["loss_scale"].clone()
}

/// A training compares the weights of all ranks at the end of each epoch.
#[test]
fn ranks_have_the_same_weights_whatever_carries_them() {
    let lab = Lab::new();
    let plain = lab.train(2, "plain", &[&UNEVEN[..], &["--reduce", "ordered"]].concat());
    assert_eq!(plain["config"]["precision"], "no");
    assert!(plain["skipped_steps"].is_null());
    for (precision, ranks) in [("bf16", 2), ("bf16", 3), ("fp16", 2), ("fp16", 3)] {
        let options = [&UNEVEN[..], &["--reduce", "ordered", "--precision", precision]].concat();
        let name = format!("{precision}-{ranks}");
        let run = lab.train(ranks, &name, &options);
        assert_eq!(run["config"]["precision"], precision);
        assert_eq!(run["skipped_steps"].is_null(), precision == "bf16");
        assert_ne!(run["weights_sha256"], plain["weights_sha256"], "{name}");
        for more in [&["--backend", "gloo"][..], &["--overlap", "off"]] {
            let other = lab.train(ranks, "other", &[&options[..], more, &["--overwrite"]].concat());
            assert_eq!(other["weights_sha256"], run["weights_sha256"], "{name}, {more:?}");
            assert_eq!(other["skipped_steps"], run["skipped_steps"], "{name}, {more:?}");
        }
    }
}

#[test]
fn an_interrupted_run_goes_on_with_its_loss_scale_to_the_same_bits() {
    let lab = Lab::new();
    let options =
        ["--precision=fp16", "--epochs=12", "--checkpoint-every=7", "--shuffle", "--train-batch-size=16"];
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
    assert!(loss_scale(&lab, "cut")["good_steps"].as_u64() > Some(0));
    let output =
        mpirun(2, binary()).args(["train", "--resume"]).arg(lab.path("cut")).output().expect("mpirun starts");
    assert!(output.status.success(), "{}", text(&output));
    let resumed = lab.run_json("cut");
    for key in ["weights_sha256", "test_accuracy", "skipped_steps", "loss_scale"] {
        assert_eq!(resumed[key], expected[key], "{key}");
    }
    assert_eq!(loss_scale(&lab, "cut"), loss_scale(&lab, "whole"));
}

#[test]
fn sixteen_bits_are_as_accurate_as_f32() {
    let lab = Lab::new();
    let accuracy = |precision: &str| {
        let options = ["--precision", precision, "--epochs=3", "--train-batch-size=16", "--lr=2e-3"];
        lab.train(2, precision, &options)["test_accuracy"].as_f64().unwrap()
    };
    let exact = accuracy("no");
    assert!(exact > 80.0, "{exact}");
    for precision in ["bf16", "fp16"] {
        // 500 images: one is 0.2 points.
        let found = accuracy(precision);
        assert!((found - exact).abs() <= 0.41, "{precision}: {found} for {exact}");
    }
}

#[test]
fn precisions_that_the_device_lacks_are_rejected_with_exit_code_2() {
    let lab = Lab::new();
    for (options, expected) in [
        (&["--precision", "fp8"][..], "--precision fp8: no device of this program computes in 8 bits"),
        (
            &["--precision", "bf16", "--device", "ndarray"],
            "--precision bf16: ndarray has no 16-bit operators",
        ),
        (&["--precision", "fp16", "--quantized"], "--precision fp16: --quantize qat trains in f32"),
    ] {
        let output = fails_within(Duration::from_secs(20), lab.command(2, "out", options));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {}", text(&output));
    }
}
