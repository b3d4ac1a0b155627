//! Jobs that `mpiburn launch` and `mpiburn sweep` start.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::*;

fn mpiburn(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    // Runs in a folder that has no host files.
    command.env_remove("RUST_LOG").current_dir(std::env::temp_dir()).args(arguments);
    command
}

fn sweep(lab: &Lab, file: &Path, more: &[&str]) -> Command {
    let mut command = mpiburn(&["sweep"]);
    command.arg(file).arg("--out").arg(lab.path("runs")).args(more);
    command
}

/// What the report of the sweep prints.
fn report(lab: &Lab) -> String {
    text(&run(mpiburn(&["report"]).arg(lab.path("runs"))))
}

/// The names of a sweep's runs, in order, and the states of these runs.
fn states(lab: &Lab) -> (Vec<String>, Vec<String>) {
    let text = std::fs::read(lab.path("runs/sweep.json")).expect("sweep.json exists");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("sweep.json is JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let runs = record["runs"].as_array().unwrap();
    runs.iter().map(|run| (text(&run["name"]), text(&run["state"]))).unzip()
}

const VARY: &str = "[vary]\ntopology = [\"1x1\", \"1x2\"]\nbackend = [\"mpi\", \"gloo\"]\n";

#[test]
fn a_sweep_starts_each_run_once_and_interleaves_repeats() {
    let lab = Lab::new();
    // --test-samples is above the size of the data set, so run.json records a smaller number. The run must
    // still count as a run with this option.
    let file = lab.sweep_file(&format!("test-samples = 99999\n{VARY}"));
    let first = run(sweep(&lab, &file, &[]));
    assert!(first.status.success() && text(&first).contains("[1/8]"), "{}", text(&first));
    let expected = ["1x1-mpi-1", "1x1-gloo-1", "1x2-mpi-1", "1x2-gloo-1", "1x1-mpi-2"];
    let (made, ended) = states(&lab);
    assert_eq!((ended, &made[..5]), (vec!["completed".to_owned(); 8], &expected.map(str::to_owned)[..]));
    let mut started = Vec::new();
    for name in &made {
        let run = lab.run_json(&format!("runs/{name}"));
        let backend = &run["config"]["backend"];
        assert_eq!((&run["topology"], backend), (&name[..3].into(), &name[4..name.len() - 2].into()));
        assert_eq!(run["launcher"], "mpirun");
        started.push(run["started_at"].as_str().unwrap().to_owned());
    }
    assert!(started.is_sorted(), "repeats are interleaved: {started:?}");

    let again = run(sweep(&lab, &file, &[]));
    assert!(again.status.success() && !text(&again).contains("[1/8]"), "{}", text(&again));
    assert_eq!(lab.run_json("runs/1x2-mpi-2")["started_at"], *started[6], "completed runs are skipped");
    assert!(!text(&again).contains("another build"), "{}", text(&again));

    let path = lab.path("runs/1x2-mpi-2/run.json");
    let mut record = lab.run_json("runs/1x2-mpi-2");
    record["git"] = "0123456789ab".into();
    std::fs::write(&path, record.to_string()).unwrap();
    let mixed = text(&run(sweep(&lab, &file, &[])));
    assert!(
        mixed.lines().any(|line| line.contains("another build") && line.contains("0123456789ab")),
        "{mixed}"
    );

    // Another sweep in the folder is rejected, because the report of the folder would no longer show the runs
    // of this sweep.
    let other = lab.path("other.toml");
    std::fs::write(&other, "title = \"other\"\n[base]\nepochs = 1\n[vary]\nlr = [1e-3]\n").unwrap();
    let mut in_run = mpiburn(&["sweep"]);
    in_run.arg(&file).arg("--out").arg(lab.path("runs/1x1-mpi-1"));
    // A folder that no sweep has made. It has a file named `.lock`, which must not be deleted.
    std::fs::create_dir(lab.path("theirs")).unwrap();
    std::fs::write(lab.path("theirs/run.json"), "").unwrap();
    std::fs::write(lab.path("theirs/.lock"), "theirs").unwrap();
    let mut in_theirs = mpiburn(&["sweep"]);
    in_theirs.arg(&file).arg("--out").arg(lab.path("theirs"));
    for (command, words) in [
        (sweep(&lab, &file, &["--", "--lr", "0.1"]), "(lr 0.0005, now 0.1)"),
        (sweep(&lab, &other, &[]), "8 finished runs of the sweep small"),
        (in_run, "runs/1x1-mpi-1 is a run directory"),
        (in_theirs, "theirs is a run directory"),
    ] {
        let refused = run(command);
        let errors = errors(&refused);
        assert_eq!((refused.status.code(), errors.len()), (Some(1), 1), "{}", text(&refused));
        assert!(errors[0].contains(words), "{words}: {}", errors[0]);
    }
    assert_eq!(lab.run_json("runs/1x1-mpi-1")["started_at"], *started[0], "untouched");
    assert!(!lab.path("runs/1x1-mpi-1/sweep.json").exists());
    assert_eq!(std::fs::read_to_string(lab.path("theirs/.lock")).unwrap(), "theirs");

    // The same sweep with fewer repeats leaves four runs out of the report, and a line says so.
    let text_of_file = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text_of_file.replace("repeats = 2", "repeats = 1")).unwrap();
    let fewer = run(sweep(&lab, &file, &[]));
    assert!(fewer.status.success() && text(&fewer).contains("4 finished runs in "), "{}", text(&fewer));
    let note = "contains 4 runs not in the sweep's list: 1x1-gloo-2, 1x1-mpi-2, ";
    assert!(report(&lab).contains(note), "{}", report(&lab));
}

/// The log is the only file of a run that the launcher writes. If a link is in its place, the launcher must
/// not write through it.
#[test]
fn a_log_is_not_written_through_a_link() {
    let lab = Lab::new();
    let file = lab.sweep_file("[vary]\ntopology = [\"1x1\"]\n");
    std::fs::create_dir(lab.path("runs")).unwrap();
    std::fs::write(lab.path("target"), "kept").unwrap();
    std::os::unix::fs::symlink(lab.path("target"), lab.path("runs/1x1-1.log")).unwrap();
    let ended = run(sweep(&lab, &file, &[]));
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    assert!(
        ["1x1-1.log", "symbolic link"].iter().all(|fact| errors(&ended)[0].contains(fact)),
        "{}",
        text(&ended)
    );
    assert_eq!(states(&lab).1, ["failed", "completed"]);
    assert_eq!(std::fs::read_to_string(lab.path("target")).unwrap(), "kept");
}

#[test]
fn a_sweep_continues_after_failed_runs_and_reports_them_at_the_end() {
    let lab = Lab::new();
    let file = lab.sweep_file(
        "[[runs]]\ntopology = \"1x2\"\ndata-root = \"/nowhere\"\n[[runs]]\nlauncher = \"srun\"\n\
         [[runs]]\nlauncher = \"mpirun\"\n[[runs]]\nlauncher = \"alone\"\n",
    );
    let ended = run(sweep(&lab, &file, &["--srun-by", "/nowhere/srun"]));
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    let failed = errors(&ended);
    assert_eq!(failed.len(), 2, "one line for one reason: {}", text(&ended));
    let (start, end) =
        ("mpiburn: 1x2-data-root-_nowhere-1 and 1x2-data-root-_nowhere-2 failed: rank 0 on ", "-1.log)");
    assert!(failed[0].starts_with(start) && failed[0].ends_with(end), "{}", failed[0]);
    let missing = "srun-1 and srun-2 failed: --srun-by /nowhere/srun: not found: check the path";
    assert!(failed[1].starts_with("mpiburn: ") && failed[1].ends_with(missing), "{}", failed[1]);
    assert_eq!(states(&lab).1, [["failed", "failed", "completed", "completed"]; 2].concat());
    assert_eq!(lab.run_json("runs/alone-2")["launcher"], "alone");

    let table = report(&lab);
    let rows = table_rows(&table);
    for launcher in ["mpirun", "alone"] {
        assert!(rows.iter().any(|row| row[0] == launcher), "{launcher} is missing: {table}");
    }
    assert!(table.contains("In all rows: topology 1x1, backend mpi"), "{table}");
    let gaps: Vec<&str> = table.lines().filter(|line| line.starts_with("not shown: ")).collect();
    let named = |gap: &&str| gap.contains("srun-1: ") && gap.contains("/nowhere/srun");
    assert!(gaps.len() == 4 && gaps.iter().any(named), "{table}");
}

#[test]
fn impossible_runs_are_skipped_before_anything_starts_and_have_not_failed() {
    let lab = Lab::new();
    let file = lab.sweep_file("[vary]\ntopology = [\"1x1\", \"2x1\"]\nlauncher = [\"mpirun\", \"srun\"]\n");
    // A PATH without srun: the test must not depend on whether Slurm is installed.
    let tools = lab.path("tools");
    std::fs::create_dir(&tools).unwrap();
    for name in ["mpirun", "orted", "mpirun.openmpi", "ssh", "rsh"] {
        let path = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|path| path.is_file());
        if let Some(path) = found {
            std::os::unix::fs::symlink(path, tools.join(name)).unwrap();
        }
    }
    let hosts = lab.path("hostfiles");
    let mut command = sweep(&lab, &file, &["--hostfiles", hosts.to_str().unwrap()]);
    let ended = run(command.env("PATH", &tools));
    assert!(ended.status.success() && errors(&ended).is_empty(), "{}", text(&ended));
    assert_eq!(states(&lab).1, [["completed", "skipped", "skipped", "skipped"]; 2].concat());
    let printed = text(&ended);
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("skipped: ")).collect();
    assert_eq!(lines.len(), 2, "one line for each reason: {printed}");
    assert!(lines[0].contains("4 of 8 runs (1x1-srun-1, ") && lines[0].contains("Slurm"), "{printed}");
    assert!(lines[1].contains("2 of 8 runs (2x1-mpirun-1, ") && lines[1].contains("make hosts"), "{printed}");
    assert!(printed.find("skipped: ") < printed.find("[1/8]"), "{printed}");
    assert!(printed.contains("2 of 8 runs are in ") && printed.contains(", 6 skipped; "), "{printed}");
    assert!(!lab.path("runs/2x1-mpirun-1.log").exists(), "nothing was started");

    // As in a fresh checkout, the host file names a machine that does not exist.
    std::fs::create_dir(&hosts).unwrap();
    std::fs::write(hosts.join("2x1"), "no-such-host.invalid slots=1\nlocalhost slots=1\n").unwrap();
    let mut command = sweep(&lab, &file, &["--hostfiles", hosts.to_str().unwrap()]);
    let again = run(command.env("PATH", &tools));
    assert!(again.status.success() && errors(&again).is_empty(), "{}", text(&again));
    let printed = text(&again);
    let named = printed.lines().find(|line| line.contains("2x1") && line.contains("no-such-host.invalid"));
    assert!(named.is_some_and(|line| line.contains("2 of 8 runs (2x1-mpirun-1, ")), "{printed}");

    let table = report(&lab);
    let notes: Vec<&str> = table.lines().filter(|line| line.starts_with("not shown: ")).collect();
    assert!(notes.len() == 2 && notes[0].contains("4 of 8 runs of small (1x1-srun-1, "), "{table}");
}

#[test]
fn completed_runs_keep_the_weights_of_their_last_epoch_and_repeats_share_them() {
    let lab = Lab::new();
    let file = lab.sweep_file("[vary]\nepochs = [2]\nlr = [0.01, 0.02]\n");
    let ended = run(sweep(&lab, &file, &[]));
    assert!(ended.status.success(), "{}", text(&ended));
    let weights = |name: &str| {
        let found = lab.checkpoints(&format!("runs/{name}"));
        assert_eq!(found.len(), 1, "the last one alone: {found:?}");
        assert!(!found[0].join("optimizer.safetensors").exists(), "{found:?}");
        std::fs::metadata(found[0].join("model.safetensors")).unwrap().ino()
    };
    let names = ["epochs-2-lr-0.01-1", "epochs-2-lr-0.01-2", "epochs-2-lr-0.02-1"];
    let [first, repeat, other] = names.map(weights);
    assert!(first == repeat && first != other, "{first} {repeat} {other}");

    let path = lab.path("runs/epochs-2-lr-0.01-2");
    let mpiburn_on = |arguments: &[&str]| {
        let mut command = mpirun(1, binary());
        command.args(arguments).arg(&path);
        command
    };
    let evaluated = run(mpiburn_on(&["eval", "--checkpoint"]));
    assert!(evaluated.status.success(), "{}", text(&evaluated));
    for words in [&["train", "--resume"][..], &["train", "--epochs", "3", "--resume"]] {
        let output = must_fail(mpiburn_on(words));
        assert_eq!((output.status.code(), errors(&output).len()), (Some(2), 1), "{}", text(&output));
        for words in ["checkpoints", "--init ", "/model.safetensors"] {
            assert!(text(&output).contains(words), "{words}: {}", text(&output));
        }
    }

    // `--keep` keeps checkpoints, which sweeps otherwise delete.
    let mut command = mpiburn(&["sweep"]);
    command.arg(&file).arg("--out").arg(lab.path("kept")).args(["--only", "0.01-1", "--", "--keep", "2"]);
    let kept = run(command);
    assert!(kept.status.success(), "{}", text(&kept));
    let kept = lab.checkpoints("kept/epochs-2-lr-0.01-1");
    let has_moments = kept.iter().map(|path| path.join("optimizer.safetensors").exists());
    assert_eq!(has_moments.collect::<Vec<_>>(), [true, true]);
}

/// A job whose sweep was killed may go on. A script takes its part here, and completes runs that the sweep
/// did not start.
#[test]
fn runs_that_another_process_completes_count_and_keep_weights_alone() {
    let lab = Lab::new();
    let file = lab.sweep_file("[vary]\nlr = [0.01, 0.02]\n");
    let script = lab.path("others.sh");
    let body = "#!/bin/sh\nshift\n\"$@\"\n$(echo \"$*\" | sed s/lr-0[.]01-1/lr-0.01-2/)\n\
                $(echo \"$*\" | sed s/0[.]01/0.02/g)\nexit 1\n";
    std::fs::write(&script, body).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let has_moments = |name: &str| {
        let found = lab.checkpoints(&format!("runs/{name}"));
        found.last().expect("a checkpoint").join("optimizer.safetensors").exists()
    };
    let ended = run(sweep(&lab, &file, &["--only=-1", "--mpirun-by", script.to_str().unwrap()]));
    assert!(ended.status.success() && errors(&ended).is_empty(), "{}", text(&ended));
    assert_eq!(states(&lab).1, ["completed", "completed", "waiting", "waiting"], "{}", text(&ended));
    for words in ["lr-0.02-1: completed by another process", "lr-0.01-1: counts as completed"] {
        assert!(text(&ended).contains(words), "{words}: {}", text(&ended));
    }
    assert_eq!(["lr-0.01-1", "lr-0.02-1", "lr-0.01-2"].map(has_moments), [false, false, true]);
    let again = run(sweep(&lab, &file, &["--only", "0.01-"]));
    assert!(again.status.success() && !has_moments("lr-0.01-2"), "{}", text(&again));
}

#[test]
fn a_stopped_sweep_keeps_completed_runs_and_continues() {
    let lab = Lab::new();
    let file = lab.sweep_file("[vary]\nepochs = [1, 30000]\n");
    let mut command = sweep(&lab, &file, &[]);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let epochs = lab.path("runs/epochs-30000-1/epochs.csv");
    wait_until(&mut job, "an epoch of the long run", || {
        std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
    });
    signal(job.id(), "-INT");
    let stopped = ended(job);
    assert_eq!(stopped.status.code(), Some(75), "{}", text(&stopped));
    // The printed command has all arguments, because without --out it would start another sweep.
    let again = format!("{} sweep {} --out {}", binary(), file.display(), lab.path("runs").display());
    assert!(errors(&stopped)[0].ends_with(&again), "{}", text(&stopped));
    let first = lab.run_json("runs/epochs-1-1");
    assert_eq!(first["status"], "completed");
    assert_eq!(states(&lab).1[1], "waiting");
    assert!(report(&lab).lines().any(|line| line.ends_with(&again)), "{}", report(&lab));

    // An interrupted run continues from its checkpoint. This happens twice.
    let long = "runs/epochs-30000-1";
    let before = lab.run_json(long)["history"].as_array().unwrap().len();
    let mut job = lab.start(sweep(&lab, &file, &["--only", "epochs-30000-1"]));
    job.wait_for_line(&["epochs-30000-1: continues from its last checkpoint"]);
    wait_until(&mut job.job, "another attempt", || {
        lab.run_json(long)["history"].as_array().unwrap().len() > before
    });
    signal(job.job.id(), "-INT");
    assert_eq!(job.ended().status.code(), Some(75));
    let history = lab.run_json(long)["history"].clone();
    assert!(history[before]["step"].as_u64().unwrap() > 0, "{history}");

    // A run whose run.json cannot be read is kept.
    let json = lab.path("runs/epochs-1-1/run.json");
    let whole = std::fs::read(&json).unwrap();
    std::fs::write(&json, &whole[..500]).unwrap();
    let output = must_fail(sweep(&lab, &file, &["--only", "epochs-1-"]));
    assert!(
        text(&output).contains("run.json: ") && text(&output).contains("another program"),
        "{}",
        text(&output)
    );
    assert_eq!(std::fs::read(&json).unwrap(), whole[..500]);
    assert_eq!(states(&lab).1, ["failed", "waiting", "completed", "waiting"], "the others start");
    let other = run(sweep(&lab, &file, &["--only", "epochs-1-2"]));
    assert!(other.status.success() && errors(&other).is_empty(), "{}", text(&other));
    std::fs::write(&json, &whole).unwrap();

    let rest = run(sweep(&lab, &file, &["--only", "epochs-1-"]));
    assert!(rest.status.success(), "{}", text(&rest));
    assert_eq!(lab.run_json("runs/epochs-1-1"), first, "kept");
    assert_eq!(states(&lab).1, [["completed", "waiting"]; 2].concat());
}

#[test]
fn a_launch_trains_on_its_topology_and_has_the_jobs_exit_code() {
    let lab = Lab::new();
    let data = digits().to_str().unwrap();
    let out = lab.path("run");
    let options = ["--data-root", data, "--epochs", "1", "--out", out.to_str().unwrap()];
    let mut launch = mpiburn(&["launch", "1x2", "--", "train"]);
    launch.args(options);
    let good = run(&mut launch);
    assert!(good.status.success(), "{}", text(&good));
    assert!(text(&good).contains("--map-by ppr:2:node --bind-to core"), "{}", text(&good));
    let record = lab.run_json("run");
    assert_eq!((&record["topology"], &record["status"]), (&"1x2".into(), &"completed".into()));

    let again = run(launch);
    assert_eq!(again.status.code(), Some(1));
    assert!(errors(&again).iter().any(|line| line.contains("--overwrite")), "{}", text(&again));
}

#[test]
fn a_script_that_is_not_executable_is_named_as_such() {
    let lab = Lab::new();
    let script = lab.path("lab.sh");
    std::fs::write(&script, "#!/bin/sh\n").unwrap();
    for (by, path) in [(script.to_str().unwrap(), None), ("lab.sh", script.parent())] {
        let mut command = mpiburn(&["launch", "1x1", "--mpirun-by", by, "--", "train"]);
        if let Some(folder) = path {
            command.env("PATH", folder);
        }
        let rejected = must_fail(command);
        let errors = errors(&rejected);
        let expected = format!("mpiburn: --mpirun-by {}: is not an executable file: ", script.display());
        assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{}", text(&rejected));
    }
}
