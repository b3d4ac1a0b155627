//! `run.json`: what a run records about itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::harness::*;

fn seconds(run: &Value, name: &str) -> f64 {
    run[name].as_f64().unwrap_or_else(|| panic!("{name} is missing in {run}"))
}

#[test]
fn a_run_records_its_machine_its_data_and_the_load_of_others() {
    let lab = Lab::new();
    let options = ["--epochs", "60", "--backend", "gloo", "--train-samples", "640", "--test-samples", "300"];
    let run = lab.train(2, "run", &options);
    let others = seconds(&run, "others_cpu_percent");
    assert!((0.0..=100.0).contains(&others), "{others}%");
    let by_host = run["others_cpu_percent_by_host"].as_object().unwrap();
    assert_eq!(by_host.values().map(|v| v.as_f64().unwrap()).collect::<Vec<_>>(), [others]);

    let machines = run["machines"].as_array().unwrap();
    assert_eq!(machines.len(), 1, "one host");
    assert_eq!(machines[0]["host"], run["hosts"][0]);
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    assert_eq!(machines[0]["kernel"], read("/proc/sys/kernel/osrelease").trim());
    let kilobytes = machines[0]["memory_bytes"].as_u64().unwrap() / 1024;
    assert!(read("/proc/meminfo").contains(&kilobytes.to_string()), "{kilobytes}");
    assert!(read("/proc/cpuinfo").contains(machines[0]["cpu"].as_str().unwrap()));
    assert!(["portable", "neon", "avx2", "avx512"].contains(&run["simd_level"].as_str().unwrap()));
    assert!(run["connection"].as_str().unwrap().starts_with("tcp over lo ("), "{run}");
    assert!(run["versions"]["gloo"].as_str().unwrap().starts_with("0."), "{run}");
    assert!(run["git_dirty"].is_boolean() || run["git"] == "unknown", "{run}");

    let line: Vec<&str> = run["command_line"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(
        line[0].ends_with("mpiburn") && line[1] == "train" && line.contains(&"--train-samples"),
        "{line:?}"
    );
    let data = &run["data"];
    let samples = ["train_samples", "train_available", "test_samples", "test_available"];
    assert_eq!(samples.map(|name| data[name].as_u64().unwrap()), [640, 6400, 300, 500]);
    assert_eq!(data["train_sha256"].as_str().unwrap().len(), 64);
    let root = run["config"]["data_root"].as_str().unwrap();
    let labels = std::fs::read(lab.path(root).join("t10k-labels-idx1-ubyte")).unwrap();
    let of_class = |class| labels[8..][..300].iter().filter(|&&label| label == class).count() as u64;
    assert_eq!(data["test_largest_class"].as_u64(), (0..10).map(of_class).max(), "of the tested samples");
    let (from, to) = (run["started_at"].as_str().unwrap(), run["ended_at"].as_str().unwrap());
    assert!(from.len() == 20 && from.ends_with('Z') && from.contains('T') && from <= to, "{from} to {to}");
    let other = lab.train(1, "other", &["--epochs", "1", "--train-samples", "641"]);
    assert_ne!(other["data"]["train_sha256"], data["train_sha256"], "a digest of the samples used");
    assert!(other["connection"].is_null() && other["versions"]["gloo"].is_null());
}

/// A rank that starts an epoch late makes other ranks wait. Waits and phases are measured by the same clock
/// as the training: the waits must be at most its time, and the phases of a step must sum to the step.
#[test]
fn waits_and_phases_fit_into_the_training_of_all_processes_of_a_run() {
    let lab = Lab::new();
    let check = |run: &Value| {
        let [waits, training] = ["comm_seconds", "train_seconds"].map(|name| seconds(run, name));
        assert!(waits > 0.0 && waits <= training, "{waits} of {training} s");
        let phases: f64 = run["step_ms"].as_object().unwrap().values().filter_map(Value::as_f64).sum();
        let step = seconds(run, "ms_per_step");
        assert!((phases - step).abs() <= 1e-6 * step, "{} are {phases} of {step} ms", run["step_ms"]);
    };
    // Epochs of one step, which takes less time than the start of the epoch.
    check(&lab.train(2, "run", &["--epochs", "20", "--train-samples", "64", "--test-samples", "20"]));
    // With local updates, the ranks also communicate in tests and checkpoints, which are not in these times.
    let local = ["--sync-every=2", "--sync-delay=1", "--reduce=ordered"];
    let short = ["--epochs=20", "--train-samples=64", "--test-samples=20"];
    check(&lab.train(2, "local", &[&short[..], &local].concat()));
    let mut command = on_ranks(2, binary());
    command.args(["train", "--epochs=40", "--resume"]).arg(lab.path("run"));
    assert!(run(command).status.success());
    check(&lab.run_json("run"));
}

/// The paths of all fields of a JSON value, such as `places[].host`. A map by host is one field, and the
/// options are the one field `*`.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(options) if path == "schema" => {
            options.values().for_each(|value| fields(value, "schema.*", found));
        }
        Value::Object(object) if path != "others_cpu_percent_by_host" => {
            for (name, value) in object {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                fields(value, &path, found);
            }
        }
        Value::Array(list) if list.first().is_some_and(Value::is_object) => {
            list.iter().for_each(|value| fields(value, &format!("{path}[]"), found));
        }
        _ => drop(found.insert(path.to_owned())),
    }
}

#[test]
fn the_documentation_lists_every_field_and_no_other() {
    let lab = Lab::new();
    let short = ["--epochs", "1", "--train-samples", "64", "--test-samples", "32"];
    // These runs together have every field of run.json.
    let stops = ["--epochs=9", "--lr=0", "--early-stopping=1", "--precision=fp16", "--target-accuracy=1"];
    lab.train(2, "gloo", &[&short[..], &["--backend", "gloo", "--precision", "bf16"]].concat());
    lab.train(1, "stops", &[&short[2..], &stops].concat());
    lab.train(1, "int8", &[&short[..], &["--quantize", "qat"]].concat());
    // A resumed run with a warning: a file is where its checkpoint should be written.
    lab.train(1, "resumed", &short);
    std::fs::write(lab.path("resumed/checkpoints/.step-00000004.tmp"), "").unwrap();
    let mut command = on_ranks(1, binary());
    command.args(["train", "--epochs=3", "--resume"]).arg(lab.path("resumed"));
    assert!(run(command).status.success());
    let mut command = Command::new(binary());
    command.args(["launch", "1x1", "--restart", "1", "--", "train", "--lr", "1e30", "--data-root"]);
    command.arg(digits()).arg("--out").arg(lab.path("failed")).args(short);
    must_fail(command);
    std::fs::write(lab.path("table.csv"), "x,class\n1,a\n2,a\n3,b\n4,b\n").unwrap();
    for (class, value) in [("a", 10), ("a", 20), ("b", 30), ("b", 40)] {
        let folder = lab.path("pictures").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        run_report::write_png(&folder.join(format!("{value}.png")), [6, 4], &[value; 72]).unwrap();
    }
    for (source, model, options) in [("table.csv", "mlp", &[][..]), ("pictures", "convnet", &["--size", "5"])]
    {
        let data = lab.path(&format!("{model}-data"));
        let mut command = Command::new(binary());
        command.args(["data", "import"]).arg(lab.path(source)).arg("--out").arg(&data).args(options);
        assert!(run(command).status.success());
        let options = ["--model", model, "--epochs", "1", "--data-root", data.to_str().unwrap()];
        lab.train(1, &format!("{model}-run"), &options);
    }
    let mut written = BTreeSet::new();
    for name in ["gloo", "stops", "int8", "resumed", "failed", "mlp-run", "convnet-run"] {
        fields(&lab.run_json(name), "", &mut written);
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/run.json.md");
    let page = std::fs::read_to_string(page).expect("docs/run.json.md exists");
    // The first cell of a row has one or more fields: `a`, `b`.
    let cells = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    let mut listed = BTreeSet::new();
    let names = cells.flat_map(|(names, _)| names.split("`, `"));
    let repeated: Vec<&str> = names.filter(|&name| !listed.insert(name.to_owned())).collect();
    let missing: Vec<&String> = written.difference(&listed).collect();
    let surplus: Vec<&String> = listed.difference(&written).collect();
    assert!(
        missing.is_empty() && surplus.is_empty() && repeated.is_empty(),
        "not documented: {missing:#?}; never written: {surplus:#?}; listed twice: {repeated:#?}"
    );
}

/// The memory that a training step uses does not grow with the number of epochs before it.
#[test]
fn live_memory_does_not_depend_on_the_number_of_epochs() {
    let lab = Lab::new();
    let live = |epochs: &str| {
        let options = ["--train-samples", "64", "--test-samples", "200", "--epochs", epochs];
        lab.train(1, epochs, &options)["per_rank"][0]["live_mb"].as_f64().expect("a number")
    };
    let [one, three] = [live("1"), live("3")];
    assert!((three - one).abs() < 0.01 * one, "{one} MB after one epoch, {three} after three");
}
