//! Jobs in which a rank keeps the others waiting: they say so before the deadline, and go on.

use std::process::Stdio;
use std::time::Duration;

use crate::harness::*;

#[test]
fn a_rank_that_is_waited_for_is_named_once_and_the_run_goes_on() {
    for (ranks, backend) in [(2, "mpi"), (3, "gloo")] {
        let lab = Lab::new();
        let options = ["--epochs", "4", "--fused", "off", "--backend", backend, "--comm-timeout", "30"];
        let expected = lab.train(ranks, "whole", &options);
        let mut command = lab.command(ranks, "run", &options);
        command.args(["--stall-warning", "1"]);
        let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let epochs = lab.path("run/epochs.csv");
        wait_until(&mut job, "the first epoch", || {
            std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
        });
        let pid = lab.run_json("run")["places"][1]["pid"].as_u64().unwrap();
        signal(pid, "-STOP");
        std::thread::sleep(Duration::from_secs(5));
        signal(pid, "-CONT");
        let output = job.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let lines: Vec<String> =
            errors(&output).into_iter().filter(|line| line.contains(" has waited for ")).collect();
        assert_eq!(lines.len(), 1, "{ranks} {backend}: {}", text(&output));
        for part in
            [backend, "missing: rank 1 on ", "the job ends after its deadline of 30 s (--comm-timeout)"]
        {
            assert!(lines[0].contains(part), "{}", lines[0]);
        }
        // The stop may be in a test, which is no wait for gradients.
        let waits =
            |line: &str| line.contains(" waited longest, ") || line.starts_with("ranks waited alike, ");
        assert!(text(&output).lines().any(waits), "{}", text(&output));
        assert_eq!(lab.run_json("run")["weights_sha256"], expected["weights_sha256"]);
    }
}

#[test]
fn a_stall_warning_that_is_no_time_is_refused() {
    let lab = Lab::new();
    for value in ["0", "-1", "nan", "1e308"] {
        let output =
            fails_within(Duration::from_secs(10), lab.command(1, "run", &["--stall-warning", value]));
        assert_eq!((errors(&output).len(), output.status.code()), (1, Some(2)), "{}", text(&output));
        assert!(errors(&output)[0].starts_with("mpiburn: --stall-warning "), "{}", text(&output));
        assert!(errors(&output)[0].len() < 120, "{}", text(&output));
    }
}
