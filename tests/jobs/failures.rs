//! Library programs in which one rank fails: the job ends, and a line says why.

use std::fs;
use std::process::{Child, Output, Stdio};
use std::time::Instant;

use crate::harness::*;

/// The deadline of collectives in seconds, for jobs that only the deadline can end.
const DEADLINE: &str = "3";

fn fail(how: &str, backend: &str) -> Output {
    fail_within(HOUR, how, backend)
}

fn fail_within(deadline: &str, how: &str, backend: &str) -> Output {
    let mut command = on_ranks(3, &example("fail_on_one_rank"));
    command.args([how, backend, deadline]).env("RUST_BACKTRACE", "0");
    let output = must_fail(command);
    assert!(!text(&output).contains("is done"), "{how}, {backend}: {}", text(&output));
    output
}

/// The number of lines on stderr that contain all of `parts`.
fn lines(output: &Output, parts: &[&str]) -> usize {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}

#[test]
fn an_error_that_main_returns_on_one_rank_ends_the_job() {
    for backend in ["mpi", "gloo"] {
        let output = fail("error", backend);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        assert_eq!(lines(&output, &["Error: ", "shard1.bin: cannot be read"]), 1, "{}", text(&output));
        // Over gloo, the other ranks notice closed connections, and name the rank that closed them.
        let named = lines(&output, &["rank 1 on ", "exit code 1"]);
        assert!(named >= 1, "{backend}: {}", text(&output));
        assert_eq!(lines(&output, &["Connection"]), 0, "{backend}: {}", text(&output));
    }
}

#[test]
fn run_names_the_rank_and_the_reason() {
    for backend in ["mpi", "gloo"] {
        let output = fail("run-error", backend);
        assert_eq!(output.status.code(), Some(1), "{}", text(&output));
        let line = ["fail_on_one_rank: rank 1 on ", ": shard1.bin: cannot be read"];
        assert!(lines(&output, &line) >= 1, "{backend}: {}", text(&output));
        let left = lines(&output, &["left the job"]);
        assert_eq!(lines(&output, &line) - left, 1, "{backend}: {}", text(&output));
    }
}

#[test]
fn a_panic_aborts_the_job_and_is_not_reported_as_a_bug_of_mpiburn() {
    for backend in ["mpi", "gloo"] {
        for how in ["panic", "run-panic"] {
            let output = fail(how, backend);
            assert_eq!(lines(&output, &["an index out of range"]), 1, "{how}: {}", text(&output));
            assert!(lines(&output, &["rank 1 on "]) >= 1, "{how}: {}", text(&output));
            assert!(!text(&output).contains(mpiburn::INTERNAL_ERROR), "{how}: {}", text(&output));
        }
    }
}

#[test]
fn a_rank_that_leaves_ends_the_job() {
    for backend in ["mpi", "gloo"] {
        let output = fail("exit", backend);
        assert_eq!(output.status.code(), Some(7), "{}", text(&output));
        assert!(lines(&output, &["rank 1 on ", "exit code 7"]) >= 1, "{}", text(&output));

        // A rank may leave early, before it connects, or without sending a message that another rank waits
        // for.
        for how in ["return", "return-early", "message"] {
            let output = fail(how, backend);
            let named = lines(&output, &["rank 1 on ", "has left the job"]);
            assert!(named >= 1, "{how}, {backend}: {}", text(&output));
        }
        let output = fail("thread", backend);
        let named = ["rank 1 on ", "exit code 7", "thread"];
        assert_eq!(lines(&output, &named), 1, "{backend}: {}", text(&output));
    }
}

#[test]
fn a_missing_rank_is_named_after_the_deadline() {
    for backend in ["mpi", "gloo"] {
        let output = fail_within(DEADLINE, "sleep", backend);
        let named = lines(&output, &[backend, "deadline of 3 s (Transport::timeout)", "missing: rank 1 on "]);
        assert!(named >= 1, "{}", text(&output));

        let output = fail_within(DEADLINE, "barrier", backend);
        let named = lines(&output, &["rank 1 on ", "is in mpi comparison of barrier, call "]);
        assert!(named >= 1, "{}", text(&output));

        let output = fail_within(DEADLINE, "sum", backend);
        let operation = "mpi comparison of all-reduce of 1 f64, call ";
        let named: usize = [format!("in {operation}"), format!("({operation}")]
            .iter()
            .map(|at| lines(&output, &["rank 1 on ", at]))
            .sum();
        assert!(named >= 1, "{}", text(&output));
    }
}

/// The stopped rank no longer answers the other ranks' watchdogs, so they notice it although they are not in
/// a collective. The job ends after six seconds of silence, plus the time that mpirun needs.
#[test]
fn a_rank_that_is_stopped_on_its_way_out_is_named() {
    let mut command = on_ranks(3, &example("fail_on_one_rank"));
    command.args(["stop-at-exit", "gloo", DEADLINE]);
    let output = must_fail(command);
    assert_eq!(text(&output).matches("is done").count(), 3, "{}", text(&output));
    assert!(silence_is_told(&output, &[1]), "{}", text(&output));
}

/// True if one of the three ranks names a rank in `stopped`, after its own time of silence. On a busy
/// machine, each of them may be the first.
fn silence_is_told(output: &Output, stopped: &[usize]) -> bool {
    let waits = [("6 s", "rank 0 on "), ("6.7 s", "rank 1 on "), ("7.4 s", "rank 2 on ")];
    let told = |rank: &usize, (silence, waits): (&str, &str)| {
        let start = format!("rank {rank} on ");
        lines(output, &[start.as_str(), &format!("not answered for {silence}, "), waits]) >= 1
    };
    stopped.iter().any(|rank| waits.iter().any(|&wait| told(rank, wait)))
}

/// The same inside MPI_Finalize, where Open MPI's ranks no longer wait for each other. The ranks train on
/// another thread than `main`, because that thread may have a larger stack.
#[test]
fn a_rank_that_is_stopped_while_mpi_ends_is_named() {
    let all_are_done = |output: &Output| {
        assert_eq!(text(output).matches("is done").count(), 3, "{}", text(output));
    };
    let output = run(on_ranks(3, &example("fail_on_one_rank")).args(["thread-main", "gloo"]));
    assert!(output.status.success(), "{}", text(&output));
    all_are_done(&output);
    let began = Instant::now();
    // The rank may exit between being seen and being stopped: then start another job.
    loop {
        assert!(began.elapsed() < limit(), "no rank was stopped inside MPI_Finalize");
        let mut command = on_ranks(3, &example("fail_on_one_rank"));
        command.env("OMPI_MCA_odls_base_sigkill_timeout", "0").args(["thread-main", "mpi", DEADLINE]);
        let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
        let stopped = stop_in_finalize(&mut job);
        let output = ended(job);
        all_are_done(&output);
        if !output.status.success() {
            assert!(stopped, "{}", text(&output));
            assert!(silence_is_told(&output, &[0, 1, 2]), "{}", text(&output));
            return;
        }
    }
}

/// Stops the first rank that enters MPI_Finalize, which starts a watching thread named `leave`. Returns false
/// if the job ends before such a rank is seen.
fn stop_in_finalize(job: &mut Child) -> bool {
    while job.try_wait().expect("the job's state can be read").is_none() {
        for rank in children(job.id().into()) {
            let threads = fs::read_dir(format!("/proc/{rank}/task")).into_iter().flatten().flatten();
            let mut names = threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok());
            if names.any(|name| name == "leave\n") {
                return kill(rank, "-STOP");
            }
        }
    }
    false
}

/// One rank makes another call, or has a buffer of another length or type. All ranks return the same error
/// before anything is sent, and MPI and gloo end no rank.
#[test]
fn calls_that_differ_between_ranks_are_an_error_of_all() {
    let cases = [
        ("sum", "all-reduce of 50000 f64, call", "all-reduce of 5 f64, call"),
        ("broadcast", "broadcast of 28 bytes from rank 0", "broadcast of 400000 bytes from rank 0"),
        ("started", "all-reduce (native) of 15000 f32, call 1", "all-reduce (native) of 30000 f32, call 1"),
        ("whole-broadcast", "broadcast of 24 bytes from rank 0", "broadcast of 24000 bytes from rank 0"),
        ("order", "non-blocking all-reduce (ordered) of 1000 f32", "all-reduce of 1000 f32"),
        ("type", "all-reduce of 8 bf16", "all-reduce of 8 f16"),
        ("root", "broadcast of 8 bytes from rank 1", "broadcast of 8 bytes from rank 0"),
        ("nothing", "all-gather of 0 bytes", "all-gather of 8 bytes"),
    ];
    for backend in ["mpi", "gloo"] {
        for (what, theirs, others) in cases {
            let output = must_fail({
                let mut command = on_ranks(3, &example("differing_calls"));
                command.args([what, backend]);
                command
            });
            assert_eq!(output.status.code(), Some(1), "{what}: {}", text(&output));
            let line = [theirs, "rank 0 in ", others];
            assert_eq!(
                lines(&output, &[&["rank 1 on "][..], &line].concat()),
                1,
                "{what}: {}",
                text(&output)
            );
            let told = String::from_utf8_lossy(&output.stdout);
            assert_eq!(told.matches(theirs).count(), 3, "{what}, {backend}: {}", text(&output));
        }
        // The other ranks repeat the calls that they learned, and wait in the next one until the deadline.
        let mut command = on_ranks(3, &example("differing_calls"));
        command.args(["later", backend]);
        let output = must_fail(command);
        let told = "comparison of all-reduce of 40000 f32, call 51";
        assert!(lines(&output, &["deadline of 3 s", told]) >= 1, "{}", text(&output));
        // Before the deadline, here of an hour, the warning's time ends a job that can never continue.
        let mut command = on_ranks(3, &example("differing_calls"));
        command.args(["later-barrier", backend]);
        let output = must_fail(command);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        let told = "ranks do not call the same operations in the same order";
        assert_eq!(lines(&output, &["rank 1 on ", "barrier", "rank 0 in ", told]), 1, "{}", text(&output));
        let mut command = on_ranks(3, &example("differing_calls"));
        command.args(["message", backend]);
        let output = must_fail(command);
        let told = match backend {
            "mpi" => ["the message has 400 bytes", "receives 8"],
            _ => ["rank 1 sends message 1 (400 bytes)", "receives message 1 (8 bytes)"],
        };
        assert!(lines(&output, &["rank 0 on ", told[0], told[1]]) >= 1, "{backend}: {}", text(&output));
        // The receivers make the call that they learned. MPI reports the message's length; gloo waits for the
        // missing bytes.
        for (what, over_mpi) in [
            ("later-short-message", "the message has 4 bytes, "),
            ("later-long-message", "the message has 4000000 bytes, "),
        ] {
            let mut command = on_ranks(3, &example("differing_calls"));
            command.args([what, backend]);
            let output = must_fail(command);
            let told = if backend == "mpi" { over_mpi } else { "deadline of 3 s" };
            assert!(lines(&output, &["rank 0", told]) >= 1, "{what}, {backend}: {}", text(&output));
        }
    }
}
