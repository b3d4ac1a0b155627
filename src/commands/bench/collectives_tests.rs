//! Tests of `bench collectives`: the summary of trials, the check of barriers, and the messages that ranks
//! send.

use super::*;

#[test]
fn a_cell_is_the_median_of_means_over_participating_ranks() {
    let times = |values: &[f64]| Ok(values.to_vec());
    let fails = |problem: &str| Err(problem.to_owned());
    assert_eq!(summary(&[times(&[1.0, 2.0, 9.0]), times(&[3.0, 4.0, 9.0])]), Ok(3.0));
    assert_eq!(summary(&[times(&[1.0]), times(&[])]), Ok(1.0));
    assert_eq!(summary(&[times(&[])]), Err(NEEDS_2_RANKS));
    assert_eq!(summary(&[fails(NOT_SUPPORTED), times(&[])]), Err(NOT_SUPPORTED));
    assert_eq!(summary(&[times(&[1.0]), fails(WRONG)]), Err(WRONG));
}

#[test]
fn a_barrier_that_a_rank_leaves_before_another_enters_is_wrong() {
    let late = LATE.as_nanos() as i64;
    let passage = |entered, left, error| Passage { entered, left, error };
    let last = passage(late, late + 5, 1000);
    assert!(all_waited(&[passage(0, late, 0), last]));
    assert!(all_waited(&[passage(9 * late, 9 * late + 5, 0), passage(late, 9 * late, 0)]), "a late rank");
    assert!(!all_waited(&[passage(0, 5, 0), last]));
    assert!(all_waited(&[passage(0, 5, late), last]), "the clock errors widen the margin");
}

#[test]
fn messages_and_terms_differ_between_ranks() {
    assert_ne!(message(0, 1), message(1, 0));
    assert_ne!(message(0, 0), message(1, 0));
    assert_ne!(sum(0..2, 1), sum(0..3, 1));
    let terms = (0..2).flat_map(|rank| match term(rank, 2) {
        Wire::F32(values) => values,
        _ => unreachable!("terms are f32"),
    });
    let mut both = zeros(2);
    both.sum_of_chunks(&Wire::F32(terms.collect()));
    assert_eq!(sum(0..2, 2), both);
}
