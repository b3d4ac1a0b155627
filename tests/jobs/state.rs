//! Changed and damaged run directories: a resumed run notices each of them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::harness::*;

const FEW: [&str; 5] =
    ["--train-samples=200", "--test-samples=20", "--epochs=2", "--log-every=1", "--shuffle"];

fn resume(lab: &Lab, ranks: usize, name: &str, more: &[&str]) -> Command {
    let mut command = on_ranks(ranks, binary());
    command.args(["train", "--resume"]).arg(lab.path(name)).args(more);
    command
}

fn edit(path: &Path, change: impl Fn(&mut Value)) {
    let mut json: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, serde_json::to_vec_pretty(&json).unwrap()).unwrap();
}

/// The command must fail with one line that contains all `words`.
fn refused(command: Command, words: &[&str]) -> Output {
    let output = must_fail(command);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
    for word in words {
        assert!(errors[0].contains(word), "{} lacks {word}", errors[0]);
    }
    output
}

fn ends(command: Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

#[test]
fn an_edited_configuration_is_named_by_its_field() {
    let lab = Lab::new();
    for (ranks, backend) in [(2, "mpi"), (3, "gloo")] {
        let name = format!("run{ranks}");
        lab.train(ranks, &name, &[&FEW[..], &["--backend", backend]].concat());
        let file = lab.path(&name).join("run.json");
        let whole = fs::read(&file).unwrap();
        for (field, value, remedy) in [
            ("lr", Value::from(0.25), "--set lr=0.25"),
            ("seed", 124.into(), "it cannot change"),
            ("dropout", 0.5.into(), "--set dropout=0.5"),
            ("train_batch_size", 16.into(), "it cannot change"),
            ("accumulate", 2.into(), "it cannot change"),
            ("train_samples", Value::Null, "it cannot change"),
            ("quantize", "qat".into(), "it cannot change"),
            ("clip_norm", 1.0.into(), "--set clip-norm=1.0"),
            ("epochs", 3.into(), "--set epochs=3"),
            ("model", "mlp".into(), "it cannot change"),
        ] {
            edit(&file, |run| run["config"][field] = value.clone());
            let edited = fs::read(&file).unwrap();
            let named = ["run.json: `config.", field, remedy, "put that back"];
            refused(resume(&lab, ranks, &name, &[]), &named);
            assert_eq!(fs::read(&file).unwrap(), edited, "nothing is written");
            fs::write(&file, &whole).unwrap();
        }
        edit(&file, |run| run["config"]["lr"] = 0.25.into());
        for command in [&["eval", "--checkpoint"][..], &["quantize"], &["profile", "--checkpoint"]] {
            let mut job = on_ranks(ranks, binary());
            job.args(command).arg(lab.path(&name));
            refused(job, &["run.json: `config.lr` is 0.25, and was 0.0005"]);
        }
        let mut job = on_ranks(ranks, binary());
        job.arg("export").arg(lab.path(&name)).arg("--out").arg(lab.path("x.onnx"));
        refused(job, &["run.json: `config.lr` is 0.25"]);
        fs::write(&file, &whole).unwrap();
        fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        refused(resume(&lab, ranks, &name, &[]), &["run.json: ", "manifest.json"]);
        fs::write(&file, &whole).unwrap();
        edit(&file, |run| run["history"] = Value::Array(Vec::new()));
        refused(resume(&lab, ranks, &name, &[]), &["run.json: `history` has 0 entries"]);
    }
}

#[test]
fn a_damaged_newest_checkpoint_is_set_aside_for_the_one_before_it() {
    let lab = Lab::new();
    for (ranks, backend) in [(2, "mpi"), (3, "gloo")] {
        let name = format!("run{ranks}");
        let expected = lab.train(ranks, &name, &[&FEW[..], &["--backend", backend]].concat());
        let mut set_aside = 0;
        for (file, field, value) in [
            ("state.json", "/position/step_in_epoch", Value::from(1)),
            ("state.json", "/position/epoch", 1.into()),
            ("state.json", "/updates", 7.into()),
            ("state.json", "/position/arrival/order/0", 99.into()),
            ("state.json", "/position/history/0/test_accuracy", 99.5.into()),
            ("state.json", "/position/test_tallies/0/correct", 1.0.into()),
            ("manifest.json", "/config/lr", 0.25.into()),
            ("manifest.json", "/attempt", 1.into()),
        ] {
            let last = lab.checkpoints(&name).pop().unwrap();
            edit(&last.join(file), |json| *json.pointer_mut(field).expect(field) = value.clone());
            let printed = ends(resume(&lab, ranks, &name, &[]));
            set_aside += 1;
            let lines: Vec<_> = printed.lines().filter(|line| line.contains("set aside as")).collect();
            assert!(lines.len() == 1 && lines[0].contains(file), "{field}: {printed}");
            assert_eq!(lab.run_json(&name)["weights_sha256"], expected["weights_sha256"], "{field}");
            assert_eq!(lab.run_json(&name)["test_accuracy"], expected["test_accuracy"], "{field}");
        }
        let names = fs::read_dir(lab.path(&name).join("checkpoints")).unwrap().flatten();
        let damaged = names.filter(|entry| entry.file_name().to_string_lossy().contains(".damaged"));
        assert_eq!(damaged.count(), set_aside);
        assert_eq!(lab.run_json(&name)["history"].as_array().unwrap().len(), set_aside + 1);

        // A missing manifest is damage, and with no intact checkpoint there is nothing to take.
        for checkpoint in lab.checkpoints(&name) {
            fs::remove_file(checkpoint.join("manifest.json")).unwrap();
        }
        refused(resume(&lab, ranks, &name, &[]), &["manifest.json", "cannot read"]);
        assert_eq!(lab.checkpoints(&name).len(), 2, "left as they are");
    }
}

#[test]
fn values_out_of_range_in_a_checkpoint_without_manifest_are_refused() {
    let lab = Lab::new();
    lab.train(2, "old", &FEW);
    lab.remove_manifests("old");
    let last = lab.checkpoints("old").pop().unwrap().join("state.json");
    let whole = fs::read(&last).unwrap();
    for (field, value, named) in [
        ("/position/arrival/order/0", Value::from(99), "order of arrival"),
        ("/position/arrival/uses/0", 0.into(), "order of arrival"),
        ("/position/step_in_epoch", 3.into(), "`step_in_epoch` 3"),
        ("/position/epoch", 1.into(), "after 1 epochs"),
        ("/updates", u64::MAX.into(), "`updates`"),
        ("/position/history/0/epoch", 7.into(), "`history`"),
        ("/position/epoch_tallies", Value::Array(Vec::new()), "`epoch_tallies` has 0 ranks"),
        ("/position/train_seconds", (-1.0).into(), "a time is negative"),
    ] {
        edit(&last, |state| *state.pointer_mut(field).expect(field) = value.clone());
        let output = refused(resume(&lab, 2, "old", &[]), &["state.json", named]);
        assert!(!text(&output).contains("panicked"), "{field}: {}", text(&output));
        fs::write(&last, &whole).unwrap();
    }
    let printed = ends(resume(&lab, 2, "old", &[]));
    assert!(printed.contains("has no manifest.json: nothing covers the configuration"), "{printed}");
}

#[test]
fn changed_curves_are_refused_and_removed_ones_begin_again() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        let name = format!("run{ranks}");
        lab.train(ranks, &name, &FEW);
        let file = lab.path(&name).join("rank1/train.loss");
        let whole = fs::read(&file).unwrap();
        let mut changed = whole.clone();
        let at = whole.len() - 2;
        changed[at] ^= 1;
        for content in [&changed[..], &whole[..at], b""] {
            fs::write(&file, content).unwrap();
            refused(
                resume(&lab, ranks, &name, &[]),
                &["rank1/train.loss: cut short or changed", "remove it"],
            );
            assert_eq!(fs::read(&file).unwrap(), content);
        }
        fs::remove_file(&file).unwrap();
        let printed = ends(resume(&lab, ranks, &name, &["--set", "epochs=3"]));
        assert!(printed.contains("rank1/train.loss is missing"), "{printed}");
        assert!(!fs::read(&file).unwrap().is_empty(), "the third epoch's points");

        let epochs = lab.path(&name).join("epochs.csv");
        let text = fs::read_to_string(&epochs).unwrap();
        fs::write(&epochs, text.replace("\n2,", "\n2,9")).unwrap();
        let printed = ends(resume(&lab, ranks, &name, &[]));
        assert!(printed.contains("epochs.csv: line 3 is not what the checkpoint says"), "{printed}");
        assert_eq!(fs::read_to_string(&epochs).unwrap(), text);
    }
}

#[test]
fn options_change_by_set_alone_and_the_history_says_so() {
    let lab = Lab::new();
    lab.train(2, "run", &FEW);
    for (set, named) in [
        ("lr=-1", "--set lr=-1: --lr -1: must be a finite number"),
        ("seed=7", "--seed cannot change in a resumed run"),
        ("learning-rate=1", "there is no option --learning-rate"),
        ("epochs=1", "--set epochs=1: 2 epochs are done"),
    ] {
        let output = refused(resume(&lab, 2, "run", &["--set", set]), &[named]);
        assert_eq!(output.status.code(), Some(2), "{set}");
        assert_eq!(lab.run_json("run")["status"], "completed", "{set}");
    }
    ends(resume(&lab, 2, "run", &["--set", "epochs=3", "--set", "lr=0.25"]));
    let run = lab.run_json("run");
    assert_eq!((&run["config"]["lr"], &run["epochs_run"]), (&0.25.into(), &3.into()));
    let history = run["history"].as_array().unwrap();
    assert_eq!((history.len(), &history[1]["step"]), (2, &8.into()));
    let expected = serde_json::json!([
        {"field": "epochs", "from": 2, "to": 3}, {"field": "lr", "from": 0.0005, "to": 0.25}
    ]);
    assert_eq!(history[1]["changed"], expected);
    // The checkpoints before the change are covered too: the history has it.
    fs::remove_dir_all(lab.checkpoints("run").pop().unwrap()).unwrap();
    ends(resume(&lab, 2, "run", &[]));
    let again = lab.run_json("run");
    assert_eq!(again["weights_sha256"], run["weights_sha256"]);
    // Only rank 0 reads the run directory, but each rank has its options.
    let with = |more: &[&str]| resume(&lab, 1, "run", more);
    refused(side_by_side(&with(&["--set", "lr=1"]), &with(&[])), &["--set differs between ranks"]);
}

/// Renamed, an old checkpoint would be the newest for good.
#[test]
fn a_renamed_checkpoint_is_not_taken_for_another_step() {
    let lab = Lab::new();
    let options = ["--epochs", "2", "--train-samples", "640", "--checkpoint-every", "4"];
    let expected = lab.train(2, "run", &options);
    let folders = lab.checkpoints("run");
    let newest = folders.last().unwrap();
    fs::rename(newest, newest.with_file_name("step-00009999")).unwrap();
    let mut command = on_ranks(2, binary());
    let output = run(command.args(["train", "--resume"]).arg(lab.path("run")));
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("it holds the checkpoint step-"), "{}", text(&output));
    assert_eq!(lab.run_json("run")["weights_sha256"], expected["weights_sha256"]);
    assert_eq!(lab.checkpoints("run").last(), Some(newest));
}
