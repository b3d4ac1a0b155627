//! Checks `run.json` before a report uses it: somebody may have edited the file, or copied parts of another
//! run into it.
//!
//! First, each number must be within its bounds. Second, values that depend on each other must agree, such as
//! an accuracy and the counts that it is computed from. The values that a completed training writes always
//! agree.

mod target;

use itertools::Itertools;
use run_record::{
    ByClass, ClassRecord, RankPlace, Results, RunRecord, WORLD_SIZE, json_problem, out_of_bounds, topology,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::remarks::step_samples;
use target::{stopped_at_target, target_agrees};

/// Checks everything in `run.json` that tables use.
///
/// # Errors
/// The field, and what is wrong with it.
pub fn check(run: &Value) -> Result<(), String> {
    check_numbers("", run)?;
    // If `status` is not text, serde_json reports only that the JSON is invalid.
    if let Some(status) = run.get("status").filter(|status| !status.is_string()) {
        return Err(format!("status: expected text, found {status}"));
    }
    has_fields::<RunRecord>(run)?;
    if run["status"] == "completed" {
        has_fields::<Results>(run)?;
    }
    if let Some(ranks) = run["world_size"].as_u64() {
        let count = |name: &str| run[name].as_array().map_or(0, Vec::len) as u64;
        let lists = ["hosts", "places", "per_rank"].map(|name| (name, count(name)));
        let other = lists.iter().find(|(name, count)| *count != ranks && (*name == "hosts" || *count > 0));
        if let Some((name, count)) = other {
            return Err(format!("world_size is {ranks}, but the length of {name} is {count}"));
        }
        places_agree(run)?;
    }
    agree(run)
}

/// Checks that `run` has the fields of `T`, with their types.
fn has_fields<T: DeserializeOwned>(run: &Value) -> Result<(), String> {
    let found = serde_path_to_error::deserialize::<_, T>(run);
    found.map(drop).map_err(|error| match error.path().to_string() {
        path if path == "." => json_problem(error.inner()),
        path => format!("{path}: {}", json_problem(error.inner())),
    })
}

/// Checks `topology`, `shared_machine` and `oversubscribed` against the ranks' `hosts` and `places`.
fn places_agree(run: &Value) -> Result<(), String> {
    let list = |name: &str| run[name].as_array().map_or(&[][..], Vec::as_slice);
    let hosts = list("hosts");
    is_value("topology", &run["topology"], topology(hosts.iter().filter_map(Value::as_str)), "hosts")?;
    for name in ["places", "per_rank"] {
        for (at, (of, host)) in list(name).iter().zip(hosts).enumerate() {
            is_value(&format!("{name}[{at}].rank"), &of["rank"], at, "its position in the list")?;
            is_value(&format!("{name}[{at}].host"), &of["host"], host.clone(), "hosts")?;
        }
    }
    let Ok(places) = Vec::<RankPlace>::deserialize(&run["places"]) else { return Ok(()) };
    let machines = places.iter().into_group_map_by(|place| &place.boot_id);
    let is_shared = machines.values().any(|ranks| !ranks.iter().map(|rank| &rank.host).all_equal());
    is_value("shared_machine", &run["shared_machine"], is_shared, "places")?;
    let threads = run["config"]["threads"].as_u64().unwrap_or(1) as usize;
    let is_crowded = |ranks: &Vec<&RankPlace>| ranks.iter().any(|rank| ranks.len() * threads > rank.cores);
    if machines.values().any(is_crowded) {
        is_value("oversubscribed", &run["oversubscribed"], true, "places")?;
    }
    Ok(())
}

/// Checks that `value` is null or equals `expected`, which was computed from the fields that `by` names.
fn is_value(path: &str, value: &Value, expected: impl Into<Value>, by: &str) -> Result<(), String> {
    let expected = expected.into();
    let is_other = !value.is_null() && *value != expected;
    if is_other { Err(format!("{path} is {value}, expected {expected} from {by}")) } else { Ok(()) }
}

/// Checks that the number in the field `path` of `run` differs by at most `slack` from `expected`, which was
/// computed from the fields that `by` names. A missing number passes.
fn is_near(path: &str, run: &Value, expected: Option<f64>, slack: f64, by: &str) -> Result<(), String> {
    match (run[path].as_f64(), expected) {
        (Some(value), Some(expected)) if (value - expected).abs() > slack => {
            Err(format!("{path} is {value}, expected {expected} from {by}"))
        }
        _ => Ok(()),
    }
}

/// Checks times against the values that they are computed from. Runs without `rest` in `step_ms` are skipped:
/// before this field existed, some times were not means over ranks.
fn times_agree(run: &Value) -> Result<(), String> {
    let number = |name: &str| run[name].as_f64();
    if run["step_ms"]["rest"].as_f64().is_none_or(|rest| rest == 0.0) {
        return Ok(());
    }
    let (Some(samples), Some(epochs), Some(training), Some(steps)) = (
        run["data"]["train_samples"].as_u64(),
        number("epochs_run"),
        number("train_seconds"),
        number("steps"),
    ) else {
        return Ok(());
    };
    let near = |path, expected: f64, by| is_near(path, run, Some(expected), 1e-6 * expected.max(1.0), by);
    near("ms_per_step", 1e3 * training / steps, "train_seconds and steps")?;
    // If the training stopped at its target, the last epoch may be incomplete.
    let is_whole = !stopped_at_target(run);
    if is_whole {
        let expected = samples as f64 * epochs / training;
        near("images_per_second", expected, "samples, epochs_run and train_seconds")?;
    }
    // The checks below do not hold for a resumed run: its batch size may have changed, or an older version
    // may have begun it.
    if run["history"].as_array().is_some_and(|processes| processes.len() > 1) {
        return Ok(());
    }
    if is_whole {
        near("steps", epochs * steps_of_epoch(run), "samples, epochs_run and batch")?;
    }
    let phases: f64 =
        run["step_ms"].as_object().into_iter().flatten().filter_map(|(_, ms)| ms.as_f64()).sum();
    is_near("ms_per_step", run, Some(phases), 0.01 * phases + 1e-3, "step_ms")
}

/// Returns the number of steps in an epoch.
fn steps_of_epoch(run: &Value) -> f64 {
    let batch = step_samples(|field| &run["config"][field]) as u64;
    let samples = run["data"]["train_samples"].as_u64().unwrap_or_default();
    samples.div_ceil(run["world_size"].as_u64().unwrap_or(1).max(1)).div_ceil(batch.max(1)) as f64
}

/// Checks values that depend on each other, if they are present.
fn agree(run: &Value) -> Result<(), String> {
    target_agrees(run)?;
    let number = |name: &str| run[name].as_f64();
    if let (Some(ms), Some(steps), Some(training)) =
        (number("ms_per_step"), number("steps"), number("train_seconds"))
        && (ms * steps / 1e3 - training).abs() > 0.02 * training + 0.01
    {
        return Err(format!("ms_per_step is {ms}, but {steps} steps took {training} s"));
    }
    if run["config"].is_object() && step_samples(|field| &run["config"][field]) == 0 {
        return Err("config: a training step has 0 samples".into());
    }
    let samples = |name: &str| run["data"][name].as_u64();
    if let (Some(few), Some(many)) = (samples("test_largest_class"), samples("test_samples"))
        && few > many
    {
        return Err(format!("data.test_largest_class is {few}, but data.test_samples is {many}"));
    }
    for name in ["train", "test"] {
        let [used, available] = ["samples", "available"].map(|part| samples(&format!("{name}_{part}")));
        let limit = run["config"][format!("{name}_samples")].as_u64();
        if let Some(available) = available.filter(|_| used.is_some()) {
            let expected = limit.map_or(available, |limit| limit.min(available));
            is_value(
                &format!("data.{name}_samples"),
                &run["data"][format!("{name}_samples")],
                expected,
                "config",
            )?;
        }
    }
    let data = &run["data"];
    if data["mean"].as_array().map(Vec::len) != data["std"].as_array().map(Vec::len) {
        return Err("data.std must have the same number of values as data.mean".into());
    }
    let names = data["class_names"].as_array().filter(|names| !names.is_empty());
    if let Some(names) = names {
        is_value("data.classes", &data["classes"], names.len(), "data.class_names")?;
    }
    for name in ["best_epoch", "stopped_early_after"] {
        if let (Some(epoch), Some(last)) = (number(name), number("epochs_run"))
            && (epoch > last || name == "stopped_early_after" && epoch < last)
        {
            return Err(format!("{name} is {epoch}, but the last trained epoch is {last}"));
        }
    }
    if let (Some(trained), Some(epochs)) = (number("epochs_run"), run["config"]["epochs"].as_f64())
        && (trained > epochs
            || trained < epochs && run["stopped_early_after"].is_null() && !stopped_at_target(run))
    {
        return Err(format!("epochs_run is {trained}, but config.epochs is {epochs}"));
    }
    times_agree(run)?;
    by_rank_agree(run)?;
    by_class_agree(run)?;
    for (at, attempt) in run["history"].as_array().into_iter().flatten().enumerate() {
        if let (Some(step), Some(steps)) = (attempt["step"].as_f64(), number("steps"))
            && step > steps
        {
            return Err(format!("history[{at}].step is {step}, but the run has {steps} steps"));
        }
    }
    rank_counts_agree(run)?;
    Ok(())
}

/// Checks the numbers of ranks in `history` against each other and against `world_size`.
fn rank_counts_agree(run: &Value) -> Result<(), String> {
    let Some(mut ranks) = run["world_size"].as_u64() else { return Ok(()) };
    let history = run["history"].as_array().map_or(&[][..], Vec::as_slice);
    for (at, attempt) in history.iter().enumerate().rev() {
        for change in attempt["changed"].as_array().into_iter().flatten().rev() {
            if change["field"] != WORLD_SIZE {
                continue;
            }
            if change["to"] != ranks {
                return Err(format!(
                    "history[{at}] changes world_size to {}, but it was {ranks} afterwards",
                    change["to"]
                ));
            }
            // Each rank has a sample at least.
            let most = run["data"]["train_samples"].as_u64().unwrap_or(u64::MAX);
            let from = change["from"].as_u64().filter(|from| (1..=most).contains(from));
            ranks = from.ok_or_else(|| {
                format!("history[{at}] changes world_size from {}, of {most} samples", change["from"])
            })?;
        }
    }
    Ok(())
}

/// Values that must agree may differ by this much. The unit is percent for accuracies, precision, recall and
/// CPU time, and MB for memory.
const LEAST_SHARE: f64 = 0.01;

/// Whether two percentages are equal within [`LEAST_SHARE`]. NaN is the percentage of zero samples, and
/// equals every percentage.
fn is_same(a: f64, b: f64) -> bool {
    a.is_nan() || b.is_nan() || (a - b).abs() < LEAST_SHARE
}

/// Checks results over all ranks against the results of each rank.
fn by_rank_agree(run: &Value) -> Result<(), String> {
    let Some(ranks) = run["per_rank"].as_array().filter(|ranks| !ranks.is_empty()) else { return Ok(()) };
    let list = |name: &str| ranks.iter().map(|rank| rank[name].as_f64()).collect::<Option<Vec<f64>>>();
    let source = "per_rank";
    for name in ["train_samples", "test_samples"] {
        let sum: Option<u64> = ranks.iter().map(|rank| rank[name].as_u64()).sum();
        if let Some(sum) = sum {
            is_value(&format!("data.{name}"), &run["data"][name], sum, source)?;
        }
    }
    for (name, samples) in [
        ("train_accuracy", "train_samples"),
        ("test_accuracy", "test_samples"),
        ("test_loss", "test_samples"),
        ("int8_test_accuracy", "test_samples"),
        ("int8_test_loss", "test_samples"),
    ] {
        let with: Vec<_> = ranks.iter().filter(|rank| rank[samples].as_u64() != Some(0)).collect();
        let values: Option<Vec<[f64; 2]>> =
            with.iter().map(|rank| Some([rank[samples].as_f64()?, rank[name].as_f64()?])).collect();
        let Some(values) = values else { continue };
        let count: f64 = values.iter().map(|[count, _]| count).sum();
        let mean = values.iter().map(|[samples, value]| samples / count * value).sum::<f64>();
        let slack = if name.ends_with("loss") { 1e-6 * mean.max(1.0) } else { LEAST_SHARE };
        is_near(name, run, Some(mean), slack, source)?;
    }
    let waits = list("comm_seconds").map(|of| of.iter().sum::<f64>() / of.len() as f64);
    is_near("comm_seconds", run, waits, 1e-6 * waits.unwrap_or(0.0).max(1.0), source)?;
    for name in ["peak_rss_mb", "live_mb"] {
        is_near(name, run, list(name).map(|of| of.into_iter().fold(0.0, f64::max)), LEAST_SHARE, source)?;
    }
    let others = run["others_cpu_percent_by_host"].as_object();
    let highest = others.and_then(|of| of.values().filter_map(Value::as_f64).reduce(f64::max));
    is_near("others_cpu_percent", run, highest, LEAST_SHARE, "others_cpu_percent_by_host")
}

/// Sums over the classes of a test, and the number of samples of the largest class.
struct ClassSums {
    samples: u64,
    named: u64,
    correct: u64,
    largest: u64,
}

impl ClassSums {
    fn from_classes(classes: &[ClassRecord]) -> Self {
        let sum = |count: fn(&ClassRecord) -> u64| classes.iter().map(count).fold(0, u64::saturating_add);
        Self {
            samples: sum(|class| class.samples),
            named: sum(|class| class.named),
            correct: sum(|class| class.correct),
            largest: classes.iter().map(|class| class.samples).max().unwrap_or(0),
        }
    }
}

/// Checks the results by class of the last test against each other, and against the results over all classes.
fn by_class_agree(run: &Value) -> Result<(), String> {
    let found = run["by_class"].as_object().and_then(|_| ByClass::deserialize(&run["by_class"]).ok());
    let Some(by_class) = found else { return Ok(()) };
    let sums = ClassSums::from_classes(&by_class.classes);
    for (name, expected) in
        [("test_samples", sums.samples), ("test_samples", sums.named), ("test_largest_class", sums.largest)]
    {
        if let Some(value) = run["data"][name].as_u64().filter(|&value| value != expected) {
            return Err(format!("data.{name} is {value}, expected {expected} from by_class.classes"));
        }
    }
    let names = run["data"]["class_names"].as_array().filter(|names| !names.is_empty());
    for (at, class) in by_class.classes.iter().enumerate() {
        let name = names.map(|names| names.get(at).unwrap_or(&Value::Null));
        class_agrees(&format!("by_class.classes[{at}]"), class, name, sums.samples as f64)?;
    }
    shares_agree(run, &by_class, &sums)?;
    matrix_agrees(&by_class)
}

/// Checks the results of one class against each other, and against `all`, the number of samples of all
/// classes. Also checks that the class is called `name`, its name in the data set.
fn class_agrees(path: &str, class: &ClassRecord, name: Option<&Value>, all: f64) -> Result<(), String> {
    let ClassRecord { samples, named, correct, precision, recall, .. } = class;
    if correct > samples || correct > named {
        return Err(format!("{path}.correct is {correct}, but samples is {samples} and named is {named}"));
    }
    for (name, share, whole) in [("recall", recall, samples), ("precision", precision, named)] {
        let expected = 100.0 * *correct as f64 / *whole as f64;
        if let Some(share) = share.filter(|&share| !is_same(share, expected)) {
            return Err(format!("{path}.{name} is {share}, but {correct} of {whole} are correct"));
        }
    }
    if let Some(name) = name.filter(|name| **name != class.name) {
        return Err(format!("{path}.name is {:?}, but data.class_names has {name}", class.name));
    }
    let right = all + 2.0 * *correct as f64 - *samples as f64 - *named as f64;
    if !is_same(class.accuracy, 100.0 * right / all) {
        return Err(format!("{path}.accuracy is {}, but {right} of {all} are correct", class.accuracy));
    }
    Ok(())
}

/// Checks the accuracies over all classes against the counts of each class.
fn shares_agree(run: &Value, by_class: &ByClass, sums: &ClassSums) -> Result<(), String> {
    let ByClass { balanced_accuracy, largest_class_accuracy, classes, .. } = by_class;
    let recalls: Vec<f64> = classes.iter().filter_map(|class| class.recall).collect();
    let balanced = recalls.iter().sum::<f64>() / recalls.len() as f64;
    let share = |samples: u64| 100.0 * samples as f64 / sums.samples as f64;
    for (name, value, expected) in [
        ("test_accuracy", run["test_accuracy"].as_f64(), share(sums.correct)),
        ("by_class.balanced_accuracy", Some(*balanced_accuracy), balanced),
        ("by_class.largest_class_accuracy", Some(*largest_class_accuracy), share(sums.largest)),
    ] {
        if let Some(value) = value.filter(|&value| !is_same(value, expected)) {
            return Err(format!("{name} is {value}, expected {expected} from by_class.classes"));
        }
    }
    Ok(())
}

/// Checks the confusion matrix against the classes. With many classes, the matrix is absent.
fn matrix_agrees(ByClass { classes, confusion_matrix: matrix, .. }: &ByClass) -> Result<(), String> {
    let is_whole = matrix.len() == classes.len() && matrix.iter().all(|row| row.len() == classes.len());
    let is_own = |(at, class): (usize, &ClassRecord)| {
        let row = matrix[at].iter().copied().fold(0, u64::saturating_add);
        let column = matrix.iter().map(|row| row[at]).fold(0, u64::saturating_add);
        (row, column, matrix[at][at]) == (class.samples, class.named, class.correct)
    };
    if matrix.is_empty() || is_whole && classes.iter().enumerate().all(is_own) {
        Ok(())
    } else {
        Err("by_class.confusion_matrix does not match the counts in by_class.classes".into())
    }
}

/// Checks the bounds of each number in `value`, which is at `path`.
fn check_numbers(path: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(field, value)| {
            let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
            check_numbers(&path, value)
        }),
        Value::Array(values) => values
            .iter()
            .enumerate()
            .try_for_each(|(at, value)| check_numbers(&format!("{path}[{at}]"), value)),
        Value::Number(number) => match out_of_bounds(path, &number.to_string()) {
            Some(problem) => Err(format!("{path}: {problem}")),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::testing::run;

    pub fn json() -> Value {
        let run = run((1, 2), &[], 4.0);
        let record = run_record::RunRecord { results: Some(run.results), ..run.record };
        let mut json = serde_json::to_value(record).expect("a record is JSON");
        let of_rank = |rank| {
            serde_json::json!({
                "rank": rank, "host": "node0", "train_samples": 5, "test_samples": 5,
                "comm_seconds": 0.4, "peak_rss_mb": 50.0,
            })
        };
        json["per_rank"] = [0, 1].map(of_rank).to_vec().into();
        for name in
            ["train_samples", "train_available", "test_samples", "test_available", "test_largest_class"]
        {
            json["data"][name] = 10.into();
        }
        json
    }

    #[test]
    fn a_run_as_it_is_written_passes() {
        assert_eq!(check(&json()), Ok(()));
        let mut waiting = json();
        waiting.as_object_mut().unwrap().remove("steps");
        assert_eq!(check(&waiting).unwrap_err(), "`steps` is missing");
        waiting["status"] = "running".into();
        assert_eq!(check(&waiting), Ok(()));
        waiting.as_object_mut().unwrap().remove("config");
        assert_eq!(check(&waiting).unwrap_err(), "`config` is missing");
    }

    #[test]
    fn results_that_contradict_each_other_are_named() {
        let mut whole = json();
        let confusion: run_record::Confusion = [(0, 0, 5), (0, 1, 1), (1, 1, 4)].into_iter().collect();
        whole["by_class"] =
            serde_json::to_value(ByClass::from_confusion(&confusion, &["a".into(), "b".into()])).unwrap();
        (whole["data"]["test_samples"], whole["data"]["test_largest_class"]) = (10.into(), 6.into());
        (whole["test_accuracy"], whole["train_accuracy"]) = (90.0.into(), 75.0.into());
        for (rank, accuracies) in [[80.0, 100.0], [70.0, 80.0]].into_iter().enumerate() {
            let of = &mut whole["per_rank"][rank];
            (of["train_accuracy"], of["test_accuracy"]) = (accuracies[0].into(), accuracies[1].into());
        }
        assert_eq!(check(&whole), Ok(()));
        for (path, value) in [
            ("/peak_rss_mb", 51.0),
            ("/comm_seconds", 0.3),
            ("/data/train_samples", 11.0),
            ("/train_accuracy", 76.0),
            ("/per_rank/1/test_accuracy", 81.0),
            ("/data/test_largest_class", 5.0),
            ("/by_class/balanced_accuracy", 90.0),
            ("/by_class/largest_class_accuracy", 61.0),
            ("/by_class/classes/0/samples", 7.0),
            ("/by_class/classes/1/named", 6.0),
            ("/by_class/classes/0/correct", 6.0),
            ("/by_class/classes/0/recall", 84.0),
            ("/by_class/classes/0/accuracy", 91.0),
            ("/by_class/classes/1/precision", 81.0),
            ("/by_class/confusion_matrix/0/1", 2.0),
        ] {
            let mut edited = whole.clone();
            let field = edited.pointer_mut(path).unwrap();
            *field = if field.is_u64() { (value as u64).into() } else { value.into() };
            assert!(check(&edited).is_err(), "{path}");
        }
    }

    #[test]
    fn absurd_values_are_named_with_their_field() {
        for (path, value, expected) in [
            ("/status", "5", "status: expected text, found 5"),
            ("/steps", "0", "steps: 0 must be above 0"),
            ("/steps", "-5", "steps: -5 is outside 0 to 1e12"),
            ("/steps", "\"many\"", "steps: expected a whole number from 0, found \"many\""),
            ("/ms_per_step", "0", "ms_per_step: 0 must be above 0"),
            ("/ms_per_step", "null", "ms_per_step: expected a number, found null"),
            ("/world_size", "0", "world_size: 0 must be above 0"),
            ("/world_size", "1000000000000", "world_size is 1000000000000, but the length of hosts is 2"),
            ("/hosts", "[\"a\",\"b\",\"c\"]", "world_size is 2, but the length of hosts is 3"),
            ("/per_rank", "[{\"rank\":0}]", "per_rank[0]: `host` is missing"),
            ("/train_seconds", "-1.5", "train_seconds: -1.5 is outside 0 to 1e12"),
            ("/train_seconds", "0.0", "train_seconds: 0.0 must be above 0"),
            ("/checkpoint_seconds", "-1", "checkpoint_seconds: -1 is outside 0 to 1e12"),
            ("/test_accuracy", "140", "test_accuracy: 140 is outside 0 to 100"),
            ("/step_ms/forward", "-1", "step_ms.forward: -1 is outside 0"),
            ("/config/epochs", "0", "config.epochs: 0 must be above 0"),
            ("/config/epochs", "5", "epochs_run is 3, but config.epochs is 5"),
            ("/config/lr", "-1", "config.lr: -1 is outside 0 to"),
            ("/machines", "[{\"host\": 5}]", "machines[0].host: expected text, found 5"),
            ("/config/accumulate", "0", "config: a training step has 0 samples"),
            ("/config/train_batch_size", "0", "config: a training step has 0 samples"),
            ("/per_rank/1/train_samples", "-1", "per_rank[1].train_samples: -1 is outside 0"),
        ] {
            let mut json = json();
            match (path, json.pointer_mut(path)) {
                (_, Some(field)) => *field = serde_json::from_str(value).unwrap(),
                (path, None) => json[&path[1..]] = serde_json::from_str(value).unwrap(),
            }
            let found = check(&json).unwrap_err();
            assert!(found.starts_with(expected), "{path} {value}: {found}");
        }
    }

    #[test]
    fn values_of_another_run_are_named() {
        let mut whole = json();
        let places = whole["places"].as_array_mut().unwrap();
        places.iter_mut().for_each(|place| place["cores"] = 2.into());
        // Three steps that took 4/3 s each.
        whole["step_ms"] = serde_json::json!({"backward": 1000.0, "rest": 1000.0 / 3.0});
        (whole["steps"], whole["ms_per_step"]) = (3.into(), (4000.0 / 3.0).into());
        whole["images_per_second"] = 7.5.into();
        (whole["data"]["classes"], whole["data"]["class_names"]) = (2.into(), vec!["a", "b"].into());
        whole["others_cpu_percent_by_host"]["node0"] = 3.5.into();
        whole["others_cpu_percent"] = 3.5.into();
        assert_eq!(check(&whole), Ok(()));
        for (path, value, expected) in [
            ("/topology", "2x1".into(), r#"topology is "2x1", expected "1x2" from hosts"#),
            ("/topology", "1x1".into(), r#"topology is "1x1", expected "1x2" from hosts"#),
            ("/hosts/1", "node1".into(), r#"topology is "1x2", expected "2x1" from hosts"#),
            ("/shared_machine", true.into(), "shared_machine is true, expected false from places"),
            ("/config/threads", 2.into(), "oversubscribed is false, expected true from places"),
            ("/places/1/rank", 0.into(), "places[1].rank is 0, expected 1 from its position"),
            ("/per_rank/1/host", "b".into(), r#"per_rank[1].host is "b", expected "node0" from hosts"#),
            ("/images_per_second", 8.5.into(), "images_per_second is 8.5, expected 7.5 from"),
            ("/steps", 4.into(), "ms_per_step is 1333.3333333333333, but 4 steps took 4 s"),
            (
                "/config/train_batch_size",
                2.into(),
                "steps is 3, expected 9 from samples, epochs_run and batch",
            ),
            (
                "/step_ms/backward",
                900.0.into(),
                "ms_per_step is 1333.3333333333333, expected 1233.3333333333333 from step_ms",
            ),
            ("/data/test_available", 9.into(), "data.test_samples is 10, expected 9 from config"),
            ("/config/train_samples", 5.into(), "data.train_samples is 10, expected 5 from config"),
            ("/others_cpu_percent", 0.0.into(), "others_cpu_percent is 0, expected 3.5 from"),
            ("/data/classes", 3.into(), "data.classes is 3, expected 2 from data.class_names"),
            ("/data/std", vec![1.0].into(), "data.std must have"),
            ("/best_epoch", 4.into(), "best_epoch is 4, but the last trained epoch is 3"),
            ("/stopped_early_after", 2.into(), "stopped_early_after is 2, but the last trained epoch is 3"),
        ] {
            let mut edited = whole.clone();
            let (parent, name) = path.rsplit_once('/').unwrap();
            match edited.pointer_mut(parent).unwrap() {
                Value::Array(list) => list[name.parse::<usize>().unwrap()] = value,
                fields => fields[name] = value,
            }
            let found = check(&edited).err().unwrap_or_default();
            assert!(found.starts_with(expected), "{path}: {found}");
        }
        // Older versions measured these times differently, so they are not checked against each other.
        (whole["step_ms"]["rest"], whole["images_per_second"]) = (0.0.into(), 99.0.into());
        assert_eq!(check(&whole), Ok(()));
    }
}
