//! Obstacles on disk: checkpoints whose path is taken, symbolic links, and `--keep`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::harness::*;

/// A training of four steps per epoch on two ranks.
const FEW: [&str; 4] = ["--train-samples=200", "--test-samples=20", "--log-every=1", "--train-batch-size=25"];

/// Creates a link to a folder outside the run, at the path where the checkpoint of `step` will be written.
fn in_the_way(lab: &Lab, name: &str, step: usize) -> PathBuf {
    let outside = lab.path("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("model.safetensors"), "not ours").unwrap();
    symlink(&outside, lab.path(name).join(format!("checkpoints/.step-{step:08}.tmp"))).unwrap();
    outside
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_the_run_going_unless_it_is_the_last() {
    let lab = Lab::new();
    // With local updates, the file of the ranks' tensors is written before the rest of the checkpoint.
    for (ranks, more) in [(2, &[][..]), (3, &[]), (2, &["--sync-every=3", "--outer=nesterov"])] {
        let name = &format!("run{ranks}{}", more.len());
        let run = lab.train(ranks, name, &[&FEW[..], &["--epochs=2"], more].concat());
        let steps = run["steps"].as_u64().unwrap() as usize / 2;
        let resume = |epochs: usize| lab.resume(ranks, name, &[&format!("--epochs={epochs}")]);
        let outside = in_the_way(&lab, name, 3 * steps);
        let printed = output_of(resume(4));
        let warning = format!("NO CHECKPOINT of step {}", 3 * steps);
        assert_eq!(printed.matches(&warning).count(), 1, "{printed}");
        let failed = &lab.run_json(name)["failed_checkpoints"];
        assert_eq!((&failed["count"], &failed["step"]), (&1.into(), &(3 * steps).into()), "{failed}");
        assert!(failed["error"].as_str().unwrap().contains("symbolic link"), "{failed}");
        let line = printed.lines().find(|line| line.contains(&warning)).unwrap();
        assert!(line.ends_with(&format!("step-{:08}", 2 * steps)) && !line.contains("--out"), "{line}");
        let last = lab.checkpoints(name).pop().unwrap();
        assert!(last.ends_with(format!("step-{:08}", 4 * steps)), "{}", last.display());

        in_the_way(&lab, name, 5 * steps);
        let place = format!("checkpoints/.step-{:08}.tmp: it is a symbolic link", 5 * steps);
        fails_with(resume(5), &[&place]);
        assert_eq!(lab.run_json(name)["status"], "failed");
        assert_eq!(lab.checkpoints(name).pop().unwrap(), last, "the older ones are whole");
        assert_eq!(fs::read_to_string(outside.join("model.safetensors")).unwrap(), "not ours");
        let entries = fs::read_dir(lab.path(name).join("checkpoints")).unwrap();
        let hidden =
            entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
        assert_eq!(hidden.count(), 2, "only the links remain");
    }
}

#[test]
fn keep_retains_the_newest_and_the_most_accurate() {
    let lab = Lab::new();
    // At a learning rate of 0, all epochs are equally accurate, and the first one counts as the best.
    for (keep, lr) in [(1, "--lr=0.03"), (2, "--lr=0.03"), (1, "--lr=0"), (2, "--lr=0")] {
        let name = &format!("run{keep}{lr}");
        let options = ["--epochs=6", lr, "--train-samples=400", &format!("--keep={keep}")];
        let steps = lab.train(2, name, &options)["steps"].as_u64().unwrap() as usize / 6;
        let epochs = csv::Reader::from_path(lab.path(name).join("epochs.csv")).unwrap().into_records();
        let accuracies: Vec<f64> = epochs.map(|row| row.unwrap()[4].parse().unwrap()).collect();
        let highest = accuracies.iter().copied().fold(0.0, f64::max);
        let best = 1 + accuracies.iter().position(|&accuracy| accuracy == highest).unwrap();
        let expected: std::collections::BTreeSet<usize> = (7 - keep..=6).chain([best]).collect();
        let expected: Vec<String> = expected.iter().map(|e| format!("step-{:08}", e * steps)).collect();
        let found = lab.checkpoints(name);
        let found: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(found, expected, "{accuracies:?}");
    }
}

#[test]
fn nothing_is_written_through_a_link_in_a_run_directory() {
    let lab = Lab::new();
    lab.train(2, "run", &[&FEW[..], &["--epochs=2"]].concat());
    let outside = lab.path("moved");
    let more = &["--epochs=3"];
    for name in [".lock", "run.json", "epochs.csv", "rank0", "rank1/train.loss", "tensorboard", "checkpoints"]
    {
        let place = lab.path("run").join(name);
        let before = fs::read(lab.path("run/run.json")).unwrap();
        fs::rename(&place, &outside).unwrap();
        symlink(&outside, &place).unwrap();
        fails_with(lab.resume(2, "run", more), &[&format!("{name}: it is a symbolic link")]);
        assert_eq!(fs::read(lab.path("run/run.json")).unwrap(), before, "{name}");
        fs::remove_file(&place).unwrap();
        fs::rename(&outside, &place).unwrap();
    }
    // The run directory itself may be a link.
    symlink(lab.path("run"), lab.path("link")).unwrap();
    output_of(lab.resume(2, "link", more));
    // `quantize` writes its model into the folder of the weights.
    fs::rename(lab.path("run/checkpoints"), &outside).unwrap();
    symlink(&outside, lab.path("run/checkpoints")).unwrap();
    fails_with(lab.on(2, &["quantize"], "run"), &["checkpoints: it is a symbolic link"]);
}

#[test]
fn files_of_a_profile_are_whole_and_no_link_is_followed() {
    use std::os::unix::ffi::OsStrExt;

    let lab = Lab::new();
    let profile = ["profile", "--batches", "1"];
    fs::write(lab.path("target"), "kept").unwrap();
    symlink(lab.path("target"), lab.path("link.csv")).unwrap();
    let csv = lab.on(1, &[&profile[..], &["--csv"]].concat(), "link.csv");
    fails_with(csv, &["link.csv: it is a symbolic link"]);
    assert_eq!(fs::read_to_string(lab.path("target")).unwrap(), "kept");

    // A name that is not UTF-8 works. The time line of one batch has one inference.
    let trace = lab.path("").join(std::ffi::OsStr::from_bytes(b"steps-\xff.json"));
    let printed = output_of(job(1).args(profile).arg("--trace").arg(&trace));
    assert!(printed.contains("1 inference of convnet"), "{printed}");
    assert!(printed.contains(" ms in 1 batch, "), "{printed}");
    assert!(fs::read(&trace).unwrap().starts_with(b"{\"displayTimeUnit\""));
}
