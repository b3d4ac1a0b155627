//! Changes of a stored configuration.

use super::super::tests::train;
use super::*;

fn set(options: &str, changes: &[&str]) -> Result<RunConfig, String> {
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    train(options).unwrap().changed(&changes).map_err(|error| error.to_string())
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
        assert_eq!(read(&config.words().unwrap()), Ok(config), "{options}");
    }
}

#[test]
fn changes_are_those_of_the_options() {
    let config = set("--schedule step --shuffle", &["lr=0.25", "epochs=7", "clip-norm=1"]).unwrap();
    let expected = "--schedule step --shuffle --lr 0.25 --epochs 7 --clip-norm 1";
    // The default of --step-size is from the epochs at the start.
    let expected = train(&format!("{expected} --step-size 1")).unwrap();
    assert_eq!(config, expected);
    assert_eq!(set("--clip-norm 1", &["clip-norm=none"]).unwrap(), train("").unwrap());
    assert_eq!(set("", &["optimizer-lr=0.5"]).unwrap().lr, 0.5, "an alias");
    let cosine = set("--schedule step --gamma 0.5", &["schedule=cosine"]).unwrap();
    assert_eq!(cosine, train("--schedule cosine").unwrap());
    let falling = "--schedule step --gamma 0.5 --step-size 2";
    assert_eq!(set(falling, &["schedule=step"]).unwrap(), train(falling).unwrap(), "no change");
    for changes in
        [["gamma=0.5", "step-size=2", "schedule=step"], ["schedule=step", "step-size=2", "gamma=0.5"]]
    {
        assert_eq!(set("", &changes).unwrap(), train(falling).unwrap(), "in any order");
    }
    let cycle = train("--schedule onecycle --max-lr 0.01").unwrap();
    assert_eq!(set("", &["max-lr=0.01", "schedule=onecycle"]).unwrap(), cycle);
    assert_eq!(set("", &["keep=2"]).unwrap().keep, Some(2));
    assert_eq!(set("", &["overlap=off"]).unwrap(), train("--overlap off").unwrap());
}

#[test]
fn senseless_changes_are_refused_with_the_reason() {
    for (change, expected) in [
        ("lr", "--set lr: must be KEY=VALUE"),
        ("lr=-1", "--set lr=-1: --lr -1: must be a finite number, 0 or more"),
        ("lr=x", "--set lr=x: invalid value 'x' for '--lr <X>'"),
        ("epochs=0", "--set epochs=0: --epochs 0: must be at least 1"),
        ("momentum=0.5", "--set momentum=0.5: --momentum 0.5: is for sgd and rmsprop"),
        ("learning-rate=1", "--set learning-rate=1: there is no option --learning-rate; a resumed run can"),
        ("seed=1", "--set seed=1: --seed cannot change in a resumed run: the order of the samples"),
        ("batch=64", "--set batch=64: --train-batch-size cannot change in a resumed run: the checkpoint"),
        (
            "optimizer=sgd",
            "--set optimizer=sgd: --optimizer cannot change in a resumed run: the checkpoint has",
        ),
        ("out=x", "--set out=x: --out cannot change in a resumed run: it is no option of a stored run"),
        ("keep=0", "--set keep=0: --keep 0: must be at least 1"),
    ] {
        let error = set("", &[change]).unwrap_err();
        assert!(error.starts_with(expected), "{error}");
    }
    let error = set("", &["lr=1", "gamma=0.5"]).unwrap_err();
    assert!(
        error.starts_with("--set lr=1 --set gamma=0.5: --gamma 0.5: requires --schedule step"),
        "{error}"
    );
}

/// The reason of each option is in one of the lists.
#[test]
fn every_option_of_a_run_can_change_or_has_a_reason() {
    let fields = serde_json::to_value(train("").unwrap()).unwrap();
    for field in fields.as_object().unwrap().keys() {
        let option = field.replace('_', "-");
        let can_change = CHANGEABLE.iter().chain(&OF_CHECKPOINTS).any(|known| *known == option);
        assert_ne!(can_change, reason(&option) != reason("out"), "{option}");
    }
}
