//! The results of trainings, and the files in their run directories.

use crate::harness::*;

fn near(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance
}

#[test]
fn a_run_directory_is_complete_and_counts_each_sample_once() {
    let lab = Lab::new();
    for ranks in [1, 2, 4] {
        let name = format!("r{ranks}");
        let run = lab.train(ranks, &name, &["--epochs", "2", "--log-every", "10", "--train-samples", "1001"]);
        assert_eq!(run["params"], 4266);
        assert_eq!(run["world_size"], ranks);
        assert_eq!(run["hosts"].as_array().unwrap().len(), ranks);
        assert_eq!(run["topology"], format!("1x{ranks}"));
        let per_rank = run["per_rank"].as_array().unwrap();
        let sum = |key: &str| per_rank.iter().map(|r| r[key].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("train_samples"), sum("test_samples")), (1001, 500));
        let accuracy = run["test_accuracy"].as_f64().unwrap();
        assert!(near(accuracy * 5.0, (accuracy * 5.0).round(), 1e-6), "of 500 whole samples: {accuracy}");
        let steps = 2 * 1001usize.div_ceil(ranks).div_ceil(32);
        assert_eq!(run["steps"], steps);
        let ms = run["train_seconds"].as_f64().unwrap() * 1e3 / steps as f64;
        assert!(near(run["ms_per_step"].as_f64().unwrap(), ms, 1e-6));
        assert_eq!(run["weights_sha256"].as_str().unwrap().len(), 64);
        assert!(run["peak_rss_mb"].as_f64().unwrap() > 5.0);
        // The weights, the gradients and the moments take 17 KB each; the rest is activations. All threads
        // are counted.
        let live = run["live_mb"].as_f64().expect("flex uses the counted allocator");
        assert!(live > 0.2 && (ranks > 1 || live < 5.0), "{live}");
        assert!(per_rank.iter().all(|r| r["live_mb"].as_f64().is_some_and(|mb| mb <= live && mb > 0.2)));

        let epochs = std::fs::read_to_string(lab.path(&name).join("epochs.csv")).unwrap();
        let firsts: Vec<_> = epochs.lines().map(|l| l.split(',').next().unwrap()).collect();
        assert_eq!(firsts, ["epoch", "1", "2"]);
        for rank in 0..ranks {
            // A curve has one value for each 10 steps of an epoch. An epoch of fewer steps has one value.
            let points = 2 * (steps / 2 / 10).max(1);
            assert_eq!(lab.curve(&name, rank, "train.loss").len(), points);
            assert_eq!(lab.curve(&name, rank, "train.acc").len(), points);
            let steps: Vec<_> = lab.curve(&name, rank, "test.acc").iter().map(|p| p.0).collect();
            assert_eq!(
                steps,
                [run["steps"].as_u64().unwrap() as usize / 2, run["steps"].as_u64().unwrap() as usize]
            );
            let events = lab.path(&name).join(format!("tensorboard/rank{rank}"));
            assert_eq!(std::fs::read_dir(events).unwrap().count(), 1);
        }
    }
}

/// Also on ranks with unequal shares. burn-fused's tests compare the SIMD levels.
#[test]
fn the_number_of_threads_does_not_change_the_weights() {
    let lab = Lab::new();
    let few = ["--epochs", "1", "--test-samples", "30", "--seed", "3"];
    let networks: [(usize, &[&str]); 4] = [
        (
            2,
            &["--model", "convnet", "--train-samples", "301", "--train-batch-size", "17", "--dropout", "0.2"],
        ),
        (1, &["--model", "mlp", "--hidden", "512", "--train-samples", "170", "--optimizer", "adamw"]),
        (1, &["--model", "vgg", "--train-samples", "40", "--train-batch-size", "17", "--batch-norm"]),
        (3, &["--model", "vgg", "--train-samples", "55", "--train-batch-size", "7", "--conv", "gemm"]),
    ];
    for (number, (ranks, network)) in networks.into_iter().enumerate() {
        let found = ["1", "2", "3", "5"].map(|threads| {
            let name = format!("{number}-{threads}");
            let run = lab.train(ranks, &name, &[&few[..], &["--threads", threads], network].concat());
            assert_eq!(run["config"]["threads"], threads.parse::<usize>().unwrap());
            run["weights_sha256"].clone()
        });
        assert!(found.iter().all(|digest| *digest == found[0]), "{network:?}: {found:?}");
    }
}

/// A value on a curve is a mean over steps. They must not include steps of the epoch before, or steps before
/// a resume with another --log-every.
#[test]
fn a_training_value_is_a_mean_of_steps_of_its_epoch() {
    let lab = Lab::new();
    // 5 steps per epoch.
    let options = ["--epochs=3", "--train-samples=160", "--test-samples=20"];
    let printed = output_of(lab.command(1, "short", &options));
    assert!(!printed.contains(" step 5/5: "), "an epoch has a line already: {printed}");
    let means = lab.column::<f64>("short", "train_loss").into_iter();
    let means: Vec<(usize, f64)> = means.enumerate().map(|(epoch, loss)| (5 * (epoch + 1), loss)).collect();
    assert_eq!(lab.curve("short", 0, "train.loss"), means);

    let of_steps = |name: &str, every: &str| {
        lab.train(1, name, &[&options[..], &[every]].concat());
        lab.curve(name, 0, "train.loss")
    };
    let each = of_steps("each", "--log-every=1");
    let mean = |steps: std::ops::Range<usize>| {
        let losses: Vec<f64> = each[steps.clone()].iter().map(|point| point.1).collect();
        (steps.end, losses.iter().sum::<f64>() / losses.len() as f64)
    };
    let near = |found: Vec<(usize, f64)>, expected: &[(usize, f64)]| {
        let is_near = |(a, b): (&(usize, f64), &(usize, f64))| a.0 == b.0 && near(a.1, b.1, 1e-9);
        assert!(
            found.len() == expected.len() && found.iter().zip(expected).all(is_near),
            "{found:?} for {expected:?}"
        );
    };
    near(of_steps("some", "--log-every=3"), &[mean(0..3), mean(5..8), mean(10..13)]);

    for step in 1..=3 {
        let job = if step == 1 { lab.command(1, "resumed", &options) } else { lab.resume(1, "resumed", &[]) };
        job.stops[0].request(libc::SIGUSR1);
        assert_eq!(run(job).status.code(), Some(75));
    }
    output_of(lab.resume(1, "resumed", &["--log-every=2"]));
    let expected = [mean(3..4), mean(5..7), mean(7..9), mean(10..12), mean(12..14)];
    near(lab.curve("resumed", 0, "train.loss"), &expected);
}

#[test]
fn a_repeated_run_is_bit_identical() {
    let lab = Lab::new();
    let options = ["--epochs", "1", "--shuffle", "--train-samples", "1500"];
    let first = lab.train(2, "a", &options);
    let second = lab.train(2, "b", &options);
    assert_eq!(first["weights_sha256"], second["weights_sha256"]);
    let other = lab.train(2, "c", &["--epochs", "1", "--train-samples", "1500"]);
    assert_ne!(first["weights_sha256"], other["weights_sha256"], "shuffling changes the order");
}

/// Shards of unequal size. Every sample has the same weight on each rank, and a rank without samples still
/// takes part in the step.
#[test]
fn uneven_shards_compute_the_same_as_one_rank_on_the_union() {
    let lab = Lab::new();
    for (ranks, samples) in [(2, "101"), (3, "103"), (4, "133"), (4, "97")] {
        let batch = 8;
        let options = ["--epochs", "2", "--train-samples", samples, "--test-samples", "37", "--lr", "1e-3"];
        let alone = (batch * ranks).to_string();
        lab.train(1, "one", &[&options[..], &["--overwrite", "--train-batch-size", &alone]].concat());
        let run =
            lab.train(ranks, "many", &[&options[..], &["--overwrite", "--train-batch-size", "8"]].concat());
        let total: u64 =
            run["per_rank"].as_array().unwrap().iter().map(|r| r["test_samples"].as_u64().unwrap()).sum();
        assert_eq!(total, 37);
        let worst = lab.weights_apart("one", "many");
        // Adam divides by the gradient's magnitude. Where a gradient is near 0, its rounding error becomes a
        // fraction of the step size, which is 1e-3.
        assert!(worst < 2e-4, "{ranks} ranks and {samples} samples: {worst}");
    }
}

/// The samples of a step are the same, also in the last step, in which some of the 64 ranks have fewer.
#[test]
fn many_ranks_compute_the_same_as_few_that_accumulate() {
    let lab = Lab::new();
    let options =
        ["--epochs", "1", "--train-samples", "1000", "--test-samples", "70", "--train-batch-size", "4"];
    lab.train(4, "few", &[&options[..], &["--accumulate", "16"]].concat());
    for backend in ["mpi", "gloo"] {
        let run = lab.train(64, backend, &[&options[..], &["--backend", backend]].concat());
        assert_eq!((&run["steps"], run["per_rank"].as_array().map(Vec::len)), (&4.into(), Some(64)));
        let worst = lab.weights_apart("few", backend);
        assert!(worst < 1e-5, "{backend}: {worst}");
    }
}

#[test]
fn eval_reproduces_the_runs_accuracy() {
    let lab = Lab::new();
    let run = lab.train(2, "run", &["--epochs", "1", "--test-samples", "333"]);
    for ranks in [1, 3] {
        let output = crate::harness::run(job(ranks).args(["eval", "--checkpoint"]).arg(lab.path("run")));
        assert!(output.status.success(), "{}", text(&output));
        let expected = format!("test accuracy {:.2}%", run["test_accuracy"].as_f64().unwrap());
        assert!(text(&output).contains(&expected), "{} lacks {expected}", text(&output));
    }
}

#[test]
fn eval_has_the_exit_codes_of_train() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "64"]);
    let objects = lab.path("objects");
    let made = run(job(1).args(["data", "objects", "--train", "20", "--test", "10", "--out"]).arg(&objects));
    assert!(made.status.success(), "{}", text(&made));
    for (name, options, code, words) in [
        ("run", ["--test-batch-size", "0"], 2, "mpiburn: --test-batch-size 0: must be a whole number from 1"),
        ("run", ["--test-samples", "0"], 2, "mpiburn: --test-samples 0: must be a whole number from 1"),
        ("run", ["--device", "tpu"], 2, "mpiburn: --device tpu: choose flex"),
        ("run", ["--device", "ndarray"], 2, "make build DEVICES=ndarray"),
        ("run", ["--data-root", objects.to_str().unwrap()], 2, "has samples of 3x32x32 in 10 classes"),
        ("run", ["--no-such-option", "1"], 2, "--no-such-option"),
        ("run", ["--data-root", "/nowhere"], 1, "/nowhere"),
        ("other", ["--device", "flex"], 1, "there is no run "),
    ] {
        let mut command = job(2);
        command.args(["eval", "--checkpoint"]).arg(lab.path(name)).args(options);
        let output = must_fail(command);
        assert_eq!(output.status.code(), Some(code), "{options:?}: {}", text(&output));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(words), "{options:?}: {}", text(&output));
    }
    // All ranks must have rank 0's options, or the job fails.
    let eval = |more: &[&str]| {
        let mut command = job(1);
        command.args(["eval", "--checkpoint"]).arg(lab.path("run")).args(more);
        command
    };
    let output = must_fail(side_by_side(&[&eval(&[]), &eval(&["--test-samples", "5"])]));
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", text(&output));
    assert!(errors[0].contains("--test-samples differs") && errors[0].contains("rank 1"), "{}", errors[0]);
}

#[test]
fn saved_weights_initialise_another_run() {
    let lab = Lab::new();
    lab.train(1, "first", &["--epochs", "1", "--train-samples", "320"]);
    let weights = lab.checkpoints("first").pop().unwrap().join("model.safetensors");
    let options = ["--epochs", "1", "--train-samples", "32", "--lr", "0", "--weight-decay", "0"];
    let first = lab.run_json("first");
    let second = lab.train(2, "second", &[&options[..], &["--init", weights.to_str().unwrap()]].concat());
    assert_eq!(first["weights_sha256"], second["weights_sha256"], "a step of size 0 changes nothing");
    let names: Vec<String> = lab.weights("second").into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        names,
        ["conv1.bias", "conv1.weight", "conv2.bias", "conv2.weight", "linear.bias", "linear.weight"]
    );
}
