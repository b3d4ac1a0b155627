//! Defaults, rejected values, and what `--help` lists.

use super::*;
use crate::cli::GLOO_ALGORITHMS;
use crate::cli::{Cli, Command};
use clap::Parser;

/// The configuration of `mpiburn train` with these options.
pub(super) fn train(options: &str) -> Result<RunConfig, ConfigError> {
    let words = ["mpiburn", "train"].into_iter().chain(options.split_whitespace());
    match Cli::try_parse_from(words).expect("options that clap knows").command {
        Command::Train(args) => RunConfig::try_from(args.as_ref()),
        _ => unreachable!(),
    }
}

#[test]
fn the_defaults_are_the_reports() {
    let config = train("").unwrap();
    assert_eq!((config.epochs, config.train_batch_size, config.test_batch_size), (3, 32, 128));
    assert_eq!((config.lr, config.weight_decay, config.seed), (5e-4, 5e-4, 123));
    assert_eq!((config.shuffle, config.log_every), (false, 100));
    assert_eq!(config.precision, Precision::No);
}

#[test]
fn the_reports_own_option_names_are_known() {
    let options = "--optimizer-lr 1e-3 --optimizer-lr-decay 0 --log-path x --num-workers 2 --num-classes 10";
    let config = train(options).unwrap();
    assert_eq!((config.lr, config.weight_decay, config.num_classes), (1e-3, 0.0, Some(10)));
}

#[test]
fn the_last_of_repeated_options_wins() {
    assert_eq!(train("--lr 1 --epochs 2 --optimizer-lr 2").unwrap().lr, 2.0);
}

#[test]
fn senseless_values_are_refused_by_option_and_value() {
    for (options, expected) in [
        ("--train-batch-size 0", "--train-batch-size 0: must be at least 1"),
        (
            "--train-batch-size 9223372036854775808 --accumulate 2",
            "--accumulate 2: times --train-batch-size 9223372036854775808 is more than 18446744073709551615",
        ),
        ("--lr NaN", "--lr NaN: must be a finite number, 0 or more"),
        ("--lr -1", "--lr -1: must be a finite number, 0 or more"),
        ("--model resnet", "--model resnet: unknown model resnet"),
        (
            "--device tpu",
            "--device tpu: unknown device tpu: choose flex, ndarray, tch, tch-cuda:N, cuda or cuda:N",
        ),
        ("--conv fft", "--conv fft: unknown algorithm fft: choose winograd or gemm"),
        ("--backend ucc", "--backend ucc: unknown backend ucc: choose mpi, gloo or nccl"),
        (
            "--backend nccl",
            "--backend nccl: flex is a CPU device, and NCCL moves GPU memory; choose --backend mpi",
        ),
        ("--reduce tree", "--reduce tree: unknown reduction tree: choose native or ordered"),
        ("--grad-dtype f8", "--grad-dtype f8: unknown type f8: choose f32, bf16 or f16"),
        (
            "--gloo-algorithm tree",
            "--gloo-algorithm tree: unknown algorithm tree: choose ring, bcube, halving-doubling",
        ),
    ] {
        let message = train(options).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

/// Every name that `--help` lists is accepted.
#[test]
fn help_lists_what_can_be_typed() {
    let command = <TrainArgs as clap::Args>::augment_args(clap::Command::new("train"));
    for (option, others) in [
        ("model", ""),
        ("activation", ""),
        ("optimizer", ""),
        ("schedule", "--max-lr 1"),
        ("augment", ""),
        ("precision", ""),
        ("device", ""),
        ("backend", ""),
        ("conv", ""),
        ("gloo-algorithm", ""),
        ("reduce", ""),
        ("grad-dtype", ""),
    ] {
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option)).expect(option);
        let names = arg.get_possible_values();
        assert!(names.len() > 1, "{option}");
        for name in names {
            let name = name.get_name().replace(":N", ":0");
            let others = if name == "onecycle" { others } else { "" };
            let unknown = match train(&format!("--{option} {name} {others}")) {
                Err(error) => error.to_string().contains("unknown"),
                Ok(_) => false,
            };
            assert!(!unknown, "--{option} {name}");
        }
    }
    #[cfg(feature = "gloo")]
    assert_eq!(GLOO_ALGORITHMS, burn_mpi::GlooAlgorithm::ALL.map(burn_mpi::GlooAlgorithm::name));
}

#[test]
fn a_configuration_survives_run_json() {
    let config = train("--lr 0.1 --train-samples 100").unwrap();
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<RunConfig>(&text).unwrap(), config);
}

#[test]
fn a_run_of_before_the_algorithm_was_an_option_resumes_with_the_earlier_one() {
    let config = train("").unwrap();
    assert_eq!(config.conv, Algorithm::Winograd);
    let mut json = serde_json::to_value(&config).unwrap();
    assert_eq!(json["conv"], "winograd");
    json.as_object_mut().unwrap().remove("conv");
    let older = serde_json::from_value::<RunConfig>(json).unwrap();
    assert_eq!(older, RunConfig { conv: Algorithm::Gemm, ..config });
}
