//! Unusual files as input: pipes, devices, names that are not UTF-8, and text with control sequences for a
//! terminal.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;

use crate::harness::*;

/// A training of one step.
const SHORT: [&str; 2] = ["--epochs=1", "--train-samples=64"];

#[test]
fn a_pipe_in_the_place_of_a_file_is_named() {
    let lab = Lab::new();
    let data = lab.path("data");
    fs::create_dir(&data).unwrap();
    for entry in fs::read_dir(digits()).unwrap().map(Result::unwrap) {
        if entry.file_name().to_str().unwrap().starts_with("t10k-labels") {
            make_fifo(&data.join(entry.file_name()))
        } else {
            fs::copy(entry.path(), data.join(entry.file_name())).unwrap();
        }
    }
    let train = lab.command(2, "run", &["--data-root", data.to_str().unwrap()]);
    fails_with(train, &["t10k-labels", "not a regular file"]);
    let init = lab.path("init.safetensors");
    make_fifo(&init);
    let train = lab.command(2, "run", &["--init", init.to_str().unwrap()]);
    fails_with(train, &["--init", "init.safetensors: not a regular file"]);

    lab.train(1, "trained", &SHORT);
    fs::rename(lab.path("trained/epochs.csv"), lab.path("epochs.csv")).unwrap();
    make_fifo(&lab.path("trained/epochs.csv"));
    let resume = lab.resume(1, "trained", &["--epochs=2"]);
    fails_with(resume, &["epochs.csv: it is not a regular file"]);
    assert_eq!(lab.run_json("trained")["status"], "completed", "a refused run stays as it was");
    fs::rename(lab.path("epochs.csv"), lab.path("trained/epochs.csv")).unwrap();
    fs::remove_file(lab.path("trained/run.json")).unwrap();
    make_fifo(&lab.path("trained/run.json"));
    for command in [&["eval", "--checkpoint"][..], &["report"], &["train", "--resume"]] {
        let output = must_fail(lab.on(1, command, "trained"));
        assert!(text(&output).contains("run.json: not a regular file"), "{command:?}: {}", text(&output));
    }
}

/// If files of a run are pipes, which nobody expects, the report continues without them.
#[test]
fn a_report_does_not_wait_for_pipes() {
    let lab = Lab::new();
    lab.train(1, "run", &SHORT);
    let replace = |file: &str| {
        fs::remove_file(lab.path("run").join(file)).unwrap();
        make_fifo(&lab.path("run").join(file));
    };
    replace("rank0/train.loss");
    let link = lab.path("link.csv");
    make_fifo(&link);
    let report = |options: &[&str]| {
        run(lab.on(1, &[&["report"], options, &["--out"]].concat(), "report").arg(lab.path("run")))
    };
    for format in ["terminal", "html"] {
        let output = report(&["--format", format]);
        assert!(output.status.success(), "{format}: {}", text(&output));
    }
    let link = ["--scaling", "--link", link.to_str().unwrap()];
    for (options, named) in [
        (&link[..], "not a regular file"),
        // After this, `epochs.csv` is a pipe, and no run can be read.
        (&["--format", "terminal"], "epochs.csv: is damaged (not a regular file but a pipe)"),
    ] {
        let output = report(options);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert!(text(&output).contains(named), "{}", text(&output));
        if options == link {
            replace("epochs.csv");
        }
    }
}

#[test]
fn a_path_that_is_not_utf_8_is_used_or_refused_by_its_option() {
    let lab = Lab::new();
    let path = lab.path("").join(OsStr::from_bytes(b"run\xff"));
    output_of(lab.command(2, "", &SHORT).arg("--out").arg(&path));
    for (command, ranks) in [
        (&["train", "--resume"][..], 2),
        (&["eval", "--checkpoint"], 2),
        (&["quantize"], 1),
        (&["profile", "--checkpoint"], 2),
    ] {
        output_of(job(ranks).args(command).arg(&path));
    }
    let output = fails_with(job(2).args(["train", "--data-root"]).arg(&path), &["is not UTF-8"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output));
    assert!(errors(&output)[0].starts_with("mpiburn: --data-root "), "{}", text(&output));
}

#[test]
fn what_is_in_run_json_does_not_command_the_terminal() {
    let lab = Lab::new();
    lab.train(1, "run", &SHORT);
    let file = lab.path("run/run.json");
    let whole = fs::read(&file).unwrap();
    // An edited `status` is rejected on stderr; an edited `backend` is shown on stdout.
    for field in ["/status", "/config/backend"] {
        fs::write(&file, &whole).unwrap();
        edit(&file, |run| *run.pointer_mut(field).expect(field) = "\u{1b}]0;owned\u{7}<b>x|".into());
        for format in ["terminal", "markdown", "html", "csv"] {
            let report = ["report", "--format", format, "--out"];
            let output = run(lab.on(1, &report, "report").arg(lab.path("run")));
            assert_ne!(output.status.code(), Some(2), "{format} is known: {}", text(&output));
            assert!(format == "html" || text(&output).contains("owned"), "{}", text(&output));
            assert!(!text(&output).contains(['\u{1b}', '\u{7}']), "{}", text(&output));
        }
    }
}

#[test]
fn host_and_sweep_files_that_are_no_files_are_refused() {
    let lab = Lab::new();
    make_fifo(&lab.path("fifo"));
    let mut launch = lab.on(1, &["launch", "1x1", "--dry-run", "--hostfile"], "fifo");
    launch.args(["--", "train"]);
    for job in [launch, lab.on(1, &["sweep"], "fifo")] {
        fails_with(job, &["fifo: not a regular file"]);
    }
}

/// Opening a FIFO would wait for its other end.
#[test]
fn special_files_are_refused_before_work_begins() {
    let lab = Lab::new();
    make_fifo(&lab.path("fifo"));
    for (ranks, words, file) in [
        (2, &["profile", "--csv"][..], "fifo"),
        (2, &["profile", "--json"], "fifo"),
        (1, &["profile", "--json"], "/dev/null"),
        (2, &["bench", "allreduce", "--csv"], "fifo"),
        (2, &["bench", "collectives", "--csv"], "fifo"),
        (2, &["bench", "link", "--csv"], "fifo"),
        (2, &["bench", "step", "--json"], "fifo"),
        (1, &["bench", "int8", "--csv"], "fifo"),
        (1, &["bench", "int8", "--json"], "fifo"),
        (1, &["bench", "fused", "--csv"], "fifo"),
    ] {
        let named = "it is not a regular file";
        let output = fails_with(lab.on(ranks, words, file), &[named]);
        assert!(!text(&output).contains("median"), "{words:?}");
    }
}
