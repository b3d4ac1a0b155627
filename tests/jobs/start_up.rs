//! Jobs whose ranks differ before the first collective. They end at once or at the deadline, with the cause.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output};

use crate::harness::*;

/// The deadline of a job's start in seconds, for jobs that only the deadline can end.
const DEADLINE: &str = "2";

/// Options of a short training on two ranks, which must end before its deadline.
fn training(lab: &Lab, more: &[&str]) -> Vec<OsString> {
    let mut options: Vec<OsString> =
        ["train", "--epochs", "1", "--train-samples", "640", "--comm-timeout"].map(Into::into).into();
    options.extend([HOUR.into(), "--data-root".into(), digits().into()]);
    options.extend(["--out".into(), lab.path("run").into()]);
    options.extend(more.iter().map(Into::into));
    options
}

/// A job of two ranks, each with its own command; the job must fail.
fn fails(first: &[OsString], program: &Path, second: &[OsString]) -> Output {
    let of = |program: &Path, words: &[OsString]| {
        let mut command = Command::new(program);
        command.args(words);
        command
    };
    let mut job = side_by_side(&of(binary().as_ref(), first), &of(program, second));
    job.env("RUST_BACKTRACE", "0");
    must_fail(job)
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(Into::into).collect()
}

#[test]
fn a_rank_with_an_unknown_option_prints_it_and_ends_the_job() {
    let lab = Lab::new();
    let allreduce = words(&["bench", "allreduce"]);
    // Rank 1 has a value that only rank 1 rejects, or an option that differs from rank 0's.
    for (bad, named) in [
        ("--nonsense", "'--nonsense'"),
        ("--comm-timeout=-1", "--comm-timeout"),
        ("--model=none", "--model"),
        ("--sizes=8", "--sizes differs between ranks: rank 1 on "),
    ] {
        let output = match bad {
            "--sizes=8" => fails(&allreduce, binary().as_ref(), &[&allreduce[..], &words(&[bad])].concat()),
            _ => fails(&training(&lab, &[]), binary().as_ref(), &training(&lab, &[bad])),
        };
        let errors = errors(&output);
        let code = if bad == "--sizes=8" { 1 } else { 2 };
        assert_eq!((errors.len(), output.status.code()), (1, Some(code)), "{bad}: {}", text(&output));
        assert!(errors[0].contains("rank 1 on ") && errors[0].contains(named), "{}", errors[0]);
        assert!(bad == "--sizes=8" || errors[0].starts_with("mpiburn: rank 1 on "), "{}", errors[0]);
    }
    // If all ranks have the same error, it is printed once.
    for (command, facts) in [
        ("train --nonsense", ["error: ", "'--nonsense'"]),
        ("report results", ["mpiburn: report ", "without mpirun or srun"]),
    ] {
        let mut job = on_ranks(3, binary());
        job.args(command.split(' '));
        let output = must_fail(job);
        let errors = errors(&output);
        assert_eq!((errors.len(), output.status.code()), (1, Some(2)), "{}", text(&output));
        assert!(facts.iter().all(|fact| errors[0].contains(fact)), "{}", errors[0]);
    }
}

/// The error line and the exit code of a job whose rank 1 runs a changed copy of the binary.
fn line_on_another_binary(change: impl FnOnce(&mut Vec<u8>)) -> (String, Option<i32>) {
    let lab = Lab::new();
    let other = lab.path("mpiburn");
    let mut bytes = fs::read(binary()).unwrap();
    change(&mut bytes);
    fs::write(&other, bytes).unwrap();
    fs::set_permissions(&other, fs::metadata(binary()).unwrap().permissions()).unwrap();
    let output = fails(&training(&lab, &[]), &other, &training(&lab, &[]));
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", text(&output));
    (errors[0].clone(), output.status.code())
}

#[test]
fn another_binary_is_refused() {
    let (line, code) = line_on_another_binary(|bytes| bytes.push(0));
    for fact in ["rank 1 on ", "rank 0 on ", "binaries", "SHA-256"] {
        assert!(line.contains(fact), "{fact}: {line}");
    }
    assert_eq!(code, Some(2));
}

/// Ranks compare digests of their sources first, before they exchange data whose format depends on the
/// sources.
#[test]
fn a_build_of_other_sources_is_refused_in_the_first_exchange() {
    let (line, code) = line_on_another_binary(|bytes| {
        let mark = concat!("burn-mpi ", env!("CARGO_PKG_VERSION"), ", sources ").as_bytes();
        let at =
            bytes.windows(mark.len()).position(|part| part == mark).expect("the build's name") + mark.len();
        bytes[at] = if bytes[at] == b'0' { b'1' } else { b'0' };
    });
    assert!(line.starts_with("mpiburn: rank 1 on ") && line.contains(" a different build "), "{line}");
    assert_eq!(code, Some(1));
}

#[test]
fn a_process_that_never_starts_mpi_ends_the_job_at_the_deadline() {
    let lab = Lab::new();
    let train = training(&lab, &["--comm-timeout", DEADLINE]);
    let output = fails(&train, "sleep".as_ref(), &words(&[HOUR]));
    let errors = errors(&output);
    assert_eq!((errors.len(), output.status.code()), (1, Some(3)), "{}", text(&output));
    let line = "mpiburn: the start of MPI exceeded the deadline of 2 s (--comm-timeout)";
    assert!(errors[0].starts_with(line) && errors[0].contains("rank 0 on "), "{}", errors[0]);
}

/// The process of a rank, once mpirun has started it.
fn process_of(rank: usize, job: &mut Child) -> u64 {
    let number = format!("OMPI_COMM_WORLD_RANK={rank}");
    let is_it = |pid: &u64| {
        let variables = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        variables.split(|&byte| byte == 0).any(|variable| variable == number.as_bytes())
    };
    let parent = job.id().into();
    let find = || children(parent).into_iter().find(is_it);
    wait_until(job, &format!("rank {rank} starts"), || find().is_some());
    find().expect("the rank runs")
}

/// A training on two ranks that logs each stage of its start.
fn start(lab: &Lab, more: &[&str]) -> Running {
    let mut command = on_ranks(2, binary());
    command.args(training(lab, more)).env("RUST_LOG", "info,mpiburn=debug,burn_mpi=debug");
    command.env("OMPI_MCA_odls_base_sigkill_timeout", "0");
    lab.start(command)
}

/// The rank is stopped before, during and after MPI's start.
#[test]
fn a_rank_that_is_stopped_while_the_job_starts_is_named() {
    for (backend, moment) in [
        ("mpi", None),
        ("gloo", Some("rank 1: signal handlers are installed")),
        ("mpi", Some("rank 1: MPI is about to start")),
        ("gloo", Some("rank 1: MPI has started")),
        ("mpi", Some("rank 1: the guard has started")),
    ] {
        let lab = Lab::new();
        let mut started = start(&lab, &["--epochs", "500", "--backend", backend, "--comm-timeout", DEADLINE]);
        let pid = process_of(1, &mut started.job);
        // On a slow machine, the deadline may pass before this moment. Then no rank is stopped.
        let is_there = moment.is_none_or(|line| started.prints(&[line]));
        let is_stopped = is_there && kill(pid, "-STOP");
        let output = ended_with_3(started);
        let named = |line: &String| {
            line.contains("deadline of 2 s")
                && (!is_stopped || (line.contains("stopped") && line.contains("rank 1 on ")))
        };
        assert!(errors(&output).iter().any(named), "{backend}, {moment:?}: {}", text(&output));
    }
}

/// The output of a job that a rank ends with exit code 3. mpirun prints this code. Afterwards, mpirun of Open
/// MPI 4.1 rarely crashes or hangs if a rank was stopped while it connected to mpirun, so mpirun is killed.
fn ended_with_3(mut started: Running) -> Output {
    let is_printed = started.prints(&["Exit code:    3"]);
    for pid in all_below(started.job.id().into()) {
        kill(pid, "-KILL");
    }
    let output = started.ended();
    assert!(is_printed, "{}", text(&output));
    output
}

/// A rank that was stopped has not waited for the others. mpirun, which ends the job, continues the rank for
/// a moment; the rank must not blame the others then.
#[test]
fn a_rank_that_was_stopped_while_the_job_starts_accuses_nobody() {
    let lab = Lab::new();
    let mut started = start(&lab, &["--comm-timeout", "8"]);
    let pid = process_of(0, &mut started.job);
    started.wait_for_line(&["rank 0: signal handlers are installed"]);
    signal(pid, "-STOP");
    let output = started.ended();
    let errors = errors(&output);
    assert_eq!((errors.len(), output.status.code()), (1, Some(3)), "{}", text(&output));
    // On a fast machine, the rank is stopped after its start. Then a watchdog prints the line.
    let words = ["exceeded the deadline of 8 s", "rank 0 on "];
    assert!(words.iter().all(|word| errors[0].contains(word)), "{}", errors[0]);
}

/// A signal before the training has the same effect as one during it: a checkpoint, and the exit code of a
/// run that can be resumed.
#[test]
fn a_signal_while_mpi_starts_stops_the_run_with_a_checkpoint() {
    for moment in ["rank 1: signal handlers are installed", "rank 1: MPI is about to start"] {
        let lab = Lab::new();
        let mut started = start(&lab, &["--epochs", "50000"]);
        let pid = process_of(1, &mut started.job);
        started.wait_for_line(&[moment]);
        signal(pid, "-USR1");
        let output = started.ended();
        assert_eq!(output.status.code(), Some(75), "{}", text(&output));
        assert_eq!(lab.run_json("run")["status"], "stopped");
        assert_eq!(lab.checkpoints("run").len(), 1);
    }
}

/// The run is new. Its directory is created before its ranks connect.
#[test]
fn a_new_run_that_cannot_connect_has_failed_and_is_tried_three_times() {
    let lab = Lab::new();
    let mut command = Command::new(binary());
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args([
        "launch",
        "1x2",
        "--restart",
        "5",
        "--",
        "train",
        "--backend",
        "gloo",
        "--interface",
        "nowhere",
    ]);
    command.arg("--data-root").arg(digits()).arg("--out").arg(lab.path("run"));
    let output = must_fail(command);
    let attempts: Vec<_> =
        errors(&output).into_iter().filter(|line| line.starts_with("mpiburn: launch: attempt ")).collect();
    assert_eq!(attempts.len(), 3, "{}", text(&output));
    assert!(attempts.iter().all(|line| line.contains(" before its first step: ")), "{attempts:?}");
    assert!(attempts[2].ends_with("3 attempts in a row have not reached their first step"), "{attempts:?}");
    let run = lab.run_json("run");
    assert!(run["status"] == "failed" && run["error"].as_str().unwrap().contains("nowhere"), "{run}");

    // `--overwrite` keeps the complete old run if the ranks of the new run cannot connect.
    let old = lab.train(2, "run", &["--overwrite", "--epochs", "1", "--train-samples", "64"]);
    let options = ["--overwrite", "--backend", "gloo", "--interface", "nowhere"];
    let output = must_fail(lab.command(2, "run", &options));
    assert!(errors(&output)[0].contains("nowhere"), "{}", text(&output));
    assert_eq!((lab.run_json("run"), lab.checkpoints("run").len()), (old, 1));
}

/// mpirun loses a SIGUSR1 that arrives before its ranks exist.
#[test]
fn a_signal_in_the_first_moment_of_a_launch_is_not_lost() {
    // The signal is sent when the launch has started no process, mpirun, or mpirun and the ranks.
    for generations in 0..3 {
        let lab = Lab::new();
        let mut command = Command::new(binary());
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("RUST_LOG", "info,mpiburn=debug").args(["launch", "1x2", "--", "train"]);
        command.args(["--epochs", "30000", "--data-root"]).arg(digits()).arg("--out").arg(lab.path("run"));
        let mut started = lab.start(command);
        started.wait_for_line(&["rank 0: signal handlers are installed"]);
        let pid = u64::from(started.job.id());
        let below =
            || (0..generations).fold(vec![pid], |all, _| all.into_iter().flat_map(children).collect());
        wait_until(&mut started.job, "the processes", || !below().is_empty());
        signal(pid, "-USR1");
        let output = started.ended();
        assert!(!output.status.success(), "{}", text(&output));
    }
}
