//! Numbers in `run.json`, each checked on its own and against others: somebody may have edited the file.

use run_record::Results;
use serde_json::Value;

use super::csv_table::problem;

/// Checks the numbers of a run, and those of its results.
///
/// # Errors
/// The field and what is wrong with it.
pub fn check(run: &Value) -> Result<(), String> {
    each("", "", run)?;
    if run["status"] == "completed" {
        serde_path_to_error::deserialize::<_, Results>(run).map_err(|error| {
            match error.path().to_string() {
                path if path == "." => error.into_inner().to_string(),
                path => format!("{path}: {}", error.into_inner()),
            }
        })?;
    }
    agree(run)?;
    let ranks = run["per_rank"].as_array().map(Vec::as_slice).unwrap_or_default();
    let world_size = run["world_size"].as_u64().unwrap_or_default();
    for (name, count) in [("hosts", run["hosts"].as_array().map(Vec::len)), ("per_rank", Some(ranks.len()))] {
        let count = count.unwrap_or_default() as u64;
        if count != world_size && (name == "hosts" || count > 0) {
            return Err(format!("world_size: {world_size}, and {count} of them in {name}"));
        }
    }
    let topology = run["topology"].as_str().unwrap_or_default();
    match ranks_of(topology) {
        Some(ranks) if ranks != world_size => {
            Err(format!("topology: {topology} is of {ranks} ranks, and world_size is {world_size}"))
        }
        None => Err(format!("topology: {topology:?} is not machines x processes, such as 2x2 or 3on2")),
        Some(_) => Ok(()),
    }
}

/// Checks values against each other, where both are there.
fn agree(run: &Value) -> Result<(), String> {
    let of = |name: &str| run[name].as_f64();
    if let (Some(waits), Some(training)) = (of("comm_seconds"), of("train_seconds"))
        && waits > 1.05 * training + 0.1
    {
        return Err(format!("comm_seconds: {waits}, and the training took {training} s"));
    }
    if let (Some(ms), Some(steps), Some(training)) = (of("ms_per_step"), of("steps"), of("train_seconds"))
        && (ms * steps / 1e3 - training).abs() > 0.02 * training + 0.01
    {
        return Err(format!("ms_per_step: {ms}, and {steps} steps took {training} s"));
    }
    let data = |name: &str| run["data"][name].as_u64();
    for (part, whole) in [
        ("train_samples", "train_available"),
        ("test_samples", "test_available"),
        ("test_largest_class", "test_samples"),
    ] {
        if let (Some(few), Some(many)) = (data(part), data(whole))
            && few > many
        {
            return Err(format!("data.{part}: {few}, and {whole} is {many}"));
        }
    }
    for (at, attempt) in run["history"].as_array().into_iter().flatten().enumerate() {
        if let (Some(step), Some(steps)) = (attempt["step"].as_f64(), of("steps"))
            && step > steps
        {
            return Err(format!("history[{at}].step: {step}, and the run has {steps} steps"));
        }
    }
    Ok(())
}

/// Ranks of `2x3` or, if machines have different numbers of them, of `3on2`.
pub fn ranks_of(topology: &str) -> Option<u64> {
    match (topology.split_once('x'), topology.split_once("on")) {
        (Some((machines, processes)), _) => {
            machines.parse::<u64>().ok()?.checked_mul(processes.parse().ok()?)
        }
        (None, Some((ranks, _))) => ranks.parse().ok(),
        (None, None) => None,
    }
}

/// Checks each number below `path`, by the names of the fields; those of a map in a field are as the field.
fn each(path: &str, name: &str, value: &Value) -> Result<(), String> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(field, value)| {
            let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
            let is_map = ["step_ms", "others_cpu_percent_by_host"].contains(&name);
            each(&path, if is_map { name } else { field }, value)
        }),
        Value::Array(values) => {
            values.iter().enumerate().try_for_each(|(at, value)| each(&format!("{path}[{at}]"), name, value))
        }
        Value::Number(number) => {
            problem(name, &number.to_string()).map_or(Ok(()), |problem| Err(format!("{path}: {problem}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run;

    fn json() -> Value {
        let run = run((1, 2), &[], 4.0);
        let record = crate::config::RunRecord { results: Some(run.results), ..run.record };
        let mut json = serde_json::to_value(record).expect("a record is JSON");
        let of_rank = |rank| {
            serde_json::json!({
                "rank": rank, "host": "a", "train_samples": 5, "test_samples": 5, "comm_seconds": 0.1,
                "peak_rss_mb": 50.0,
            })
        };
        json["per_rank"] = [0, 1].map(of_rank).to_vec().into();
        json
    }

    #[test]
    fn a_run_as_it_is_written_passes() {
        assert_eq!(check(&json()), Ok(()));
        let mut waiting = json();
        waiting.as_object_mut().unwrap().remove("steps");
        assert_eq!(check(&waiting).unwrap_err(), "missing field `steps`");
        waiting["status"] = "running".into();
        assert_eq!(check(&waiting), Ok(()));
        for (topology, ranks) in [("2x3", Some(6)), ("3on2", Some(3)), ("x", None), ("two", None)] {
            assert_eq!(ranks_of(topology), ranks, "{topology}");
        }
    }

    #[test]
    fn absurd_values_are_named_with_their_field() {
        for (path, value, expected) in [
            ("/steps", "0", "steps: 0 is not from 1 to 1e12"),
            ("/steps", "-5", "steps: \"-5\" is not a whole number"),
            ("/steps", "\"many\"", "steps: invalid type: string \"many\", expected usize"),
            ("/ms_per_step", "0", "ms_per_step: 0 is not above 0"),
            ("/ms_per_step", "null", "ms_per_step: invalid type: null, expected f64"),
            ("/world_size", "0", "world_size: 0 is not from 1"),
            ("/world_size", "1000000000000", "world_size: 1000000000000, and 2 of them in hosts"),
            ("/world_size", "1e12", "world_size: \"1000000000000.0\" is not a whole number"),
            ("/hosts", "[\"a\",\"b\",\"c\"]", "world_size: 2, and 3 of them in hosts"),
            ("/per_rank", "[{\"rank\":0}]", "per_rank[0]: missing field `host`"),
            ("/comm_seconds", "1e7", "comm_seconds: 10000000, and the training took 4 s"),
            ("/train_seconds", "5.0", "ms_per_step: "),
            ("/steps", "5", "ms_per_step: "),
            (
                "/history",
                "[{\"started_at\":\"\",\"step\":99999999}]",
                "history[0].step: 99999999, and the run has ",
            ),
            ("/topology", "\"9x9\"", "topology: 9x9 is of 81 ranks, and world_size is 2"),
            ("/topology", "\"\"", "topology: \"\" is not machines x processes"),
            ("/train_seconds", "-1.5", "train_seconds: -1.5 is not from 0 to 1e9"),
            ("/train_seconds", "0.0", "train_seconds: 0.0 is not above 0"),
            ("/checkpoint_seconds", "-1", "checkpoint_seconds: -1 is not from 0 to 1e9"),
            ("/start_up_seconds", "-1", "start_up_seconds: -1 is not from 0 to 1e9"),
            ("/test_accuracy", "140", "test_accuracy: 140 is not from 0 to 100"),
            ("/step_ms/forward", "-1", "step_ms.forward: -1 is not from 0"),
            ("/config/epochs", "0", "config.epochs: 0 is not from 1"),
            ("/data/test_samples", "0", "data.test_largest_class: 1135, and test_samples is 0"),
            ("/data/test_samples", "10001", "data.test_samples: 10001, and test_available is 10000"),
            (
                "/data/test_largest_class",
                "10001",
                "data.test_largest_class: 10001, and test_samples is 10000",
            ),
            ("/per_rank/1/train_samples", "-1", "per_rank[1].train_samples: -1 is not from 0"),
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
}
