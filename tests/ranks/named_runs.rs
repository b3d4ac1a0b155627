//! A command gets a run by any of three paths: its folder, its run.json, or one of its checkpoints.

use std::fs;

use crate::harness::*;

#[test]
fn every_command_takes_a_run_by_each_of_its_names() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs=2", "--train-samples=320", "--test-samples=20", "--quantize=ptq"]);
    let picture = lab.path("x.pgm");
    fs::write(&picture, [b"P5 28 28 255\n".as_slice(), &[0; 28 * 28]].concat()).unwrap();
    let (picture, onnx) = (picture.to_str().unwrap(), lab.path("x.onnx"));
    let names = [lab.path("run"), lab.path("run/run.json"), lab.newest("run")];
    let commands: [(&[&str], &[&str]); 11] = [
        (&["eval"], &[]),
        (&["eval", "--checkpoint"], &[]),
        (&["eval", "--int8"], &[]),
        (&["profile"], &["--batches=1"]),
        (&["profile", "--batches=1", "--checkpoint"], &[]),
        (&["bench", "int8"], &["--iterations=1"]),
        (&["quantize"], &[]),
        (&["export"], &["--out", onnx.to_str().unwrap()]),
        (&["predict"], &[picture]),
        (&["report"], &[]),
        (&["train", "--resume"], &["--epochs=2"]),
    ];
    for (command, more) in commands {
        let printed = names.each_ref().map(|name| output_of(job(1).args(command).arg(name).args(more)));
        // Other commands print times, which differ from call to call, or the path (`report`).
        if ["eval", "quantize", "predict"].contains(&command[0]) {
            assert!(printed.iter().all(|text| *text == printed[0]), "{command:?}: {printed:?}");
        }
    }
}

#[test]
fn a_run_is_named_once_and_resumed_from_its_newest_checkpoint() {
    let lab = Lab::new();
    lab.train(1, "run", &["--epochs=2", "--train-samples=320", "--test-samples=20"]);
    let before = fs::read(lab.path("run/run.json")).unwrap();
    let [older, newest] = <[_; 2]>::try_from(lab.checkpoints("run")).expect("two checkpoints");
    let resume = |name, more| job(1).args(["train", "--resume"]).arg(name).arg(more).clone();
    let (named, resumable) = (format!("--resume {}: ", older.display()), newest.display().to_string());
    refused(resume(&older, "--epochs=3"), 2, &[&named, &resumable]);
    assert_eq!(fs::read(lab.path("run/run.json")).unwrap(), before);
    output_of(job(1).arg("eval").arg(&older));
    output_of(resume(&newest, "--epochs=3"));
    for words in [&["eval"][..], &["eval", "run", "--checkpoint", "run"]] {
        let output = must_fail(job(1).args(words));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains("--checkpoint <RUN>"), "{}", text(&output));
    }
}
