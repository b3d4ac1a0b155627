//! Invalid options of `--trace`: one line, before any work and on every rank.

use std::path::Path;

use crate::harness::*;

/// Ten steps on two ranks.
const OPTIONS: [&str; 4] = ["--epochs", "1", "--train-samples", "640"];

#[test]
fn invalid_time_lines_are_rejected_with_one_line() {
    let lab = Lab::new();
    let folder = lab.path("folder");
    std::fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let good = lab.path("good.json");
    let good = good.to_str().unwrap();
    let train = |options: &[&str]| lab.command(2, "run", &[&OPTIONS[..], options].concat());
    let profile = |options: &[&str]| {
        let mut command = on_ranks(2, binary());
        command.arg("profile").args(options);
        command
    };
    let cases = [
        (
            train(&["--trace", "/nowhere/x.json"]),
            "--trace /nowhere/x.json: cannot be written: there is no folder /nowhere",
            1,
        ),
        (train(&["--trace", folder]), "not a regular file", 1),
        (train(&["--trace", ".."]), "--trace ..: cannot be written: it names no file", 1),
        (train(&["--trace", good, "--trace-steps", "5..11"]), "5..11: the run has steps 1 to 10", 2),
        (train(&["--trace", good, "--trace-steps", "5"]), "such as 20..40", 2),
        (train(&["--trace", good, "--trace-steps", "1..2000"]), "at most 1000", 2),
        (train(&["--trace-steps", "1..2"]), "following required arguments were not provided", 2),
        (profile(&["--trace", "/nowhere/x.json"]), "cannot be written", 1),
        (profile(&["--trace", good, "--trace-steps", "1..9", "--batches", "8"]), "has steps 1 to 8", 2),
        (profile(&["--trace", good, "--json", good]), "is the file of --json", 2),
    ];
    for (command, expected, code) in cases {
        let shown = format!("{command:?}");
        let output = must_fail(command);
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{shown}: {}", text(&output));
        assert!(text(&output).contains(expected), "{shown}: {}", text(&output));
        assert_eq!(output.status.code(), Some(code), "{shown}: {}", text(&output));
        assert!(!Path::new(good).exists() && !lab.path("run").exists(), "{shown}");
    }
}

#[test]
fn ranks_with_different_time_lines_are_rejected() {
    let lab = Lab::new();
    let file = lab.path("a.json");
    let file = file.to_str().unwrap();
    for (one, other, named) in [
        (&["--trace", file][..], &[][..], "--trace differs"),
        (&["--trace", file], &["--trace", file, "--trace-steps", "1..2"], "--trace-steps differs"),
    ] {
        let train = |more: &[&str]| lab.command(1, "never", &[&["--epochs", "1"], more].concat());
        let output = must_fail(side_by_side(&train(one), &train(other)));
        let errors = errors(&output);
        assert!(errors.len() == 1 && errors[0].contains(named), "{}", text(&output));
    }
}

/// Neither a complete run, nor one that an option would have gone on with.
#[test]
fn a_rejected_resume_leaves_the_run_as_it_was() {
    let lab = Lab::new();
    lab.train(2, "run", &["--epochs", "1", "--train-samples", "640"]);
    let record = || std::fs::read(lab.path("run/run.json")).unwrap();
    let before = record();
    let resume = |options: &[&str]| {
        let mut command = on_ranks(2, binary());
        command.args(["train", "--resume"]).arg(lab.path("run")).args(options);
        command
    };
    let file = lab.path("z.json");
    let file = file.to_str().unwrap();
    for options in [
        &["--trace", file][..],
        &["--trace", file, "--trace-steps", "1..5", "--set", "epochs=2"],
        &["--set", "epochs=2", "--trace", lab.path("run/run.json").to_str().unwrap()],
        &["--set", "epochs=2", "--trace", binary()],
        &["--set", "lr=0.25"],
    ] {
        let output = must_fail(resume(options));
        assert_eq!(errors(&output).len(), 1, "{options:?}: {}", text(&output));
        assert!(record() == before, "{options:?}: {}", text(&output));
    }
    let output = run(resume(&[]));
    assert!(
        output.status.success() && text(&output).contains("the run is complete after"),
        "{}",
        text(&output)
    );
    assert!(record() == before, "a complete run has nothing to be measured again");
}

#[test]
fn a_time_line_does_not_replace_another_file() {
    let lab = Lab::new();
    for name in ["run.json", "epochs.csv", "rank0/t.json", "none/t.json"] {
        let file = lab.path("run").join(name);
        let mut command = lab.command(2, "run", &["--epochs", "1", "--train-samples", "640"]);
        command.arg("--trace").arg(&file);
        let output = must_fail(command);
        assert_eq!((errors(&output).len(), output.status.code()), (1, Some(2)), "{name}: {}", text(&output));
        assert!(!lab.path("run").exists(), "{name}");
    }
    let other = lab.path("other.json");
    std::fs::write(&other, "{\"mine\": 1}").unwrap();
    let traced = |file: &str| {
        let mut command = lab.command(1, file, &["--epochs", "1", "--train-samples", "640"]);
        command.arg("--trace").arg(lab.path(file).with_extension("json"));
        command
    };
    let output = must_fail(traced("other"));
    assert!(errors(&output)[0].contains("no time line, which is not replaced"), "{}", text(&output));
    assert_eq!(std::fs::read(&other).unwrap(), b"{\"mine\": 1}");
    for _ in 0..2 {
        let output = run(traced("mine").arg("--overwrite"));
        assert!(output.status.success(), "an own time line is replaced: {}", text(&output));
    }
}
