//! Networks with options: dropout masks, batch norm statistics, and networks rebuilt
//! from `run.json`.

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

        // Without the final checkpoint, the last one is in the middle of the second epoch.
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
        ("conv1.weight", |_| f32::NAN, "conv1.weight has a NaN or an infinity"),
        ("bn2.running_mean", |_| f32::INFINITY, "bn2.running_mean has a NaN or an infinity"),
        ("bn1.running_var", |x| -x, "bn1.running_var, a variance, is negative"),
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

/// A checkpoint inside an epoch has each rank's statistics as JSON, which has no infinity.
#[test]
fn activations_beyond_f32_end_the_run_though_batch_norm_hides_them_from_the_loss() {
    let lab = Lab::new();
    let base = ["--batch-norm", "--train-batch-size=16", "--train-samples=500"];
    lab.train(1, "small", &[&base[..], &["--epochs=1"]].concat());
    // The squares of its values are infinite in f32.
    let large =
        lab.changed_weights("small", |tensor, _, x| if tensor == "conv1.weight" { x * 1e22 } else { x });
    for (ranks, every) in [(1, "3"), (1, "1000"), (3, "3"), (3, "1000")] {
        let name = format!("run{ranks}-{every}");
        let options = [&base[..], &["--checkpoint-every", every, "--init", &large]].concat();
        let words = ["rank 0 (", "running_var is not finite after step "];
        refused(lab.command(ranks, &name, &options), 1, &words);
        assert_eq!(lab.run_json(&name)["status"], "failed");
    }
}
