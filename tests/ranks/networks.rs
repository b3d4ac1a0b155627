//! Networks with options: dropout masks, batch norm statistics, and networks rebuilt
//! from `run.json`.

use std::fs;

use crate::harness::*;

const BOTH: [&str; 7] = [
    "--dropout=0.3",
    "--batch-norm",
    "--activation=gelu",
    "--epochs=2",
    "--checkpoint-every=5",
    "--train-samples=400",
    "--test-samples=100",
];

#[test]
fn a_resumed_run_with_dropout_and_batch_norm_has_the_same_bits() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        let train = |name: &str, more: &[&str]| {
            let options = [&BOTH[..], &["--overwrite"], more].concat();
            lab.train(ranks, name, &options)["weights_sha256"].clone()
        };
        let expected = train("run", &[]);
        assert_eq!(train("again", &[]), expected, "{ranks} ranks, once more");
        assert_ne!(train("again", &["--seed", "5"]), expected);

        // Without the final checkpoint, the newest one is from the middle of the second epoch.
        lab.cut("run");
        let printed = lab.resumed(ranks, "run");
        assert!(printed.contains("in epoch 2"), "{printed}");
        assert_eq!(lab.run_json("run")["weights_sha256"], expected, "{ranks} ranks");
    }
}

#[test]
fn eval_rebuilds_the_network_of_the_run() {
    let lab = Lab::new();
    let record = lab.train(1, "run", &BOTH);
    let printed = output_of(job(1).args(["eval", "--checkpoint"]).arg(lab.path("run")));
    let accuracy = format!("test accuracy {:.2}%", record["test_accuracy"].as_f64().unwrap());
    assert!(printed.contains(&accuracy), "{accuracy}, and eval: {printed}");
    let config = &record["config"];
    assert_eq!((&config["activation"], &config["dropout"]), (&"gelu".into(), &0.3.into()));
    let mut norms: Vec<String> = lab.weights("run").into_iter().map(|(name, _)| name).collect();
    norms.retain(|name| name.starts_with("bn2"));
    let parts = ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"];
    assert_eq!(norms, parts.map(|part| format!("bn2.{part}")));
}

#[test]
fn dropout_masks_do_not_depend_on_the_number_of_ranks() {
    let lab = Lab::new();
    let losses = |ranks, name: &str, more: &[&str]| {
        let options = ["--dropout", "0.5", "--epochs", "1", "--train-samples", "320", "--log-every", "1"];
        lab.train(ranks, name, &[&options[..], more].concat());
        lab.curve(name, ranks - 1, "train.loss")
    };
    let one = losses(1, "one", &["--train-batch-size=32"]);
    let second = losses(2, "two", &["--train-batch-size=16"]);
    let first = lab.curve("two", 0, "train.loss");
    let parts = losses(1, "parts", &["--train-batch-size=16", "--accumulate", "2"]);
    assert_eq!(one.len(), 10);
    for (step, &(_, loss)) in one.iter().enumerate() {
        let mean = (first[step].1 + second[step].1) / 2.0;
        assert!((mean - loss).abs() < 1e-4, "step {step}: {loss} on one rank, {mean} on two");
        assert!((parts[step].1 - loss).abs() < 1e-4, "step {step}: {loss}, {} in parts", parts[step].1);
    }
    assert_ne!(losses(1, "other", &["--train-batch-size=32", "--seed", "124"]), one);
}

#[test]
fn initial_weights_that_cannot_be_are_refused_by_name() {
    let lab = Lab::new();
    lab.train(1, "run", &["--batch-norm", "--train-samples=64", "--test-samples=32", "--epochs=1"]);
    type Case = (&'static str, fn(f32) -> f32, &'static str);
    let cases: [Case; 3] = [
        ("conv1.weight", |_| f32::NAN, "conv1.weight contains NaN or infinite values"),
        ("bn2.running_mean", |_| f32::INFINITY, "bn2.running_mean contains NaN or infinite values"),
        ("bn1.running_var", |x| -x, "bn1.running_var contains a negative variance"),
    ];
    for (name, change, expected) in cases {
        let file = lab.changed_weights("run", |tensor, _, x| if tensor == name { change(x) } else { x });
        for ranks in [1, 2] {
            let line = refused(lab.command(ranks, "new", &["--batch-norm", "--init", &file]), 1, &["--init"]);
            assert!(line.ends_with(expected), "{line}");
            assert!(!lab.path("new").exists());
        }
    }
}

/// The running variance of such activations is infinite. A checkpoint inside an epoch would store it as JSON,
/// which has no infinity.
#[test]
fn activations_beyond_f32_end_the_run_though_batch_norm_hides_them_from_the_loss() {
    let lab = Lab::new();
    let base = ["--batch-norm", "--train-batch-size=16", "--train-samples=500"];
    lab.train(1, "small", &[&base[..], &["--epochs=1"]].concat());
    // With these weights, the squares of the activations are infinite in f32.
    let large =
        lab.changed_weights("small", |tensor, _, x| if tensor == "conv1.weight" { x * 1e22 } else { x });
    for (ranks, every) in [(1, "3"), (1, "1000"), (3, "3"), (3, "1000")] {
        let name = format!("run{ranks}-{every}");
        let options = [&base[..], &["--checkpoint-every", every, "--init", &large]].concat();
        let words = ["rank 0 (", "running_var ", " step ", "--lr"];
        refused(lab.command(ranks, &name, &options), 1, &words);
        assert_eq!(lab.run_json(&name)["status"], "failed");
    }
}

fn write_npy(lab: &Lab, file: &str, dtype: &str, shape: &str, bytes: &[u8]) {
    let header = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({shape}), }}");
    let header = format!("{header:117}\n");
    let path = lab.path(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, [b"\x93NUMPY\x01\x00\x76\x00", header.as_bytes(), bytes].concat()).unwrap();
}

/// Creates a data set with seven features. Its samples belong to the classes 0, 1, … in turn.
fn seven_features(lab: &Lab, name: &str, classes: usize, [train, test]: [usize; 2]) -> String {
    for (split, samples) in [("train", train), ("test", test)] {
        let class = |sample: usize| (sample % classes) as u16;
        let features = (0..7 * samples).map(|at| f32::from(class(at / 7)) / 300.0 * (at % 7) as f32 - 1.0);
        let features: Vec<u8> = features.flat_map(f32::to_le_bytes).collect();
        let labels: Vec<u8> = (0..samples).map(class).flat_map(u16::to_le_bytes).collect();
        let file = |letter| format!("{name}/{split}_data/{split}_{letter}.npy");
        write_npy(lab, &file('x'), "<f4", &format!("{samples}, 7"), &features);
        write_npy(lab, &file('y'), "<u2", &format!("{samples},"), &labels);
    }
    lab.path(name).to_str().expect("a UTF-8 path").to_owned()
}

#[test]
fn a_network_has_the_sizes_of_its_data_set() {
    let lab = Lab::new();
    let root = seven_features(&lab, "pairs", 300, [900, 300]);
    let options = ["--model", "mlp", "--data-root", &root, "--lr", "1e-2", "--batch-size", "10"];
    let run = lab.train(3, "run", &[&options[..], &["--epochs", "4"]].concat());
    assert_eq!(run["params"], 7 * 32 + 32 + 2 * 32 + 32 * 300 + 300);
    let data = &run["data"];
    assert_eq!((&data["shape"], &data["classes"]), (&serde_json::json!([1, 1, 7]), &300.into()));
    assert_eq!((&data["class_names"][299], data.get("mean")), (&"299".into(), None));
    assert_eq!(data["test_largest_class"], 1, "one sample of each class");
    assert!(run["train_loss"].as_f64().unwrap() < 300f64.ln(), "{run}");

    let on_run = |words: &[&str]| output_of(lab.on(3, words, "run"));
    let accuracy = format!("test accuracy {:.2}%", run["test_accuracy"].as_f64().unwrap());
    assert!(on_run(&["eval", "--checkpoint"]).contains(&accuracy), "{accuracy}");
    let quantized = on_run(&["quantize"]);
    let of_int8 = quantized.lines().find(|line| line.starts_with("int8")).unwrap();
    let loss = of_int8.split_whitespace().nth(3).unwrap();
    assert!(
        on_run(&["eval", "--int8", "--checkpoint"]).contains(&format!("test loss {loss}")),
        "{quantized}"
    );
    lab.cut("run");
    lab.resumed(3, "run");
    assert_eq!(lab.run_json("run")["weights_sha256"], run["weights_sha256"]);
    output_of(lab.resume(3, "run", &["--epochs", "5"]));

    let words = ["--data-root ", "has samples of 1x28x28 in 10 classes", "7 features in 300"];
    let digits = digits().to_str().unwrap();
    refused(lab.on(2, &["eval", "--data-root", digits, "--checkpoint"], "run"), 2, &words);
    refused(lab.resume(3, "run", &["--epochs", "6", "--data-root", digits]), 2, &words);
    // An export does not need the data set.
    fs::rename(&root, lab.path("elsewhere")).unwrap();
    on_run(&["export", "--out", lab.path("run.onnx").to_str().unwrap()]);
    edit(&lab.path("run/run.json"), |run| run["data"]["shape"][2] = 1_000_000.into());
    let words = ["run.json", "`data`", "1000000 features", "300 classes", "mlp", "10220 parameters"];
    refused(lab.on(1, &["export", "--out", lab.path("other.onnx").to_str().unwrap()], "run"), 1, &words);
    edit(&lab.path("run/run.json"), |run| _ = run["data"].as_object_mut().unwrap().remove("shape"));
    let words = ["run.json", "`shape` is missing"];
    refused(lab.on(1, &["export", "--out", lab.path("other.onnx").to_str().unwrap()], "run"), 1, &words);
}

#[test]
fn images_of_another_network_are_learned() {
    let lab = Lab::new();
    let short = ["--epochs", "1", "--train-samples", "320", "--test-samples", "100"];
    let mlp = lab.train(2, "mlp", &[&short[..], &["--model", "mlp", "--augment", "crop"]].concat());
    assert_eq!(mlp["params"], 784 * 32 + 32 + 2 * 32 + 32 * 10 + 10);
    assert_eq!((&mlp["data"]["shape"][1], mlp["data"]["mean"].as_array().unwrap().len()), (&28.into(), 1));
    let vgg = ["--model", "vgg", "--train-samples", "8", "--test-samples", "8", "--batch-size", "4"];
    let vgg = lab.train(2, "vgg", &[&short[..2], &vgg].concat());
    // The parameters for 3x32x32, less the weights of two input channels, and less the weights of 7 of 16
    // positions before the first linear layer.
    assert_eq!(vgg["params"], 2_625_962 - 2 * 9 * 32 - 7 * 256 * 256);
    output_of(lab.on(1, &["profile", "--checkpoint"], "vgg").args(["--batches", "1"]));
    output_of(lab.on(1, &["export", "--out", lab.path("vgg.onnx").to_str().unwrap()], "vgg"));
}

#[test]
fn one_class_is_learned_without_a_loss() {
    let lab = Lab::new();
    let root = seven_features(&lab, "pairs", 1, [64, 16]);
    let options = ["--model", "mlp", "--data-root", &root, "--epochs", "2", "--label-smoothing", "0.1"];
    let run = lab.train(2, "run", &options);
    assert_eq!((&run["test_loss"], &run["test_accuracy"]), (&0.0.into(), &100.0.into()));
    output_of(lab.on(2, &["quantize"], "run"));
}

#[test]
fn samples_that_are_too_small_for_a_network_are_refused() {
    let lab = Lab::new();
    let root = seven_features(&lab, "pairs", 2, [64, 16]);
    for model in ["convnet", "vgg"] {
        let words = [&*format!("--model {model}: "), &root, "7 features", "--model mlp"];
        refused(lab.command(2, "run", &["--model", model, "--data-root", &root]), 2, &words);
        assert!(!lab.path("run").exists());
    }
}
