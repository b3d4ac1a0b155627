//! Invalid options of `--trace` are rejected with one line, before any work, on all ranks.

use crate::harness::*;

/// A training of ten steps on two ranks.
const OPTIONS: [&str; 4] = ["--epochs", "1", "--train-samples", "640"];

#[test]
fn invalid_time_lines_are_rejected_with_one_line() {
    let lab = Lab::new();
    let [folder, good] = ["folder", "good.json"].map(|name| lab.path(name).to_str().unwrap().to_owned());
    std::fs::create_dir(&folder).unwrap();
    let good = good.as_str();
    let train = |options: &[&str]| lab.command(2, "run", &[&OPTIONS[..], options].concat());
    let profile = |options: &[&str]| job(2).arg("profile").args(options).clone();
    for (job, expected, code) in [
        (
            train(&["--trace", "/nowhere/x.json"]),
            "--trace /nowhere/x.json: cannot be written: the folder /nowhere ",
            1,
        ),
        (train(&["--trace", &folder]), "not a regular file", 1),
        (train(&["--trace", ".."]), "--trace ..: cannot be written: ", 1),
        (train(&["--trace", good, "--trace-steps", "5..11"]), "5..11: the run has steps 1 to 10", 2),
        (train(&["--trace", good, "--trace-steps", "5"]), "such as 20..40", 2),
        (train(&["--trace", good, "--trace-steps", "1..2000"]), "at most 1000", 2),
        (train(&["--trace-steps", "1..2"]), "following required arguments were not provided", 2),
        (profile(&["--trace", "/nowhere/x.json"]), "cannot be written", 1),
        (profile(&["--trace", good, "--trace-steps", "1..9", "--batches", "8"]), "has steps 1 to 8", 2),
        (profile(&["--trace", good, "--json", good]), "file of --json", 2),
    ] {
        let output = fails_with(&job, &[]);
        assert!(text(&output).contains(expected), "{job:?}: {}", text(&output));
        assert_eq!(output.status.code(), Some(code), "{job:?}: {}", text(&output));
        assert!(!lab.path("good.json").exists() && !lab.path("run").exists(), "{job:?}");
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
        let [one, other] = [one, other].map(|more| lab.command(1, "never", more));
        fails_with(side_by_side(&[&one, &other]), &[named]);
    }
}

/// Checks a complete run, and a run that another option would have continued.
#[test]
fn a_rejected_resume_leaves_the_run_as_it_was() {
    let lab = Lab::new();
    lab.train(2, "run", &OPTIONS);
    let record = || std::fs::read(lab.path("run/run.json")).unwrap();
    let before = record();
    let file = lab.path("z.json");
    let file = file.to_str().unwrap();
    for options in [
        &["--trace", file][..],
        &["--trace", file, "--trace-steps", "1..5", "--epochs=2"],
        &["--epochs=2", "--trace", lab.path("run/run.json").to_str().unwrap()],
        &["--epochs=2", "--trace", binary()],
        &["--lr=0.25"],
    ] {
        let output = fails_with(lab.resume(2, "run", options), &[]);
        assert!(record() == before, "{options:?}: {}", text(&output));
    }
    let printed = output_of(lab.resume(2, "run", &[]));
    assert!(printed.contains("the run is complete"), "{printed}");
    assert!(record() == before, "a complete run has nothing to be measured again");
}

#[test]
fn a_time_line_does_not_replace_another_file() {
    let lab = Lab::new();
    let traced = |ranks, name: &str, file: &str| {
        let mut job = lab.command(ranks, name, &OPTIONS);
        job.arg("--trace").arg(lab.path(file));
        job
    };
    for name in ["run.json", "epochs.csv", "rank0/t.json", "none/t.json"] {
        let output = fails_with(traced(2, "run", &format!("run/{name}")), &[]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", text(&output));
        assert!(!lab.path("run").exists(), "{name}");
    }
    let other = lab.path("other.json");
    std::fs::write(&other, "{\"mine\": 1}").unwrap();
    fails_with(traced(1, "other", "other.json"), &["--trace ", "other.json: ", "not a time line"]);
    assert_eq!(std::fs::read(&other).unwrap(), b"{\"mine\": 1}");
    for _ in 0..2 {
        // The run's own time line is replaced.
        output_of(traced(1, "mine", "mine.json").arg("--overwrite"));
    }
}
