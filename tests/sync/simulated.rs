//! The test cases of `check_sync` on ranks that are threads: compares averaged gradients of random modules
//! with plain Burn's. The ranks take turns in an order that the index of the case determines.
//!
//! Environment: `CASES` is the number of cases for each world size, `FIRST_CASE` the index of the first case.
//! A failure prints the values that repeat its case. With `TURNS=off`, ranks run at the same time, for a
//! sanitizer.

mod case;
mod check;
mod draw;
mod job;
mod network;
mod plan;
mod reference;
mod samples;

use burn_mpi::threads::{self, Options};
use case::Case;

/// Seed of all cases.
const SEED: u64 = 31;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn check(ranks: usize) {
    let (first, cases) = (number("FIRST_CASE", 0), number("CASES", 200));
    let turns = std::env::var("TURNS").map_or(true, |text| text != "off");
    for index in first..first + cases {
        let case = Case::draw(SEED, index, ranks);
        // Every second case has two hosts: two ranks on two hosts sum by exchanging halves.
        let options =
            Options::default().with_seed(index).with_hosts(1 + index as usize % 2).with_turns(turns);
        if let Err(failure) = threads::run(ranks, &options, |world| job::run(world, &case, &|| ())) {
            panic!("{failure}; FIRST_CASE={index} CASES=1, {ranks} ranks: {case:?}");
        }
    }
}

#[test]
fn gradients_of_random_modules_equal_plain_burns_on_1_rank() {
    check(1);
}

#[test]
fn gradients_of_random_modules_equal_plain_burns_on_2_ranks() {
    check(2);
}

#[test]
fn gradients_of_random_modules_equal_plain_burns_on_3_ranks() {
    check(3);
}

#[test]
fn gradients_of_random_modules_equal_plain_burns_on_4_ranks() {
    check(4);
}

#[test]
fn gradients_of_random_modules_equal_plain_burns_on_5_ranks() {
    check(5);
}
