//! Invalid input: one line that says what, where and what to do; no rank is left
//! waiting, and nothing is lost.

use std::path::Path;
use std::process::Command;

use crate::harness::*;

/// Runs a training that must fail with one line that contains all `words`.
fn rejected(command: Command, words: &[&str]) {
    let output = must_fail(command);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "one line was expected: {}", text(&output));
    for word in words {
        assert!(errors[0].contains(word), "{} lacks {word}", errors[0]);
    }
}

fn with_data(lab: &Lab, change: impl Fn(&Path)) -> Command {
    let data = lab.path("data");
    let _ = std::fs::remove_dir_all(&data);
    std::fs::create_dir(&data).unwrap();
    for entry in std::fs::read_dir(digits()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), data.join(entry.file_name())).unwrap();
    }
    change(&data);
    lab.command(2, "out", &["--data-root", data.to_str().unwrap()])
}

fn edit(path: &Path, change: impl Fn(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn invalid_data_files_are_named_with_the_reason() {
    let lab = Lab::new();
    let (images, labels) = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
    let missing = with_data(&lab, |data| std::fs::remove_file(data.join(images)).unwrap());
    rejected(missing, &[images, "mpiburn data digits"]);
    let short = with_data(&lab, |data| edit(&data.join(images), |b| b.truncate(b.len() - 1)));
    rejected(short, &[images, "truncated"]);
    let long = with_data(&lab, |data| edit(&data.join("t10k-labels-idx1-ubyte"), |b| b.push(0)));
    rejected(long, &["t10k-labels-idx1-ubyte", "too long"]);
    let magic = with_data(&lab, |data| edit(&data.join(labels), |b| b[3] = 9));
    rejected(magic, &[labels, "magic number"]);
    let swapped = with_data(&lab, |data| {
        std::fs::copy(data.join(labels), data.join(images)).unwrap();
    });
    rejected(swapped, &[images, "a file of labels"]);
    let fewer = with_data(&lab, |data| {
        edit(&data.join(labels), |b| {
            b.pop();
            let count = (b.len() - 8) as u32;
            b[4..8].copy_from_slice(&count.to_be_bytes());
        })
    });
    rejected(fewer, &["6400 images", "6399 labels"]);
    let range = with_data(&lab, |data| edit(&data.join(labels), |b| b[8 + 11] = 10));
    rejected(range, &[labels, "label 10 of sample 11"]);
    assert!(!lab.path("out").join("epochs.csv").exists());
}

#[test]
fn invalid_options_are_rejected_before_any_work() {
    let lab = Lab::new();
    let cases: [(&[&str], &[&str]); 10] = [
        (&["--train-batch-size", "0"], &["--train-batch-size 0"]),
        (&["--lr", "nan"], &["--lr NaN"]),
        (&["--device", "tpu"], &["unknown device tpu"]),
        (&["--device", "ndarray"], &["make build DEVICES=ndarray"]),
        (&["--model", "resnet"], &["unknown model resnet"]),
        (&["--quantize", "int4"], &["--quantize int4", "qat, ptq or dynamic"]),
        (&["--world-size", "3"], &["--world-size 3", "started 2 ranks"]),
        (&["--num-classes", "12"], &["--num-classes 12", "10 classes"]),
        (&["--train-samples", "1"], &["1 training samples for 2 ranks"]),
        (&["--no-such-option"], &["--no-such-option"]),
    ];
    for (options, words) in cases {
        rejected(lab.command(2, "out", options), words);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
}

#[test]
fn a_run_directory_is_not_overwritten_without_the_option() {
    let lab = Lab::new();
    let options = ["--epochs", "1", "--train-samples", "64"];
    let first = lab.train(2, "run", &options);
    rejected(lab.command(2, "run", &options), &["exists already", "--overwrite"]);
    assert_eq!(lab.run_json("run"), first, "untouched");
    lab.train(2, "run", &[&options[..], &["--overwrite"]].concat());
    rejected(lab.command(2, "x", &["--out", "/proc/mpiburn"]), &["cannot write /proc/mpiburn", "--out"]);
}

#[test]
fn other_files_and_damaged_checkpoints_are_rejected() {
    let lab = Lab::new();
    lab.train(2, "run", &["--epochs", "1", "--train-samples", "64"]);
    let weights = lab.checkpoints("run").pop().unwrap().join("model.safetensors");
    let init = |file: &Path| lab.command(2, "out", &["--init", file.to_str().unwrap()]);
    edit(&weights, |b| b.truncate(b.len() / 2));
    rejected(init(&weights), &["model.safetensors", "not a whole safetensors file"]);
    rejected(init(Path::new("/nowhere.safetensors")), &["/nowhere.safetensors"]);
    let resume = |name: &str| {
        let mut command = on_ranks(2, binary());
        command.args(["train", "--resume"]).arg(lab.path(name));
        command
    };
    rejected(resume("nothing"), &["not a run directory"]);
    rejected(resume("run"), &["cut short"]);
}

#[test]
fn a_non_finite_loss_stops_all_ranks_at_the_same_step() {
    let lab = Lab::new();
    let command = lab.command(2, "run", &["--lr", "1e30", "--checkpoint-every", "1"]);
    rejected(command, &["loss is", "at epoch", "rank", "--lr"]);
    let run = lab.run_json("run");
    assert_eq!(run["status"], "failed");
    assert!(run["error"].as_str().unwrap().contains("at epoch 1, step "));
    assert!(!lab.checkpoints("run").is_empty(), "checkpoints are kept");
}

#[test]
fn a_non_finite_test_loss_stops_all_ranks_after_the_epoch() {
    let lab = Lab::new();
    for ranks in [1, 2] {
        // One step, whose own loss is that of the first weights.
        let samples = (32 * ranks).to_string();
        let options = ["--epochs", "1", "--train-samples", &samples, "--optimizer", "sgd", "--lr", "1e30"];
        let run = format!("run{ranks}");
        rejected(
            lab.command(ranks, &run, &options),
            &["test loss is not finite after epoch 1", "rank", "--lr"],
        );
        assert_eq!(lab.run_json(&run)["status"], "failed");
    }
}

/// MPICH's mpirun sets these variables; this build's MPI is then a world of one.
#[test]
fn another_mpis_launcher_is_rejected_and_both_mpis_are_named() {
    let lab = Lab::new();
    let mut command = Command::new(binary());
    command.env("PMI_RANK", "0").env("PMI_SIZE", "2").arg("train").arg("--data-root").arg(digits());
    command.arg("--out").arg(lab.path("out"));
    rejected(command, &["MPICH's mpirun", "Open MPI", "2 processes"]);
}

#[test]
fn ranks_started_by_hand_are_rejected_with_the_mpirun_command() {
    let lab = Lab::new();
    let alone = |name: &str| {
        let mut command = Command::new(binary());
        command.arg(name).arg("--data-root").arg(digits());
        command
    };
    let mut by_option = alone("train");
    by_option.args(["--world-size", "2", "--out"]).arg(lab.path("out"));
    rejected(by_option, &["--world-size 2", "form no MPI job", "mpirun -n 2"]);
    for rank in ["0", "1"] {
        let mut by_variable = alone("train");
        by_variable.env("RANK", rank).env("WORLD_SIZE", "2").arg("--out").arg(lab.path("out"));
        rejected(by_variable, &[&format!("RANK={rank}"), "form no MPI job", "mpirun -n 2"]);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
    // A real job ignores such variables from elsewhere.
    let mut job = lab.command(2, "out", &["--epochs", "1", "--train-samples", "64"]);
    let ended = run(job.env("RANK", "0").env("WORLD_SIZE", "2"));
    assert!(ended.status.success(), "{}", text(&ended));
}
