//! Mixed precision: agreement of ranks, loss scaling, accuracy.

use data::write_npy;
use serde_json::Value;

use crate::harness::*;

/// With 2 and 3 ranks, the last step has one sample (1 of 1025 is left), so the last rank has none.
const UNEVEN: [&str; 3] = ["--train-samples=1025", "--epochs=2", "--train-batch-size=16"];

/// The fastest way in which this processor computes products of bf16, as `run.json` names it.
fn fastest_products() -> &'static str {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    if has("avx512f") && has("amx_bf16") {
        "amx"
    } else if has("avx512_bf16") {
        "avx512"
    } else {
        "f32"
    }
}

/// A network with many channels. Its convolutions use AMX tiles, if the processor has them, while buckets are
/// reduced.
#[test]
fn the_vgg_has_the_same_weights_whenever_buckets_are_reduced() {
    let lab = Lab::new();
    let folder = lab.data("objects", 50, 10);
    let options = ["--data-root", &folder, "--model", "vgg", "--epochs", "1", "--precision", "bf16"];
    let options = [&options[..], &["--reduce", "ordered", "--train-batch-size", "8"]].concat();
    lab.train(2, "run", &options);
    lab.trains_the_same(2, "run", &options, &["weights_sha256"]);
}

/// Half of the samples exceed f16's largest value. bf16 trains on them, so the error does not advise a lower
/// learning rate.
#[test]
fn samples_beyond_the_range_of_fp16_are_said_to_be_so() {
    let lab = Lab::new();
    let folder = lab.data("features", 400, 42);
    for (file, samples) in [("train_data/train_x.npy", 400), ("test_data/test_x.npy", 42)] {
        let rows: Vec<_> = [[0.5; 512], [1e5; 512]].into_iter().cycle().take(samples).flatten().collect();
        write_npy(&lab.path("features").join(file), 512, &rows).unwrap();
    }
    let options =
        ["--data-root", &folder, "--model", "mlp", "--epochs=1", "--train-samples=42", "--precision"];
    lab.train(2, "bf16", &[&options[..], &["bf16"]].concat());
    let words = ["step 1", "fp16", "65504", "--lr", "--precision bf16"];
    refused(lab.command(2, "fp16", &[&options[..], &["fp16"]].concat()), 1, &words);
}

/// A training compares the weights of all ranks at the end of each epoch, and fails if they differ.
#[test]
fn ranks_have_the_same_weights_whenever_buckets_are_reduced() {
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
        lab.trains_the_same(ranks, &name, &options, &["weights_sha256", "skipped_steps"]);
    }
}

#[test]
fn an_interrupted_run_goes_on_with_its_loss_scale_to_the_same_bits() {
    let lab = Lab::new();
    // 2000 steps in a row without an overflow double the scale; these trainings have enough steps.
    let options =
        ["--precision=fp16", "--epochs=4", "--train-samples=1400", "--train-batch-size=1", "--shuffle"];
    lab.train(2, "whole", &options);
    lab.train(2, "cut", &[&options[..], &["--checkpoint-every=800"]].concat());
    lab.cut("cut");
    assert!(lab.position("cut")["loss_scale"]["good_steps"].as_u64() > Some(0));
    let printed = lab.resumed(2, "cut");
    assert!(printed.contains("in epoch 4"), "{printed}");
    let keys = ["weights_sha256", "test_accuracy", "skipped_steps", "loss_scale"];
    assert_eq!(lab.values("cut", &keys), lab.values("whole", &keys));
}

/// The initial weights are zeros. The initial bias gives all classes the same score, except `unlikely`, whose
/// probability is 0. With one sample per rank, the gradient of a score is the loss scale times the
/// probability of the class, less the loss scale if it is the sample's class. If this probability is 0, the
/// gradient is -65536, which is infinite in f16. For another class, it is 8/9 of that, which is finite.
#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all() {
    let lab = Lab::new();
    let labels = std::fs::read(digits().join("train-labels-idx1-ubyte")).unwrap();
    let [first, unlikely, last] = [8, 9, 10].map(|at| usize::from(labels[at]));
    assert!(first != unlikely && last != unlikely, "rank 1's sample alone has this class");
    lab.train(1, "any", &["--train-samples=32", "--epochs=1"]);
    let initial = |name: &str, at| if (name, at) == ("linear.bias", unlikely) { -100.0 } else { 0.0 };
    let init = lab.changed_weights("any", |name, at, _| initial(name, at));
    let options = ["--train-samples=3", "--train-batch-size=1", "--precision=fp16", "--init", &init];
    let options = [&options[..], &["--reduce=ordered"]].concat();
    let once = lab.train(3, "once", &[&options[..], &["--epochs=1"]].concat());
    assert_eq!((&once["skipped_steps"], &once["loss_scale"]), (&1.into(), &32768.0.into()));
    for (name, values) in lab.weights("once") {
        assert!(values.iter().enumerate().all(|(at, &x)| x == initial(&name, at)), "{name}: {values:?}");
    }
    // With half of the loss scale, no gradient overflows.
    let run = lab.train(3, "twice", &[&options[..], &["--epochs=2"]].concat());
    let found = (&run["steps"], &run["skipped_steps"], &run["loss_scale"]);
    assert_eq!(found, (&2.into(), &1.into(), &32768.0.into()));
    assert_ne!(run["weights_sha256"], once["weights_sha256"]);
    lab.train(3, "shares", &[&options[..], &["--epochs=2", "--shard-optimizer"]].concat());
    lab.assert_same("shares", "twice");
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
        // The accuracy is of 500 images: one image is 0.2 points.
        let found = accuracy(precision);
        assert!((found - exact).abs() <= 0.41, "{precision}: {found} for {exact}");
    }
}

/// `run.json` is a text file, so a user may have edited it.
#[test]
fn an_edited_configuration_is_refused_by_name() {
    let lab = Lab::new();
    let refused = |name: &str, words: &[&str], expected: &[&str]| {
        let line = refused(job(2).args(words).arg(lab.path(name)), 1, expected);
        assert!(!line.contains("panicked"), "{words:?}: {line}");
    };
    let few = ["--train-samples=64", "--test-samples=20", "--epochs=2"];
    lab.train(2, "qat", &[&few[..], &["--quantize", "qat"]].concat());
    let run_json = lab.path("qat/run.json");
    let whole = std::fs::read(&run_json).unwrap();
    for (field, value, expected) in [
        ("precision", Value::from("bf16"), ["run.json: --precision bf16: ", "--quantize qat"]),
        ("train_batch_size", 0.into(), ["run.json: --train-batch-size 0: ", "from 1"]),
    ] {
        edit(&run_json, |json| json["config"][field] = value);
        for words in [["train", "--resume"], ["eval", "--checkpoint"], ["quantize", "--kind=qat"]] {
            refused("qat", &words, &expected);
        }
        std::fs::write(&run_json, &whole).unwrap();
    }
}
