//! Changes of a stored configuration.

use clap::Args;

use super::super::tests::train;
use super::*;
use crate::options::one_line;

/// These options as they are typed.
fn typed(options: &str) -> Result<Words, String> {
    let command = RunConfig::augment_args(clap::Command::new("train").no_binary_name(true));
    let mut command = command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    });
    let matches = command.try_get_matches_from_mut(options.split_whitespace());
    Ok(Words::typed(&command, &matches.map_err(|error| one_line(&error))?))
}

/// The run of `options`, resumed with others.
fn resume(options: &str, others: &str) -> Result<RunConfig, String> {
    let typed = typed(others)?;
    train(options).unwrap().changed(&typed).map_err(|error| error.to_string())
}

#[test]
fn a_configuration_is_made_again_from_its_options() {
    for options in [
        "",
        "--schedule step --epochs 9 --lr 0.1 --optimizer sgd --momentum 0.9 --clip-norm 1e-3",
        "--schedule onecycle --max-lr 0.3 --optimizer adamw --label-smoothing 0.1 --early-stopping 2",
        "--model vgg --batch-norm --shuffle --augment crop,flip --overlap off --fused off --device flex",
        "--model mlp --hidden 8 --activation gelu --precision bf16 --train-samples 100 --interface lo",
        "--quantize qat --weight-scheme tensor --epochs 4 --freeze-after 2 --keep 2 --checkpoint-every 7",
        "--quantize ptq --calibration 100 --num-classes 10 --init file.safetensors --data-root a/b=c",
    ] {
        let config = train(options).unwrap();
        assert_eq!(RunConfig::read(config.words().unwrap().to_args()), Ok(config), "{options}");
    }
}

/// Each option of a training alone, with a value that is not its default: what is stored makes it again, also with
/// `--resume`.
#[test]
fn each_option_is_made_again_from_what_is_stored() {
    let command = RunConfig::augment_args(clap::Command::new("train"));
    let values = ["0.25", "7", "crop,flip", "ndarray"];
    let beside = [
        "",
        "--model mlp",
        "--optimizer sgd",
        "--schedule step",
        "--schedule onecycle --max-lr 0.5",
        "--model mlp --quantize qat --epochs 9",
        "--quantize ptq",
    ];
    let mut options = 0;
    // --num-workers has no effect, and is not stored.
    for arg in command.get_arguments().filter(|arg| arg.get_long() != Some("num-workers")) {
        let option = arg.get_long().expect("a long name");
        let listed: Vec<String> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let words: Vec<String> = match takes(arg) {
            Takes::Nothing => vec![format!("--{option}")],
            _ if listed.is_empty() => values.map(|value| format!("--{option}={value}")).to_vec(),
            _ => listed.iter().map(|value| format!("--{option}={value}")).collect(),
        };
        let mut has_changed = false;
        for (word, others) in words.iter().flat_map(|word| beside.map(|others| (word, others))) {
            let Ok(config) = RunConfig::read(others.split_whitespace().chain([&**word])) else { continue };
            has_changed |= config != RunConfig::read(others.split_whitespace()).unwrap();
            let typed = config.words().unwrap();
            assert_eq!(RunConfig::read(typed.to_args()), Ok(config.clone()), "{option}: {typed}");
            let stored = serde_json::to_value(&config).unwrap();
            let read = serde_json::from_value::<RunConfig>(stored).unwrap();
            assert_eq!(read, config, "{option}: {typed}");
            assert_eq!(read.changed(&Words::default()), Ok(config), "{option} in a resumed run: {typed}");
        }
        assert!(has_changed, "{option} has no other value here");
        options += 1;
    }
    assert!(options > 45, "{options}");
}

#[test]
fn changes_are_those_of_the_options() {
    let config = resume("--schedule step --shuffle", "--lr 0.25 --epochs 7 --clip-norm 1").unwrap();
    let expected = "--schedule step --shuffle --lr 0.25 --epochs 7 --clip-norm 1";
    // The default of --step-size is from the epochs at the start.
    let expected = train(&format!("{expected} --step-size 1")).unwrap();
    assert_eq!(config, expected);
    assert_eq!(resume("--clip-norm 1", "--clip-norm none").unwrap(), train("").unwrap());
    assert_eq!(resume("", "--optimizer-lr 0.5").unwrap().recipe.lr, 0.5, "an alias");
    let cosine = resume("--schedule step --gamma 0.5", "--schedule cosine").unwrap();
    assert_eq!(cosine, train("--schedule cosine").unwrap());
    let falling = "--schedule step --gamma 0.5 --step-size 2";
    assert_eq!(resume(falling, "--schedule step").unwrap(), train(falling).unwrap(), "no change");
    assert_eq!(resume("", falling).unwrap(), train(falling).unwrap());
    let cycle = train("--schedule onecycle --max-lr 0.01").unwrap();
    assert_eq!(resume("", "--max-lr 0.01 --schedule onecycle").unwrap(), cycle);
    assert_eq!(resume("", "--keep 2").unwrap().keep, Some(2));
    assert_eq!(resume("", "--overlap off").unwrap(), train("--overlap off").unwrap());
}

#[test]
fn options_that_are_the_runs_own_may_be_repeated() {
    for options in ["--model mlp --hidden 8 --batch-size 64 --seed 3 --lr 0.1", "--quantized --shuffle"] {
        assert_eq!(resume(options, options).unwrap(), train(options).unwrap());
    }
    // All options with all of their defaults, of which `none` is the most frequent one.
    let command = RunConfig::augment_args(clap::Command::new("train").no_binary_name(true));
    let defaults = values(&command, &command.clone().get_matches_from([""; 0]));
    let defaults = defaults.into_iter().filter(|(option, _)| NAMES.contains(&option[2..]));
    let switches = ["--shuffle", "--batch-norm", "--quantized"];
    let defaults: Vec<String> = defaults
        .filter(|(option, _)| !switches.contains(&option.as_str()))
        .map(|(option, value)| format!("{option} {value}"))
        .collect();
    assert!(defaults.contains(&"--init none".to_owned()) && defaults.len() > 40, "{defaults:?}");
    for option in &defaults {
        assert_eq!(resume("", option), Ok(train("").unwrap()), "{option}");
    }
}

#[test]
fn senseless_changes_are_refused_with_the_reason() {
    for (change, expected) in [
        ("--lr -1", "--lr -1: must be a finite number, 0 or more"),
        ("--momentum 0.5", "--momentum 0.5: is for sgd and rmsprop"),
        ("--lr 1 --gamma 0.5", "--gamma 0.5: requires --schedule step"),
        ("--seed 1", "--seed 1: cannot change in a resumed run: the order of the samples"),
        ("--batch 64", "--train-batch-size 64: cannot change in a resumed run: the checkpoint"),
        (
            "--shuffle",
            "--shuffle: cannot change in a resumed run: the checkpoint counts steps of these samples",
        ),
        ("--quantized", "--quantize qat: cannot change in a resumed run: the checkpoint's ranges"),
        ("--optimizer sgd", "--optimizer sgd: cannot change in a resumed run: the checkpoint has"),
        ("--train-samples 9", "--train-samples 9: cannot change in a resumed run: the checkpoint counts"),
        (
            "--device ndarray",
            "--device ndarray: cannot change in a resumed run: a checkpoint resumes only on the",
        ),
    ] {
        let error = resume("", change).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let sgd = "--optimizer sgd --momentum 0.9";
    for (run, change, expected) in [
        (sgd, "--momentum 0", "--momentum 0: cannot end momentum in a resumed run: the checkpoint's moments"),
        (sgd, "--momentum none", "--momentum none: cannot end momentum"),
        ("--optimizer rmsprop", "--momentum 0.5", "--momentum 0.5: cannot begin momentum"),
        (
            "--optimizer sgd",
            "--schedule onecycle --max-lr 0.1",
            "--schedule onecycle: cannot begin momentum in a resumed run",
        ),
    ] {
        let error = resume(run, change).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    assert_eq!(resume(sgd, "--momentum 0.5").unwrap(), train("--optimizer sgd --momentum 0.5").unwrap());
    assert!(resume("--optimizer sgd", "--momentum 0").is_ok(), "the default");
    assert!(resume("", "--schedule onecycle --max-lr 0.1").is_ok(), "adam always has its moments");
    for (option, value) in [("quantize", "qat"), ("train-samples", "64")] {
        let error = resume(&format!("--{option} {value}"), &format!("--{option} none")).unwrap_err();
        assert!(error.starts_with(&format!("--{option} none: cannot change in a resumed run")), "{error}");
    }
}

/// A default, and `none`, are given or not; a value may be written in several ways.
#[test]
fn ranks_compare_values_of_new_runs_and_what_a_resumed_one_is_given() {
    let new = |options: &str| train(options).unwrap().compared(None);
    assert_eq!(
        new("--lr 1e-1 --augment flip,crop --quantized"),
        new("--lr 0.1 --augment crop,flip --quantize qat")
    );
    assert_ne!(new("--lr 1e-1"), new("--lr 1e-2"));
    let has = |option: &str, value: &str| {
        new("--fused off --shuffle").contains(&(option.to_owned(), value.to_owned()))
    };
    assert!(has("--fused", "off") && has("--overlap", "on") && has("--shuffle", "true"), "as they are typed");
    let given = |options: &str| {
        let config = RunConfig::read(options.split_whitespace()).unwrap();
        config.compared(Some(&typed(options).unwrap()))
    };
    for options in ["--clip-norm none", "--lr 0.0005", "--epochs 3", "--quantized"] {
        assert_ne!(given(options), given(""), "{options}");
    }
    assert_eq!(given("--lr 1e-1"), given("--lr 0.1"));
}

#[test]
fn an_option_cannot_contradict_its_other_name() {
    for options in ["--quantize none --quantized", "--quantized --quantize none"] {
        let error = typed(options).unwrap().check().unwrap_err().to_string();
        assert_eq!(error, "--quantized: is --quantize qat, beside --quantize none");
    }
    for options in ["--quantized", "--quantize none", "--quantized --quantize qat", ""] {
        assert_eq!(typed(options).unwrap().check(), Ok(()), "{options}");
    }
}

#[test]
fn a_stored_option_that_is_unknown_is_named_as_it_is_stored() {
    let stored = |field: &str| {
        let mut fields = serde_json::to_value(train("").unwrap()).unwrap();
        fields[field] = 1.into();
        serde_json::from_value::<RunConfig>(fields).unwrap_err().to_string()
    };
    assert!(stored("samples_inx").starts_with("`config.samples_inx` is no option of this version"));
    assert!(stored("world_size").starts_with("`config.world_size` is no option"), "one of the job");
}
