//! Full disks and limits of file sizes: one line names the file and the reason.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::*;

/// Runs `command` in its own mount namespace, in which `disk` is a file system of `kilobytes` KB. The files
/// that are on it at the end are copied to `copy`.
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

/// By default, SIGXFSZ would end the process without a message.
#[test]
fn a_limit_of_file_sizes_is_one_line_with_the_file_and_the_reason() {
    let lab = Lab::new();
    let limited = |command: Command| {
        let mut outer = Command::new("sh");
        outer
            .args(["-c", "ulimit -f 40; exec \"$@\"", "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        outer.env_remove("RUST_LOG").env("OMPI_MCA_ess_singleton_isolated", "1");
        outer
    };
    let mut generate = Command::new(binary());
    generate.args(["data", "digits", "--train", "640", "--test", "100", "--out"]).arg(lab.path("data"));
    let mut launch = Command::new(binary());
    launch.args(["launch", "1x2", "train"]);
    for (command, words) in [
        (lab.command(1, "run", &["--epochs", "1", "--train-samples", "320"]), "checkpoints/step-"),
        (generate, "cannot write the data set to "),
        (launch, "20 KB"),
    ] {
        let output = must_fail(limited(command));
        let errors = errors(&output);
        assert_eq!((errors.len(), output.status.code()), (1, Some(1)), "{}", text(&output));
        assert!(errors[0].contains(words), "{}", errors[0]);
        assert!(["File too large", "ulimit -f"].iter().any(|word| errors[0].contains(word)), "{}", errors[0]);
    }
}

#[test]
fn a_full_disk_is_one_line_with_the_file_and_the_reason() {
    let lab = Lab::new();
    let (disk, probed) = (lab.path("disk"), lab.path("probed"));
    let probe = on_disk(&disk, 64, &probed, &Command::new("true")).output();
    // In a container, root may not have the right to mount.
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("not checked: a small disk cannot be mounted here (unshare -m, mount -t tmpfs)");
        return;
    }
    let one_line = |kilobytes, copy: &Path, job: &Command, file: &str| {
        let output = must_fail(on_disk(&disk, kilobytes, copy, job));
        let errors = errors(&output);
        assert_eq!(errors.len(), 1, "{job:?}: {}", text(&output));
        assert!(errors[0].contains(file) && errors[0].contains("No space left"), "{}", errors[0]);
        assert!(!errors[0].contains(".part"), "the name of a temporary file: {}", errors[0]);
        text(&output)
    };
    // On two ranks, an epoch has four steps.
    let few = ["--train-samples=200", "--test-samples=20", "--log-every=1", "--train-batch-size=25"];
    for (ranks, backend) in [(2, "mpi"), (3, "gloo")] {
        let run = disk.join("run");
        let options = ["--out", run.to_str().unwrap(), "--epochs=40", "--keep=99", "--backend", backend];
        let job = lab.command(ranks, "unused", &[&few[..], &options].concat());
        // Which file does not fit varies with the length of numbers in other files, so several disk sizes are
        // tried.
        let without_checkpoint = |kilobytes: usize| {
            let copy = lab.path(&format!("{backend}{kilobytes}"));
            let printed = one_line(kilobytes, &copy, &job, "disk/run/");
            assert!(!printed.contains("MPI_Finalize did not return"), "{printed}");
            printed.contains("NO CHECKPOINT of step").then_some((printed, copy))
        };
        let found = [600, 640, 680, 720].into_iter().find_map(without_checkpoint);
        let (printed, copy) = found.expect("on one of the disks, a checkpoint is what does not fit");
        // The copy is on a disk with space, so the run can be resumed there.
        assert!(fs::read_dir(copy.join("run/checkpoints")).unwrap().count() >= 2, "{printed}");
        let mut command = on_ranks(ranks, binary());
        command.args(["train", "--resume"]).arg(copy.join("run"));
        let resumed = crate::harness::run(command);
        assert!(resumed.status.success(), "{}", text(&resumed));
        assert!(!text(&resumed).contains("set aside"), "all are whole: {}", text(&resumed));
    }
    let mut profile = on_ranks(1, binary());
    profile.args(["profile", "--model", "vgg", "--batches", "1", "--batch", "1", "--json"]);
    profile.arg(disk.join("p.json"));
    let copy = lab.path("profile");
    one_line(4, &copy, &profile, "p.json: ");
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 0, "no part of the file is left");
}

/// The import writes a table in UTF-16 to a temporary file first.
#[test]
fn a_folder_for_temporary_files_that_is_gone_or_full_is_one_line() {
    let lab = Lab::new();
    let table = "x,class\n".to_owned() + &"1,a\n2,b\n".repeat(10_000);
    let bytes: Vec<u8> =
        "\u{feff}".encode_utf16().chain(table.encode_utf16()).flat_map(u16::to_le_bytes).collect();
    fs::write(lab.path("table.csv"), bytes).unwrap();
    let (disk, copy) = (lab.path("disk"), lab.path("copy"));
    let import = |folder: &Path| {
        let mut command = Command::new(binary());
        command.args(["data", "import"]).arg(lab.path("table.csv")).arg("--out").arg(lab.path("data"));
        command.env("TMPDIR", folder);
        command
    };
    let one_line = |command: Command, folder: &Path| {
        let output = must_fail(command);
        let errors = errors(&output);
        assert_eq!((errors.len(), output.status.code()), (1, Some(1)), "{}", text(&output));
        let expected = format!("{}: cannot hold temporary files: ", folder.display());
        assert!(errors[0].contains(&expected) && errors[0].contains("TMPDIR="), "{}", errors[0]);
    };
    one_line(import(&lab.path("nowhere")), &lab.path("nowhere"));
    let probe = on_disk(&disk, 16, &copy, &Command::new("true")).output();
    if probe.is_ok_and(|output| output.status.success()) {
        one_line(on_disk(&disk, 16, &copy, &import(&disk)), &disk);
    }
}
