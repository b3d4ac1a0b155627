//! Checks the defaults and names of options, and what `--help` lists.

use ::launch::Topology;
use run_record::{DataRecord, RunRecord as Stored};
use run_report::runs::Run;
use serde_json::json;

use super::*;
use crate::train::MixedPrecision;

/// Returns whether `line` starts with the first part of `expected` and then contains the other parts, in this
/// order. `…` separates the parts, so that a test names the facts of a message and leaves its wording free.
pub fn tells(line: &str, expected: &str) -> bool {
    let mut parts = expected.split('…').map(str::trim);
    let mut rest = parts.next().and_then(|first| line.strip_prefix(first));
    for part in parts {
        rest = rest.and_then(|rest| rest.split_once(part)).map(|(_, after)| after);
    }
    rest.is_some()
}

/// Returns the configuration of `mpiburn train` with these options.
pub(super) fn train(options: &str) -> Result<RunConfig, ConfigError> {
    let words = ["mpiburn", "train"].into_iter().chain(options.split_whitespace());
    let cli = Cli::read(words.map(OsString::from)).map_err(|error| ConfigError::Message(one_line(&error)))?;
    match cli.command {
        Command::Train(args) => {
            args.config.completed().and_then(|config| config.check_built().map(|()| config))
        }
        _ => unreachable!("the command is train"),
    }
}

/// Returns a run of `config` as a report reads it.
pub(crate) fn completed(config: &RunConfig, topology: Topology, launcher: &str) -> Run {
    let ranks = topology.ranks();
    let data = DataRecord { train_available: 60_000, test_available: 10_000, ..DataRecord::default() };
    let json = json!({
        "status": "completed", "config": config, "params": 4266, "topology": topology.to_string(),
        "world_size": ranks, "hosts": vec!["a"; ranks], "places": [], "launcher": launcher,
        "command_line": [], "machines": [], "history": [], "data": data,
        "oversubscribed": false, "shared_machine": false, "started_at": "2026-01-31T00:00:00Z", "git": "",
        "versions": {}, "steps": 100, "train_seconds": 4.0, "test_seconds": 1.0, "total_seconds": 5.0,
        "ms_per_step": 40.0, "images_per_second": 100.0, "comm_seconds": 0.0, "step_ms": {},
        "test_accuracy": 97.5, "test_loss": 0.1, "train_accuracy": 95.0, "train_loss": 0.2, "per_rank": [],
        "peak_rss_mb": 50.0, "weights_sha256": "", "epochs_run": 3, "start_up_seconds": 0.5, "checkpoint_seconds": 0.0,
        "others_cpu_percent_by_host": {}, "schema": schema(),
    });
    let mut record: Stored = serde_json::from_value(json).expect("a record");
    let results = record.results.take().expect("results");
    Run { path: PathBuf::new(), sweep: None, record, results, digest: String::new() }
}

#[test]
fn the_defaults_are_the_reports() {
    let config = train("").unwrap();
    let data = &config.data;
    assert_eq!([config.epochs, data.train_batch_size, data.test_batch_size].map(Positive::get), [3, 32, 128]);
    assert_eq!((config.recipe.lr.get(), config.recipe.weight_decay.get(), config.seed), (5e-4, 5e-4, 123));
    assert_eq!((data.shuffle, config.log_every.get()), (false, 100));
    assert_eq!(config.precision, MixedPrecision::No);
}

#[test]
fn the_reports_own_option_names_are_known() {
    let options = "--optimizer-lr 1e-3 --optimizer-lr-decay 0 --log-path x --num-workers 2 --num-classes 10";
    let config = train(options).unwrap();
    let recipe = &config.recipe;
    assert_eq!((recipe.lr.get(), recipe.weight_decay.get()), (1e-3, 0.0));
}

#[test]
fn help_and_errors_offer_no_precision_that_is_always_rejected() {
    let help = Cli::command().find_subcommand_mut("train").unwrap().render_long_help().to_string();
    assert!(help.contains("[possible values: no, bf16, fp16]"), "{help}");
    let error = train("--precision f64").unwrap_err().to_string();
    assert!(error.ends_with("--precision f64: choose no, bf16, fp16"), "{error}");
}

#[test]
fn the_last_of_repeated_options_wins() {
    assert_eq!(train("--lr 1 --epochs 2 --optimizer-lr 2").unwrap().recipe.lr.get(), 2.0);
}

#[test]
fn the_data_set_follows_the_network() {
    for (options, expected) in [
        ("", "data/digits"),
        ("--model convnet", "data/digits"),
        ("--model vgg", "data/objects"),
        ("--model mlp", "data/features"),
        ("--model vgg --model mlp", "data/features"),
        ("--data-root here --model mlp", "here"),
    ] {
        let root = train(options).unwrap().data.data_root;
        assert_eq!(root.to_str(), Some(expected), "{options}");
    }
}

#[test]
fn none_is_the_value_of_an_option_that_is_not_given() {
    let none = "--clip-norm none --augment none --keep none --interface none --early-stopping none";
    assert_eq!(train(none).unwrap(), train("").unwrap());
    assert!(train("--lr none").unwrap_err().to_string().contains("must be a finite number, 0 or more"));
}

/// Every name that `--help` lists is accepted.
#[test]
fn help_lists_what_can_be_typed() {
    let command = RunConfig::augment_args(clap::Command::new("train"));
    let mut lists = 0;
    for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
        let option = arg.get_long().expect("a long name");
        for name in arg.get_possible_values() {
            let name = name.get_name();
            let others = if name == "onecycle" { "--max-lr 1" } else { "" };
            let unknown = match train(&format!("--{option} {name} {others}")) {
                Err(error) => error.to_string().starts_with(&format!("--{option} {name}: choose ")),
                Ok(_) => false,
            };
            assert!(!unknown, "--{option} {name}");
            lists += 1;
        }
    }
    assert!(lists > 30, "{lists}");
}

#[test]
fn a_configuration_survives_run_json() {
    for options in ["--lr 0.1 --train-samples 100", "--augment flip,crop --momentum 0.9 --optimizer sgd"] {
        let config = train(options).unwrap();
        let json = serde_json::to_value(&config).unwrap();
        assert!(json.as_object().unwrap().values().all(|value| !value.is_object()), "{json}");
        assert_eq!(serde_json::from_value::<RunConfig>(json).unwrap(), config);
    }
}

#[test]
fn a_stall_is_warned_of_wherever_gradients_are_averaged() {
    for command in ["train", "profile", "bench step"] {
        let words = ["mpiburn"].into_iter().chain(command.split(' ')).chain(["--stall-warning", "5"]);
        let cli = Cli::read(words.map(OsString::from)).unwrap();
        assert!(cli.options.contains(&("--stall-warning".into(), "5".into())), "{command}");
    }
}

/// Returns `command` and all commands below it.
fn commands(command: &clap::Command) -> Vec<clap::Command> {
    let inner = command.get_subcommands().flat_map(commands);
    std::iter::once(command.clone()).chain(inner).collect()
}

#[test]
fn help_fits_80_columns_and_short_help_a_screen() {
    let mut command = as_shown(Cli::command().term_width(80));
    command.build();
    for mut command in commands(&command) {
        let name = command.get_bin_name().unwrap_or("mpiburn").to_owned();
        let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
        for line in short.lines().chain(long.lines()) {
            assert!(line.chars().count() <= 80, "{name}: {line}");
        }
        let lines = short.lines().count();
        assert!(lines <= 55, "{name} -h has {lines} lines");
        let after = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        for (line, next) in after.lines().zip(after.lines().skip(1).chain([""])) {
            // An example has at most 80 columns, so that it can be copied. A paragraph is one line of the
            // text, because clap wraps it to the width of the terminal.
            assert!(!line.starts_with(' ') || line.chars().count() <= 80, "{name}: {line}");
            let is_text = |line: &str| !line.is_empty() && !line.starts_with(' ');
            assert!(!is_text(line) || !is_text(next), "{name}: {line}");
        }
    }
}

#[test]
fn the_version_is_of_commit_mpi_and_features() {
    let words = ["mpiburn", "--version"].map(OsString::from);
    let shown = Cli::read(words).unwrap_err().to_string();
    let start = concat!("mpiburn ", env!("CARGO_PKG_VERSION"), " (commit ", env!("MPIBURN_GIT"));
    assert!(shown.starts_with(start) && shown.ends_with(")\n"), "{shown}");
    let mpi = if burn_mpi::internals::MPI_FLAVOUR == "openmpi" { "Open MPI v" } else { "MPICH" };
    assert!(shown.contains(&format!(", {mpi}")) && shown.contains(", features: "), "{shown}");
    assert_eq!(shown.contains(" gloo"), cfg!(feature = "gloo"), "{shown}");
}

#[test]
fn the_command_of_a_launch_needs_no_dashes() {
    let of = |words: &str| match Cli::read(words.split(' ').map(OsString::from)).map(|cli| cli.command) {
        Ok(Command::Launch(args)) => (args.restart, args.program.join(" ")),
        other => panic!("{words}: {other:?}"),
    };
    let expected = (Some(2), "train --epochs -1 --restart 3 -q".to_owned());
    for dashes in ["", "-- "] {
        let words = format!("mpiburn launch 1x2 --restart 2 {dashes}train --epochs -1 --restart 3 -q");
        assert_eq!(of(&words), expected, "{words}");
    }
    let refused = ["mpiburn launch 1x2", "mpiburn launch 1x2 --nonsense train"];
    assert!(refused.iter().all(|words| Cli::read(words.split(' ').map(OsString::from)).is_err()));
}

#[test]
fn a_number_that_is_none_has_a_tip() {
    for (options, expected) in [
        ("--epochs -1", "--epochs -1: must be a whole number from 1"),
        ("--epochs 1.5", "--epochs 1.5: must be a whole number from 1"),
        ("--seed x", "--seed x: must be a whole number from 0"),
    ] {
        assert_eq!(train(options).unwrap_err().to_string(), expected);
    }
}

/// The error has this program's words. Errors of the standard library and of clap would name types of Rust.
#[test]
fn a_value_with_a_space_at_its_end_is_quoted() {
    for value in [" 1", "1 "] {
        let error = RunConfig::read([format!("--epochs={value}")]).unwrap_err().to_string();
        assert_eq!(error, format!("--epochs '{value}': must be a whole number from 1"));
    }
}

#[test]
fn every_wrong_value_of_every_option_has_an_error_in_words() {
    const WRONG: [&str; 8] = ["x", "-1", "1.5", "99999999999999999999999", "", "1e999", "nan", "20%"];
    const FORBIDDEN: [&str; 11] = [
        "literal",
        "digit",
        "..",
        "usize",
        "u64",
        "f64",
        "parse",
        "invalid value",
        "unexpected value",
        "supplied",
        "::",
    ];
    let (mut options, mut rejected) = (0, 0);
    let mut whole = as_shown(Cli::command());
    whole.build();
    for command in commands(&whole).into_iter().filter(|command| !command.has_subcommands()) {
        let path: Vec<&str> = command.get_bin_name().unwrap_or_default().split(' ').collect();
        let positionals = command.get_positionals().filter(|arg| arg.is_required_set()).count();
        for option in command.get_opts().filter_map(clap::Arg::get_long) {
            options += 1;
            for value in WRONG {
                // clap checks values in the order of the command line, and missing arguments after all
                // values.
                let words = path.iter().map(ToString::to_string).chain([format!("--{option}={value}")]);
                let words = words.chain(std::iter::repeat_n("1x1".into(), positionals));
                let Err(error) = Cli::read(words.map(OsString::from)) else { continue };
                if !is_of_value(&error) {
                    continue;
                }
                rejected += 1;
                let line = one_line(&error);
                let shown = if line.contains("''") { "''" } else { value };
                assert_eq!((error.exit_code(), line.lines().count()), (2, 1), "{path:?}: {line}");
                assert!(line.starts_with(&format!("--{option}")) && line.contains(shown), "{path:?}: {line}");
                let found = FORBIDDEN.iter().find(|word| line.contains(**word));
                // The error of this option has `..` in its example of a range.
                let found = found.filter(|_| option != "trace-steps");
                assert_eq!(found, None, "{path:?}: {line}");
            }
        }
    }
    assert!(options > 100 && rejected > 300, "{options} options, {rejected} errors");
}

#[test]
fn a_value_is_named_with_what_its_option_takes() {
    let line = |words: &str| {
        let words = ["mpiburn"].into_iter().chain(words.split(' '));
        one_line(&Cli::read(words.map(OsString::from)).unwrap_err())
    };
    for (words, expected) in [
        (
            "train --seed 99999999999999999999",
            "--seed 99999999999999999999: must be at most 18446744073709551615",
        ),
        ("train --seed -1", "--seed -1: must be a whole number from 0"),
        ("train --lr none", "--lr none: must be a finite number, 0 or more, such as 0.1"),
        ("train --lr", "--lr: a value is missing"),
        ("train --lr=", "--lr '': must be a finite number, 0 or more, such as 0.1"),
        ("train --model", "--model: choose convnet, vgg, mlp"),
        ("train --shuffle=on", "--shuffle on: takes no value: write --shuffle alone, or leave it out"),
        ("train --quantize dynamic", "--quantize dynamic: choose qat, ptq, none"),
        ("train --num-classes 0", "--num-classes 0: must be a whole number from 1"),
        ("launch 1x1 --restart -1 train", "--restart -1: must be a whole number from 1 to 1000"),
        ("launch 2 train", "TOPOLOGY 2: is not a topology: expected machines x processes per machine"),
        ("data digits --train 0", "--train 0: must be a whole number from 1"),
        (
            "bench fused --layers 2,99999999999999999999",
            "--layers 99999999999999999999: must be at most 1000: ",
        ),
        ("data import s --out d --seed x", "--seed x: must be a whole number from 0"),
    ] {
        assert!(line(words).starts_with(expected), "{words}: {}", line(words));
    }
    let long = line(&format!("train --lr {}", "9".repeat(900) + "x"));
    assert!(long.chars().count() < 200, "{long}");
}

#[test]
fn a_sweep_of_the_project_is_known_by_its_name() {
    for (typed, expected) in [
        ("topologies", "jobs/sweeps/topologies.toml"),
        ("topologies.toml", "jobs/sweeps/topologies.toml"),
        ("./topologies", "./topologies"),
        ("no-such-sweep", "no-such-sweep"),
    ] {
        match Cli::read(["mpiburn", "sweep", typed].map(OsString::from)).unwrap().command {
            Command::Sweep(args) => assert_eq!(args.file.to_str(), Some(expected)),
            other => panic!("{other:?}"),
        }
    }
}
