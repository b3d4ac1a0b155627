//! The times in `run.json`.

use serde_json::Value;

use crate::harness::*;

/// The seconds of start-up, training, tests and checkpoints.
const PARTS: [&str; 4] = ["start_up_seconds", "train_seconds", "test_seconds", "checkpoint_seconds"];

fn seconds(run: &Value, name: &str) -> f64 {
    run[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {run}"))
}

/// Each part takes some time, and parts do not overlap: their sum is at most the total.
#[test]
fn the_total_is_start_up_training_tests_and_checkpoints() {
    let lab = Lab::new();
    // The times of a resumed run are sums over all its processes.
    let job = lab.command(2, "stopped", &["--epochs", "30000", "--train-samples", "640"]);
    let output = lab.stopped_after(105, "stopped", job);
    assert_eq!(output.status.code(), Some(75), "{}", text(&output));
    let stopped = lab.run_json("stopped");
    assert_eq!(stopped["status"], "stopped");
    assert!(stopped["ended_at"].as_str().unwrap() >= stopped["started_at"].as_str().unwrap());
    let done = std::fs::read_to_string(lab.path("stopped/epochs.csv")).unwrap().lines().count() - 1;
    assert!(done >= 10, "{done}");
    let state = std::fs::read(lab.checkpoints("stopped").pop().unwrap().join("state.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    let before = PARTS.map(|name| seconds(&state["position"], name));
    output_of(lab.resume(2, "stopped", &[&format!("--epochs={}", done + 20)]));
    let run = lab.run_json("stopped");
    let after = PARTS.map(|name| seconds(&run, name));
    let (sum, total) = (after.iter().sum::<f64>(), seconds(&run, "total_seconds"));
    assert!(after.iter().all(|&part| part > 0.0), "{after:?}");
    assert!(sum <= total * (1.0 + 1e-9), "{after:?} are {sum} of {total} s");
    assert!(before.iter().zip(&after).all(|(before, after)| before < after), "{before:?}, then {after:?}");
    assert_eq!(run["epochs_run"], done + 20);
}
