//! Tests of `bench allreduce`: parsing of its options, and detection of wrong sums.

use super::*;
use crate::options::{BenchKind, Cli, Command, one_line};
use clap::Parser;

/// Element type, sizes, and names of the methods that the options select.
type Chosen = (WireType, Vec<usize>, Vec<&'static str>);

fn chosen(options: &[&str]) -> Result<Chosen, ConfigError> {
    let words = ["mpiburn", "bench", "allreduce"].iter().chain(options);
    let cli = Cli::try_parse_from(words).map_err(|error| ConfigError::Message(one_line(&error)))?;
    let Command::Bench(args) = cli.command else { unreachable!() };
    let BenchKind::Allreduce(args) = args.kind else { unreachable!() };
    let names = methods(args.backends.as_deref())?.iter().map(|method| method.name).collect();
    Ok((args.dtype, sizes_of(&args)?, names))
}

#[test]
fn all_methods_of_the_build_are_timed_by_default() {
    let (_, sizes, names) = chosen(&[]).unwrap();
    assert!(names.starts_with(&["mpi", "ordered"]));
    assert_eq!(sizes, [4, 17408, 13631488]);
    let some = chosen(&["--backends", "ordered, mpi,ordered", "--dtype", "bf16", "--sizes", "2"]).unwrap();
    assert_eq!(some, (WireType::Bf16, vec![2], vec!["ordered", "mpi"]));
}

#[test]
fn errors_of_invalid_options_name_the_option() {
    for (options, expected) in [
        (["--backends", "ucc"], "--backends ucc: choose from mpi, ordered"),
        (["--backends", ""], "--backends: choose from"),
        (["--sizes", "0"], "--sizes 0: must be at least 1 byte"),
        (["--sizes", "6"], "--sizes 6: 6 bytes are not a whole number"),
        (["--dtype", "f64"], "--dtype f64: choose f32, bf16, f16"),
        (["--iterations", "0"], "--iterations 0: must be a whole number from 1"),
    ] {
        let message = chosen(&options).expect_err("the options are invalid").to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_wrong_sum_is_detected_for_every_type() {
    for dtype in [WireType::F32, WireType::Bf16, WireType::F16] {
        let sum = |ranks: usize, other: f32| {
            wire(dtype, 9, |i| if i == 8 { other } else { term(i) * ranks as f32 })
        };
        assert_eq!(check(&METHODS[0], &sum(3, term(8) * 3.0), 3), Ok(()));
        assert!(check(&METHODS[0], &sum(3, term(8) * 2.0), 3).is_err());
    }
}
