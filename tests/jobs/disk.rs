//! Checkpoints on a full disk, in the way of something else, and `--keep`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::*;

/// With two ranks, four steps of an epoch.
const FEW: [&str; 4] = ["--train-samples=200", "--test-samples=20", "--log-every=1", "--train-batch-size=25"];

/// `command` in a mount namespace of its own, in which `disk` is a disk of `kilobytes`; what is on it at
/// the end is copied to `copy`.
fn on_disk(disk: &Path, kilobytes: usize, copy: &Path, command: &Command) -> Command {
    fs::create_dir_all(disk).unwrap();
    fs::create_dir_all(copy).unwrap();
    let mut outer = Command::new("unshare");
    outer.args(["-m", "sh", "-c"]);
    outer.arg(
        "mount -t tmpfs -o size=$2k tmpfs \"$1\" || exit 99; disk=$1 copy=$3; shift 3; \"$@\"; code=$?; \
         cp -a \"$disk\"/. \"$copy\"; exit $code",
    );
    outer.arg("sh").arg(disk).arg(kilobytes.to_string()).arg(copy);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// Whether this user can mount a disk; root in a container without the right cannot.
fn can_mount(lab: &Lab) -> bool {
    let (disk, copy) = (lab.path("probe"), lab.path("probed"));
    let probe = on_disk(&disk, 64, &copy, &Command::new("true")).output();
    let mounts = probe.is_ok_and(|output| output.status.success());
    if !mounts {
        eprintln!("not checked: a small disk cannot be mounted here (unshare -m, mount -t tmpfs)");
    }
    mounts
}

#[test]
fn a_full_disk_is_one_line_with_the_file_and_the_reason() {
    let lab = Lab::new();
    if !can_mount(&lab) {
        return;
    }
    for (ranks, backend) in [(1, "mpi"), (2, "mpi"), (3, "mpi"), (2, "gloo"), (3, "gloo")] {
        let (disk, copy) = (lab.path("disk"), lab.path(&format!("{backend}{ranks}")));
        let run = disk.join("run");
        let options = ["--out", run.to_str().unwrap(), "--epochs=40", "--keep=99", "--backend", backend];
        let job = lab.command(ranks, "unused", &[&FEW[..], &options].concat());
        let output = must_fail(on_disk(&disk, 600, &copy, &job));
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{backend}, {ranks} ranks: {}", text(&output));
        assert!(errors[0].contains("disk/run/") && errors[0].contains("No space left"), "{}", errors[0]);
        assert!(!text(&output).contains("MPI does not end"), "{}", text(&output));
        assert!(text(&output).contains("NO CHECKPOINT of step"), "{}", text(&output));
        // The run goes on where there is space again.
        let checkpoints = copy.join("run/checkpoints");
        assert!(fs::read_dir(&checkpoints).unwrap().count() >= 2, "{}", text(&output));
        let mut command = on_ranks(ranks, binary());
        command.args(["train", "--resume"]).arg(copy.join("run"));
        let resumed = crate::harness::run(command);
        assert!(resumed.status.success(), "{}", text(&resumed));
        assert!(!text(&resumed).contains("set aside"), "all are whole: {}", text(&resumed));
    }
}

/// A link where the checkpoint of `step` is to be written, to a folder outside the run.
fn in_the_way(lab: &Lab, name: &str, step: usize) -> std::path::PathBuf {
    let outside = lab.path("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("model.safetensors"), "not ours").unwrap();
    let link = lab.path(name).join(format!("checkpoints/.step-{step:08}.tmp"));
    std::os::unix::fs::symlink(&outside, link).unwrap();
    outside
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_run_going_unless_it_is_the_last() {
    let lab = Lab::new();
    for (ranks, backend) in [(2, "mpi"), (3, "gloo")] {
        let name = format!("run{ranks}");
        let options = [&FEW[..], &["--epochs=2", "--backend", backend]].concat();
        let steps = lab.train(ranks, &name, &options)["steps"].as_u64().unwrap() as usize / 2;
        let resume = |epochs: usize| {
            let mut command = on_ranks(ranks, binary());
            command.args(["train", "--resume"]).arg(lab.path(&name)).arg(format!("--set=epochs={epochs}"));
            command
        };
        let outside = in_the_way(&lab, &name, 3 * steps);
        let output = run(resume(4));
        assert!(output.status.success(), "{}", text(&output));
        let warning = format!("NO CHECKPOINT of step {}", 3 * steps);
        assert_eq!(text(&output).matches(&warning).count(), 1, "{}", text(&output));
        let failed = &lab.run_json(&name)["failed_checkpoints"];
        assert_eq!((&failed["count"], &failed["step"]), (&1.into(), &(3 * steps).into()), "{failed}");
        assert!(failed["error"].as_str().unwrap().contains("symbolic link"), "{failed}");
        let last = lab.checkpoints(&name).pop().unwrap();
        assert!(last.ends_with(format!("step-{:08}", 4 * steps)), "{}", last.display());

        in_the_way(&lab, &name, 5 * steps);
        let output = must_fail(resume(5));
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{}", text(&output));
        let place = format!("checkpoints/.step-{:08}.tmp: it is a symbolic link", 5 * steps);
        assert!(errors[0].contains(&place), "{}", errors[0]);
        assert_eq!(lab.run_json(&name)["status"], "failed");
        assert_eq!(lab.checkpoints(&name).pop().unwrap(), last, "the older ones are whole");
        assert_eq!(fs::read_to_string(outside.join("model.safetensors")).unwrap(), "not ours");
    }
}

#[test]
fn keep_retains_the_newest_and_the_most_accurate() {
    let lab = Lab::new();
    for keep in [1, 2] {
        let name = format!("run{keep}");
        let keep_option = format!("--keep={keep}");
        let options = ["--epochs=6", "--lr=0.03", "--train-samples=400", &keep_option];
        let steps = lab.train(2, &name, &options)["steps"].as_u64().unwrap() as usize / 6;
        let epochs = csv::Reader::from_path(lab.path(&name).join("epochs.csv")).unwrap().into_records();
        let accuracies: Vec<f64> = epochs.map(|row| row.unwrap()[4].parse().unwrap()).collect();
        let highest = accuracies.iter().copied().fold(0.0, f64::max);
        let best = 1 + accuracies.iter().position(|&accuracy| accuracy == highest).unwrap();
        let expected: std::collections::BTreeSet<usize> = (7 - keep..=6).chain([best]).collect();
        let found: Vec<String> = lab
            .checkpoints(&name)
            .iter()
            .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        let expected: Vec<String> = expected.iter().map(|e| format!("step-{:08}", e * steps)).collect();
        assert_eq!(found, expected, "{accuracies:?}");
    }
}

#[test]
fn nothing_is_written_through_a_link_in_a_run_directory() {
    let lab = Lab::new();
    lab.train(2, "run", &[&FEW[..], &["--epochs=2"]].concat());
    for name in [".lock", "run.json", "epochs.csv", "rank0", "rank1/train.loss", "tensorboard", "checkpoints"]
    {
        let (place, outside) = (lab.path("run").join(name), lab.path("moved"));
        let before = fs::read(lab.path("run/run.json")).unwrap();
        fs::rename(&place, &outside).unwrap();
        std::os::unix::fs::symlink(&outside, &place).unwrap();
        let mut command = on_ranks(2, binary());
        command.args(["train", "--set=epochs=3", "--resume"]).arg(lab.path("run"));
        let output = must_fail(command);
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{name}: {}", text(&output));
        assert!(errors[0].contains(&format!("{name}: it is a symbolic link")), "{}", errors[0]);
        assert_eq!(fs::read(lab.path("run/run.json")).unwrap(), before, "{name}");
        fs::remove_file(&place).unwrap();
        fs::rename(&outside, &place).unwrap();
    }
    // The run directory itself may be a link.
    std::os::unix::fs::symlink(lab.path("run"), lab.path("link")).unwrap();
    let mut command = on_ranks(2, binary());
    let output = run(command.args(["train", "--set=epochs=3", "--resume"]).arg(lab.path("link")));
    assert!(output.status.success(), "{}", text(&output));
    // quantize writes beside the weights.
    let (place, outside) = (lab.path("run/checkpoints"), lab.path("moved"));
    fs::rename(&place, &outside).unwrap();
    std::os::unix::fs::symlink(&outside, &place).unwrap();
    let mut command = on_ranks(2, binary());
    command.arg("quantize").arg(lab.path("run"));
    let output = must_fail(command);
    assert!(text(&output).contains("checkpoints: it is a symbolic link"), "{}", text(&output));
}

#[test]
fn a_profile_on_a_full_disk_leaves_no_part_of_its_file() {
    let lab = Lab::new();
    if !can_mount(&lab) {
        return;
    }
    let (disk, copy) = (lab.path("disk"), lab.path("copy"));
    let mut job = on_ranks(1, binary());
    job.args(["profile", "--model", "vgg", "--batches", "1", "--batch", "1", "--json"])
        .arg(disk.join("p.json"));
    let output = must_fail(on_disk(&disk, 4, &copy, &job));
    let errors = errors(&output);
    assert!(errors.len() == 1 && errors[0].contains("p.json: No space left"), "{}", text(&output));
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 0, "no file is left");
}

#[test]
fn files_of_a_profile_are_whole_and_no_link_is_followed() {
    use std::os::unix::ffi::OsStrExt;

    let profile = |options: &[&str]| {
        let mut command = on_ranks(1, binary());
        command.arg("profile").args(options);
        command
    };
    let lab = Lab::new();
    let (target, link) = (lab.path("target"), lab.path("link.csv"));
    fs::write(&target, "kept").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let output = must_fail(profile(&["--batches", "1", "--csv", link.to_str().unwrap()]));
    let errors = errors(&output);
    assert!(errors.len() == 1 && errors[0].contains("link.csv: it is a symbolic link"), "{errors:?}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "kept");

    // A name that is not UTF-8 is a name; a time line of one batch has one inference.
    let trace = lab.path("").join(std::ffi::OsStr::from_bytes(b"steps-\xff.json"));
    let mut command = profile(&["--batches", "1"]);
    let output = run(command.arg("--trace").arg(&trace));
    assert!(output.status.success() && text(&output).contains("1 inference of convnet"), "{}", text(&output));
    assert!(text(&output).contains(" ms in 1 batch, "), "{}", text(&output));
    assert!(fs::read(&trace).unwrap().starts_with(b"{\"displayTimeUnit\""));
}
