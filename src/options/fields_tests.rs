//! Checks that a configuration is read back from `run.json`, and how a resumed run changes it.

use std::collections::BTreeMap;

use clap::Args;
use run_record::{Affects, Takes};

use super::super::tests::{completed, tells, train};
use super::*;
use crate::options::one_line;
use crate::values::Positive;

/// Parses `options` as a user types them on the command line.
fn typed(options: &str) -> Result<Words, String> {
    let command = RunConfig::augment_args(clap::Command::new("train").no_binary_name(true));
    let mut command = command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    });
    let matches = command.try_get_matches_from_mut(options.split_whitespace());
    Ok(Words::typed(&command, &matches.map_err(|error| one_line(&error))?))
}

/// Returns the configuration of a run of `options` that is resumed with the options `others`.
fn resume(options: &str, others: &str) -> Result<RunConfig, String> {
    let typed = typed(others)?;
    train(options).unwrap().changed(&typed).map_err(|error| error.to_string())
}

/// Returns the settings that a report shows for a run of `config`.
fn settings(config: &RunConfig) -> BTreeMap<String, String> {
    completed(config, "1x1".parse().unwrap(), "mpirun").settings()
}

#[test]
fn a_configuration_is_made_again_from_what_is_stored() {
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
        assert_eq!(RunConfig::from_fields(config.fields()), Ok(config), "{options}");
    }
}

/// For each option, with values other than its default: the stored configuration is read back unchanged, also
/// with `--resume`. A report distinguishes a run with the option from a run without it, unless the option
/// affects nothing.
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
        "--backend gloo",
        "--target-accuracy 90",
        "--compress powersgd --compress-rank 3",
        "--sync-every 14 --epochs 9",
        "--sync-every 14 --outer nesterov",
        "--sync-every 14 --sync-delay 8",
    ];
    let mut options = 0;
    // --num-workers has no effect, and is not stored.
    for arg in command.get_arguments().filter(|arg| arg.get_long() != Some("num-workers")) {
        let option = arg.get_long().expect("a long name");
        let listed: Vec<String> =
            arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let words: Vec<String> = match takes(arg) {
            Takes::Flag => vec![format!("--{option}")],
            // Each of the two options requires the other.
            _ if option == "compress" => vec!["--compress=powersgd --compress-rank=7".to_owned()],
            _ if listed.is_empty() => values.map(|value| format!("--{option}={value}")).to_vec(),
            _ => listed.iter().map(|value| format!("--{option}={value}")).collect(),
        };
        let (mut has_changed, mut is_told) = (false, false);
        for (word, others) in words.iter().flat_map(|word| beside.map(|others| (word, others))) {
            let Ok(config) = RunConfig::read(format!("{others} {word}").split_whitespace()) else { continue };
            let plain = RunConfig::read(others.split_whitespace()).unwrap();
            has_changed |= config != plain;
            is_told |= settings(&config) != settings(&plain);
            let stored = serde_json::to_value(&config).unwrap();
            let read = serde_json::from_value::<RunConfig>(stored).unwrap();
            assert_eq!(read, config, "{others} {word}");
            assert_eq!(read.changed(&Words::default()), Ok(config), "{others} {word}, in a resumed run");
        }
        assert!(has_changed, "{option} has no other value here");
        let affects = spec(option).expect("a row").affects;
        assert_eq!(is_told, affects != Affects::Nothing, "{option} in a report");
        options += 1;
    }
    assert!(options > 45, "{options}");
}

/// A stored value and a typed value have the same bounds.
#[test]
fn each_option_refuses_what_is_stored_as_what_is_typed() {
    let command = RunConfig::augment_args(clap::Command::new("train"));
    let wrong = ["0", "-1", "1.5", "2", "1e300", "1e-300", "18446744073709551615", "-0.5"];
    let (mut accepted, mut refused) = (0, 0);
    for (field, default) in DEFAULTS.iter() {
        let option = option(field);
        let arg = command.get_arguments().find(|arg| arg.get_id() == field.as_str()).expect("an option");
        let is_text = default.is_string() || ["augment", "init", "interface"].contains(&field.as_str());
        if is_text || default.is_boolean() || !arg.get_possible_values().is_empty() {
            let stored: Map<String, Value> = [(field.clone(), 0.5.into())].into_iter().collect();
            let error = RunConfig::from_fields(stored).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{option} 0.5: ")), "{error}");
            continue;
        }
        for text in wrong {
            let Ok(value) = serde_json::from_str::<Value>(text) else { panic!("{text}") };
            let stored: Map<String, Value> = [(field.clone(), value.clone())].into_iter().collect();
            let typed = RunConfig::parsed([format!("{option}={value}")]);
            let read = RunConfig::from_fields(stored);
            match typed.and_then(RunConfig::completed) {
                Ok(typed) => {
                    accepted += 1;
                    assert_eq!(read, Ok(typed), "{option} {text}");
                }
                Err(error) => {
                    refused += 1;
                    let (stored, typed) = (read.unwrap_err().to_string(), error.to_string());
                    // A seed is a plain number without bounds, so serde rejects a stored seed, and its error
                    // ends in other words.
                    let is_same = stored == typed || field == "seed" && stored.starts_with(&typed[..10]);
                    assert!(is_same, "{stored}; typed: {typed}");
                }
            }
        }
    }
    assert!(accepted > 50 && refused > 100, "{accepted} accepted, {refused} refused");
}

/// Fails if an option is added without its row in `OPTIONS`.
#[test]
fn every_option_has_its_row_and_every_field_its_schema() {
    let command = RunConfig::augment_args(clap::Command::new("train"));
    let rows: Vec<&str> = OPTIONS.iter().map(|spec| spec.field).collect();
    let mut options: Vec<&str> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
    options.retain(|option| *option != "help");
    let (mut sorted, mut expected) = (rows.clone(), options);
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(sorted, expected);
    let Schema(schema) = schema();
    assert!(schema.keys().eq(DEFAULTS.keys()));
    for (field, row) in &schema {
        let kind = match DEFAULTS[field] {
            Value::Bool(true) => Takes::Switch,
            // A resumed run can turn the option off, so it takes a value.
            Value::Bool(false) if field == "shard_optimizer" => Takes::Switch,
            Value::Bool(false) => Takes::Flag,
            _ => Takes::Value,
        };
        assert_eq!(row.takes, kind, "{field}");
        if let Some((other, value)) = &row.only_with {
            let known = [(other.clone(), value.as_str().into())].into_iter().collect();
            let problem = RunConfig::from_fields(known).err().map(|error| error.to_string());
            let lacks =
                |problem: String| ["--max-lr", "--compress-rank"].iter().any(|name| problem.contains(name));
            assert!(problem.is_none_or(lacks), "{field}");
        }
    }
}

#[test]
fn changes_are_those_of_the_options() {
    let config = resume("--schedule step --shuffle", "--lr 0.25 --epochs 7 --clip-norm 1").unwrap();
    let expected = "--schedule step --shuffle --lr 0.25 --epochs 7 --clip-norm 1";
    // The default of --step-size depends on the epochs. A resumed run keeps the default from its start, with
    // 3 epochs.
    let expected = train(&format!("{expected} --step-size 1")).unwrap();
    assert_eq!(config, expected);
    assert_eq!(resume("--clip-norm 1", "--clip-norm none").unwrap(), train("").unwrap());
    assert_eq!(resume("", "--optimizer-lr 0.5").unwrap().recipe.lr.get(), 0.5, "an alias");
    let cosine = resume("--schedule step --gamma 0.5", "--schedule cosine").unwrap();
    assert_eq!(cosine, train("--schedule cosine").unwrap());
    let falling = "--schedule step --gamma 0.5 --step-size 2";
    assert_eq!(resume(falling, "--schedule step").unwrap(), train(falling).unwrap(), "no change");
    assert_eq!(resume("", falling).unwrap(), train(falling).unwrap());
    let cycle = train("--schedule onecycle --max-lr 0.01").unwrap();
    assert_eq!(resume("", "--max-lr 0.01 --schedule onecycle").unwrap(), cycle);
    assert_eq!(resume("", "--keep 2").unwrap().keep, Some(Positive(2)));
    assert_eq!(resume("", "--overlap off").unwrap(), train("--overlap off").unwrap());
}

#[test]
fn options_that_are_the_runs_own_may_be_repeated() {
    for options in ["--model mlp --hidden 8 --batch-size 64 --seed 3 --lr 0.1", "--quantized --shuffle"] {
        assert_eq!(resume(options, options).unwrap(), train(options).unwrap());
    }
    // Each option with its default, which is `none` for most options.
    let command = RunConfig::augment_args(clap::Command::new("train").no_binary_name(true));
    let defaults = super::super::words::values(&command, &command.clone().get_matches_from([""; 0]));
    let defaults = defaults.into_iter().filter(|(option, _)| spec(&option[2..]).is_some());
    let switches = ["--shuffle", "--batch-norm", "--quantized", "--stop-at-target"];
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
        ("--momentum 0.5", "--momentum 0.5: … sgd … rmsprop"),
        ("--lr 1 --gamma 0.5", "--gamma 0.5: requires --schedule step"),
    ] {
        let error = resume("", change).unwrap_err();
        assert!(tells(&error, expected), "{error}");
    }
    for (change, option, shown) in [
        ("--seed 1", "seed", "--seed 1: "),
        ("--batch 64", "train-batch-size", "--train-batch-size 64: "),
        ("--shuffle", "shuffle", "--shuffle: "),
        ("--quantized", "quantize", "--quantize qat: "),
        ("--optimizer sgd", "optimizer", "--optimizer sgd: "),
        ("--train-samples 9", "train-samples", "--train-samples 9: "),
        ("--device ndarray", "device", "--device ndarray: "),
        ("--weight-scheme tensor", "weight-scheme", "--weight-scheme tensor: "),
        ("--precision bf16", "precision", "--precision bf16: "),
    ] {
        let reason = spec(option).unwrap().change.unwrap_err();
        let error = resume("", change).unwrap_err();
        assert!(error.starts_with(shown) && error.ends_with(reason), "{error}");
        // This run has no quantization and --precision no, so it has neither ranges nor a loss scale.
        assert!(!error.contains("ranges") && !error.contains("loss scale"), "{error}");
    }
    let sgd = "--optimizer sgd --momentum 0.9";
    for (run, change, expected) in [
        (sgd, "--momentum 0", "--momentum 0: … with momentum"),
        (sgd, "--momentum none", "--momentum none: … with momentum"),
        ("--optimizer rmsprop", "--momentum 0.5", "--momentum 0.5: … without momentum"),
        ("--optimizer sgd", "--schedule onecycle --max-lr 0.1", "--schedule onecycle: … without momentum"),
    ] {
        let error = resume(run, change).unwrap_err();
        assert!(tells(&error, expected), "{error}");
    }
    assert_eq!(resume(sgd, "--momentum 0.5").unwrap(), train("--optimizer sgd --momentum 0.5").unwrap());
    assert!(resume("--optimizer sgd", "--momentum 0").is_ok(), "the default");
    assert!(resume("", "--schedule onecycle --max-lr 0.1").is_ok(), "adam always has its moments");
    for (run, change, expected) in [
        ("--quantize ptq --calibration 64", "--quantized", "--quantize qat: … trained"),
        ("--model mlp --hidden 8", "--model convnet", "--model convnet: … weights"),
    ] {
        let error = resume(run, change).unwrap_err();
        assert!(tells(&error, expected), "the error must name the typed option: {error}");
    }
    for (option, value) in [("quantize", "qat"), ("train-samples", "64")] {
        let error = resume(&format!("--{option} {value}"), &format!("--{option} none")).unwrap_err();
        let reason = spec(option).unwrap().change.unwrap_err();
        assert!(error.starts_with(&format!("--{option} none: ")) && error.ends_with(reason), "{error}");
    }
}

/// Ranks that resume a run must have typed the same options, including options typed with their default or
/// `none`. A value may be written in several ways.
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
    assert!(has("--fused", "off") && has("--overlap", "on") && has("--shuffle", "on"));
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
        assert!(tells(&error, "--quantized: … --quantize qat … --quantize none"), "{error}");
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
    for field in ["samples_inx", "world_size"] {
        assert!(tells(&stored(field), &format!("`config.{field}` … version")), "{}", stored(field));
    }
}

#[test]
fn a_stored_whole_number_may_have_a_point() {
    let stored = |value: Value| {
        RunConfig::from_fields([("accumulate".to_owned(), value)].into_iter().collect())
            .map_err(|error| error.to_string())
    };
    assert_eq!(stored(2.0.into()), Ok(train("--accumulate 2").unwrap()));
    assert_eq!(stored(1.5.into()).unwrap_err(), "--accumulate 1.5: must be a whole number from 1");
    assert_eq!(stored("2".into()).unwrap_err(), "--accumulate 2: expected a number, found \"2\"");
}

#[test]
fn none_is_stored_as_it_is_typed() {
    let none = |field: &str| {
        RunConfig::from_fields([(field.to_owned(), "none".into())].into_iter().collect())
            .map_err(|error| error.to_string())
    };
    for (field, default) in DEFAULTS.iter().filter(|(_, default)| default.is_null() || *default == "none") {
        assert_eq!(none(field), Ok(train("").unwrap()), "{field}: {default}");
    }
    assert_eq!(none("lr").unwrap_err(), "--lr none: expected a number, found \"none\"");
}
