//! Averaged gradients of random modules against plain Burn's.

use crate::harness::*;

/// Of all cases. A failing run prints it along with the case's number.
const SEED: usize = 22;
/// In each world.
const CASES: usize = 60;

#[test]
fn gradients_of_random_modules_are_plain_burns() {
    for ranks in 1..=5 {
        let mut command = mpirun(ranks, &example("check_sync"));
        let first = CASES * (ranks - 1);
        let output = command
            .args(["--seed", &SEED.to_string()])
            .args(["--cases", &CASES.to_string()])
            .args(["--first-case", &first.to_string()])
            .output()
            .unwrap();
        assert!(output.status.success(), "seed {SEED}, {ranks} ranks: {}", text(&output));
        let line = format!("ok - {CASES} cases of seed {SEED} at {ranks} ranks");
        assert!(text(&output).contains(&line), "{}", text(&output));
    }
}
