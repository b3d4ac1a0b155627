//! `mpiburn launch --restart` starts failed trainings again from their last checkpoint.

use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use crate::harness::*;

/// A training long enough that a rank can be killed after a checkpoint of the second epoch.
const LONG: [&str; 5] =
    ["--epochs=6", "--checkpoint-every=10", "--shuffle", "--train-batch-size=16", "--keep=9"];

/// The same training without checkpoints inside epochs, because each of these waits for the disk.
const WHOLE: [&str; 3] = ["--epochs=6", "--shuffle", "--train-batch-size=16"];

/// A launch of `topology`, with at most `restarts` restarts. It trains on the digits into the run directory
/// `name`.
fn launch(lab: &Lab, topology: &str, restarts: u32, name: &str, options: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env_remove("RUST_LOG").args(["launch", topology, "--restart", &restarts.to_string()]);
    command.args(["--", "train", "--data-root"]).arg(digits()).arg("--out").arg(lab.path(name)).args(options);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn newest(lab: &Lab, name: &str) -> usize {
    let last = lab.checkpoints(name).pop();
    last.map_or(0, |path| path.file_name().unwrap().to_str().unwrap()[5..].parse().unwrap())
}

/// Kills the last rank of the job in `name`, once its process is not `old` and a checkpoint is newer than
/// `step`. Returns the process id of the killed rank.
fn kill_after(job: &mut Child, lab: &Lab, name: &str, step: usize, old: u64) -> u64 {
    let pid = || {
        let text = std::fs::read(lab.path(name).join("run.json")).ok()?;
        let run: Value = serde_json::from_slice(&text).ok()?;
        run["places"].as_array()?.last()?["pid"].as_u64().filter(|&pid| pid != old)
    };
    wait_until(job, "a checkpoint", || pid().is_some() && newest(lab, name) > step);
    let pid = pid().unwrap();
    signal(pid, "-KILL");
    pid
}

/// The lines about failed attempts.
fn attempts(output: &Output) -> Vec<String> {
    errors(output).into_iter().filter(|line| line.starts_with("mpiburn: launch: attempt ")).collect()
}

fn number(value: &Value) -> usize {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number")) as usize
}

#[test]
fn a_killed_rank_costs_no_more_than_the_steps_since_the_checkpoint() {
    let lab = Lab::new();
    for (ranks, topology, backend) in [(1, "1x1", "mpi"), (2, "1x2", "gloo")] {
        let (whole, cut) = (format!("whole-{backend}"), format!("cut-{backend}"));
        let [options, once] = [&LONG[..], &WHOLE].map(|options| [options, &["--backend", backend]].concat());
        let expected = lab.train(ranks, &whole, &once);
        let mut job = launch(&lab, topology, 2, &cut, &options).spawn().unwrap();
        kill_after(&mut job, &lab, &cut, 210, 0);
        let output = ended(job);
        assert!(output.status.success(), "{}", text(&output));

        let record = lab.run_json(&cut);
        assert_eq!(record["status"], "completed");
        assert_eq!(record["weights_sha256"], expected["weights_sha256"], "{ranks} {backend}");
        let failed = record["failed_attempts"].as_array().unwrap();
        assert_eq!((failed.len(), record["history"].as_array().unwrap().len()), (1, 2), "{record}");
        let (from, step) = (number(&record["history"][1]["step"]), number(&failed[0]["step"]));
        assert!(from > 210 && step >= from && step <= from + 11, "from {from}, failed after {step}");
        assert_eq!((number(&failed[0]["from_step"]), &failed[0]["exit_code"]), (0, &137.into()));
        let cause = failed[0]["cause"].as_str().unwrap();
        // If mpirun has already waited for the dead rank, it prints "PID 0".
        let rank = format!("process rank {} with PID ", ranks - 1);
        // Over gloo, the other rank may report the closed connection first.
        let closed = backend == "gloo" && cause.contains("Connection closed by peer");
        assert!(closed || (cause.contains(&rank) && cause.contains("signal 9")), "{cause}");
        let times = ["started_at", "ended_at"].map(|name| failed[0][name].as_str().unwrap());
        assert!(times[0] <= times[1] && times[1] <= record["started_at"].as_str().unwrap(), "{record}");
        assert_eq!(
            attempts(&output),
            [format!(
                "mpiburn: launch: attempt 1 ended with exit code 137 after step {step}: {cause}; starting again \
                 from step {from} (restart 1 of 2)"
            )]
        );
        assert!(!lab.path(&cut).join(".step").exists(), "a complete run has no use for it");
        let shown = shown(&lab, &[&cut]);
        let footnote = format!("{topology} ({backend}): 1 failed attempt (after step {step}: {cause}).");
        assert!(shown.contains("\nᵉ ") && shown.contains(&footnote), "{shown}");
    }
}

/// The parent of a process; `None` if the process no longer exists.
fn parent(pid: u64) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}

/// As on a host that is not up again yet, the second attempt dies before its first step.
#[test]
fn an_attempt_that_dies_while_it_starts_is_no_fault_that_repeats() {
    let lab = Lab::new();
    let expected = lab.train(2, "whole", &WHOLE);
    let mut job = launch(&lab, "1x2", 3, "cut", &LONG).spawn().unwrap();
    kill_after(&mut job, &lab, "cut", 20, 0);
    let noted = || lab.run_json("cut")["failed_attempts"].as_array().is_some();
    wait_until(&mut job, "the end of the first attempt", noted);
    let pid = u64::from(job.id());
    let ranks = || children(pid).into_iter().flat_map(children).collect::<Vec<u64>>();
    wait_until(&mut job, "the ranks of the second attempt", || ranks().len() == 2);
    signal(ranks()[1], "-KILL");
    let output = ended(job);
    assert!(output.status.success(), "{}", text(&output));
    let lines = attempts(&output);
    assert!(lines.len() == 2 && lines[1].contains(" before its first step: "), "{}", text(&output));
    let run = lab.run_json("cut");
    let (failed, from) = (&run["failed_attempts"], &run["history"][1]["step"]);
    assert_eq!((&failed[1]["from_step"], &failed[1]["step"]), (from, from), "{run}");
    assert_eq!(run["weights_sha256"], expected["weights_sha256"]);
}

/// The ranks outlive a killed launcher for a moment. The next attempt waits until they no longer use the
/// directory.
#[test]
fn a_killed_launcher_is_started_again_when_its_ranks_have_left() {
    let lab = Lab::new();
    let expected = lab.train(2, "whole", &WHOLE);
    let mut launched = lab.start(launch(&lab, "1x2", 1, "cut", &LONG));
    wait_until(&mut launched.job, "a checkpoint", || newest(&lab, "cut") > 0);
    let launcher = children(u64::from(launched.job.id()))[0];
    let rank = children(launcher)[0];
    signal(launcher, "-KILL");
    // Ranks notice the loss of mpirun after 2 to 3 seconds, and a fast machine could complete the run in that
    // time. The rank that writes is therefore stopped.
    // The rank is stopped only now, because the end of its parent would wake it.
    wait_for("the launcher's end", || parent(rank) != Some(launcher));
    signal(rank, "-STOP");
    launched.wait_for_line(&["waiting for ", ", which still writes to "]);
    signal(rank, "-CONT");
    let output = launched.ended();
    assert!(output.status.success(), "{}", text(&output));
    let lines = attempts(&output);
    assert!(lines.len() == 1 && lines[0].contains("ended with exit code 137"), "{}", text(&output));
    assert!(!text(&output).contains("is in use by"), "{}", text(&output));
    let run = lab.run_json("cut");
    let failed = run["failed_attempts"].as_array().unwrap();
    assert_eq!((failed.len(), &run["weights_sha256"]), (1, &expected["weights_sha256"]), "{run}");
    assert!(number(&failed[0]["step"]) >= number(&run["history"][1]["step"]), "{run}");
}

#[test]
fn restarts_that_are_used_up_leave_a_run_that_can_be_resumed() {
    let lab = Lab::new();
    let expected = lab.train(2, "whole", &WHOLE);
    let mut job = launch(&lab, "1x2", 1, "cut", &LONG).spawn().unwrap();
    let first = kill_after(&mut job, &lab, "cut", 20, 0);
    // The next kill is after a checkpoint that the second attempt has written.
    let from = newest(&lab, "cut") + 30;
    kill_after(&mut job, &lab, "cut", from, first);
    let output = ended(job);
    assert_eq!(output.status.code(), Some(137), "{}", text(&output));
    let lines = attempts(&output);
    assert_eq!(lines.len(), 2, "{}", text(&output));
    assert!(lines[1].contains("attempt 2") && lines[1].contains("process rank 1 with PID "), "{}", lines[1]);
    assert!(lines[1].ends_with("not started again: --restart 1 is used up"), "{}", lines[1]);
    let run = lab.run_json("cut");
    assert_eq!(run["failed_attempts"].as_array().unwrap().len(), 2);
    assert_eq!(run["failed_attempts"][1]["from_step"], run["history"][1]["step"]);

    // Another launch, which resumes the run, adds to the list of failed attempts.
    let mut command = Command::new(binary());
    command.args(["launch", "1x2", "--restart", "1", "--", "train", "--resume"]).arg(lab.path("cut"));
    let output = crate::harness::run(command);
    assert!(output.status.success(), "{}", text(&output));
    let run = lab.run_json("cut");
    assert_eq!(run["failed_attempts"].as_array().unwrap().len(), 2);
    assert_eq!(run["weights_sha256"], expected["weights_sha256"]);
}

#[test]
fn a_fault_that_repeats_at_the_same_step_ends_the_restarts() {
    let lab = Lab::new();
    // The loss is infinite before the first checkpoint in one case, and after it, when the learning rate
    // rises, in the other.
    let rises = ["--optimizer", "sgd", "--schedule", "step", "--step-size", "1", "--gamma", "1e30"];
    for (topology, name, more) in [("1x1", "mpi", &["--lr", "1e30"][..]), ("1x2", "gloo", &rises)] {
        let options = [&["--epochs", "4", "--train-samples", "640", "--backend", name], more].concat();
        let output = must_fail(launch(&lab, topology, 5, name, &options));
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let [first, second] = &attempts(&output)[..] else { panic!("{}", text(&output)) };
        assert!(
            second.contains("; not started again: ") && second.ends_with(" failed at this step"),
            "{second}"
        );
        assert!(second.contains(": loss is ") && !second.contains("mpiburn: rank"), "{second}");
        let from = match name {
            "mpi" => "the beginning".to_owned(),
            _ => format!("step {}", newest(&lab, name)),
        };
        assert!(first.ends_with(&format!("starting again from {from} (restart 1 of 5)")), "{first}");
        let run = lab.run_json(name);
        let failed = run["failed_attempts"].as_array().unwrap();
        assert_eq!((failed.len(), &failed[0]["step"]), (2, &failed[1]["step"]), "{run}");
        assert_eq!(number(&failed[1]["from_step"]), newest(&lab, name));
        assert_eq!(run["status"], "failed");
    }
}

/// Kills the job in `name` before its first checkpoint.
fn kill_early(job: &mut Child, lab: &Lab, name: &str) {
    let step = lab.path(name).join(".step");
    let done = || std::fs::read_to_string(&step).ok()?.trim().parse::<usize>().ok();
    wait_until(job, "some steps", || done().is_some_and(|step| step >= 10));
    let pid = lab.run_json(name)["places"][0]["pid"].as_u64().unwrap();
    signal(pid, "-KILL");
    assert_eq!(newest(lab, name), 0, "the epoch was too short");
}

#[test]
fn a_run_without_checkpoint_begins_again_and_nothing_else_is_deleted() {
    let lab = Lab::new();
    let options = ["--epochs", "1", "--train-batch-size", "2", "--fused", "off"];
    let expected = lab.train(2, "whole", &options);
    for topology in ["1x2", "1x1"] {
        let mut job = launch(&lab, topology, 1, topology, &options).spawn().unwrap();
        kill_early(&mut job, &lab, topology);
        let output = ended(job);
        assert!(output.status.success(), "{}", text(&output));
        assert!(attempts(&output)[0].contains("beginning (restart 1 of 1"), "{}", text(&output));
        let run = lab.run_json(topology);
        let failed = run["failed_attempts"].as_array().unwrap();
        assert!(failed.len() == 1 && number(&failed[0]["step"]) >= 10, "{run}");
        assert!(topology == "1x1" || run["weights_sha256"] == expected["weights_sha256"]);
    }
    let mut job = launch(&lab, "1x2", 1, "notes", &options).spawn().unwrap();
    wait_until(&mut job, "run.json", || lab.path("notes/run.json").exists());
    std::fs::write(lab.path("notes/mine.txt"), "kept").unwrap();
    kill_early(&mut job, &lab, "notes");
    let output = ended(job);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(std::fs::read_to_string(lab.path("notes/mine.txt")).unwrap(), "kept");
    assert_eq!(lab.run_json("notes")["weights_sha256"], expected["weights_sha256"]);
}

/// The checkpoints cannot be listed for a moment, as on a mount that fails. A new start would replace the
/// run.
#[test]
fn a_run_whose_checkpoints_cannot_be_listed_is_not_begun_again() {
    let lab = Lab::new();
    let expected = lab.train(2, "whole", &WHOLE);
    let mut job = launch(&lab, "1x2", 3, "cut", &LONG).spawn().unwrap();
    wait_until(&mut job, "a checkpoint", || newest(&lab, "cut") > 20);
    let (folder, aside) = (lab.path("cut/checkpoints"), lab.path("cut/aside"));
    let pid = lab.run_json("cut")["places"][0]["pid"].as_u64().unwrap();
    // The rank is stopped, so that it cannot write a checkpoint in between.
    signal(pid, "-STOP");
    std::fs::rename(&folder, &aside).unwrap();
    std::fs::write(&folder, "").unwrap();
    signal(pid, "-KILL");
    let output = ended(job);
    assert_eq!(output.status.code(), Some(137), "{}", text(&output));
    let [line] = &attempts(&output)[..] else { panic!("{}", text(&output)) };
    assert!(line.contains("not started again") && line.contains("cut/checkpoints"), "{line}");
    std::fs::remove_file(&folder).unwrap();
    std::fs::rename(&aside, &folder).unwrap();
    let mut command = Command::new(binary());
    command.args(["launch", "1x2", "--", "train", "--resume"]).arg(lab.path("cut"));
    let output = crate::harness::run(command);
    assert!(output.status.success() && text(&output).contains("resuming after step"), "{}", text(&output));
    assert_eq!(lab.run_json("cut")["weights_sha256"], expected["weights_sha256"]);
}

#[test]
fn what_would_repeat_is_not_started_again() {
    let lab = Lab::new();
    let started = |output: &Output| text(output).matches("$ mpirun").count();
    let short = ["--epochs", "1", "--train-samples", "64", "--test-samples", "32"];
    for (options, starts) in [(&["--epochs", "0"][..], 0), (&["--epoch"], 0), (&["--num-classes", "9"], 1)] {
        let output = must_fail(launch(&lab, "1x2", 3, "none", options));
        assert_eq!((output.status.code(), started(&output)), (Some(2), starts), "{}", text(&output));
        assert!(attempts(&output).is_empty() && !lab.path("none").exists(), "{}", text(&output));
    }
    lab.train(1, "old", &short);
    let before = std::fs::read(lab.path("old/run.json")).unwrap();
    let output = must_fail(launch(&lab, "1x1", 3, "old", &short));
    assert_eq!((output.status.code(), started(&output)), (Some(1), 1), "{}", text(&output));
    assert!(text(&output).contains("--resume") && text(&output).contains("--overwrite"), "{}", text(&output));
    assert_eq!(std::fs::read(lab.path("old/run.json")).unwrap(), before);

    for words in [&["train", "--epochs", "1"][..], &["bench", "allreduce"]] {
        let mut command = Command::new(binary());
        command.args(["launch", "1x2", "--restart", "1", "--"]).args(words);
        let output = must_fail(command);
        assert_eq!((output.status.code(), errors(&output).len()), (Some(2), 1), "{}", text(&output));
        assert!(errors(&output)[0].starts_with("mpiburn: --restart: ") && started(&output) == 0);
    }
}

#[test]
fn a_signal_to_the_launch_stops_its_ranks_with_a_checkpoint_and_ends_the_restarts() {
    let lab = Lab::new();
    // SIGHUP and SIGQUIT come from a terminal. SIGUSR1 and SIGTERM go to a launch with restarts, the others
    // to one without.
    for name in ["USR1", "TERM", "USR2", "HUP", "QUIT"] {
        // Under nohup, tests ignore SIGHUP, and the launch would inherit this.
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,QUIT", binary(), "launch", "1x2"]);
        if ["USR1", "TERM"].contains(&name) {
            command.args(["--restart", "3"]);
        }
        command.args(["train", "--epochs", "30000", "--data-root"]).arg(digits());
        command.arg("--out").arg(lab.path(name)).current_dir(std::env::temp_dir());
        let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until(&mut job, "a checkpoint", || newest(&lab, name) > 0);
        signal(job.id(), &format!("-{name}"));
        let output = ended(job);
        assert!(!output.status.success() && attempts(&output).is_empty(), "{}", text(&output));
        let run = lab.run_json(name);
        assert_eq!((&run["status"], &run["failed_attempts"]), (&"stopped".into(), &Value::Null));
        if name != "TERM" {
            assert_eq!(output.status.code(), Some(75), "{}", text(&output));
            let errors = errors(&output);
            assert!(errors.last().unwrap().contains("continue with --resume"), "{}", text(&output));
        }
    }
}
