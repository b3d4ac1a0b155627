//! `--trace` writes a time line of a training's steps. `tests/trace/check.py` checks the times in it.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::harness::*;

/// --bucket-mb makes buckets of one or two parameters.
const OPTIONS: [&str; 6] = ["--epochs", "1", "--train-samples", "640", "--bucket-mb", "0.004"];

fn read(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut text = String::new();
    if path.extension().is_some_and(|extension| extension == "gz") {
        flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text).expect("gzip")
    } else {
        (&bytes[..]).read_to_string(&mut text).expect("UTF-8")
    };
    serde_json::from_str(&text).expect("JSON")
}

/// Trains with a time line; returns `run.json` and the time line.
fn traced(lab: &Lab, ranks: usize, name: &str, options: &[&str]) -> (Value, Value) {
    let file = lab.path(&format!("{name}.json"));
    let options = [&OPTIONS[..], &["--trace", file.to_str().unwrap()], options].concat();
    let run = lab.train(ranks, name, &options);
    (run, read(&file))
}

fn events(trace: &Value) -> Vec<&Value> {
    let all = trace["traceEvents"].as_array().expect("events");
    all.iter().filter(|event| event["ph"] == "X").collect()
}

/// The names of a rank's events in a step: of the thread that computes, or of its other threads.
fn names(trace: &Value, rank: usize, step: u64, computes: bool) -> BTreeSet<String> {
    let of = |event: &&Value| {
        event["pid"] == rank && event["args"]["step"] == step && (event["tid"] == 1) == computes
    };
    events(trace).into_iter().filter(of).map(|event| event["name"].as_str().unwrap().to_owned()).collect()
}

/// The numbers of the steps that a rank's time line has, in order.
fn steps(trace: &Value, rank: usize) -> Vec<u64> {
    let of = |event: &&Value| event["pid"] == rank && event["cat"] == "step";
    events(trace).into_iter().filter(of).filter_map(|event| event["args"]["step"].as_u64()).collect()
}

#[test]
fn a_time_line_has_all_ranks_and_changes_no_bit() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        let (run, trace) = traced(&lab, ranks, "traced", &["--trace-steps", "1..6", "--overwrite"]);
        let plain = lab.train(ranks, "plain", &[&OPTIONS[..], &["--overwrite"]].concat());
        assert_eq!(run["weights_sha256"], plain["weights_sha256"], "{ranks} ranks");
        let other = &trace["otherData"];
        assert_eq!((&other["ranks"], &other["backend"]), (&ranks.into(), &"mpi".into()));
        assert_eq!(other["clock_error_us"].as_array().map(Vec::len), Some(ranks));
        for rank in 0..ranks {
            assert_eq!(steps(&trace, rank), [1, 2, 3, 4, 5, 6]);
            let computed = names(&trace, rank, 4, true);
            for name in [
                "step 4",
                "samples bytes to tensor",
                "linear",
                "linear backward",
                "copy of gradients",
                "start of bucket 1",
                "wait for bucket 1",
                "optimizer",
            ] {
                assert!(computed.contains(name), "{name} is missing on rank {rank}: {computed:?}");
            }
            let buckets = names(&trace, rank, 4, false);
            assert_eq!(buckets, names(&trace, 0, 4, false));
            assert!(buckets.len() > 1 && buckets.contains("bucket 1 all-reduce"), "{buckets:?}");
        }
        let bytes = |step: u64| -> u64 {
            let of = |event: &&Value| event["pid"] == 0 && event["args"]["step"] == step;
            let buckets = events(&trace).into_iter().filter(of);
            buckets.filter_map(|event| event["args"]["bytes"].as_u64()).sum()
        };
        // The first step learns the order of gradients, so its buckets differ.
        assert_eq!((bytes(1), bytes(5)), (17064, 17064), "all gradients in f32");
    }
}

#[test]
fn every_kind_of_training_has_a_time_line_and_the_same_bits() {
    let lab = Lab::new();
    for options in [
        &["--batch-norm", "--dropout", "0.3", "--shuffle", "--accumulate", "2"][..],
        &["--quantize", "qat"],
        &["--precision", "bf16", "--overlap", "off"],
        &["--fused", "off", "--checkpoint-every", "3", "--train-batch-size", "16"],
    ] {
        let more = [options, &["--overwrite"]].concat();
        let (run, trace) = traced(&lab, 2, "traced", &more);
        let plain = lab.train(2, "plain", &[&OPTIONS[..], &more].concat());
        assert_eq!(run["weights_sha256"], plain["weights_sha256"], "{options:?}");
        let found: BTreeSet<&str> =
            events(&trace).into_iter().filter_map(|event| event["name"].as_str()).collect();
        assert!(found.contains("evaluation") && found.contains("checkpoint"), "{options:?}: {found:?}");
        let quantized = options.contains(&"--quantize");
        assert_eq!(found.contains("network fake quantized"), quantized, "{found:?}");
    }
}

#[test]
fn ranks_without_samples_have_their_steps_and_buckets() {
    let lab = Lab::new();
    // In the second step, rank 0 has 2 of the 4 samples. In the third step, rank 0 has the only sample.
    let (_, trace) = traced(&lab, 3, "run", &["--train-samples", "49", "--train-batch-size", "8"]);
    for rank in 0..3 {
        assert_eq!(steps(&trace, rank), [1, 2, 3]);
        let computed = names(&trace, rank, 3, true);
        assert_eq!(computed.contains("linear backward"), rank == 0, "rank {rank}: {computed:?}");
        assert!(computed.contains("optimizer"), "rank {rank}: {computed:?}");
        assert_eq!(names(&trace, rank, 3, false), names(&trace, 0, 3, false), "rank {rank}");
    }
}

#[test]
fn a_name_in_gz_is_compressed_and_a_file_is_replaced() {
    let lab = Lab::new();
    let file = lab.path("run/steps.json.gz");
    let options = [&OPTIONS[..], &["--overwrite", "--trace", file.to_str().unwrap()]].concat();
    for _ in 0..2 {
        let printed = output_of(lab.command(2, "run", &options));
        assert!(printed.contains("steps 1 to 10 "), "{printed}");
        assert!(printed.contains(" waited "), "{printed}");
        assert_eq!(steps(&read(&file), 1), (1..=10).collect::<Vec<u64>>());
    }
    let left = std::fs::read_dir(lab.path("run")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(left.iter().all(|name| !name.ends_with(".part")), "{left:?}");
}

#[test]
fn profiles_have_time_lines() {
    let lab = Lab::new();
    let file = lab.path("profile.json");
    for (ranks, options, expected) in [
        (1, &["--batches", "4"][..], vec!["conv1, conv2 2x conv+relu+max pool", "linear"]),
        (2, &["--batches", "3", "--int8"], vec!["input quantize", "linear int8 linear"]),
        (3, &["--batches", "5", "--train"], vec!["linear backward", "optimizer"]),
    ] {
        output_of(job(ranks).arg("profile").args(options).arg("--trace").arg(&file));
        let trace = read(&file);
        let batches: u64 = options[1].parse().unwrap();
        for rank in 0..ranks {
            assert_eq!(steps(&trace, rank), (1..=batches).collect::<Vec<_>>(), "{options:?}");
            let found = names(&trace, rank, 2, true);
            assert!(expected.iter().all(|&name| found.contains(name)), "{found:?}");
            assert_eq!(names(&trace, rank, 2, false).is_empty(), ranks < 3);
        }
    }
}

#[test]
fn a_resumed_run_has_a_time_line_of_its_own_steps() {
    let lab = Lab::new();
    let options = [&OPTIONS[..], &["--checkpoint-every", "4"]].concat();
    let expected = lab.train(2, "run", &options);
    let resume = |more: &[&str]| {
        let last = lab.checkpoints("run").pop().expect("checkpoints");
        assert!(last.ends_with("step-00000010"), "{}", last.display());
        std::fs::remove_dir_all(last).unwrap();
        lab.resume(2, "run", more)
    };
    let file = lab.path("resumed.json");
    let printed = output_of(resume(&["--trace", file.to_str().unwrap()]));
    assert!(!printed.contains("without effect"), "{printed}");
    assert_eq!(steps(&read(&file), 1), [9, 10]);
    assert_eq!(lab.run_json("run")["weights_sha256"], expected["weights_sha256"]);

    let job = resume(&["--trace", file.to_str().unwrap(), "--trace-steps", "8..9"]);
    fails_with(job, &["--trace-steps 8..9: this part of the run has steps 9 to 10"]);
}

#[test]
fn a_run_that_ends_early_writes_what_it_has() {
    let lab = Lab::new();
    let file = lab.path("early.json");
    let path = file.to_str().unwrap();
    let options = ["--overwrite", "--trace", path, "--trace-steps"];
    let nan =
        |steps| lab.command(2, "nan", &[&options[..], &[steps, "--epochs", "1", "--lr", "1e30"]].concat());
    fails_with(nan("1..100"), &["loss is NaN"]);
    let steps_done = steps(&read(&file), 1);
    assert!(steps_done.len() < 100 && steps_done[0] == 1, "{steps_done:?}");
    std::fs::remove_file(&file).unwrap();

    let output = must_fail(nan("99..100"));
    let is_told = |line: &str| line.contains("early.json: not written") && line.contains("step 99");
    assert!(text(&output).lines().any(is_told), "{}", text(&output));
    assert!(!file.exists());

    let job = lab.command(2, "stopped", &[&options[..], &["90..110", "--epochs", "30000"]].concat());
    let output = lab.stopped_after(101, "stopped", job);
    assert_eq!(output.status.code(), Some(75), "{}", text(&output));
    // The stop request came in the second epoch, and the training may have ended inside the traced range.
    let trace = read(&file);
    let found = steps(&trace, 0);
    let last = found.last().copied().unwrap_or(0);
    assert!(last > 100 && found == (90..=last).collect::<Vec<u64>>(), "{found:?}");
    assert_eq!((steps(&trace, 1), &trace["otherData"]["last_step"]), (found, &Value::from(last)));
}
