//! Reports of complete, failed and damaged runs.

use std::fs;

use run_record::{RunState, SweepRecord, SweepRun};

use crate::harness::*;

pub fn fails(lab: &Lab, code: i32, arguments: &[&str]) -> String {
    let output = report(lab, arguments);
    assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    text(&output)
}

/// Asserts that a text contains all of `words`.
pub fn contains(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "{word} is missing: {text}"));
}

fn train(lab: &Lab, ranks: usize, name: &str, options: &[&str]) {
    let short = ["--epochs", "1", "--log-every", "10", "--train-samples", "1280"];
    lab.train(ranks, name, &[&short, options].concat());
}

/// Edits a run's results as if its training had taken `train_seconds` on an idle machine, long enough to be
/// measured.
fn lengthen(lab: &Lab, name: &str, train_seconds: f64) {
    let mut run = lab.run_json(name);
    run["train_seconds"] = train_seconds.into();
    run["ms_per_step"] = (1e3 * train_seconds / run["steps"].as_f64().unwrap()).into();
    // 0, as in runs of older programs. The parts of a step no longer add up to the edited total.
    run["step_ms"]["rest"] = 0.0.into();
    (run["others_cpu_percent"], run["others_cpu_percent_by_host"]) = (0.0.into(), serde_json::json!({}));
    fs::write(lab.path(name).join("run.json"), run.to_string()).unwrap();
}

/// True if a table has the row of the topology 1x1.
pub fn has_row_1x1(printed: &str) -> bool {
    table_rows(printed).iter().any(|row| row[0] == "1x1")
}

#[test]
fn the_table_has_the_values_of_run_json_and_damaged_runs_are_listed_below() {
    let lab = Lab::new();
    train(&lab, 1, "results/one", &[]);
    train(&lab, 1, "results/again", &[]);
    train(&lab, 2, "results/deep/two", &[]);
    for name in ["cut", "half", "killed", "failed"] {
        fs::create_dir_all(lab.path("results").join(name).join("checkpoints")).unwrap();
    }
    let json = fs::read_to_string(lab.path("results/one/run.json")).unwrap();
    let put =
        |name: &str, text: &str| fs::write(lab.path("results").join(name).join("run.json"), text).unwrap();
    put("cut", &json[..json.len() / 2]);
    put("killed", &json.replace("\"completed\"", "\"running\""));
    put("failed", &json.replace("\"completed\"", "\"failed\",\n  \"error\": \"no space left\""));

    let csv = shown(&lab, &["--format", "csv"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let [a, b] = ["one", "again"]
        .map(|name| lab.run_json(&format!("results/{name}"))["train_seconds"].as_f64().unwrap());
    let found: f64 = column(&csv, 1, "train_seconds").parse().unwrap();
    assert!((found / ((a + b) / 2.0) - 1.0).abs() < 1e-4, "{csv}");
    assert_eq!((column(&csv, 1, "runs"), column(&csv, 2, "runs")), ("2", "1"));
    let two = lab.run_json("results/deep/two");
    let accuracy: f64 = column(&csv, 2, "test_accuracy").parse().unwrap();
    assert!((accuracy - two["test_accuracy"].as_f64().unwrap()).abs() < 1e-3);

    let table = shown(&lab, &[]);
    let notes: Vec<&str> = table.lines().filter(|line| line.starts_with("not shown: ")).collect();
    assert_eq!(notes.len(), 4, "{table}");
    for (note, words) in notes.into_iter().zip([
        ["results/cut/run.json", "damaged", "remove the folder results/cut "],
        ["results/failed", "no space left", "run it again with --overwrite"],
        ["results/half", "no run.json", "remove the folder results/half "],
        ["results/killed", "still running, or killed", "run it again with --overwrite"],
    ]) {
        contains(note, &words);
    }
    assert!(shown(&lab, &["results/one", "--format", "markdown"]).contains("| --- | ---: |"));
}

#[test]
fn the_page_of_a_sweep_has_tables_published_figures_and_plots() {
    let lab = Lab::new();
    for (ranks, name, options, seconds) in [
        (1, "results/s/1x1", &[][..], 8.0),
        (2, "results/s/mpi", &[], 5.0),
        (2, "results/s/ordered", &["--reduce", "ordered"], 1.0),
    ] {
        train(&lab, ranks, name, options);
        lengthen(&lab, name, seconds);
    }
    let entry = |(name, state, error): (&str, _, Option<&str>)| SweepRun {
        name: name.into(),
        repeat: 1,
        varied: Default::default(),
        state,
        error: error.map(Into::into),
    };
    let entries = [
        ("1x1", RunState::Completed, None),
        ("mpi", RunState::Completed, None),
        ("ordered", RunState::Completed, None),
        ("gone", RunState::Failed, Some("no ssh")),
        ("later", RunState::Waiting, None),
    ];
    let sweep = SweepRecord {
        name: "s".into(),
        title: "A sweep".into(),
        reference: Some("figures".into()),
        scale: "full".into(),
        scaled: Default::default(),
        command: Some("mpiburn sweep s.toml --out results/s".into()),
        runs: entries.map(entry).into(),
    };
    sweep.write(&lab.path("results/s")).unwrap();
    fs::create_dir(lab.path("results/reference")).unwrap();
    let figures = "topology,train_seconds,hardware\n1x2,120,Raspberry Pi nodes\n";
    fs::write(lab.path("results/reference/figures.csv"), figures).unwrap();

    shown(&lab, &["results/s", "--format", "html"]);
    let page = fs::read_to_string(lab.path("results/report/report.html")).unwrap();
    let words = [
        "href=\"../s/mpi/\"",
        "Raspberry Pi nodes",
        "no ssh",
        "s/later: not run yet; start the sweep again: mpiburn sweep s.toml --out results/s",
        "prefers-color-scheme",
        "fastest: 1x2 (mpi",
        "1.60 times as fast as 1x1",
        "href=\"#s-part\"",
        "id=\"s-part\"",
        "<summary>More columns</summary>",
        "id=\"s-more\"",
    ];
    contains(&page, &words);
    let ours = fs::read_to_string(lab.path("results/report/s.csv")).unwrap();
    let short = (1..4).find(|&row| column(&ours, row, "reduce") == "ordered").unwrap();
    assert_eq!((column(&ours, short, "doubts"), column(&ours, short, "speed_up")), ("short", ""), "{ours}");
    let terminal = shown(&lab, &["results/s"]);
    let table: Vec<&str> = terminal.lines().filter(|line| line.starts_with('│')).collect();
    assert!(!table.is_empty() && table.iter().all(|line| line.chars().count() <= 100), "{terminal}");
    let samples = "over all 500 test samples, after training on the first 1280 of 6400";
    contains(&terminal, &["More columns with --wide: ", "ᵃ Too short", samples]);
    let wide = shown(&lab, &["results/s", "--wide"]);
    assert!(table_rows(&wide)[0].contains(&"peak RSS MB"), "all columns: {wide}");
    assert_eq!(
        page.matches("<svg ").count(),
        6,
        "time, efficiency, communication, loss, accuracy, confusion"
    );
    assert!(!page.contains("<script"));
    for name in ["s-time", "s-efficiency", "s-communication", "s-loss", "s-accuracy", "s-confusion"] {
        let svg = fs::read_to_string(lab.path("results/report").join(format!("{name}.svg"))).unwrap();
        assert!(svg.trim_end().ends_with("</svg>"), "{name}");
    }
    assert_eq!(column(&ours, 2, "reduce"), "native", "a varied setting has a column: {ours}");
    assert!(lab.path("results/report/s-published.md").is_file());
}

#[test]
fn other_folders_are_rejected_with_one_line() {
    let lab = Lab::new();
    assert!(fails(&lab, 1, &[]).contains("cannot read results: No such file"));
    fs::create_dir_all(lab.path("results/empty")).unwrap();
    assert!(fails(&lab, 1, &[]).contains("no finished run"));
    for (path, expected) in [
        ("results/empty", "results/empty: contains no run, sweep"),
        ("nowhere", "nowhere: there is no such file or folder"),
    ] {
        let printed = fails(&lab, 1, &[path]);
        assert_eq!(printed.lines().count(), 1, "{printed}");
        contains(&printed, &[expected, path]);
    }
    fs::create_dir_all(lab.path("results/half/checkpoints")).unwrap();
    let printed = fails(&lab, 1, &["results/half"]);
    contains(&printed, &["results/half: has no run.json", "no finished run"]);
    assert!(!printed.contains("report RUN"), "a run directory was named: {printed}");
}

#[test]
fn edited_results_are_named_and_left_out_and_a_missing_input_loses_no_other() {
    let lab = Lab::new();
    for name in ["sound", "edited", "repeated"] {
        train(&lab, 1, &format!("runs/{name}"), &["--epochs", "2"]);
    }
    let mut edited = lab.run_json("runs/edited");
    edited["test_accuracy"] = 99.5.into();
    fs::write(lab.path("runs/edited/run.json"), edited.to_string()).unwrap();
    let file = lab.path("runs/repeated/epochs.csv");
    let epochs = fs::read_to_string(&file).unwrap().replace("\n2,", "\n1,");
    fs::write(&file, epochs).unwrap();

    let output = report(&lab, &["runs"]);
    assert!(output.status.success(), "{}", text(&output));
    let printed = text(&output);
    let notes = [
        "not shown: runs/edited/run.json: is damaged (test_accuracy is 99.5, ",
        "not shown: runs/repeated/epochs.csv: is damaged (line 3, column epoch: expected epoch 2, found 1): ",
    ];
    contains(&printed, &notes);
    assert!(!printed.contains("99.50"), "{printed}");
    let all = shown(&lab, &["runs", "--format", "csv"]);
    assert_eq!((all.lines().count(), column(&all, 1, "runs")), (2, "1"), "{all}");

    let output = report(&lab, &["nowhere", "runs/sound", "also/not.csv"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(has_row_1x1(&String::from_utf8_lossy(&output.stdout)), "{}", text(&output));
    let errors = errors(&output);
    let expected = "nowhere: there is no such file or folder; also/not.csv: there is no such file or folder";
    assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");

    let refused = fails(&lab, 2, &["runs", "--baseline", "foo"]);
    contains(&refused, &["--baseline foo: ", "choose 1x1"]);
    assert!(has_row_1x1(&shown(&lab, &["runs", "--baseline", "1x1"])));
}

#[test]
fn a_measured_link_and_one_run_give_a_prediction() {
    let lab = Lab::new();
    train(&lab, 1, "results/one", &[]);
    train(&lab, 2, "results/two", &[]);
    let link = lab.path("link.csv");
    let options = ["bench", "link", "--sizes", "4,1KiB,64KiB,1MiB", "--iterations", "20", "--csv"];
    contains(&succeeds(job(2).args(options).arg(&link)), &["Mbit/s"]);

    let csv = shown(&lab, &["--scaling", "--link", &link.to_string_lossy(), "--format", "csv", "--out", "p"]);
    assert_eq!(csv.lines().count(), 10, "1 to 256 ranks have test samples: {csv}");
    let number = |row, name| column(&csv, row, name).parse::<f64>().unwrap();
    let one = lab.run_json("results/one");
    let measured = one["ms_per_step"].as_f64().unwrap();
    assert!((number(1, "ms_per_step_ring") / measured - 1.0).abs() < 1e-3, "{csv}");
    assert_eq!((number(1, "steps_per_epoch"), number(9, "steps_per_epoch")), (40.0, 1.0));
    assert!(number(2, "ms_per_step_ring") > number(1, "ms_per_step_ring"));
    assert_eq!(column(&csv, 2, "measured_on"), "1x2 mpi");
    assert!(lab.path("p/runs-prediction.svg").is_file());
    let page = fs::read_to_string(lab.path("p/prediction.html")).unwrap();
    contains(&page, &["<svg ", "href=\"../results/two/\""]);

    let typed = ["--scaling", "results/one", "--latency-us", "1000", "--bandwidth-mbit", "1"];
    contains(
        &shown(&lab, &typed),
        &["a link of 1000 µs and 1 Mbit/s", "The times of that run are unreliable"],
    );
    for (code, arguments, expected) in [
        (2, &["--scaling"][..], "--link FILE: create it with `mpirun -n 2 "),
        (2, &[&typed[..5], &["0"]].concat(), "--bandwidth-mbit 0: must be a number from 0.001 to 1000000000"),
        (
            2,
            &[&typed[..3], &["1e308", "--bandwidth-mbit", "1"]].concat(),
            "--latency-us 1e308: must be a number from 0 to 1000000000",
        ),
        (1, &["--scaling", "--link", "results/one/epochs.csv"], "bench link"),
    ] {
        contains(&fails(&lab, code, arguments), &[expected]);
    }
}

/// Between two ranks, a ring sends as many bytes as a rank passes to all-reduces.
#[test]
fn every_algorithm_has_a_prediction_with_the_bytes_of_its_run() {
    let lab = Lab::new();
    for (name, options) in [
        ("plain", &[][..]),
        ("narrow", &["--grad-dtype", "bf16"]),
        ("powersgd", &["--compress", "powersgd", "--compress-rank", "1"]),
        ("local", &["--sync-every", "4", "--fragments", "2", "--sync-delay", "1"]),
        ("shares", &["--shard-optimizer"]),
    ] {
        train(&lab, 2, &format!("results/{name}"), options);
    }
    let link = ["--scaling", "--latency-us", "50", "--bandwidth-mbit", "100"];
    let csv = shown(&lab, &[&link[..], &["--format", "csv"]].concat());
    assert_eq!(csv.lines().count(), 1 + 5 * 9, "{csv}");
    for (n, name) in ["plain", "powersgd", "narrow", "shares", "local"].into_iter().enumerate() {
        let run = lab.run_json(&format!("results/{name}"));
        let of_run = |key: &str| run[key].as_f64().unwrap();
        let predicted = |row: usize, key: &str| column(&csv, 9 * n + row, key).parse::<f64>().unwrap();
        let expected = of_run("bytes_per_step");
        let sent = 1024.0 * predicted(2, "kb_sent_ring");
        assert!((sent - expected).abs() < 8.0, "{name}: {sent}, not {expected}: {csv}");
        let (step, exposed) = (of_run("ms_per_step"), run["step_ms"]["exposed"].as_f64().unwrap());
        assert!(predicted(2, "ms_per_step_ring") > 0.99 * (step - exposed), "{name}: {csv}");
        assert_eq!(predicted(1, "kb_sent_ring"), 0.0);
    }
    contains(
        &shown(&lab, &link),
        &["Runs: algorithms compared, predicted for a link of 50 µs and 100 Mbit/s"],
    );
}
