//! Compares averaged gradients of random modules with plain Burn's, over MPI and gloo.

use crate::harness::*;

/// Seed of all cases. A failing run prints it with the case's index.
const SEED: &str = "22";

/// A few cases over real MPI and gloo. Many more run on simulated ranks (tests/sync/simulated.rs).
#[test]
fn gradients_of_random_modules_equal_plain_burns_over_both_transports() {
    for (ranks, first) in (1..=5).zip((0..).step_by(5)) {
        for backend in ["mpi", "gloo"] {
            let mut command = mpirun(ranks, &example("check_sync"));
            command.args(["--seed", SEED, "--cases", "5", "--first-case", &first.to_string()]);
            let output = run(command.args(["--backend", backend]));
            assert!(output.status.success(), "seed {SEED}, {ranks} ranks, {backend}: {}", text(&output));
            let line = format!("ok - 5 cases of seed {SEED} at {ranks} ranks");
            assert!(text(&output).contains(&line), "{}", text(&output));
        }
    }
}

/// A job over mpi once crashed in this case, because ranks had started different numbers of buckets.
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
    // On three ranks, the last step has samples on rank 0 only, and then on two ranks.
    for samples in ["97", "98"] {
        lab.train(
            3,
            "run",
            &["--train-samples", samples, "--bucket-mb", "0.004", "--epochs", "2", "--overwrite"],
        );
    }
}

/// burn-mpi's own tests check the same on ranks that are threads.
#[test]
fn modules_of_a_users_own_are_right_over_both_transports() {
    let output = run(mpirun(3, &example("check_modules")));
    assert!(output.status.success(), "{}", text(&output));
    for backend in ["mpi", "gloo"] {
        let line = format!("modules are right over {backend}");
        assert_eq!(text(&output).matches(&line).count(), 3, "{}", text(&output));
    }
}
