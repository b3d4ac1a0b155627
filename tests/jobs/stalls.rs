//! Jobs in which a rank keeps the others waiting. They print a line before the deadline, and continue when
//! the rank does.

use crate::harness::*;

#[test]
fn a_rank_that_is_waited_for_is_named_once_and_the_run_goes_on() {
    for (ranks, backend) in [(2, "mpi"), (3, "gloo")] {
        let lab = Lab::new();
        let options = ["--epochs", "2", "--fused", "off", "--backend", backend, "--comm-timeout", HOUR];
        let expected = lab.train(ranks, "whole", &options);
        let mut command = lab.command(ranks, "run", &options);
        command.args(["-v", "--stall-warning", "1", "--note-steps"]);
        let mut started = lab.start(command);
        wait_until(&mut started.job, "a step", || lab.step("run") > 0);
        let pid = lab.run_json("run")["places"][1]["pid"].as_u64().unwrap();
        signal(pid, "-STOP");
        started.wait_for_line(&[" has waited for ", "missing: rank 1 on "]);
        signal(pid, "-CONT");
        let output = started.ended();
        assert!(output.status.success(), "{}", text(&output));
        // On a busy machine, another wait may also take longer than a second.
        let parts = [
            backend,
            " has waited for ",
            "missing: rank 1 on ",
            &format!("deadline of {HOUR} s (--comm-timeout)"),
        ];
        let is_it = |line: &String| parts.iter().all(|part| line.contains(part));
        assert!(errors(&output).iter().any(is_it), "{ranks} {backend}: {}", text(&output));
        // The rank may have been stopped in a test of the network, where ranks do not wait for gradients.
        let waits =
            |line: &str| line.contains(" waited longest, ") || line.contains("ranks waited about equally");
        assert!(text(&output).lines().any(waits), "{}", text(&output));
        assert_eq!(lab.run_json("run")["weights_sha256"], expected["weights_sha256"]);
    }
}
