//! Averaged gradients of random modules compared with plain Burn's.

use crate::harness::*;

/// Seed of all cases. A failing run prints it with the case's index.
const SEED: usize = 22;
/// Number of cases per world size.
const CASES: usize = 60;

#[test]
fn gradients_of_random_modules_equal_plain_burns() {
    for ranks in 1..=5 {
        let mut command = mpirun(ranks, &example("check_sync"));
        let first = CASES * (ranks - 1);
        command.args(["--seed", &SEED.to_string()]);
        command.args(["--cases", &CASES.to_string()]);
        command.args(["--first-case", &first.to_string()]);
        let output = run(command);
        assert!(output.status.success(), "seed {SEED}, {ranks} ranks: {}", text(&output));
        let line = format!("ok - {CASES} cases of seed {SEED} at {ranks} ranks");
        assert!(text(&output).contains(&line), "{}", text(&output));
    }
}

/// Over mpi the job crashed when ranks had started different numbers of buckets.
#[test]
fn a_last_step_without_samples_on_one_rank_completes() {
    let lab = Lab::new();
    for options in [
        &["--train-samples", "65"][..],
        &["--train-samples", "129", "--accumulate", "2"],
        &["--train-samples", "65", "--overlap", "off"],
        &["--train-samples", "65", "--reduce", "ordered"],
    ] {
        let common = ["--epochs", "2", "--bucket-mb", "0.004", "--overwrite"];
        let weights: Vec<String> = ["mpi", "gloo"]
            .map(|backend| {
                let options = [&common[..], options, &["--backend", backend]].concat();
                lab.train(2, "run", &options)["weights_sha256"].to_string()
            })
            .into();
        assert_eq!(weights[0], weights[1], "{options:?}");
    }
    // Three ranks: the last step has samples on rank 0 only, and then on two ranks.
    for samples in ["97", "98"] {
        lab.train(
            3,
            "run",
            &["--train-samples", samples, "--bucket-mb", "0.004", "--epochs", "2", "--overwrite"],
        );
    }
}

/// Gradients of earlier micro-batches, parameters that are used more often than before
/// on one rank only, and batch norm's statistics.
#[test]
fn custom_modules_may_differ_between_steps_and_ranks() {
    for ranks in [1, 2, 3] {
        let output = run(mpirun(ranks, &example("check_own_module")));
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).matches("gradients are right").count(), 2 * ranks, "{}", text(&output));
        assert_eq!(text(&output).matches("two at once are right").count(), ranks, "{}", text(&output));
        assert_eq!(text(&output).matches("buffers are averaged").count(), ranks, "{}", text(&output));
    }
}

/// Integers, booleans and floats of every type, each different on each rank before.
#[test]
fn tensors_of_every_type_are_broadcast_and_compared() {
    for ranks in [1, 2, 3] {
        let output = run(mpirun(ranks, &example("check_types")));
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).matches("all types are right").count(), ranks, "{}", text(&output));
    }
}

/// Neither a stale value nor a zero stands for a gradient that there is not.
#[test]
fn a_missing_gradient_is_an_error_that_names_the_parameter() {
    for ranks in [1, 2, 3] {
        let output = run(mpirun(ranks, &example("check_missing")));
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).matches("missing gradients are named").count(), ranks, "{}", text(&output));
    }
}
