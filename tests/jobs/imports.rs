//! What `data import` prints about tables: warnings, classes, and the next command, which trains on them.

use std::fmt::Write as _;
use std::process::{Command, Output};

use crate::harness::*;

/// Imports the table `contents` into `data`.
fn import(lab: &Lab, contents: &str, options: &[&str]) -> Output {
    std::fs::write(lab.path("table.csv"), contents).unwrap();
    let mut command = Command::new(binary());
    command.args(["data", "import"]).arg(lab.path("table.csv")).arg("--out").arg(lab.path("data"));
    run(command.args(["--overwrite"]).args(options))
}

#[test]
fn values_that_tell_nothing_and_lines_that_are_left_out_are_said() {
    let lab = Lab::new();
    let mut table = "Measured in 2020\nt,zero,x,label\ns,,cm,\n".to_owned();
    for row in 0..20u64 {
        writeln!(
            table,
            "{},0,{},{}",
            1_700_000_000_000_000_000 + row,
            row * row,
            ["a", "b", "NA"][row as usize % 3]
        )
        .unwrap();
    }
    let printed = text(&import(&lab, &table, &["--missing-labels", "drop"]));
    // Each list has the facts that one line must contain.
    for facts in [
        &["line 1 ", "title", "line 3 ", "units (s, cm)"][..],
        &["left out: 6 samples"],
        &["14 rows", "3 features", "2 classes"],
        &["warn: 1 feature ", "column zero"],
        &["warn: column t: ", "f32", "from 1700000000000000000 to"],
        &["imported samples", "2 classes"],
        // The next command starts with the path by which the program was called.
        &[&format!("next: mpirun -n 2 --bind-to core {} train --model mlp --data-root ", binary())],
    ] {
        let has_all = |line: &str| facts.iter().all(|fact| line.contains(fact));
        assert!(printed.lines().any(has_all), "{facts:?}: {printed}");
    }
}

#[test]
fn a_thousand_classes_are_some_lines_and_info_lists_them() {
    let lab = Lab::new();
    let rows: String = (0..3000).map(|row| format!("{row},c{:04}\n", row % 1500)).collect();
    let printed = text(&import(&lab, &format!("x,label\n{rows}"), &[]));
    let has_more = table_rows(&printed).iter().any(|row| row.contains(&"1480 more"));
    assert!(printed.lines().count() < 50 && has_more, "{printed}");
    for words in ["c0009", "c1490", &format!("all classes: {} data info ", binary())] {
        assert!(printed.contains(words) && !printed.contains("c0010"), "{words}: {printed}");
    }
    let mut info = Command::new(binary());
    let printed = text(&run(info.args(["data", "info"]).arg(lab.path("data"))));
    assert!(printed.contains("c0010") && !printed.contains("more"), "{printed}");
}

#[test]
fn invalid_values_of_options_end_with_2() {
    let lab = Lab::new();
    for options in [
        ["--test-fraction", "2"],
        ["--test-fraction", "20%"],
        ["--std", "0"],
        ["--mean", "nan"],
        ["--mean", "1e39"],
        ["--label", "nope"],
        ["--label", "0"],
        ["--drop", "nope"],
        ["--size", "64"],
        ["--missing-labels", "skip"],
        ["--test-split", "val"],
    ] {
        let output = import(&lab, "x,y,label\n1,2,a\n3,4,b\n5,6,a\n7,8,b\n", &options);
        let (printed, [option, value]) = (text(&output), options);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(printed.contains(option) && printed.contains(value), "{printed}");
    }
    assert_eq!(import(&lab, "x,label\n1,a\nmany,b\n", &[]).status.code(), Some(1), "no option is wrong");
}

/// The command that an import prints learns a table, even one of few rows.
#[test]
fn the_next_command_learns_a_small_table() {
    let lab = Lab::new();
    for rows in [20, 300] {
        let row = |row: usize| {
            let (class, more) = (row % 3, (row * 7919 % 101) as f64 / 100.0);
            format!(
                "{},{},{}\n",
                class as f64 * 2.0 + more,
                more * 3.0 - class as f64,
                ["x", "y", "z"][class]
            )
        };
        let table: String = (0..rows).map(row).collect();
        let printed = text(&import(&lab, &format!("a,b,label\n{table}"), &[]));
        let next = printed.lines().find_map(|line| line.strip_prefix("next: ")).expect("a command");
        let options: Vec<&str> = next.split_once(" train ").expect("a training").1.split(' ').collect();
        let run = lab.train(2, &format!("run{rows}"), &options);
        assert!(run["test_accuracy"].as_f64().unwrap() >= 90.0, "{rows}: {next}: {}", run["test_accuracy"]);
    }
    // 60 samples are too few for the default options, so the training warns.
    let data = lab.path("data");
    let options = ["--model", "mlp", "--data-root", data.to_str().unwrap(), "--train-samples", "60"];
    let warned = |options: &[&str]| text(&run(lab.command(2, "short", options)));
    let printed = warned(&options);
    let facts = ["warn: ", "3 steps (3 epochs of 1 step)", "--epochs", " 3", "--train-batch-size", " 30"];
    let has_all = |line: &str| facts.iter().all(|fact| line.contains(fact));
    assert!(printed.lines().any(has_all), "{printed}");
    let printed = warned(&[&options[..], &["--epochs", "100", "--overwrite"]].concat());
    assert!(!printed.contains("steps ("), "{printed}");
}
