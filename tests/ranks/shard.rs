//! `--shard-optimizer`: ranks with a share of the optimizer's moments train the network of ranks that have all
//! moments.

use std::fs;
use std::process::Command;

use crate::harness::*;

/// Two epochs of `steps` steps of 8 samples for each rank, of which the last step has one sample for all ranks
/// together. Small buckets divide every parameter among the ranks, and a bias of few values is not divisible.
fn options(ranks: usize, steps: usize, recipe: &str) -> Vec<String> {
    let base = "--epochs=2 --train-batch-size=8 --test-samples=37 --log-every=3 --shuffle --reduce=ordered \
                --bucket-mb=0.01";
    let samples = format!("--train-samples={}", (steps - 1) * 8 * ranks + 1);
    base.split_whitespace().chain(recipe.split_whitespace()).map(str::to_owned).chain([samples]).collect()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

impl Lab {
    /// Checks that the last checkpoints of two runs have the same weights and moments.
    fn assert_same_checkpoints(&self, a: &str, b: &str) {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let [one, other] = [a, b].map(|name| fs::read(self.newest(name).join(file)).expect(file));
            assert!(one == other, "{file} of {a} and {b}");
        }
    }

    /// Copies the run `from`.
    fn copy(&self, from: &str, to: &str) {
        let copied = Command::new("cp").arg("-a").args([self.path(from), self.path(to)]).status();
        assert!(copied.expect("cp starts").success());
    }
}

#[test]
fn a_sharded_run_has_the_weights_and_checkpoints_of_an_unsharded_one() {
    let lab = Lab::new();
    for (ranks, recipe) in [
        (1, "--clip-norm=0.5"),
        (2, "--clip-norm=0.5 --l1=1e-4 --l2=1e-3 --batch-norm"),
        (3, "--optimizer=adamw --batch-norm --dropout=0.3 --accumulate=2"),
        (4, "--optimizer=sgd --momentum=0.9 --lr=0.05 --clip-norm=1"),
        (3, "--optimizer=rmsprop --momentum=0.5 --lr=1e-4 --l1=1e-4"),
        (4, "--optimizer=rmsprop --lr=1e-4 --overlap=off --clip-norm=1"),
        (2, "--optimizer=sgd --lr=0.05"),
        (3, "--precision=bf16"),
        (2, "--precision=fp16 --clip-norm=0.5"),
        (2, "--quantize=qat"),
        (4, "--model=mlp --hidden=3 --bucket-mb=1e-6"),
    ] {
        let options = options(ranks, 4, recipe);
        let options = words(&options);
        lab.train(ranks, "whole", &[&options[..], &["--overwrite"]].concat());
        lab.train(ranks, "shares", &[&options[..], &["--overwrite", "--shard-optimizer"]].concat());
        lab.assert_same("shares", "whole");
        lab.assert_same_checkpoints("shares", "whole");
        let [whole, shares] = ["whole", "shares"].map(|name| lab.run_json(name)["bytes_per_step"].as_f64());
        let [whole, shares] = [whole, shares].map(|bytes| bytes.expect("a number"));
        // The control values have a separate all-reduce.
        assert!((shares - whole).abs() < 100.0, "{recipe}: {shares} instead of {whole} bytes");
        let keys = ["weights_sha256", "test_loss", "train_loss"];
        lab.trains_the_same(ranks, "shares", &[&options[..], &["--shard-optimizer"]].concat(), &keys);
    }
}

/// Native sums of shares are not those of whole buckets, so they are equal within rounding.
#[test]
fn native_and_narrow_sums_of_shares_are_near_those_of_whole_gradients() {
    let lab = Lab::new();
    for (ranks, recipe, most) in [(3, "--reduce=native", 1e-5), (4, "--grad-dtype=bf16", 2e-2)] {
        let options = options(ranks, 4, &format!("--optimizer=sgd --lr=0.05 --clip-norm=1 {recipe}"));
        let options = words(&options);
        let (whole, shares) = (&format!("whole{ranks}"), &format!("shares{ranks}"));
        lab.train(ranks, whole, &options);
        lab.train(ranks, shares, &[&options[..], &["--shard-optimizer"]].concat());
        let off = lab.weights_apart(whole, shares);
        assert!(off < most, "{recipe}: {off}");
    }
}

/// The sharded run is stopped after each of its steps. In each process the option is on or off.
#[test]
fn a_run_that_is_stopped_after_every_step_has_the_bits_of_an_unsharded_one() {
    let lab = Lab::new();
    for (ranks, recipe) in [
        (1, ""),
        (2, "--batch-norm --dropout=0.3 --clip-norm=0.5"),
        (3, "--optimizer=rmsprop --momentum=0.5 --lr=1e-4"),
        (4, "--precision=fp16"),
    ] {
        let options = options(ranks, 4, recipe);
        let options = words(&options);
        let name = |kind: &str| format!("{kind}{ranks}");
        let (whole, cut) = (&name("whole"), &name("cut"));
        assert_eq!(lab.train(ranks, whole, &options)["steps"], 8);
        for step in 1..=8 {
            let mut job = match step {
                1 => lab.command(ranks, cut, &[&options[..], &["--shard-optimizer"]].concat()),
                3 | 6 => lab.resume(ranks, cut, &["--shard-optimizer=off"]),
                4 | 7 => lab.resume(ranks, cut, &["--shard-optimizer"]),
                _ => lab.resume(ranks, cut, &[]),
            };
            job.options.seed += step as u64;
            job.stops[step % ranks].request(libc::SIGUSR1);
            let output = run(job);
            assert!(lab.newest(cut).ends_with(format!("step-{step:08}")), "{}", text(&output));
            let expected = if step == 8 { 0 } else { 75 };
            assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
            if step % 3 == 0 {
                let rest = &name(&format!("rest{step}-"));
                lab.copy(cut, rest);
                output_of(lab.resume(ranks, rest, &["--shard-optimizer"]));
                lab.assert_same(rest, whole);
                lab.assert_same_checkpoints(rest, whole);
            }
        }
        lab.assert_same(cut, whole);
        lab.assert_same_checkpoints(cut, whole);
    }
}

#[test]
fn options_that_exclude_shares_are_rejected_with_one_line() {
    let lab = Lab::new();
    for (options, words) in [
        ("--shard-optimizer --optimizer=lamb", &["--shard-optimizer: ", "--optimizer lamb", "norms"][..]),
        ("--shard-optimizer --sync-every=4", &["--shard-optimizer: ", "--sync-every"]),
        ("--shard-optimizer --compress=powersgd --compress-rank=2", &["--shard-optimizer: ", "--compress"]),
        ("--shard-optimizer=maybe", &["--shard-optimizer maybe: ", "on, off"]),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        refused(lab.command(2, "out", &options), 2, words);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
}
