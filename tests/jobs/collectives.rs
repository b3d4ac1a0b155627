//! The same training over different transports, and ranks that stop responding.

use std::process::Stdio;

use crate::harness::*;

/// Buckets so small that each contains one or two parameters.
const MANY_BUCKETS: [&str; 6] = ["--epochs", "1", "--train-samples", "1600", "--bucket-mb", "0.004"];

fn weights(lab: &Lab, ranks: usize, options: &[&str]) -> String {
    let run = lab.train(ranks, "run", &[&MANY_BUCKETS[..], options, &["--overwrite"]].concat());
    run["weights_sha256"].as_str().unwrap().to_owned()
}

#[test]
fn two_ranks_have_the_same_bits_over_every_transport() {
    let lab = Lab::new();
    let expected = weights(&lab, 2, &[]);
    for options in [
        &["--overlap", "off"][..],
        &["--reduce", "ordered"],
        &["--backend", "gloo"],
        &["--backend", "gloo", "--overlap", "off"],
        &["--backend", "gloo", "--gloo-algorithm", "halving-doubling"],
        &["--backend", "gloo", "--gloo-algorithm", "bcube"],
        &["--bucket-mb", "25"],
    ] {
        assert_eq!(weights(&lab, 2, options), expected, "{options:?}");
    }
}

#[test]
fn ordered_sums_have_the_same_bits_over_every_transport() {
    let lab = Lab::new();
    // A waiting rank spins, so a step takes long if ranks share a core. These trainings have few steps.
    let common = ["--reduce", "ordered", "--train-samples", "641"];
    for ranks in [3, 4] {
        let expected = weights(&lab, ranks, &common);
        for options in
            [&["--backend", "gloo"][..], &["--overlap", "off"], &["--backend", "gloo", "--overlap", "off"]]
        {
            let options = [options, &common].concat();
            assert_eq!(weights(&lab, ranks, &options), expected, "{ranks} ranks, {options:?}");
        }
    }
}

#[test]
fn collectives_of_every_type_and_length_are_right_on_both_transports() {
    for ranks in [1, 2, 3, 4] {
        let output = run(on_ranks(ranks, &example("check_collectives")));
        let text = text(&output);
        assert!(output.status.success(), "{ranks} ranks: {text}");
        for transport in ["mpi", "gloo"] {
            for found in [
                "ordered sums of all types and lengths have the bits of plain additions",
                "reduce-scatter and all-gather of all types and lengths are right",
                "operations in flight come back right, in any order",
            ] {
                assert!(text.contains(&format!("ok: {transport}: {found}")), "{ranks} ranks: {text}");
            }
        }
    }
}

#[test]
fn a_rank_that_misses_a_reduce_scatter_or_an_all_gather_is_named() {
    for backend in ["mpi", "gloo"] {
        for operation in ["reduce-scatter", "all-gather"] {
            let miss = |how: &str| {
                let mut command = on_ranks(3, &example("check_collectives"));
                command.args([how, operation, backend]);
                text(&must_fail(command))
            };
            let late = miss("stay");
            let line = format!("{backend} {operation} of bucket 1 exceeded the deadline of 2 s");
            let line = late.lines().find(|l| l.contains(&line)).unwrap_or_else(|| panic!("{late}"));
            assert!(line.contains("missing: rank 2 on "), "{line}");

            let left = miss("leave");
            let own = left.lines().filter(|line| line.contains("rank 2 on ")).collect::<Vec<_>>();
            assert!(own.iter().any(|line| line.ends_with(": the disk is full")), "{left}");
            assert!(!left.contains("not missed"), "{left}");
        }
    }
}

#[test]
fn a_custom_module_trains_over_both_transports() {
    for backend in ["mpi", "gloo"] {
        let output = run(on_ranks(2, &example("own_model")).arg(backend));
        assert!(output.status.success(), "{}", text(&output));
        let text = text(&output);
        assert_eq!(text.matches("is done").count(), 2, "{text}");
        let last = text.lines().find(|line| line.starts_with("step 500")).unwrap();
        let loss: f64 = last.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(loss < 0.01, "{last}");
        // The network is small: all gradients fit into one bucket, and the report says so.
        assert!(text.contains("1 bucket of 0.4 KB, no overlap"), "{text}");
    }
}

/// The pids of a running job's ranks, from its run.json.
fn pids(lab: &Lab, name: &str) -> Vec<u64> {
    let run = lab.run_json(name);
    run["places"].as_array().unwrap().iter().map(|place| place["pid"].as_u64().unwrap()).collect()
}

/// Starts a long training, sends the signal `harm` to rank 1 in the middle of its first epoch, and
/// returns the job's error lines.
fn harmed(backend: &str, harm: &str, deadline: &str) -> String {
    let lab = Lab::new();
    // An epoch of 3200 slow steps, so that the signal arrives within it.
    let options = ["--train-batch-size", "1", "--fused", "off", "--note-steps", "--backend", backend];
    let mut command = lab.command(2, "run", &[&options[..], &["--comm-timeout", deadline]].concat());
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(&mut job, "some steps", || lab.step("run") > 0);
    signal(pids(&lab, "run")[1], harm);
    let output = ended(job);
    assert!(!output.status.success(), "{}", text(&output));
    // Returns only error lines, because the header of each run names all ranks.
    [errors(&output), notices(&output)].concat().join("\n")
}

#[test]
fn a_stopped_rank_is_named_and_the_job_aborts_after_the_deadline() {
    for backend in ["mpi", "gloo"] {
        let text = harmed(backend, "-STOP", "3");
        let line = text.lines().find(|line| line.contains("exceeded the deadline"));
        let line = line.unwrap_or_else(|| panic!("{backend}: {text}"));
        assert!(line.contains(backend) && line.contains("all-reduce"), "{line}");
        assert!(line.contains(" 3 s ") && line.contains("--comm-timeout"), "{line}");
        assert!(line.contains("missing: rank 1 on "), "{line}");
    }
}

#[test]
fn a_killed_rank_ends_the_job() {
    for backend in ["mpi", "gloo"] {
        let text = harmed(backend, "-KILL", HOUR);
        assert!(text.contains("rank 1"), "{backend}: {text}");
    }
}
