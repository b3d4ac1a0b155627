//! Changed and damaged run directories: a resumed run notices each of them.

use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::*;

const FEW: [&str; 5] =
    ["--train-samples=200", "--test-samples=20", "--epochs=2", "--log-every=1", "--shuffle"];

#[test]
fn an_edited_configuration_is_named_by_its_field() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        let name = &format!("run{ranks}");
        lab.train(ranks, name, &FEW);
        let file = lab.path(name).join("run.json");
        let whole = fs::read(&file).unwrap();
        let set = |field: &str, value: &Value| {
            fs::write(&file, &whole).unwrap();
            edit(&file, |run| *run.pointer_mut(field).expect(field) = value.clone());
        };
        for (field, value, remedy) in [
            ("lr", json!(0.25), "--lr 0.25"),
            ("seed", json!(124), "it cannot change"),
            ("dropout", json!(0.5), "--dropout 0.5"),
            ("train_batch_size", json!(16), "it cannot change"),
            ("accumulate", json!(2), "it cannot change"),
            ("train_samples", json!(null), "it cannot change"),
            ("quantize", json!("qat"), "it cannot change"),
            ("clip_norm", json!(1.0), "--clip-norm 1"),
            ("epochs", json!(3), "--epochs 3"),
            ("model", json!("mlp"), "it cannot change"),
        ] {
            set(&format!("/config/{field}"), &value);
            let edited = fs::read(&file).unwrap();
            let named = ["run.json: `config.", field, remedy];
            fails_with(lab.resume(ranks, name, &[]), &named);
            assert_eq!(fs::read(&file).unwrap(), edited, "nothing is written");
        }
        set("/config/lr", &json!(0.25));
        let onnx = lab.path("x.onnx");
        let export = ["export", "--out", onnx.to_str().unwrap()];
        for command in [&["eval", "--checkpoint"][..], &["quantize"], &["profile", "--checkpoint"], &export] {
            fails_with(lab.on(ranks, command, name), &["run.json: `config.lr` is 0.25", "0.0005"]);
        }
        fs::write(&file, &whole[..whole.len() / 2]).unwrap();
        let line = refused(lab.resume(ranks, name, &[]), 1, &["run.json: ", "restore the file"]);
        assert!(!line.contains("manifest.json"), "more than `config` is lost: {line}");
        set("/config/lr", &json!(-1));
        let line = refused(lab.resume(ranks, name, &[]), 1, &["run.json: --lr -1: ", "manifest.json"]);
        assert_eq!(line.matches("restore the file").count(), 1, "{line}");
        set("/data/classes", &json!(9));
        let line = refused(lab.resume(ranks, name, &[]), 2, &["run.json", "9 classes", "10 classes"]);
        assert!(!line.contains("--data-root"), "nobody typed it: {line}");
        set("/history", &json!([]));
        fails_with(lab.resume(ranks, name, &[]), &["run.json: `history` has 0 attempts"]);
    }
}

#[test]
fn a_damaged_newest_checkpoint_is_set_aside_for_the_one_before_it() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        let name = &format!("run{ranks}");
        let expected = lab.train(ranks, name, &FEW);
        let damages = [
            ("state.json", "/position/step_in_epoch", json!(1)),
            ("state.json", "/position/epoch", json!(1)),
            ("state.json", "/updates", json!(7)),
            ("state.json", "/position/arrival/order/0", json!(99)),
            ("state.json", "/position/history/0/test_accuracy", json!(99.5)),
            ("state.json", "/position/test_tallies/0/correct", json!(1.0)),
            ("manifest.json", "/config/lr", json!(0.25)),
            ("manifest.json", "/attempt", json!(1)),
        ];
        for (file, field, value) in &damages {
            let last = lab.checkpoints(name).pop().unwrap();
            edit(&last.join(file), |json| *json.pointer_mut(field).expect(field) = value.clone());
            let printed = output_of(lab.resume(ranks, name, &[]));
            let lines: Vec<_> = printed
                .lines()
                .filter(|line| line.contains("renamed to ") && line.contains(".damaged"))
                .collect();
            assert!(lines.len() == 1 && lines[0].contains(file), "{field}: {printed}");
            for result in ["weights_sha256", "test_accuracy"] {
                assert_eq!(lab.run_json(name)[result], expected[result], "{field}");
            }
        }
        let names = fs::read_dir(lab.path(name).join("checkpoints")).unwrap().flatten();
        let damaged = names.filter(|entry| entry.file_name().to_string_lossy().contains(".damaged"));
        assert_eq!(damaged.count(), damages.len());
        assert_eq!(lab.run_json(name)["history"].as_array().unwrap().len(), damages.len() + 1);

        // A checkpoint without a manifest is damaged. If no checkpoint is intact, the resume fails.
        for checkpoint in lab.checkpoints(name) {
            fs::remove_file(checkpoint.join("manifest.json")).unwrap();
        }
        fails_with(
            lab.resume(ranks, name, &[]),
            &["manifest.json", "cannot read", "no other checkpoint is intact", "--overwrite"],
        );
        assert_eq!(lab.checkpoints(name).len(), 2, "left as they are");
    }
}

#[test]
fn changed_curves_are_refused_and_removed_ones_begin_again() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        let name = &format!("run{ranks}");
        lab.train(ranks, name, &FEW);
        let file = lab.path(name).join("rank1/train.loss");
        let whole = fs::read(&file).unwrap();
        let mut changed = whole.clone();
        let at = whole.len() - 2;
        changed[at] ^= 1;
        for content in [&changed[..], &whole[..at], b""] {
            fs::write(&file, content).unwrap();
            let named = ["rank1/train.loss: is truncated or changed", "remove it"];
            fails_with(lab.resume(ranks, name, &[]), &named);
            assert_eq!(fs::read(&file).unwrap(), content);
        }
        fs::remove_file(&file).unwrap();
        let printed = output_of(lab.resume(ranks, name, &["--epochs=3"]));
        assert!(printed.contains("rank1/train.loss ") && printed.contains("missing"), "{printed}");
        assert!(!fs::read(&file).unwrap().is_empty(), "the third epoch's points");

        let epochs = lab.path(name).join("epochs.csv");
        let text = fs::read_to_string(&epochs).unwrap();
        fs::write(&epochs, text.replace("\n2,", "\n2,9")).unwrap();
        let printed = output_of(lab.resume(ranks, name, &[]));
        assert!(printed.contains("epochs.csv: line 3 "), "{printed}");
        assert_eq!(fs::read_to_string(&epochs).unwrap(), text);
    }
}

#[test]
fn options_beside_resume_change_and_the_history_says_so() {
    let lab = Lab::new();
    lab.train(2, "run", &FEW);
    for (set, named) in [
        ("--lr=-1", "--lr -1: must be a finite number"),
        ("--seed=7", "--seed 7: "),
        ("--learning-rate=1", "unexpected argument '--learning-rate'"),
        ("--out=elsewhere", "cannot be used with '--out <DIR>'"),
        ("--epochs=1", "2 epochs"),
    ] {
        let output = fails_with(lab.resume(2, "run", &[set]), &[named]);
        assert_eq!(output.status.code(), Some(2), "{set}");
        assert_eq!(lab.run_json("run")["status"], "completed", "{set}");
    }
    output_of(lab.resume(2, "run", &["--epochs=3", "--lr=0.25"]));
    let run = lab.run_json("run");
    assert_eq!((&run["config"]["lr"], &run["epochs_run"]), (&json!(0.25), &json!(3)));
    let history = run["history"].as_array().unwrap();
    assert_eq!((history.len(), &history[1]["step"]), (2, &json!(8)));
    let expected = json!([
        {"field": "epochs", "from": 2, "to": 3}, {"field": "lr", "from": 0.0005, "to": 0.25}
    ]);
    assert_eq!(history[1]["changed"], expected);
    // The history has the change, so checkpoints before the change can be used too.
    fs::remove_dir_all(lab.checkpoints("run").pop().unwrap()).unwrap();
    output_of(lab.resume(2, "run", &[]));
    assert_eq!(lab.run_json("run")["weights_sha256"], run["weights_sha256"]);
    // Only rank 0 reads the run directory. The other ranks compare their options with rank 0's.
    for option in ["--lr=1", "--lr=0.0005", "--clip-norm=none"] {
        let [with, without] = [&[option][..], &[]].map(|more| lab.resume(1, "run", more));
        let differs = format!("{} differs between ranks: rank 1 on ", option.split('=').next().unwrap());
        fails_with(side_by_side(&[&with, &without]), &[&differs, "has the run's own"]);
    }
}

/// Replaces a file of the newest checkpoint, or the checkpoint's folder, by a folder, a pipe or a link.
#[test]
fn a_newest_checkpoint_of_something_else_is_set_aside_for_the_one_before_it() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        let (whole, name) = (&format!("whole{ranks}"), &format!("run{ranks}"));
        let expected = lab.train(ranks, whole, &FEW);
        for file in ["state.json", "manifest.json", "model.safetensors", "optimizer.safetensors", ""] {
            for kind in ["folder", "pipe", "loop"] {
                let copied = Command::new("cp").arg("-a").args([lab.path(whole), lab.path(name)]).status();
                assert!(copied.unwrap().success());
                let newest = lab.newest(name);
                // `join("")` would add a slash to the path, and a path with a slash follows a link.
                let place = if file.is_empty() { newest.clone() } else { newest.join(file) };
                fs::rename(&place, lab.path("aside")).unwrap();
                match kind {
                    "folder" => fs::create_dir(&place).unwrap(),
                    "pipe" => make_fifo(&place),
                    _ => std::os::unix::fs::symlink(&place, &place).unwrap(),
                }
                let before = "using the previous checkpoint";
                let tested = output_of(lab.on(ranks, &["eval", "--checkpoint"], name));
                assert!(
                    tested.contains(newest.to_str().unwrap()) && tested.contains(before),
                    "{kind} {tested}"
                );
                let printed = output_of(lab.resume(ranks, name, &[]));
                let aside = newest.with_extension("damaged");
                let named = [&place, &aside].map(|path| path.to_str().unwrap());
                assert!(named.iter().all(|path| printed.contains(path)), "{file} {kind}: {printed}");
                assert_eq!(lab.run_json(name)["weights_sha256"], expected["weights_sha256"]);
                fs::remove_dir_all(lab.path(name)).unwrap();
                drop((fs::remove_file(lab.path("aside")), fs::remove_dir_all(lab.path("aside"))));
            }
        }
    }
}

/// A file is in the place of the folder of checkpoints, so the folder cannot be listed. The error must not be
/// "no checkpoint".
#[test]
fn checkpoints_that_cannot_be_listed_are_not_taken_for_none() {
    let lab = Lab::new();
    lab.train(2, "run", &FEW);
    let (folder, aside) = (lab.path("run/checkpoints"), lab.path("aside"));
    fs::rename(&folder, &aside).unwrap();
    fs::write(&folder, "").unwrap();
    let onnx = lab.path("x.onnx");
    let export = ["export", "--out", onnx.to_str().unwrap()];
    let commands = [
        &["train", "--resume"][..],
        &["eval", "--checkpoint"],
        &["quantize"],
        &["profile", "--checkpoint"],
        &export,
    ];
    for command in commands {
        let output =
            fails_with(lab.on(2, command, "run"), &["cannot read ", "run/checkpoints: Not a directory"]);
        assert!(!text(&output).contains("--overwrite"), "{}", text(&output));
    }
    fs::remove_file(&folder).unwrap();
    fails_with(lab.resume(2, "run", &[]), &["no checkpoint in ", "--overwrite"]);
    fs::rename(&aside, &folder).unwrap();
    output_of(lab.resume(2, "run", &[]));
}

/// The samples differ from the run's in a pixel, a label or the name of a class.
#[test]
fn other_samples_are_noticed_and_taken_only_when_asked_for() {
    let lab = Lab::new();
    let data = lab.path("data");
    let copy = || {
        let _ = fs::remove_dir_all(&data);
        let copied = Command::new("cp").arg("-a").args([digits(), data.as_path()]).status();
        assert!(copied.unwrap().success());
    };
    let flip = |name: &str, at: usize| {
        let mut bytes = fs::read(data.join(name)).unwrap();
        bytes[at] ^= 1;
        fs::write(data.join(name), bytes).unwrap();
    };
    copy();
    let root = data.to_str().unwrap();
    for ranks in [1, 2, 3] {
        let name = &format!("run{ranks}");
        lab.train(ranks, name, &[&FEW[..], &["--data-root", root]].concat());
        let before = fs::read(lab.path(name).join("run.json")).unwrap();
        let (resume, eval, quantize) = (
            lab.resume(ranks, name, &[]),
            lab.on(ranks, &["eval", "--checkpoint"], name),
            lab.on(ranks, &["quantize"], name),
        );
        for (file, at, split) in [
            ("train-images-idx3-ubyte", 16 + 400, "training"),
            ("train-labels-idx1-ubyte", 8 + 3, "training"),
            ("t10k-images-idx3-ubyte", 16 + 400, "test"),
            ("t10k-labels-idx1-ubyte", 8 + 3, "test"),
        ] {
            flip(file, at);
            let named = [root, &format!(": its {split} samples have changed ")];
            refused(&resume, 2, &[&named[..], &["--data-root "]].concat());
            refused(&quantize, 2, &named);
            let profile = ["profile", "--batches=1"];
            let train = if split == "training" { &["--train"][..] } else { &[] };
            let words = [&profile, train, &["--checkpoint"]].concat();
            refused(lab.on(ranks, &words, name), 2, &named);
            // The difference is noticed whatever number of test samples is used.
            let fewer = lab.on(ranks, &["eval", "--test-samples=7", "--checkpoint"], name);
            let more = lab.resume(ranks, name, &["--test-samples=30", "--epochs=9"]);
            refused(more, 2, &named);
            for eval in [&eval, &fewer] {
                match split {
                    "test" => _ = refused(eval, 2, &named),
                    _ => _ = output_of(eval),
                }
            }
            assert_eq!(fs::read(lab.path(name).join("run.json")).unwrap(), before, "{file}");
            // --data-root names the changed data set, so `eval` uses it.
            output_of(lab.on(ranks, &["eval", "--data-root", root, "--checkpoint"], name));
            flip(file, at);
        }
        // Samples that the run does not use may differ.
        flip("train-images-idx3-ubyte", 16 + 784 * 6000);
        for job in [&resume, &eval, &quantize] {
            output_of(job);
        }
        flip("train-images-idx3-ubyte", 16 + 400);
        output_of(lab.resume(ranks, name, &["--data-root", root, "--epochs=3"]));
        let run = lab.run_json(name);
        let last = run["history"].as_array().unwrap().last().unwrap();
        assert!(
            last["changed"].as_array().unwrap().iter().any(|change| change["field"] == "data_root"),
            "{last}"
        );
        // Later checkpoints have the digests of the changed samples.
        output_of(&resume);
        fs::remove_dir_all(lab.newest(name)).unwrap();
        output_of(&resume);
        copy();
        refused(&resume, 2, &["its training samples have changed "]);
    }
}

#[test]
fn another_number_of_training_samples_is_named_as_such() {
    let lab = Lab::new();
    let data = lab.data("digits", 64, 20);
    lab.train(2, "run", &["--epochs=2", "--train-batch-size=8", "--data-root", &data]);
    fs::remove_dir_all(lab.newest("run")).unwrap();
    fs::rename(&data, lab.path("before")).unwrap();
    fs::rename(lab.data("digits", 96, 20), &data).unwrap();
    let words = ["--data-root ", "6 steps per epoch", "step 4", "epoch 2", "as many training samples"];
    for options in [&[][..], &["--data-root", &data]] {
        refused(lab.resume(2, "run", options), 2, &words);
    }
    fs::rename(&data, lab.path("more")).unwrap();
    let one = lab.data("digits", 1, 20);
    let words = ["--data-root ", "1 training sample for 2 ranks", "more samples", "a new run"];
    refused(lab.resume(2, "run", &["--data-root", &one]), 2, &words);
}

/// `quantize` can make the int8 model again from the weights, so a damaged one is no damage of the
/// checkpoint.
#[test]
fn a_damaged_int8_model_leaves_its_checkpoint_as_it_is() {
    let lab = Lab::new();
    lab.train(2, "run", &FEW);
    let newest = lab.newest("run");
    fs::write(newest.join("int8.safetensors"), "").unwrap();
    let printed = output_of(lab.resume(2, "run", &["--epochs=3"]));
    assert!(printed.contains("resuming after step 8"), "{printed}");
    assert!(newest.exists(), "{printed}");
}

/// A checkpoint is not used for the step in its folder's name, if the manifest has another step. Otherwise a
/// renamed old checkpoint would always be the newest.
#[test]
fn a_renamed_checkpoint_is_not_taken_for_another_step() {
    let lab = Lab::new();
    let options = ["--epochs", "2", "--train-samples", "640", "--checkpoint-every", "4"];
    let expected = lab.train(2, "run", &options);
    let newest = lab.checkpoints("run").pop().unwrap();
    let other = newest.with_file_name("step-00009999");
    fs::rename(&newest, &other).unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap();
    refused(lab.resume(2, "run", &[]), 1, &["step-00009999: ", name]);
    assert_eq!(lab.checkpoints("run").last(), Some(&other), "nothing is renamed");
    fs::rename(&other, &newest).unwrap();
    output_of(lab.resume(2, "run", &[]));
    assert_eq!(lab.run_json("run")["weights_sha256"], expected["weights_sha256"]);
    assert_eq!(lab.checkpoints("run").last(), Some(&newest));
}
