//! Files and folders that the user may not read, and what a stopped `mpiburn data` leaves behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::*;

/// Runs `command` without root's right to read all files, as a user without this right.
fn as_anybody(command: &Command) -> Command {
    let mut outer = Command::new(command.get_program());
    if rustix::process::geteuid().is_root() {
        let rights = "-dac_override,-dac_read_search";
        outer = Command::new("setpriv");
        outer.arg(format!("--bounding-set={rights}")).arg(format!("--inh-caps={rights}"));
        outer.arg(command.get_program());
    }
    outer
        .args(command.get_args())
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env_remove("RUST_LOG");
    outer
}

/// A file without permission is not damaged or missing: the run is not started again, and nothing is set
/// aside or replaced.
#[test]
fn files_without_permission_end_with_the_reason_and_change_nothing() {
    let lab = Lab::new();
    let options = ["--epochs=2", "--train-samples=200", "--test-samples=20"];
    let expected = lab.train(1, "run", &options);
    let allow = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let secret = lab.path("secret");
    fs::write(&secret, "").unwrap();
    allow(&secret, 0);
    let runs = |command: &Command| run(as_anybody(command)).status.success();
    let lacks_rights = runs(&Command::new("true")) && !runs(Command::new("cat").arg(&secret));
    assert!(lacks_rights, "root has to give up its rights to read all files (setpriv --bounding-set)");
    let words = |words: &[&str]| {
        let mut command = on_ranks(1, binary());
        command.args(words).arg(lab.path("run"));
        command
    };
    let newest = lab.checkpoints("run").pop().unwrap();
    let newest = newest.strip_prefix(lab.path("run")).unwrap().to_str().unwrap();
    let model = format!("{newest}/model.safetensors");
    let again = lab.command(1, "run", &["--overwrite"]);
    let launch = ["launch", "1x1", "--restart", "1", "--", "train", "--resume"];
    for (file, mode, commands) in [
        ("run.json", 0o644, &[&["train", "--resume"][..], &["eval", "--checkpoint"], &launch][..]),
        (&model, 0o644, &[&["train", "--resume"], &["eval", "--checkpoint"]]),
        (newest, 0o755, &[&["train", "--resume"], &["eval", "--checkpoint"]]),
        ("checkpoints", 0o755, &[&["train", "--resume"], &["eval", "--checkpoint"], &launch]),
        ("rank0/train.loss", 0o644, &[&["train", "--resume"]]),
        (".", 0o755, &[&["train", "--resume"], &["eval", "--checkpoint"], &launch]),
    ] {
        let place = lab.path("run").join(file);
        allow(&place, 0);
        let overwrite = (file == ".").then(|| as_anybody(&again));
        for command in commands.iter().map(|options| as_anybody(&words(options))).chain(overwrite) {
            let output = must_fail(command);
            let errors = errors(&output);
            assert_eq!(errors.len(), 1, "{file}: {}", text(&output));
            assert!(errors[0].contains("Permission denied"), "{file}: {}", errors[0]);
            assert!(!["set aside", "--overwrite", "remove"].iter().any(|word| text(&output).contains(word)));
        }
        allow(&place, mode);
        assert_eq!((lab.run_json("run"), lab.checkpoints("run").len()), (expected.clone(), 2), "{file}");
    }
    let output = run(as_anybody(&words(&["train", "--resume"])));
    assert!(output.status.success() && !text(&output).contains("set aside"), "{}", text(&output));
}

/// A file is not missing because its folder may not be searched.
#[test]
fn a_data_set_without_permission_is_not_taken_for_a_missing_one() {
    let lab = Lab::new();
    for (kind, folder) in [("digits", ""), ("features", "train_data"), ("features", "test_data")] {
        let root = lab.path(kind);
        let data = |words: &[&str]| {
            let mut command = Command::new(binary());
            command.arg("data").args(words).arg(&root);
            as_anybody(&command)
        };
        assert!(run(data(&[kind, "--train=600", "--test=20", "--overwrite", "--out"])).status.success());
        let folder = root.join(folder);
        fs::set_permissions(&folder, Permissions::from_mode(0o600)).unwrap();
        let output = must_fail(data(&["info"]));
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        let [error] = &errors(&output)[..] else { panic!("{}", text(&output)) };
        assert!(error.contains("cannot read ") && error.contains("Permission denied"), "{error}");
    }
}

/// The reason appears once, without the words of the library that lists folders.
#[test]
fn a_folder_of_pictures_without_permission_is_named() {
    let lab = Lab::new();
    let cats = lab.path("pets/cat");
    ["pets/cat", "pets/dog"].iter().for_each(|class| fs::create_dir_all(lab.path(class)).unwrap());
    fs::set_permissions(&cats, Permissions::from_mode(0o000)).unwrap();
    let mut import = Command::new(binary());
    import.args(["data", "import", "--out"]).args([lab.path("out"), lab.path("pets")]);
    let output = must_fail(as_anybody(&import));
    fs::set_permissions(&cats, Permissions::from_mode(0o755)).unwrap();
    let expected = format!("cannot read {}: Permission denied (os error 13)", cats.display());
    assert!(errors(&output)[0].ends_with(&expected), "{}", text(&output));
}

/// A signal while a data set is written leaves no file under a temporary name.
#[test]
fn a_stopped_generator_removes_what_is_unfinished() {
    let lab = Lab::new();
    let out = lab.path("features");
    let mut command = Command::new(binary());
    command.args(["-q", "data", "features", "--train", "2000000", "--out"]).arg(&out);
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let parts = || {
        let folders = fs::read_dir(&out).into_iter().flatten().flatten().map(|entry| entry.path());
        let files = folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten());
        files.filter(|file| file.path().extension().is_some_and(|end| end == "part")).count()
    };
    wait_until(&mut job, "a file is begun", || parts() > 0);
    signal(job.id(), "-TERM");
    let ended = job.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(15), "{ended}");
    assert_eq!(parts(), 0);
}
