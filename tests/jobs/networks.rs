//! Networks with options: dropout masks, batch norm statistics, and networks rebuilt
//! from `run.json`.

use std::process::Command;

use crate::harness::*;

const BOTH: [&str; 8] =
    ["--dropout", "0.3", "--batch-norm", "--activation", "gelu", "--epochs", "2", "--checkpoint-every=5"];

#[test]
fn a_resumed_run_with_dropout_and_batch_norm_has_the_same_bits() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        let (name, again) = (format!("run{ranks}"), format!("again{ranks}"));
        let options = [&BOTH[..], &["--train-samples", "600"]].concat();
        let expected = lab.train(ranks, &name, &options);
        let repeated = lab.train(ranks, &again, &options);
        assert_eq!(repeated["weights_sha256"], expected["weights_sha256"], "{ranks} ranks, once more");
        let other = lab.train(ranks, &format!("other{ranks}"), &[&options[..], &["--seed", "5"]].concat());
        assert_ne!(other["weights_sha256"], expected["weights_sha256"]);

        // Without the final checkpoint, the last one is in the middle of the second epoch.
        std::fs::remove_dir_all(lab.checkpoints(&name).pop().unwrap()).unwrap();
        let mut command = on_ranks(ranks, binary());
        let output = run(command.args(["train", "--resume"]).arg(lab.path(&name)));
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("in epoch 2"), "{}", text(&output));
        assert_eq!(lab.run_json(&name)["weights_sha256"], expected["weights_sha256"], "{ranks} ranks");
    }
}

#[test]
fn eval_rebuilds_the_network_of_the_run() {
    let lab = Lab::new();
    let record = lab.train(1, "run", &BOTH);
    let output = run(Command::new(binary()).args(["eval", "--checkpoint"]).arg(lab.path("run")));
    assert!(output.status.success(), "{}", text(&output));
    let accuracy = format!("test accuracy {:.2}%", record["test_accuracy"].as_f64().unwrap());
    assert!(text(&output).contains(&accuracy), "{accuracy}, and eval: {}", text(&output));
    let config = &record["config"];
    assert_eq!((&config["activation"], &config["dropout"]), (&"gelu".into(), &0.3.into()));
    let norms: Vec<String> =
        lab.weights("run").into_iter().map(|(name, _)| name).filter(|name| name.starts_with("bn2")).collect();
    let parts = ["bias", "num_batches_tracked", "running_mean", "running_var", "weight"];
    assert_eq!(norms, parts.map(|part| format!("bn2.{part}")));
}

#[test]
fn dropout_masks_do_not_depend_on_the_number_of_ranks() {
    let lab = Lab::new();
    let options = ["--dropout", "0.5", "--epochs", "1", "--train-samples", "320", "--log-every", "1"];
    let with = |size| [&options[..], &["--train-batch-size", size]].concat();
    lab.train(1, "one", &with("32"));
    lab.train(2, "two", &with("16"));
    lab.train(1, "parts", &[&with("16")[..], &["--accumulate", "2"]].concat());
    lab.train(1, "other", &[&with("32")[..], &["--seed", "124"]].concat());
    let one = lab.curve("one", 0, "train.loss");
    let halves = [lab.curve("two", 0, "train.loss"), lab.curve("two", 1, "train.loss")];
    let parts = lab.curve("parts", 0, "train.loss");
    assert_eq!(one.len(), 10);
    for (step, &(_, loss)) in one.iter().enumerate() {
        let mean = (halves[0][step].1 + halves[1][step].1) / 2.0;
        assert!((mean - loss).abs() < 1e-4, "step {step}: {loss} on one rank, {mean} on two");
        assert!((parts[step].1 - loss).abs() < 1e-4, "step {step}: {loss}, {} in parts", parts[step].1);
    }
    assert_ne!(lab.curve("other", 0, "train.loss"), one);
}

#[test]
fn options_that_do_not_apply_are_rejected_with_one_line() {
    let lab = Lab::new();
    for (options, expected) in [
        (["--hidden", "8"], "--hidden 8: convnet has no hidden layer to set"),
        (["--dropout", "1"], "--dropout 1: must be 0 or more and less than 1"),
        (["--activation", "swish"], "--activation swish: unknown activation swish"),
    ] {
        let output = must_fail(lab.command(1, "run", &options));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{}", text(&output));
        assert!(errors[0].contains(expected), "{}", errors[0]);
    }
}

type Change = fn(f32) -> f32;

/// The weights of a run's last checkpoint, with each value of the tensor `name` changed.
fn changed_weights(lab: &Lab, run: &str, name: &str, change: Change) -> std::path::PathBuf {
    let last = lab.checkpoints(run).pop().expect("a checkpoint");
    let mut bytes = std::fs::read(last.join("model.safetensors")).unwrap();
    let place = {
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let data = file.tensor(name).unwrap().data().as_ptr_range();
        let start = bytes.as_ptr() as usize;
        data.start as usize - start..data.end as usize - start
    };
    for value in bytes[place].as_chunks_mut::<4>().0 {
        *value = change(f32::from_le_bytes(*value)).to_le_bytes();
    }
    let file = lab.path("changed.safetensors");
    std::fs::write(&file, bytes).unwrap();
    file
}

#[test]
fn initial_weights_that_cannot_be_are_refused_by_name() {
    let lab = Lab::new();
    lab.train(1, "run", &["--batch-norm", "--train-samples=64", "--test-samples=32", "--epochs=1"]);
    let cases: [(&str, Change, &str); 3] = [
        ("conv1.weight", |_| f32::NAN, "conv1.weight has a NaN or an infinity"),
        ("bn2.running_mean", |_| f32::INFINITY, "bn2.running_mean has a NaN or an infinity"),
        ("bn1.running_var", |x| -x, "bn1.running_var, a variance, is negative"),
    ];
    for (name, change, expected) in cases {
        let file = changed_weights(&lab, "run", name, change);
        for ranks in [1, 2] {
            let options = ["--batch-norm", "--init", file.to_str().unwrap()];
            let output = must_fail(lab.command(ranks, "new", &options));
            let lines = errors(&output);
            assert!(lines.len() == 1 && lines[0].contains("--init"), "{}", text(&output));
            assert!(lines[0].ends_with(expected), "{}", lines[0]);
            assert!(!lab.path("new").exists());
        }
    }
}

/// A checkpoint inside an epoch has each rank's statistics as JSON, which has no infinity.
#[test]
fn activations_beyond_f32_end_the_run_though_batch_norm_hides_them_from_the_loss() {
    let lab = Lab::new();
    let base = ["--batch-norm", "--train-batch-size=16", "--train-samples=500"];
    lab.train(1, "small", &[&base[..], &["--epochs=1"]].concat());
    // The squares of its values are infinite in f32.
    let large = changed_weights(&lab, "small", "conv1.weight", |x| x * 1e22);
    for ranks in [1, 3] {
        for every in ["3", "1000"] {
            let name = format!("run{ranks}-{every}");
            let options =
                [&base[..], &["--init", large.to_str().unwrap(), "--checkpoint-every", every]].concat();
            let output = must_fail(lab.command(ranks, &name, &options));
            assert_eq!(output.status.code(), Some(1), "{}", text(&output));
            let lines = errors(&output);
            assert_eq!(lines.len(), 1, "{}", text(&output));
            let expected = "running_var is not finite after step ";
            assert!(lines[0].contains("rank 0 (") && lines[0].contains(expected), "{}", lines[0]);
            assert_eq!(lab.run_json(&name)["status"], "failed");
        }
    }
}
