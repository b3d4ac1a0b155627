//! `mpiburn profile`: the rows of its tables, its options, and errors.

use serde_json::Value;

use crate::harness::*;

fn profile(ranks: usize, arguments: &[&str]) -> Job {
    job(ranks).arg("profile").args(arguments).clone()
}

/// Runs a profile; returns its JSON file and what it printed.
fn figures(lab: &Lab, ranks: usize, arguments: &[&str]) -> (Value, String) {
    let json = lab.path("profile.json");
    let printed = succeeds(profile(ranks, arguments).arg("--json").arg(&json));
    let figures = read_json(&json);
    sums_to_the_wall_time(&figures);
    (figures, printed)
}

fn operators(figures: &Value) -> &Vec<Value> {
    figures["operators"].as_array().expect("operators")
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"))
}

fn sums_to_the_wall_time(figures: &Value) {
    let (rows, wall) = (operators(figures), number(figures, "wall_ms"));
    let sum: f64 = rows.iter().map(|row| number(row, "self_cpu_ms")).sum();
    assert!(wall > 0.0 && (sum - wall).abs() <= 1e-6 * wall, "{sum} of {wall}");
    for row in rows {
        assert!(number(row, "calls") >= 1.0, "{row}");
        assert!(number(row, "self_cpu_ms") <= number(row, "cpu_total_ms") + 1e-9, "{row}");
        for field in ["memory_bytes", "self_memory_bytes", "peak_memory_bytes"] {
            assert!(row[field].is_i64() || row[field].is_u64(), "{row}");
        }
    }
    let rest: Vec<&Value> = rows.iter().filter(|row| row["phase"] == "rest").collect();
    assert_eq!(rest.len(), 1);
    let accounted = 100.0 * (1.0 - number(rest[0], "self_cpu_ms") / wall);
    assert!((number(figures, "accounted_percent") - accounted).abs() < 1e-6);
}

/// Names of the operators in a phase.
fn names(figures: &Value, phase: &str) -> Vec<String> {
    let rows = operators(figures).iter().filter(|row| row["phase"] == phase);
    let mut names: Vec<String> = rows.map(|row| row["name"].as_str().expect("a name").to_owned()).collect();
    names.sort();
    names
}

#[test]
fn inference_is_profiled_by_the_layers_names() {
    let lab = Lab::new();
    let csv = lab.path("profile.csv");
    let options = ["--batches", "5", "--batch", "8", "--csv", csv.to_str().unwrap()];
    let (fused, printed) = figures(&lab, 1, &options);
    assert_eq!(names(&fused, "forward"), ["conv1, conv2 2x conv+relu+max pool", "flatten", "linear"]);
    assert_eq!(names(&fused, "data"), ["samples bytes to tensor"]);
    assert!(operators(&fused).iter().all(|row| row["calls"] == 5), "{fused}");
    let titles = ["self %", "CPU total", "peak mem", "calls", "kind", "without profiling"];
    assert!(titles.iter().all(|title| printed.contains(title)), "{printed}");
    let mut file = csv::Reader::from_path(&csv).unwrap();
    assert!(file.headers().unwrap().iter().any(|title| title == "peak_memory_bytes"));
    assert_eq!(file.records().count(), operators(&fused).len());

    let (plain, _) = figures(&lab, 1, &["--batches", "2", "--fused", "off"]);
    let expected = "activation1 relu, activation2 relu, conv1 conv, conv2 conv, flatten, linear, pool1 max pool, \
                    pool2 max pool";
    assert_eq!(names(&plain, "forward").join(", "), expected);

    let (mlp, _) = figures(&lab, 1, &["--batches", "2", "--model", "mlp", "--activation", "gelu"]);
    let expected = ["activation gelu", "bn1 batch norm", "flatten", "layer1 linear", "layer2 linear"];
    assert_eq!(names(&mlp, "forward"), expected);
}

#[test]
fn training_is_profiled_with_the_backward_of_each_layer() {
    let lab = Lab::new();
    let options = ["--model", "vgg", "--train", "--batches", "2", "--batch", "8", "--sort", "total"];
    let (vgg, _) = figures(&lab, 1, &options);
    let forward = names(&vgg, "forward");
    assert!(forward.contains(&"block1.0 conv+relu".to_owned()), "{forward:?}");
    let mut backward = names(&vgg, "backward");
    backward.retain(|name| name != "autodiff");
    assert_eq!(backward, forward, "each operator has a backward");
    assert_eq!(names(&vgg, "optimizer"), ["optimizer"]);
    assert_eq!(names(&vgg, "communication"), [""; 0], "one rank has none");
    for row in operators(&vgg).iter().filter(|row| row["phase"] == "forward" || row["phase"] == "backward") {
        assert!(row["name"] == "autodiff" || row["calls"] == 2, "once a batch: {row}");
        assert!(number(row, "self_cpu_ms") > 0.0, "{row}");
    }
    let order: Vec<f64> = operators(&vgg).iter().map(|row| number(row, "cpu_total_ms")).collect();
    assert!(order[..order.len() - 1].is_sorted_by(|a, b| a >= b), "{order:?}");
}

#[test]
fn collectives_of_two_ranks_are_operators() {
    let lab = Lab::new();
    let options = ["--train", "--batches", "6", "--batch", "8", "--model", "mlp"];
    let (mlp, printed) = figures(&lab, 2, &options);
    assert_eq!(mlp["ranks"], 2);
    let rows: Vec<&Value> = operators(&mlp).iter().filter(|row| row["phase"] == "communication").collect();
    let bytes: f64 = rows.iter().map(|row| number(row, "bytes")).sum();
    assert_eq!(bytes, 4.0 * 17_140.0, "all gradients in f32");
    for row in rows {
        assert_eq!(row["calls"], 6);
        assert!(row["name"].as_str().unwrap().starts_with("bucket 1 all-reduce ("), "{row}");
        assert!(number(row, "hidden_ms") >= 0.0 && number(row, "exposed_ms") > 0.0, "{row}");
        assert!(number(row, "bandwidth_mb_s") > 0.0, "{row}");
    }
    assert!(printed.contains("busbw MB/s"), "{printed}");
}

#[test]
fn integer_models_are_profiled_by_layer() {
    let lab = Lab::new();
    let (convnet, _) = figures(&lab, 1, &["--int8", "--batches", "3"]);
    let expected = "conv1 int8 conv+relu+max pool, conv2 int8 conv+relu+max pool, input quantize, \
                    linear int8 linear, scores dequantize";
    assert_eq!(names(&convnet, "forward").join(", "), expected);
    let inner = operators(&convnet).iter().filter(|row| row["phase"] == "forward");
    let nothing = |row: &Value| row["peak_memory_bytes"] == 0 && row["allocated_bytes"] == 0;
    assert!(inner.into_iter().all(nothing), "it allocates nothing: {convnet}");
    let int8_bytes = number(&convnet, "checkpoint_bytes");
    let (float, _) = figures(&lab, 1, &["--batches", "3"]);
    assert!(int8_bytes > 4266.0 && number(&float, "checkpoint_bytes") > 4.0 * 4266.0, "{int8_bytes}");
    let conv = operators(&float).iter().find(|row| row["name"] == "conv1, conv2 2x conv+relu+max pool");
    assert!(number(conv.unwrap(), "allocated_bytes") >= 3.0 * 32.0 * 392.0 * 4.0, "its output: {float}");
    let (vgg, _) = figures(&lab, 1, &["--int8", "--model", "vgg", "--batches", "1", "--batch", "4"]);
    assert!(names(&vgg, "forward").contains(&"block1.2 int8 max pool".to_owned()), "{vgg}");
}

#[test]
fn a_checkpoint_is_profiled_with_its_network() {
    let lab = Lab::new();
    lab.train(2, "run", &["--epochs", "1", "--train-samples", "128", "--batch-norm"]);
    let run = &lab.path("run").display().to_string();
    for (ranks, more) in [(1, &[][..]), (1, &["--train"]), (2, &[]), (2, &["--train"])] {
        let options = [&["--checkpoint", run, "--batches", "2"], more].concat();
        let (found, _) = figures(&lab, ranks, &options);
        assert_eq!(found["model"], "convnet");
        assert!(names(&found, "forward").contains(&"bn1 batch norm+relu+max pool".to_owned()), "{found}");
    }
    for (options, code, expected) in [
        (&["--model", "vgg"][..], 2, &["--model vgg: ", "--model convnet"][..]),
        (&["--activation", "gelu"], 2, &["--activation gelu: ", "--activation relu"]),
        // Options that do not fit the run's network.
        (&["--hidden", "8"], 2, &["--hidden 8: ", "convnet"]),
        (&["--int8"], 2, &["int8.safetensors"]),
        (&["--data-root", "/nowhere"], 1, &["/nowhere"]),
    ] {
        refused(profile(2, &["--checkpoint", run]).args(options), code, expected);
    }
}

#[test]
fn a_profile_of_a_run_takes_its_options_where_none_are_typed() {
    let lab = Lab::new();
    let trained = ["--epochs", "1", "--train-samples", "128", "--batch", "16", "--activation", "gelu"];
    let recipe = ["--optimizer", "sgd", "--momentum", "0.5", "--lr", "0.01", "--precision", "bf16"];
    lab.train(1, "run", &[&trained[..], &recipe].concat());
    let run = &lab.path("run").display().to_string();
    let of = |ranks, options: &[&str]| {
        figures(&lab, ranks, &[&["--checkpoint", run, "--batches", "2"], options].concat()).0
    };
    let values = |found: &Value| {
        let config = &found["config"];
        ["optimizer", "momentum", "lr", "activation"].map(|name| config[name].to_string()).join(" ")
            + &format!(" {} {}", found["batch"], found["precision"])
    };
    assert_eq!(values(&of(2, &["--train"])), "\"sgd\" 0.5 0.01 \"gelu\" 16 \"bf16\"");
    let typed = ["--train", "--batch", "8", "--optimizer", "adam", "--precision", "no", "--lr", "0.1"];
    assert_eq!(values(&of(1, &typed)), "\"adam\" null 0.1 \"gelu\" 8 \"no\"");
    let inference = of(1, &[]);
    assert_eq!((&inference["batch"], &inference["precision"]), (&16.into(), &"no".into()));
    let new = lab.path("new.json");
    let mut unfused = profile(2, &["--checkpoint", run, "--train", "--fused", "off", "--json"]);
    refused(unfused.arg(&new), 2, &["--precision bf16: ", "--fused off"]);
    assert!(!new.exists());
}

#[test]
fn invalid_profiles_are_rejected_with_one_line() {
    let lab = Lab::new();
    let other = lab.path("x.csv");
    let other = other.to_str().unwrap();
    let cases: [(&[&str], &str, i32); 15] = [
        (&["--batches", "0"], "--batches 0: must be a whole number from 1", 2),
        (
            &["--batches", "18446744073709551615"],
            "--batches 18446744073709551615: must be at most 1000000",
            2,
        ),
        (&["--threads", "100000"], "--threads 100000: must be at most 1024", 2),
        (&["--batch", "0"], "--train-batch-size 0: must be a whole number from 1", 2),
        (&["--batch", "18446744073709551615"], "at most 65536", 2),
        (&["--sort", "name"], "--sort name: choose self, total, memory", 2),
        (&["--model", "resnet"], "--model resnet: choose convnet, vgg, mlp", 2),
        (&["--precision", "bf16"], "--precision bf16: requires --train", 2),
        (&["--quantize", "qat"], "--quantize qat: ", 2),
        (&["--int8", "--train"], "--int8: ", 2),
        (&["--int8", "--device", "cuda"], "--int8: requires --device flex", 2),
        (&["--csv", other, "--json", other], "file of --csv", 2),
        (&["--json", "/nowhere/x.json"], "cannot write /nowhere/x.json", 1),
        (&["--csv", "/nowhere/x.csv"], "cannot write /nowhere/x.csv", 1),
        (&["--checkpoint", "/nowhere"], "there is no run /nowhere: name a run directory, its run.json", 1),
    ];
    for (arguments, expected, code) in cases {
        refused(profile(2, arguments), code, &[expected]);
    }
}

#[test]
fn options_without_effect_are_named_and_the_json_has_the_others() {
    let lab = Lab::new();
    let json = lab.path("profile.json");
    let mut job = profile(1, &["--model", "mlp", "--batches", "2", "--hidden", "8"]);
    job.args(["--accumulate", "8", "--lr", "0.1", "--data-root", "/nowhere", "--json"]).arg(&json);
    let output = run(job);
    assert!(output.status.success(), "{}", text(&output));
    let all = text(&output);
    let warning = all.lines().find(|line| line.contains("no effect: ")).expect("a warning");
    assert!(
        ["without RUN", "--accumulate", "--lr", "--data-root"].iter().all(|name| warning.contains(name)),
        "{warning}"
    );
    assert!(!warning.contains("--hidden") && !warning.contains("--model"), "{warning}");
    let found = read_json(&json);
    assert_eq!((&found["config"]["hidden"], &found["checkpoint"]), (&8.into(), &Value::Null));
}

#[test]
fn ranks_that_profile_different_batches_are_rejected() {
    for (option, one, other) in [("--batches", "5", "6"), ("--lr", "1e-3", "1e-2")] {
        let of = |value| profile(1, &["--model", "mlp", option, value]);
        refused(side_by_side(&[&of(one), &of(other)]), 1, &[&format!("{option} differs")]);
    }
}
