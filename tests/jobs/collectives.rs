//! The same training over different transports, and ranks that stop responding.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    // Waiting ranks spin, so steps of more ranks than cores take long: a few of them.
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
fn sixteen_bit_gradients_reach_the_accuracy_of_f32() {
    let lab = Lab::new();
    let options = ["--epochs", "2", "--lr", "2e-3", "--overwrite"];
    let accuracy = |dtype| {
        let run = lab.train(2, "run", &[&options[..], &["--grad-dtype", dtype]].concat());
        run["test_accuracy"].as_f64().unwrap()
    };
    let wide = accuracy("f32");
    assert!(wide > 80.0, "{wide}");
    for dtype in ["bf16", "f16"] {
        let narrow = accuracy(dtype);
        // Of 500 test samples, one is 0.2 points.
        assert!((narrow - wide).abs() <= 1.0, "{dtype}: {narrow}, f32 {wide}");
    }
}

#[test]
fn accumulated_batches_equal_one_large_batch() {
    let lab = Lab::new();
    let curve = |name: &str, options: &[&str]| {
        let common = ["--epochs", "1", "--log-every", "1", "--train-samples", "3201"];
        lab.train(2, name, &[&common[..], options].concat());
        lab.curve(name, 0, "train.loss")
    };
    let whole = curve("whole", &["--train-batch-size", "32"]);
    let parts = curve("parts", &["--train-batch-size", "8", "--accumulate", "4"]);
    assert_eq!([whole.len(), parts.len()], [51; 2]);
    for (whole, parts) in whole.iter().zip(&parts) {
        assert!((whole.1 - parts.1).abs() < 1e-4, "step {}: {} and {}", whole.0, whole.1, parts.1);
    }
}

#[test]
fn averaged_gradients_equal_those_of_one_batch() {
    for ranks in [1, 2, 3, 4] {
        let output = mpirun(ranks, &example("check_gradients")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).matches("gradients are right").count(), ranks);
    }
}

#[test]
fn running_statistics_are_averaged_over_ranks() {
    for ranks in [1, 2, 3] {
        let output = mpirun(ranks, &example("check_buffers")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        assert_eq!(text(&output).matches("statistics are averaged").count(), ranks);
    }
}

#[test]
fn collectives_of_every_type_and_length_are_right_on_both_transports() {
    for ranks in [1, 2, 3, 4] {
        let output = mpirun(ranks, &example("check_collectives")).output().unwrap();
        let text = text(&output);
        assert!(output.status.success(), "{ranks} ranks: {text}");
        for transport in ["mpi", "gloo"] {
            for found in [
                "ordered sums of all types and lengths have the bits of plain additions",
                "reduce-scatter and all-gather of all types and lengths are right",
                "broadcasts of all types are right",
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
                let mut command = mpirun(3, &example("check_collectives"));
                command.args([how, operation, backend]);
                text(&fails_within(Duration::from_secs(2 + 10), command))
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
        let output = mpirun(2, &example("own_model")).arg(backend).output().unwrap();
        assert!(output.status.success(), "{}", text(&output));
        let text = text(&output);
        assert_eq!(text.matches("is done").count(), 2, "{text}");
        let last = text.lines().find(|line| line.starts_with("step 500")).unwrap();
        let loss: f64 = last.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(loss < 0.01, "{last}");
        // A small network fits into one bucket, and the report says so.
        assert!(text.contains("1 bucket of 0.4 kB, no overlap: all gradients are in one bucket"), "{text}");
    }
}

#[test]
fn ranks_with_different_options_or_data_are_rejected_by_field_and_rank() {
    let lab = Lab::new();
    // mpirun starts another program for each part between colons.
    let mut command = lab.command(1, "run", &["--lr", "1e-3"]);
    command.args([":", "-n", "1", binary(), "train", "--lr", "2e-3", "--data-root"]).arg(digits());
    let output = fails_within(Duration::from_secs(10), command);
    let errors = errors(&output);
    assert_eq!(errors.len(), 1, "{}", text(&output));
    assert!(errors[0].contains("--lr differs") && errors[0].contains("rank 1"), "{}", errors[0]);

    let mut command = lab.command(1, "run", &[]);
    command.args([":", "-n", "1", binary(), "train", "--data-root"]).arg(digits());
    command.arg("--out").arg(lab.path("elsewhere"));
    let output = fails_within(Duration::from_secs(10), command);
    let errors = self::errors(&output);
    assert_eq!(errors.len(), 1, "{}", text(&output));
    assert!(errors[0].contains("--out differs") && errors[0].contains("elsewhere"), "{}", errors[0]);

    let other = lab.path("other");
    let made = Command::new(binary())
        .args(["-q", "data", "digits", "--train", "6400", "--test", "500", "--seed", "8", "--out"])
        .arg(&other)
        .status();
    assert!(made.unwrap().success());
    let link = |name: &str, to: &Path| {
        let cwd = lab.path(name);
        std::fs::create_dir(&cwd).unwrap();
        std::os::unix::fs::symlink(to, cwd.join("digits")).unwrap();
        cwd
    };
    let (first, second) = (link("first", digits()), link("second", &other));
    let mut command = Command::new("mpirun");
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.args(["-n", "1", "--wdir"]).arg(&first).args([
        binary(),
        "train",
        "--data-root",
        "digits",
        "--out",
    ]);
    command.arg(lab.path("run2")).args([":", "-n", "1", "--wdir"]).arg(&second);
    command.args([binary(), "train", "--data-root", "digits", "--out"]).arg(lab.path("run2"));
    let output = fails_within(Duration::from_secs(10), command);
    let errors = self::errors(&output);
    assert_eq!(errors.len(), 1, "{}", text(&output));
    let expected = ["training set's digest differs", "rank 1"];
    assert!(expected.iter().all(|words| errors[0].contains(words)), "{}", errors[0]);
}

/// The pids of a running job's ranks, from its run.json.
fn pids(lab: &Lab, name: &str) -> Vec<u64> {
    let run = lab.run_json(name);
    run["places"].as_array().unwrap().iter().map(|place| place["pid"].as_u64().unwrap()).collect()
}

/// Starts a long training, sends the signal `harm` to rank 1 in the middle of it, and
/// returns the job's error lines and its duration after that.
fn harmed(backend: &str, harm: &str) -> (String, Duration) {
    let lab = Lab::new();
    let options = [
        "--epochs",
        "500",
        "--backend",
        backend,
        "--comm-timeout",
        "3",
        // Long epochs, so that the signal arrives within one.
        "--fused",
        "off",
    ];
    let mut command = lab.command(2, "run", &options);
    let mut job = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let epochs = lab.path("run").join("epochs.csv");
    wait_until(&mut job, "the first epoch", || {
        std::fs::read_to_string(&epochs).is_ok_and(|text| text.lines().count() > 1)
    });
    // Wait until steps of the second epoch run.
    std::thread::sleep(Duration::from_millis(100));
    signal(pids(&lab, "run")[1], harm);
    let since = Instant::now();
    let output = job.wait_with_output().unwrap();
    assert!(!output.status.success(), "{}", text(&output));
    // Error lines only: the header of each run names all ranks.
    ([errors(&output), notices(&output)].concat().join("\n"), since.elapsed())
}

#[test]
fn a_stopped_rank_is_named_and_the_job_aborts_after_the_deadline() {
    for backend in ["mpi", "gloo"] {
        let (text, lasted) = harmed(backend, "-STOP");
        assert!(lasted < Duration::from_secs(3 + 10), "{backend}: {lasted:.1?}");
        let line = text.lines().find(|line| line.contains("exceeded the deadline"));
        let line = line.unwrap_or_else(|| panic!("{backend}: {text}"));
        assert!(line.contains(backend) && line.contains("all-reduce"), "{line}");
        assert!(line.contains("deadline of 3 s (--comm-timeout)"), "{line}");
        assert!(line.contains("missing: rank 1 on "), "{line}");
    }
}

#[test]
fn a_killed_rank_ends_the_job() {
    for backend in ["mpi", "gloo"] {
        let (text, lasted) = harmed(backend, "-KILL");
        assert!(lasted < Duration::from_secs(3 + 10), "{backend}: {lasted:.1?}");
        assert!(text.contains("rank 1"), "{backend}: {text}");
    }
}
