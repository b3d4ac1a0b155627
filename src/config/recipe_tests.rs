//! Rejected values, defaults, and configurations of older runs.

use super::super::RunConfig;
use super::super::tests::train;
use super::*;
use crate::data::Kind;

#[test]
fn conflicting_and_senseless_options_are_refused_by_name() {
    for (options, words) in [
        ("--optimizer lion", ["--optimizer lion", "adamw"]),
        ("--momentum 0.9", ["--momentum 0.9", "optimizer is adam"]),
        ("--optimizer sgd --momentum 1", ["--momentum 1", "below 1"]),
        ("--optimizer sgd --momentum -0.1", ["--momentum -0.1", "from 0"]),
        (
            "--optimizer sgd --momentum 0.9 --schedule onecycle --max-lr 1",
            ["--momentum 0.9", "onecycle moves it"],
        ),
        ("--schedule linear", ["--schedule linear", "onecycle"]),
        ("--schedule onecycle", ["--schedule onecycle", "--max-lr"]),
        ("--max-lr 0.1", ["--max-lr 0.1", "--schedule onecycle"]),
        ("--schedule onecycle --max-lr 0", ["--max-lr 0", "above 0"]),
        ("--step-size 2", ["--step-size 2", "--schedule step"]),
        ("--schedule step --step-size 0", ["--step-size 0", "at least 1"]),
        ("--schedule cosine --gamma 0.5", ["--gamma 0.5", "--schedule step"]),
        ("--clip-norm 0", ["--clip-norm 0", "above 0"]),
        ("--l1 -1", ["--l1 -1", "0 or more"]),
        ("--l2 inf", ["--l2 inf", "finite"]),
        ("--label-smoothing 1", ["--label-smoothing 1", "below 1"]),
        ("--early-stopping 0", ["--early-stopping 0", "at least 1"]),
        ("--augment crop,blur", ["--augment crop,blur", "jitter"]),
    ] {
        let message = train(options).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{options}: {message}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_stepwise_schedule_falls_every_third_of_the_way_unless_told() {
    for (options, expected) in
        [("--epochs 10", Some(3)), ("--epochs 2", Some(1)), ("--epochs 10 --step-size 7", Some(7))]
    {
        let recipe = train(&format!("--schedule step {options}")).unwrap().recipe;
        assert_eq!((recipe.step_size, recipe.gamma), (expected, Some(0.1)), "{options}");
    }
}

#[test]
fn momentum_is_pytorchs_default_unless_given_or_cycled() {
    for (options, expected) in [
        ("", 0.9),
        ("--optimizer adamw", 0.9),
        ("--optimizer sgd", 0.0),
        ("--optimizer rmsprop --momentum 0.5", 0.5),
        ("--optimizer sgd --schedule onecycle --max-lr 0.1", 0.95),
    ] {
        let config = train(options).unwrap();
        assert_eq!(config.train_options().rates(10).rate(0, 0).momentum, expected, "{options}");
    }
}

#[test]
fn a_recipe_survives_run_json_and_runs_from_before_have_the_default_one() {
    let config =
        train("--optimizer sgd --momentum 0.9 --schedule cosine --augment flip,crop --l1 1e-5").unwrap();
    let mut json = serde_json::to_value(&config).unwrap();
    assert_eq!(json["augment"], "crop,flip");
    assert_eq!(serde_json::from_value::<RunConfig>(json.clone()).unwrap(), config);
    let recipe = serde_json::to_value(&config.recipe).unwrap();
    for name in recipe.as_object().unwrap().keys() {
        assert!(json.as_object_mut().unwrap().remove(name).is_some(), "{name} stands beside the others");
    }
    assert_eq!(serde_json::from_value::<RunConfig>(json).unwrap().recipe, Recipe::default());
}

#[test]
fn augmentation_needs_images_of_bytes() {
    let recipe = train("--augment flip").unwrap().recipe;
    let mut data = Description {
        kind: Kind::Npy,
        shape: [1, 1, 512],
        element: Element::F32,
        classes: 20,
        class_names: Vec::new(),
        mean: Vec::new(),
        std: Vec::new(),
    };
    let message = check_data(&recipe, Path::new("data/features"), &data).unwrap_err().to_string();
    assert!(message.contains("--augment flip") && message.contains(".npy pairs of 512"), "{message}");
    assert_eq!(check_data(&Recipe::default(), Path::new(""), &data), Ok(()));
    (data.shape, data.element) = ([3, 32, 32], Element::U8);
    assert_eq!(check_data(&recipe, Path::new(""), &data), Ok(()));
}
