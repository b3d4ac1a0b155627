//! Jobs that mpiburn starts: launches and sweeps.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::harness::*;

pub fn mpiburn(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    // Started in a folder without host files.
    command.env_remove("RUST_LOG").current_dir(std::env::temp_dir()).args(arguments);
    command
}

pub fn output(command: &mut Command) -> Output {
    run(command)
}

pub fn sweep_file(lab: &Lab, body: &str) -> PathBuf {
    let path = lab.path("small.toml");
    let base = format!(
        "title = \"a small sweep\"\nrepeats = 2\n[base]\ndata-root = {:?}\nepochs = 1\ntrain-samples = 320\n",
        digits()
    );
    std::fs::write(&path, base + body).unwrap();
    path
}

pub fn sweep(lab: &Lab, file: &Path, more: &[&str]) -> Command {
    let mut command = mpiburn(&["sweep"]);
    command.arg(file).arg("--out").arg(lab.path("runs")).args(more);
    command
}

fn states(lab: &Lab) -> Vec<(String, String)> {
    let text = std::fs::read(lab.path("runs/sweep.json")).expect("sweep.json exists");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("sweep.json is JSON");
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    record["runs"].as_array().unwrap().iter().map(|run| (text(&run["name"]), text(&run["state"]))).collect()
}

const VARY: &str = "[vary]\ntopology = [\"1x1\", \"1x2\"]\nbackend = [\"mpi\", \"gloo\"]\n";

#[test]
fn a_sweep_starts_each_run_once_and_interleaves_repeats() {
    let lab = Lab::new();
    let file = sweep_file(&lab, VARY);
    let first = output(&mut sweep(&lab, &file, &[]));
    assert!(first.status.success() && text(&first).contains("[1/8]"), "{}", text(&first));
    let expected = ["1x1-mpi-1", "1x1-gloo-1", "1x2-mpi-1", "1x2-gloo-1", "1x1-mpi-2"];
    let made = states(&lab);
    assert_eq!(made.len(), 8);
    assert!(made.iter().all(|(_, state)| state == "completed"));
    assert_eq!(made.iter().map(|(name, _)| name.as_str()).take(5).collect::<Vec<_>>(), expected);
    let mut started = Vec::new();
    for (name, _) in &made {
        let run = lab.run_json(&format!("runs/{name}"));
        let backend = &run["config"]["backend"];
        assert_eq!((&run["topology"], backend), (&name[..3].into(), &name[4..name.len() - 2].into()));
        assert_eq!(run["launcher"], "mpirun");
        started.push(run["started_at"].as_str().unwrap().to_owned());
    }
    assert!(started.is_sorted(), "repeats are interleaved: {started:?}");

    let again = output(&mut sweep(&lab, &file, &[]));
    assert!(again.status.success() && !text(&again).contains("[1/8]"), "{}", text(&again));
    assert_eq!(lab.run_json("runs/1x2-mpi-2")["started_at"], *started[6], "completed runs are skipped");
    assert!(!text(&again).contains("another build"), "{}", text(&again));

    let path = lab.path("runs/1x2-mpi-2/run.json");
    let mut run = lab.run_json("runs/1x2-mpi-2");
    run["git"] = "0123456789ab".into();
    std::fs::write(&path, run.to_string()).unwrap();
    let mixed = text(&output(&mut sweep(&lab, &file, &[])));
    assert!(mixed.contains("1 of the kept runs are from another build (0123456789ab; this is"), "{mixed}");

    let other = output(&mut sweep(&lab, &file, &["--", "--lr", "0.1"]));
    assert_eq!(other.status.code(), Some(1));
    let errors = errors(&other);
    assert!(errors[0].contains("runs/1x1-mpi-1 has other options (lr 0.0005, now 0.1)"), "{errors:?}");
    assert_eq!(lab.run_json("runs/1x1-mpi-1")["started_at"], *started[0], "untouched");
}

#[test]
fn a_sweep_continues_after_a_failed_run_and_reports_it_at_the_end() {
    let lab = Lab::new();
    let runs = "[[runs]]\ntopology = \"1x2\"\ndata-root = \"/nowhere\"\n[[runs]]\nlauncher = \"alone\"\n";
    let file = sweep_file(&lab, runs);
    let ended = output(&mut sweep(&lab, &file, &[]));
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    let failed: Vec<String> = errors(&ended);
    assert_eq!(failed.len(), 1, "one line for one reason: {}", text(&ended));
    let (start, end) =
        ("mpiburn: 1x2-data-root-_nowhere-1 failed: rank 0 on ", "-1.log); so did 1x2-data-root-_nowhere-2");
    assert!(failed[0].starts_with(start) && failed[0].ends_with(end), "{}", failed[0]);
    assert_eq!(
        states(&lab).iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>(),
        ["failed", "completed", "failed", "completed"]
    );
    assert_eq!(lab.run_json("runs/alone-2")["launcher"], "alone");
}

#[test]
fn a_missing_launcher_is_named_and_the_other_runs_continue() {
    let lab = Lab::new();
    let runs = "[vary]\nlauncher = [\"mpirun\", \"srun\"]\n[[runs]]\nlauncher = \"alone\"\n";
    let file = sweep_file(&lab, runs);
    let ended = output(&mut sweep(&lab, &file, &["--srun-by", "/nowhere/srun"]));
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended));
    let failed = errors(&ended);
    assert_eq!(failed, ["mpiburn: srun-1 failed: /nowhere/srun not found: check the path; so did srun-2"]);
    let made: Vec<String> = states(&lab).into_iter().map(|(_, state)| state).collect();
    assert_eq!(made, ["completed", "failed", "completed", "completed", "failed", "completed"]);

    let report = output(mpiburn(&["report"]).arg(lab.path("runs")));
    let table = text(&report);
    for line in ["│ mpirun ", "│ alone ", "In all rows: topology 1x1, backend mpi"] {
        assert!(table.contains(line), "{line} is missing: {table}");
    }
    let gaps: Vec<&str> = table.lines().filter(|line| line.starts_with("not shown: ")).collect();
    assert!(gaps.len() == 2 && gaps[0].contains("srun-1: failed: /nowhere/srun not found"), "{table}");
}

#[test]
fn impossible_runs_are_skipped_before_anything_starts_and_have_not_failed() {
    let lab = Lab::new();
    let file = sweep_file(&lab, "[vary]\ntopology = [\"1x1\", \"2x1\"]\nlauncher = [\"mpirun\", \"srun\"]\n");
    // A PATH without srun: this test does not depend on a Slurm.
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
    let ended = output(command.env("PATH", &tools));
    assert!(ended.status.success() && errors(&ended).is_empty(), "{}", text(&ended));
    let made: Vec<String> = states(&lab).into_iter().map(|(_, state)| state).collect();
    let round = ["completed", "skipped", "skipped", "skipped"];
    assert_eq!(made, [round, round].concat());
    let printed = text(&ended);
    let lines: Vec<&str> = printed.lines().filter(|line| line.contains("skipped: ")).collect();
    assert_eq!(lines.len(), 2, "one line for each reason: {printed}");
    assert!(
        lines[0].contains("4 of 8 runs (1x1-srun-1, ") && lines[0].contains("srun needs Slurm"),
        "{printed}"
    );
    assert!(lines[1].contains("2 of 8 runs (2x1-mpirun-1, ") && lines[1].contains("make hosts"), "{printed}");
    assert!(printed.find("skipped: ") < printed.find("[1/8]"), "{printed}");
    assert!(printed.contains("2 of 8 runs are in ") && printed.contains(", 6 skipped; "), "{printed}");
    assert!(!lab.path("runs/2x1-mpirun-1.log").exists(), "nothing was started");

    // Host files of a fresh checkout name machines that nobody has.
    std::fs::create_dir(&hosts).unwrap();
    std::fs::write(hosts.join("2x1"), "no-such-host.invalid slots=1\nlocalhost slots=1\n").unwrap();
    let mut command = sweep(&lab, &file, &["--hostfiles", hosts.to_str().unwrap()]);
    let again = output(command.env("PATH", &tools));
    assert!(again.status.success() && errors(&again).is_empty(), "{}", text(&again));
    let printed = text(&again);
    let named = printed.lines().find(|line| line.contains("names no-such-host.invalid, which is no machine"));
    assert!(named.is_some_and(|line| line.contains("2 of 8 runs (2x1-mpirun-1, ")), "{printed}");

    let table = text(&output(mpiburn(&["report"]).arg(lab.path("runs"))));
    let notes: Vec<&str> = table.lines().filter(|line| line.starts_with("not shown: ")).collect();
    assert!(notes.len() == 2 && notes[0].contains("4 of 8 runs skipped (1x1-srun-1, "), "{table}");
}

#[test]
fn a_stopped_sweep_keeps_completed_runs_and_continues() {
    let lab = Lab::new();
    let file = sweep_file(&lab, "[vary]\nepochs = [1, 30000]\n");
    let mut command = sweep(&lab, &file, &[]);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let epochs = lab.path("runs/epochs-30000-1/epochs.csv");
    wait_until(&mut job, "an epoch of the long run", || {
        std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
    });
    signal(job.id(), "-INT");
    let stopped = ended(job);
    assert_eq!(stopped.status.code(), Some(75), "{}", text(&stopped));
    // All of the command: another folder would be another sweep.
    let again =
        format!("continue with mpiburn sweep {} --out {}", file.display(), lab.path("runs").display());
    assert!(errors(&stopped)[0].ends_with(&again), "{}", text(&stopped));
    let first = lab.run_json("runs/epochs-1-1");
    assert_eq!(first["status"], "completed");
    assert_eq!(states(&lab)[1].1, "waiting");

    let rest = output(&mut sweep(&lab, &file, &["--only", "epochs-1-"]));
    assert!(rest.status.success(), "{}", text(&rest));
    assert_eq!(lab.run_json("runs/epochs-1-1"), first, "kept");
    assert_eq!(
        states(&lab).iter().map(|(_, s)| s.as_str()).collect::<Vec<_>>(),
        ["completed", "waiting", "completed", "waiting"]
    );
}

#[test]
fn invalid_sweep_files_are_rejected_with_the_key() {
    let lab = Lab::new();
    for (body, words) in [
        ("[vary]\nbakend = [\"mpi\"]\n", "unknown key bakend in [vary]; did you mean backend?"),
        ("[vary]\nbackend = [\"smoke\"]\n", "run smoke-1: --backend smoke: "),
        ("[vary]\nepochs = [\"many\"]\n", "run epochs-many-1: invalid value 'many'"),
        ("[vary\n", "line 7: "),
    ] {
        let file = sweep_file(&lab, body);
        let rejected = output(&mut sweep(&lab, &file, &[]));
        assert_eq!(rejected.status.code(), Some(1));
        let errors = errors(&rejected);
        assert_eq!(errors.len(), 1, "{}", text(&rejected));
        assert!(errors[0].contains(words) && errors[0].contains("small.toml"), "{}", errors[0]);
    }
    assert!(!lab.path("runs").exists(), "nothing was created");
}

#[test]
fn a_launch_trains_on_its_topology_and_has_the_jobs_exit_code() {
    let lab = Lab::new();
    let data = digits().to_str().unwrap();
    let out = lab.path("run");
    let train = ["train", "--data-root", data, "--epochs", "1", "--out", out.to_str().unwrap()];
    let good = output(&mut mpiburn(&[&["launch", "1x2", "--"], &train[..]].concat()));
    assert!(good.status.success(), "{}", text(&good));
    assert!(text(&good).contains("--map-by ppr:2:node --bind-to core"), "{}", text(&good));
    let run = lab.run_json("run");
    assert_eq!((&run["topology"], &run["status"]), (&"1x2".into(), &"completed".into()));

    let again = output(&mut mpiburn(&[&["launch", "1x2", "--"], &train[..]].concat()));
    assert_eq!(again.status.code(), Some(1));
    assert!(errors(&again).iter().any(|line| line.contains("exists already")), "{}", text(&again));
}

#[test]
fn a_signal_to_the_launch_stops_its_ranks_with_a_checkpoint() {
    stops_with_a_checkpoint("-USR1");
    // A closed terminal.
    stops_with_a_checkpoint("-HUP");
}

fn stops_with_a_checkpoint(name: &str) {
    let lab = Lab::new();
    let (data, out) = (digits().to_str().unwrap(), lab.path("run"));
    // Where the tests run under nohup, SIGHUP is ignored, and would be by the launch as well.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", binary(), "launch", "1x2", "--", "train", "--epochs", "30000"]);
    command.current_dir(std::env::temp_dir()).args(["--data-root", data]);
    command.arg("--out").arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = command.spawn().unwrap();
    wait_until(&mut job, "an epoch", || {
        std::fs::read_to_string(out.join("epochs.csv")).is_ok_and(|text| text.lines().count() > 1)
    });
    signal(job.id(), name);
    let ended = ended(job);
    assert_eq!(ended.status.code(), Some(75), "{}", text(&ended));
    assert_eq!(lab.run_json("run")["status"], "stopped");
    assert!(errors(&ended).last().unwrap().contains("continue with --resume"), "{}", text(&ended));
}

#[test]
fn unsuitable_hosts_are_named_before_the_start() {
    let lab = Lab::new();
    let hosts = lab.path("hosts");
    for (content, topology, words) in [
        ("localhost slots=1\nno-such-host.invalid slots=1\n", "2x1", "no-such-host.invalid of "),
        ("localhost slots=1\n", "1x2", "localhost has 1 of 2 slots"),
        ("localhost slots=2\n", "2x1", "lists 1 of 2 machines"),
        ("localhost many\n", "1x1", "line 1: localhost many"),
        ("-x slots=2\n", "1x1", "line 1: -x slots=2: expected a host name"),
        // An address that is reserved for documentation (RFC 5737).
        ("localhost slots=1\n192.0.2.1 slots=1\n", "2x1", "cannot ssh to 192.0.2.1"),
    ] {
        std::fs::write(&hosts, content).unwrap();
        let mut command = mpiburn(&["launch", topology, "--hostfile"]);
        command.arg(&hosts).args(["--", "train"]);
        let rejected = must_fail(command);
        let errors = errors(&rejected);
        assert_eq!(errors.len(), 1, "{}", text(&rejected));
        assert!(errors[0].contains(words), "{} lacks {words}", errors[0]);
    }
    let mut command = mpiburn(&["launch", "2x2", "--", "train"]);
    let rejected = output(&mut command);
    assert!(errors(&rejected)[0].contains("make hosts HOSTS="), "{}", text(&rejected));
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
        let expected = format!("mpiburn: {} is not an executable file: ", script.display());
        assert!(errors.len() == 1 && errors[0].starts_with(&expected), "{}", text(&rejected));
    }
}
