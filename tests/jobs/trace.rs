//! Time lines of `--trace` need the offsets between the ranks' clocks. Checks the offsets that ranks measure.

use crate::harness::*;

#[test]
fn clocks_of_all_ranks_are_compared_within_the_stated_error() {
    for ranks in [1, 2, 3, 4] {
        for backend in ["mpi", "gloo"] {
            let output = run(on_ranks(ranks, &example("check_clocks")).arg(backend));
            let text = text(&output);
            assert!(output.status.success(), "{ranks} ranks, {backend}: {text}");
            assert_eq!(text.matches("clock offsets are right").count(), ranks, "{text}");
        }
    }
}
