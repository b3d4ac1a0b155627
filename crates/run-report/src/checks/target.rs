//! Checks the results of `--target-accuracy` against each other and against the other results.

use serde_json::Value;

use super::{is_near, steps_of_epoch};

/// Whether `--stop-at-target` ended the run at the test that reached the target.
pub fn stopped_at_target(run: &Value) -> bool {
    run["config"]["stop_at_target"] == true && run["steps_to_target"] == run["steps"]
}

/// Checks the results of `--target-accuracy`, if there are any.
pub fn target_agrees(run: &Value) -> Result<(), String> {
    let times = ["steps_to_target", "epochs_to_target", "seconds_to_target"];
    let reached = &run["target_reached"];
    if run["status"] == "completed" && reached.is_null() == run["config"]["target_accuracy"].is_number() {
        return Err(format!(
            "target_reached is {reached}, but config.target_accuracy is {}",
            run["config"]["target_accuracy"]
        ));
    }
    for (name, most) in times.into_iter().zip(["steps", "epochs_run", "train_seconds"]) {
        if run[name].is_null() == (*reached == true) {
            return Err(format!("{name} is {}, but target_reached is {reached}", run[name]));
        }
        if let (Some(to), Some(all)) = (run[name].as_f64(), run[most].as_f64())
            && to > all * (1.0 + 1e-9)
        {
            return Err(format!("{name} is {to}, but {most} is {all}"));
        }
    }
    let number = |name: &str| run[name].as_f64();
    let target = run["config"]["target_accuracy"].as_f64();
    let stops = run["config"]["stop_at_target"] == true && *reached == true;
    if let (Some(target), Some(accuracy)) = (target, number("test_accuracy"))
        && ((*reached == false && accuracy >= target) || (stops && accuracy < target))
    {
        return Err(format!(
            "target_reached is {reached}, but test_accuracy is {accuracy} and config.target_accuracy is {target}"
        ));
    }
    if let (true, Some(to), Some(steps)) = (stops, number("steps_to_target"), number("steps"))
        && to != steps
    {
        return Err(format!(
            "steps_to_target is {to}, but steps is {steps} and config.stop_at_target is true"
        ));
    }
    if let (Some(to), Some(epochs)) = (number("steps_to_target"), number("epochs_to_target")) {
        is_near("epochs_to_target", run, Some(to / steps_of_epoch(run)), 1e-6 * epochs, "steps_to_target")?;
    }
    if stops {
        let training = number("train_seconds");
        is_near("seconds_to_target", run, training, 0.01 * training.unwrap_or(0.0) + 0.01, "train_seconds")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::check;
    use crate::checks::tests::json;

    #[test]
    fn results_of_a_target_that_contradict_each_other_are_named() {
        let mut whole = json();
        whole["config"]["target_accuracy"] = 97.0.into();
        whole["target_reached"] = true.into();
        (whole["steps_to_target"], whole["epochs_to_target"]) = (1.into(), 1.0.into());
        whole["seconds_to_target"] = 0.1.into();
        assert_eq!(check(&whole), Ok(()));
        for (field, value, expected) in [
            ("target_reached", Value::Null, "target_reached is null, but config.target_accuracy is 97.0"),
            ("target_reached", false.into(), "steps_to_target is 1, but target_reached is false"),
            ("steps_to_target", Value::Null, "steps_to_target is null, but target_reached is true"),
            ("steps_to_target", 1_000_000.into(), "steps_to_target is 1000000, but steps is 2814"),
            ("epochs_to_target", 2.0.into(), "epochs_to_target is 2, expected 1 from steps_to_target"),
            ("epochs_to_target", 99.into(), "epochs_to_target is 99, but epochs_run is 3"),
            ("seconds_to_target", 1e6.into(), "seconds_to_target is 1000000, but train_seconds is 4"),
        ] {
            let mut edited = whole.clone();
            edited[field] = value;
            assert_eq!(check(&edited).unwrap_err(), expected);
        }
        let mut missed = whole.clone();
        missed["target_reached"] = false.into();
        for time in ["steps_to_target", "epochs_to_target", "seconds_to_target"] {
            missed[time] = Value::Null;
        }
        let found = check(&missed).unwrap_err();
        assert!(found.starts_with("target_reached is false, but test_accuracy is 97.5"), "{found}");
        let mut stopped = whole.clone();
        stopped["config"]["stop_at_target"] = true.into();
        let found = check(&stopped).unwrap_err();
        assert!(found.starts_with("steps_to_target is 1, but steps is 2814"), "{found}");
    }
}
