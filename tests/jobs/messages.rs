//! The messages and exit codes of commands with wrong values or paths, and the lines that `-q` leaves out.

use std::fs;
use std::process::Command;

use crate::harness::*;

fn mpiburn(lab: &Lab, words: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env_remove("RUST_LOG").current_dir(lab.path("")).args(words);
    command
}

/// Runs a command that must end with this code and one line; returns the line.
fn line(lab: &Lab, code: i32, words: &[&str]) -> String {
    let output = run(&mut mpiburn(lab, words));
    let errors: Vec<String> = errors(&output);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", text(&output));
    errors.into_iter().next().unwrap_or_default()
}

#[test]
fn wrong_values_end_with_code_2_through_the_launcher_too() {
    let lab = Lab::new();
    let data = digits().to_str().unwrap();
    for (words, expected) in [
        (&["train", "--lr", "none"][..], ["--lr none: ", "number"]),
        (&["train", "--shuffle=on"], ["--shuffle on: ", "--shuffle "]),
        (&["train", "--hidden", "8"], ["--hidden 8: ", "--model mlp"]),
        (&["train", "--num-classes", "9", "--data-root", data], ["--num-classes 9: ", "10 classes"]),
        (&["data", "digits", "--test", "0"], ["--test 0: ", "from 1"]),
        (&["report", "--baseline", "9x9"], ["--baseline 9x9: ", "run"]),
        (&["sweep", "none.toml"], ["none.toml", "sweep"]),
    ] {
        let wants_results = words[0] == "report";
        if wants_results {
            fs::create_dir_all(lab.path("results")).unwrap();
        }
        let found = line(&lab, 2, words);
        assert!(expected.iter().all(|fact| found.contains(fact)), "{words:?}: {found}");
    }
    for options in [&["--lr", "none"][..], &["--hidden", "8"], &["--num-classes", "9", "--data-root", data]] {
        let words = [&["launch", "1x2", "train"], options].concat();
        let output = run(&mut mpiburn(&lab, &words));
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", text(&output));
    }
}

/// A command that reads a run, but gets another file or folder, names what it got.
#[test]
fn a_path_to_something_else_than_a_run_is_named_as_what_it_is() {
    let lab = Lab::new();
    lab.train(1, "sweep/a", &["--epochs", "1", "--train-samples", "320"]);
    fs::write(lab.path("sweep/sweep.json"), "{}").unwrap();
    fs::create_dir(lab.path("set")).unwrap();
    fs::write(lab.path("set/dataset.json"), "{}").unwrap();
    let commands: [&[&str]; 5] = [
        &["eval"],
        &["quantize"],
        &["profile", "--batches", "1"],
        &["predict"],
        &["export", "--out", "x.onnx"],
    ];
    for command in commands {
        for (path, code, expected) in [
            ("sweep", 2, "sweep is a sweep: name one of its runs, such as sweep/a"),
            ("set", 2, "set is a data set: name a run"),
            ("nothing", 1, "there is no run nothing: name a run directory"),
        ] {
            let more: &[&str] = if command[0] == "predict" { &["x.png"] } else { &[] };
            let found = line(&lab, code, &[command, &[path], more].concat());
            assert!(found.contains(expected), "{command:?} {path}: {found}");
        }
    }
    let found = line(&lab, 2, &["train", "--resume", "sweep"]);
    assert!(found.contains("--resume: sweep ") && found.contains("one of its runs"), "{found}");
    let found = line(&lab, 1, &["report", "set"]);
    assert!(found.contains("set is a data set"), "{found}");
    let moved = line(&lab, 1, &["eval", "sweep/a", "--data-root", "moved"]);
    assert!(moved.contains("no folder moved"), "{moved}");
}

#[test]
fn quiet_prints_results_without_tables() {
    let lab = Lab::new();
    let data = digits().to_str().unwrap();
    let train = ["train", "--data-root", data, "--epochs", "1", "--train-samples", "320", "--out"];
    let printed = |words: &[&str]| {
        let output = run(&mut mpiburn(&lab, words));
        assert!(output.status.success(), "{}", text(&output));
        (String::from_utf8_lossy(&output.stdout).into_owned(), text(&output))
    };
    let (loud, _) = printed(&[&train[..], &["loud"]].concat());
    assert!(loud.contains("test accuracy") && loud.lines().count() > 3, "{loud}");
    let (quiet, all) = printed(&[&["-q"], &train[..], &["quiet"]].concat());
    assert!(quiet.ends_with("results in quiet\n") && all.lines().count() == 1, "{all}");
    let (tested, all) = printed(&["-q", "eval", "quiet"]);
    assert!(tested.starts_with("test loss ") && all.lines().count() == 1, "{all}");
}

/// A resumed run names the options that change it, as the user typed them. An option with the run's own value
/// is not named.
#[test]
fn a_resumed_run_names_its_changes_as_they_are_typed() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs", "1", "--train-samples", "320"]);
    let resume = |options: &[&str]| {
        let mut command = on_ranks(1, binary());
        command.args(["train", "--resume"]).arg(lab.path("run")).args(options);
        run(command)
    };
    let output = resume(&["--num-classes", "10", "--epochs", "2", "--fused", "off", "--lr", "1e-3"]);
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    for expected in [["--fused off ", "was on"], ["--lr 1e-3 ", "was 0.0005"], ["--epochs 2 ", "was 1"]] {
        let is_told = |line: &str| expected.iter().all(|fact| line.contains(fact));
        assert!(printed.lines().any(is_told), "{expected:?}: {printed}");
    }
    assert!(!printed.contains("num-classes"), "{printed}");
    for (options, expected) in [
        (&["--num-classes", "9"], ["--num-classes 9: ", "10 classes"]),
        (&["--train-samples", "none"], ["--train-samples none: ", "resumed run"]),
        (&["--optimizer", "sgd"], ["--optimizer sgd: ", "moments"]),
    ] {
        let output = resume(options);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(expected.iter().all(|fact| errors(&output)[0].contains(fact)), "{}", text(&output));
    }
}
