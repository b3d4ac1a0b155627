//! Gradients compressed by PowerSGD, in trainings, checkpoints, benchmarks and time lines.

use crate::harness::*;

const COMPRESS: [&str; 2] = ["--compress=powersgd", "--compress-rank=2"];

/// Epochs of `steps` steps with batches of 8. The last step has one sample for all ranks together, so some
/// ranks have none.
fn options(ranks: usize, steps: usize, more: &str) -> Vec<String> {
    let base = "--epochs=2 --train-batch-size=8 --test-samples=37 --log-every=3 --shuffle";
    let samples = format!("--train-samples={}", (steps - 1) * 8 * ranks + 1);
    base.split(' ').chain(more.split_whitespace()).map(str::to_owned).chain([samples]).collect()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).chain(COMPRESS).collect()
}

/// A training compares the weights of all ranks at its end.
#[test]
fn compressed_gradients_train_like_plain_ones_and_send_fewer_bytes() {
    let lab = Lab::new();
    let options = ["--epochs=5", "--train-samples=1217", "--lr=2e-3", "--train-batch-size=16"];
    for ranks in 1..=4 {
        let [plain, compressed] = ["plain", "compressed"].map(|kind| format!("{kind}{ranks}"));
        let expected = lab.train(ranks, &plain, &options);
        let run = lab.train(ranks, &compressed, &[&options[..], &COMPRESS].concat());
        let number = |run: &serde_json::Value, key: &str| run[key].as_f64().expect("a number");
        let [bytes, all] = [&run, &expected].map(|run| number(run, "bytes_per_step"));
        let off = lab.weights_apart(&plain, &compressed);
        if ranks == 1 {
            assert_eq!((off, bytes, all), (0.0, 0.0, 0.0), "one rank sends nothing");
            continue;
        }
        assert!(off > 1e-4 && bytes < 0.3 * all, "{ranks} ranks: {off}, {bytes} of {all} bytes");
        let [found, expected] = [&run, &expected].map(|run| number(run, "test_accuracy"));
        assert!(found > expected - 5.0, "{ranks} ranks: {found}% instead of {expected}%");
        // The same seed, whatever the timing.
        lab.trains_the_same(
            ranks,
            &compressed,
            &[&options[..], &COMPRESS].concat(),
            &["weights_sha256", "test_loss", "train_loss", "bytes_per_step"],
        );
    }
}

/// Each run is stopped after each of its steps, of which the last of an epoch leaves ranks without samples.
#[test]
fn a_run_that_is_stopped_after_every_step_has_the_bits_of_an_uninterrupted_one() {
    let lab = Lab::new();
    for (ranks, more) in [
        (2, "--batch-norm --dropout=0.3 --clip-norm=1"),
        (3, "--grad-dtype=bf16 --optimizer=sgd --momentum=0.9 --bucket-mb=0.004"),
        (4, "--quantize=qat --accumulate=2"),
    ] {
        let options = options(ranks, 4, more);
        let options = words(&options);
        let [whole, cut] = ["whole", "cut"].map(|kind| format!("{kind}{ranks}"));
        let steps = lab.train(ranks, &whole, &options)["steps"].as_u64().expect("a number") as usize;
        for step in 1..=steps {
            let mut job = match step {
                1 => lab.command(ranks, &cut, &options),
                _ => lab.resume(ranks, &cut, &[]),
            };
            if step == 1 {
                job.arg("--checkpoint-every=1");
            }
            job.options.seed += step as u64;
            job.stops[step % ranks].request(libc::SIGUSR1);
            let output = run(job);
            let last = lab.newest(&cut);
            assert!(last.ends_with(format!("step-{step:08}")), "{}", text(&output));
            let expected = if step == steps { 0 } else { 75 };
            assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
        }
        lab.assert_same(&cut, &whole);
        let bytes = [&cut, &whole].map(|name| lab.completed(name)["bytes_per_step"].clone());
        assert_eq!(bytes[0], bytes[1]);
    }
}

#[test]
fn options_of_the_compression_that_do_not_fit_are_rejected_with_one_line() {
    let lab = Lab::new();
    let missing = &["--compress powersgd: ", "--compress-rank R"][..];
    for (options, words) in [
        ("--compress=powersgd", missing),
        ("--compress-rank=2", &["--compress-rank 2: ", "--compress powersgd"]),
        ("--compress=powersgd --compress-rank=0", &["--compress-rank 0: ", "from 1"]),
        (
            "--compress=powersgd --compress-rank=2 --sync-every=4",
            &["--compress powersgd: ", "--sync-every 4"],
        ),
        (
            "--compress=powersgd --compress-rank=2 --precision=fp16",
            &["--compress powersgd: ", "fp16", "bf16"],
        ),
        ("--compress=powersgd --compress-rank=900", &["--compress-rank 900: ", "choose at most "]),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        refused(lab.command(2, "out", &options), 2, words);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
    let bench = ["bench", "step", "--steps=2", "--compress=powersgd", "--compress-rank=900"];
    refused(job(2).args(bench), 2, &["--compress-rank 900: ", "choose at most "]);
    lab.train(2, "run", &[&["--epochs=1", "--train-samples=64"][..], &COMPRESS].concat());
    for (option, value) in [("compress", "none"), ("compress-rank", "1")] {
        let job = lab.resume(2, "run", &["--epochs=2", &format!("--{option}={value}")]);
        refused(job, 2, &[&format!("--{option} {value}: cannot change in a resumed run")]);
    }
    let job = lab.resume(1, "run", &["--epochs=2", "--reshard"]);
    refused(job, 2, &["--reshard: cannot continue a run with --compress", "error memory"]);
}

#[test]
fn bench_step_shows_the_time_of_the_compression() {
    let lab = Lab::new();
    let json = lab.path("step.json");
    let step = ["bench", "step", "--steps=6", "--model=mlp", "--batch-size=8", "--products=0", "--json"];
    for compresses in [true, false] {
        let mut command = job(3);
        command.args(step).arg(&json).args(if compresses { &COMPRESS[..] } else { &[] });
        let printed = succeeds(&command);
        let figures = read_json(&json);
        assert_eq!(printed.contains("compressing 0.069 MB of gradients to "), compresses, "{printed}");
        assert_eq!(figures["compress_ms"].is_number(), compresses, "{figures}");
        if compresses {
            let [sent, all] =
                ["gradient_bytes", "uncompressed_bytes"].map(|key| figures[key].as_u64().expect("a number"));
            assert!(sent < all / 8, "{sent} of {all} bytes");
        }
    }
}

/// A compressed bucket is started and awaited twice. It lasts until its last round is over.
#[test]
fn a_time_line_has_all_rounds_of_a_compressed_bucket() {
    let lab = Lab::new();
    let file = lab.path("trace.json");
    let options = ["--epochs=1", "--train-samples=640", "--bucket-mb=0.004", "--trace"];
    let options = [&options[..], &[file.to_str().unwrap()], &COMPRESS].concat();
    let run = lab.train(2, "traced", &options);
    let plain: Vec<&str> = options.iter().filter(|word| !word.contains("trace")).copied().collect();
    assert_eq!(run["weights_sha256"], lab.train(2, "plain", &plain)["weights_sha256"]);
    let trace = read_json(&file);
    let of_step: Vec<_> = trace["traceEvents"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|event| event["ph"] == "X" && event["pid"] == 0 && event["args"]["step"] == 5)
        .collect();
    let time = |event: &serde_json::Value| {
        let [begin, length] = ["ts", "dur"].map(|key| event[key].as_f64().expect("a number"));
        (begin, begin + length)
    };
    let mut twice = 0;
    for bucket in of_step.iter().filter(|event| event["tid"] != 1) {
        let name = bucket["name"].as_str().expect("a name").replace(" all-reduce", "");
        let calls = |what: &str| {
            let name = format!("{what} {name}");
            of_step.iter().filter(|event| event["name"] == *name).map(|event| time(event)).collect::<Vec<_>>()
        };
        let (starts, waits) = (calls("start of"), calls("wait for"));
        assert_eq!(starts.len(), waits.len(), "{name}");
        twice += usize::from(starts.len() == 2);
        let (begin, end) = time(bucket);
        let within = |&(from, to): &(f64, f64)| begin <= from + 1e-3 && to <= end + 1e-3;
        assert!(
            starts.iter().chain(&waits[1..]).all(within),
            "{name}: {starts:?} {waits:?} in {begin} to {end}"
        );
    }
    assert!(twice > 0, "{of_step:?}");
    assert!(of_step.iter().any(|event| event["name"] == "copy of gradients"));
}
