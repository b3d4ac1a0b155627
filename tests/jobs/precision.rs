//! Mixed precision: agreement of ranks, loss scaling, accuracy.

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;

use safetensors::tensor::{Dtype, TensorView};
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

/// How a processor with these flags computes products of bf16.
fn fastest_products() -> &'static str {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    match () {
        () if has("avx512f") && has("amx_bf16") => "amx",
        () if has("avx512_bf16") => "avx512",
        () => "f32",
    }
}

/// Many channels: convolutions on tiles, where there are some, while buckets travel.
#[test]
fn the_vgg_has_the_same_weights_whatever_carries_them() {
    let lab = Lab::new();
    let folder = lab.path("objects");
    let made = run(on_ranks(1, binary())
        .args(["data", "objects", "--train", "50", "--test", "10", "--out"])
        .arg(&folder));
    assert!(made.status.success(), "{}", text(&made));
    let options =
        ["--data-root", folder.to_str().unwrap(), "--model", "vgg", "--epochs", "1", "--precision", "bf16"];
    let options = [&options[..], &["--reduce", "ordered", "--train-batch-size", "8"]].concat();
    let run = lab.train(2, "run", &options);
    for more in [&["--backend", "gloo"][..], &["--overlap", "off"], &[]] {
        let other = lab.train(2, "other", &[&options[..], more, &["--overwrite"]].concat());
        assert_eq!(other["weights_sha256"], run["weights_sha256"], "{more:?}");
    }
}

/// Features and labels of `samples`, alternately small and beyond f16's largest value.
fn write_features(folder: &Path, samples: usize) {
    let write = |path: &str, header: &str, values: Vec<u8>| {
        let path = folder.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let header = format!("{{'descr': '{header}, }}");
        let padded = format!("{header:<117}\n");
        let length = (padded.len() as u16).to_le_bytes();
        std::fs::write(path, [b"\x93NUMPY\x01\x00", &length[..], padded.as_bytes(), &values].concat())
            .unwrap();
    };
    for split in ["train", "test"] {
        let feature = |sample: usize| if sample.is_multiple_of(2) { 0.5f32 } else { 1e5 };
        let features = (0..samples * 512).flat_map(|at| feature(at / 512).to_le_bytes()).collect();
        write(
            &format!("{split}_data/{split}_x.npy"),
            &format!("<f4', 'fortran_order': False, 'shape': ({samples}, 512)"),
            features,
        );
        let labels = (0..samples).flat_map(|sample| (sample as i64 % 2).to_le_bytes()).collect();
        write(
            &format!("{split}_data/{split}_y.npy"),
            &format!("<i8', 'fortran_order': False, 'shape': ({samples},)"),
            labels,
        );
    }
}

/// bf16 trains on such samples, so a lower learning rate is no remedy.
#[test]
fn samples_beyond_the_range_of_fp16_are_said_to_be_so() {
    let lab = Lab::new();
    let folder = lab.path("features");
    write_features(&folder, 42);
    let options = ["--data-root", folder.to_str().unwrap(), "--model", "mlp", "--epochs", "1"];
    lab.train(2, "bf16", &[&options[..], &["--precision", "bf16"]].concat());
    let command = lab.command(2, "fp16", &[&options[..], &["--precision", "fp16"]].concat());
    let output = must_fail(command);
    let errors = errors(&output);
    assert_eq!((errors.len(), output.status.code()), (1, Some(1)), "{}", text(&output));
    let cause = "step 1; fp16 has no values beyond 65504: scale the samples, lower --lr, or train with --precision bf16";
    assert!(errors[0].contains(cause), "{}", errors[0]);
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
        assert_eq!(run["bf16_products"].as_str(), (precision == "bf16").then(fastest_products));
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
    let options = ["--precision=fp16", "--epochs=12", "--shuffle", "--train-batch-size=16"];
    let expected = lab.train(2, "whole", &options);
    let mut command = lab.command(2, "cut", &[&options[..], &["--checkpoint-every=7"]].concat());
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let epochs = lab.path("cut").join("epochs.csv");
    wait_until(&mut job, "the first epoch", || {
        std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
    });
    kill_all(job);
    assert_eq!(lab.run_json("cut")["status"], "running");
    assert!(loss_scale(&lab, "cut")["good_steps"].as_u64() > Some(0));
    let output = run(on_ranks(2, binary()).args(["train", "--resume"]).arg(lab.path("cut")));
    assert!(output.status.success(), "{}", text(&output));
    let resumed = lab.run_json("cut");
    for key in ["weights_sha256", "test_accuracy", "skipped_steps", "loss_scale"] {
        assert_eq!(resumed[key], expected[key], "{key}");
    }
    assert_eq!(loss_scale(&lab, "cut"), loss_scale(&lab, "whole"));
}

/// Initial weights of the ConvNet: zeros, and a bias that makes the scores of all classes
/// but `unlikely` equal, and its probability 0.
fn write_init(file: &std::path::Path, unlikely: usize) {
    let shapes: [(&str, &[usize]); 6] = [
        ("conv1.weight", &[4, 1, 3, 3]),
        ("conv1.bias", &[4]),
        ("conv2.weight", &[8, 4, 3, 3]),
        ("conv2.bias", &[8]),
        ("linear.weight", &[10, 392]),
        ("linear.bias", &[10]),
    ];
    let tensors = shapes.map(|(name, shape)| {
        let mut values = vec![0f32; shape.iter().product()];
        if name == "linear.bias" {
            values[unlikely] = -100.0;
        }
        (name, shape, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
    });
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (*name, TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None::<HashMap<String, String>>, file).unwrap();
}

/// With one sample a rank, the gradient of a score is the scale times its probability,
/// less the scale for the sample's class: -65536 is infinite in f16 where that
/// probability is 0, and 8/9 of it is not.
#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all() {
    let lab = Lab::new();
    let labels = std::fs::read(digits().join("train-labels-idx1-ubyte")).unwrap();
    let [first, unlikely, last] = [8, 9, 10].map(|at| usize::from(labels[at]));
    assert!(first != unlikely && last != unlikely, "rank 1's sample alone has this class");
    let init = lab.path("init.safetensors");
    write_init(&init, unlikely);
    let base = ["--train-samples=3", "--train-batch-size=1", "--precision=fp16", "--init"];
    let options = [&base[..], &[init.to_str().unwrap()]].concat();
    let once = lab.train(3, "once", &[&options[..], &["--epochs=1"]].concat());
    assert_eq!((&once["skipped_steps"], &once["loss_scale"]), (&1.into(), &32768.0.into()));
    for (name, values) in lab.weights("once") {
        let expected = |at: usize| if name == "linear.bias" && at == unlikely { -100.0 } else { 0.0 };
        assert!(values.iter().enumerate().all(|(at, &value)| value == expected(at)), "{name}: {values:?}");
    }
    // Half of the scale fits.
    let twice = run(lab.command(3, "twice", &[&options[..], &["--epochs=2"]].concat()));
    assert!(twice.status.success(), "{}", text(&twice));
    assert!(text(&twice).contains("1 of 2 steps skipped after an overflow"), "{}", text(&twice));
    let run = lab.run_json("twice");
    assert_eq!((&run["skipped_steps"], &run["loss_scale"]), (&1.into(), &32768.0.into()));
    assert_ne!(run["weights_sha256"], once["weights_sha256"]);
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
        let output = must_fail(lab.command(2, "out", options));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{expected}: {}", text(&output));
    }
}

/// The run directory is a text that somebody may have edited.
#[test]
fn an_edited_configuration_or_loss_scale_is_refused_by_name() {
    let lab = Lab::new();
    let edit = |path: &std::path::Path, change: &dyn Fn(&mut Value)| {
        let mut json: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        change(&mut json);
        std::fs::write(path, json.to_string()).unwrap();
    };
    let refused = |name: &str, words: &[&str], expected: &str| {
        let mut command = on_ranks(2, binary());
        command.args(words).arg(lab.path(name));
        let output = must_fail(command);
        assert!(text(&output).contains(expected), "{words:?}: {}", text(&output));
        assert!(!text(&output).contains("panicked"), "{words:?}: {}", text(&output));
    };
    let few = ["--train-samples=64", "--test-samples=20", "--epochs=2"];
    lab.train(2, "qat", &[&few[..], &["--quantize", "qat"]].concat());
    let run_json = lab.path("qat").join("run.json");
    for (field, value, expected) in [
        ("precision", Value::from("bf16"), "run.json: --precision bf16: --quantize qat trains in f32"),
        ("precision", "no".into(), ""),
        ("train_batch_size", 0.into(), "run.json: --train-batch-size 0: must be at least 1"),
    ] {
        edit(&run_json, &|json| json["config"][field] = value.clone());
        if !expected.is_empty() {
            refused("qat", &["train", "--resume"], expected);
            refused("qat", &["eval", "--checkpoint"], expected);
            refused("qat", &["quantize", "--kind=qat"], expected);
        }
    }

    lab.train(2, "fp16", &[&few[..], &["--precision", "fp16"]].concat());
    let last = lab.checkpoints("fp16").pop().expect("a checkpoint");
    // As versions without manifests wrote it, whose values are not covered.
    lab.remove_manifests("fp16");
    for scale in [0.0, -2.0] {
        edit(&last.join("state.json"), &|json| json["position"]["loss_scale"]["scale"] = scale.into());
        refused("fp16", &["train", "--resume"], "the loss scale is");
    }
}
