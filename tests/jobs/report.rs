//! Reports of real runs, and of failed and damaged ones.

use std::fs;
use std::process::{Command, Output};

use mpiburn::record::{RunState, SweepRecord, SweepRun};

use crate::harness::*;

/// `mpiburn report` in the lab's folder, which reads its `results/`.
pub fn report(lab: &Lab, arguments: &[&str]) -> Output {
    let mut command = Command::new(binary());
    command.env_remove("RUST_LOG").current_dir(lab.path("")).arg("report").args(arguments);
    run(command)
}

pub fn shown(lab: &Lab, arguments: &[&str]) -> String {
    let output = report(lab, arguments);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn fails(lab: &Lab, code: i32, arguments: &[&str]) -> String {
    let output = report(lab, arguments);
    assert_eq!(output.status.code(), Some(code), "{}", text(&output));
    text(&output)
}

const SHORT: [&str; 4] = ["--epochs", "1", "--log-every", "10"];

fn train(lab: &Lab, ranks: usize, name: &str, options: &[&str]) {
    lab.train(ranks, name, &[&SHORT[..], &["--train-samples", "1280"], options].concat());
}

/// The results as if the training had been long enough, on an idle machine.
fn lengthen(lab: &Lab, name: &str, train_seconds: f64) {
    let mut run = lab.run_json(name);
    run["train_seconds"] = train_seconds.into();
    run["ms_per_step"] = (1e3 * train_seconds / run["steps"].as_f64().unwrap()).into();
    run["others_cpu_percent"] = 0.0.into();
    fs::write(lab.path(name).join("run.json"), run.to_string()).unwrap();
}

pub fn column<'t>(csv: &'t str, row: usize, name: &str) -> &'t str {
    let at = csv.lines().next().and_then(|header| header.split(',').position(|n| n == name));
    let line = csv.lines().nth(row).expect("the row exists");
    line.split(',').nth(at.expect("the column exists")).expect("the cell exists")
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
    let medians: Vec<f64> = ["one", "again"]
        .map(|name| lab.run_json(&format!("results/{name}"))["train_seconds"].as_f64().unwrap())
        .into();
    let found: f64 = column(&csv, 1, "train_seconds").parse().unwrap();
    assert!((found / (medians.iter().sum::<f64>() / 2.0) - 1.0).abs() < 1e-4, "{csv}");
    assert_eq!((column(&csv, 1, "runs"), column(&csv, 2, "runs")), ("2", "1"));
    let two = lab.run_json("results/deep/two");
    let accuracy: f64 = column(&csv, 2, "test_accuracy").parse().unwrap();
    assert!((accuracy - two["test_accuracy"].as_f64().unwrap()).abs() < 1e-3);

    let table = shown(&lab, &[]);
    let notes: Vec<&str> = table.lines().filter(|line| line.starts_with("not shown: ")).collect();
    assert_eq!(notes.len(), 4, "{table}");
    for (note, words) in notes.iter().zip([
        ["results/cut/run.json", "damaged", "run it again"],
        ["results/failed", "no space left", "--resume"],
        ["results/half", "no run.json", "run it again"],
        ["results/killed", "still running, or killed", "--resume"],
    ]) {
        assert!(words.iter().all(|word| note.contains(word)), "{note}");
    }
    assert!(shown(&lab, &["results/one", "--format", "markdown"]).contains("| --- | ---: |"));
}

#[test]
fn the_page_of_a_sweep_has_tables_published_figures_and_plots() {
    let lab = Lab::new();
    train(&lab, 1, "results/s/1x1", &[]);
    train(&lab, 2, "results/s/mpi", &[]);
    train(&lab, 2, "results/s/ordered", &["--reduce", "ordered"]);
    lengthen(&lab, "results/s/1x1", 8.0);
    lengthen(&lab, "results/s/mpi", 5.0);
    lengthen(&lab, "results/s/ordered", 1.0);
    let entry = |name: &str, state, error: Option<&str>| SweepRun {
        name: name.into(),
        repeat: 1,
        varied: Default::default(),
        state,
        error: error.map(Into::into),
    };
    let sweep = SweepRecord {
        name: "s".into(),
        title: "A sweep".into(),
        reference: Some("figures".into()),
        scale: "full".into(),
        scaled: Default::default(),
        runs: vec![
            entry("1x1", RunState::Completed, None),
            entry("mpi", RunState::Completed, None),
            entry("ordered", RunState::Completed, None),
            entry("gone", RunState::Failed, Some("no ssh")),
            entry("later", RunState::Waiting, None),
        ],
    };
    sweep.write(&lab.path("results/s")).unwrap();
    fs::create_dir(lab.path("results/reference")).unwrap();
    let figures = "topology,train_seconds,hardware\n1x2,120,Raspberry Pi nodes\n";
    fs::write(lab.path("results/reference/figures.csv"), figures).unwrap();

    let output = report(&lab, &["results/s", "--format", "html"]);
    assert!(output.status.success(), "{}", text(&output));
    let page = fs::read_to_string(lab.path("results/report/report.html")).unwrap();
    for word in
        ["href=\"../s/mpi/\"", "Raspberry Pi nodes", "no ssh", "s/later: not run yet", "prefers-color-scheme"]
    {
        assert!(page.contains(word), "{word} is missing");
    }
    assert!(page.contains("fastest: 1x2 (mpi") && page.contains("1.60 times as fast as 1x1"), "{page}");
    assert!(page.contains("href=\"#s-part\"") && page.contains("id=\"s-part\""), "a table of contents");
    let ours = fs::read_to_string(lab.path("results/report/s.csv")).unwrap();
    let short = (1..4).find(|&row| column(&ours, row, "reduce") == "ordered").unwrap();
    assert_eq!((column(&ours, short, "doubts"), column(&ours, short, "speed_up")), ("short", ""), "{ours}");
    assert!(page.contains("<summary>More columns</summary>") && page.contains("id=\"s-more\""), "{page}");
    let terminal = shown(&lab, &["results/s"]);
    let table: Vec<&str> = terminal.lines().filter(|line| line.starts_with('│')).collect();
    assert!(!table.is_empty() && table.iter().all(|line| line.chars().count() <= 100), "{terminal}");
    assert!(
        terminal.contains("More columns with --wide: ") && terminal.contains("ᵃ Too short"),
        "{terminal}"
    );
    assert!(shown(&lab, &["results/s", "--wide"]).contains("┆ peak RSS MB ┆"), "all columns");
    assert!(
        terminal.contains("over all 500 test samples, after training on the first 1280 of 6400"),
        "{terminal}"
    );
    assert_eq!(page.matches("<svg ").count(), 5, "time, efficiency, communication, loss, accuracy");
    assert!(!page.contains("<script"));
    for name in ["s-time", "s-efficiency", "s-communication", "s-loss", "s-accuracy"] {
        let png = fs::read(lab.path("results/report").join(format!("{name}.png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"), "{name}");
        assert!(lab.path("results/report").join(format!("{name}.svg")).is_file(), "{name}");
    }
    let csv = fs::read_to_string(lab.path("results/report/s.csv")).unwrap();
    assert_eq!(column(&csv, 2, "reduce"), "native", "a varied setting has a column: {csv}");
    assert!(lab.path("results/report/s-published.md").is_file());
}

#[test]
fn other_folders_are_rejected_with_one_line() {
    let lab = Lab::new();
    assert!(fails(&lab, 1, &[]).contains("cannot read results: No such file"));
    fs::create_dir_all(lab.path("results/empty")).unwrap();
    assert!(fails(&lab, 1, &[]).contains("no finished run"));
    for (path, expected) in
        [("results/empty", "not a run or sweep"), ("nowhere", "nowhere: there is no such file or folder")]
    {
        let printed = fails(&lab, 1, &[path]);
        assert!(
            printed.lines().count() == 1 && printed.contains(expected) && printed.contains(path),
            "{printed}"
        );
    }
    fs::create_dir_all(lab.path("results/half/checkpoints")).unwrap();
    let printed = fails(&lab, 1, &["results/half"]);
    assert!(
        printed.contains("results/half: no run.json") && printed.contains("no finished run"),
        "{printed}"
    );
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
    for words in [
        "not shown: runs/edited/run.json: damaged (test_accuracy is 99.5, and ",
        "not shown: runs/repeated/epochs.csv: damaged (line 3, column epoch: 1 where 2 is next); the run is left out",
    ] {
        assert!(printed.contains(words), "{words} is missing: {printed}");
    }
    assert!(!printed.contains("99.50"), "{printed}");
    let all = shown(&lab, &["runs", "--format", "csv"]);
    assert_eq!((all.lines().count(), column(&all, 1, "runs")), (2, "1"), "{all}");

    let output = report(&lab, &["nowhere", "runs/sound", "also/not.csv"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("│ 1x1"), "{}", text(&output));
    let errors = errors(&output);
    let expected = "nowhere: there is no such file or folder; also/not.csv: there is no such file or folder";
    assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:?}");

    let refused = fails(&lab, 2, &["runs", "--baseline", "foo"]);
    assert!(
        refused.contains("--baseline foo: no finished run has this topology; there are runs on 1x1"),
        "{refused}"
    );
    assert!(shown(&lab, &["runs", "--baseline", "1x1"]).contains("│ 1x1"));
}

#[test]
fn a_measured_link_and_one_run_give_a_prediction() {
    let lab = Lab::new();
    train(&lab, 1, "results/one", &[]);
    train(&lab, 2, "results/two", &[]);
    let link = lab.path("link.csv");
    let mut command = on_ranks(2, binary());
    command.args(["bench", "link", "--sizes", "4,1KiB,64KiB,1MiB", "--iterations", "20", "--csv"]).arg(&link);
    let output = run(command);
    assert!(output.status.success() && text(&output).contains("Mbit/s"), "{}", text(&output));

    let csv = shown(&lab, &["--predict", "--link", &link.to_string_lossy(), "--format", "csv", "--out", "p"]);
    assert_eq!(csv.lines().count(), 12, "1 to 1024 ranks: {csv}");
    let number = |row, name| column(&csv, row, name).parse::<f64>().unwrap();
    let one = lab.run_json("results/one");
    assert!(
        (number(1, "ms_per_step_ring") / one["ms_per_step"].as_f64().unwrap() - 1.0).abs() < 1e-3,
        "{csv}"
    );
    assert_eq!((number(1, "steps_per_epoch"), number(11, "steps_per_epoch")), (40.0, 1.0));
    assert!(number(2, "ms_per_step_ring") > number(1, "ms_per_step_ring"));
    assert_eq!(column(&csv, 2, "measured_on"), "1x2 mpi");
    assert!(lab.path("p/runs-prediction.svg").is_file());
    let page = fs::read_to_string(lab.path("p/prediction.html")).unwrap();
    assert!(page.contains("<svg ") && page.contains("href=\"../results/two/\""), "{page}");

    let typed = ["--predict", "results/one", "--latency-us", "1000", "--bandwidth-mbit", "1"];
    assert!(shown(&lab, &typed).contains("a link of 1000.0 µs and 1.0 Mbit/s"));
    assert!(fails(&lab, 1, &["--predict"]).contains("--predict needs the link"));
    let invalid = [&typed[..5], &["0"]].concat();
    assert!(fails(&lab, 2, &invalid).contains("--bandwidth-mbit 0: must be a finite number above 0"));
    let invalid = [&typed[..3], &["1e308", "--bandwidth-mbit", "1"]].concat();
    assert!(
        fails(&lab, 2, &invalid).contains("--latency-us 1e308: must be at most 1000000000: 1000 seconds")
    );
    assert!(fails(&lab, 1, &["--predict", "--link", "results/one/epochs.csv"]).contains("bench link"));
}

#[test]
fn a_link_needs_two_ranks() {
    let mut command = on_ranks(1, binary());
    command.args(["bench", "link"]);
    let errors = errors(&must_fail(command));
    assert!(errors.len() == 1 && errors[0].contains("measured between 2 ranks"), "{errors:?}");
}
