//! Tests of the options, and of the detection of a wrong sum.

use super::*;
use crate::options::{BenchKind, Cli, Command, one_line};
use clap::Parser;

fn plan(options: &[&str]) -> Result<Plan, ConfigError> {
    let words = ["mpiburn", "bench", "allreduce"].iter().chain(options);
    let cli = Cli::try_parse_from(words).map_err(|error| ConfigError::Words(one_line(&error)))?;
    match cli.command {
        Command::Bench(args) => match args.kind {
            BenchKind::Allreduce(args) => Plan::try_from(&args),
            _ => unreachable!(),
        },
        _ => unreachable!(),
    }
}

fn names(plan: &Plan) -> Vec<&'static str> {
    plan.methods.iter().map(|method| method.name).collect()
}

#[test]
fn all_methods_of_the_build_are_timed_by_default() {
    let all = plan(&[]).unwrap();
    assert!(names(&all).starts_with(&["mpi", "ordered"]));
    assert_eq!(all.sizes, [4, 17408, 13631488]);
    let some = plan(&["--backends", "ordered, mpi,ordered", "--dtype", "bf16", "--sizes", "2"]).unwrap();
    assert_eq!((names(&some), some.dtype, some.sizes), (vec!["ordered", "mpi"], Dtype::Bf16, vec![2]));
}

#[test]
fn invalid_options_are_rejected_by_option_and_value() {
    for (options, expected) in [
        (["--backends", "ucc"], "--backends ucc: unknown backend ucc: choose from mpi, ordered"),
        (["--backends", ""], "--backends: unknown backend"),
        (["--sizes", "0"], "--sizes 0: must be at least 1 byte"),
        (["--sizes", "6"], "--sizes 6: 6 bytes are not a whole number"),
        (["--dtype", "f64"], "--dtype f64: choose f32, bf16, f16"),
        (["--iterations", "0"], "--iterations 0: must be at least 1"),
    ] {
        let message = plan(&options).err().expect("the options are invalid").to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

#[test]
fn a_wrong_sum_is_detected_for_every_type() {
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let of =
            |ranks: usize, other: f32| dtype.wire(9, |i| if i == 8 { other } else { term(i) * ranks as f32 });
        assert_eq!(check(dtype, &METHODS[0], &of(3, term(8) * 3.0), 3), Ok(()));
        assert!(check(dtype, &METHODS[0], &of(3, term(8) * 2.0), 3).is_err());
    }
}
