//! Local updates: ranks train alone for some steps, and then average the changes of their parameters.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::*;

/// Samples for `steps` steps of `ranks` ranks with batches of 8, of which the last step has one sample for
/// all ranks together: some ranks have an uneven shard, and others none.
fn samples(ranks: usize, steps: usize) -> String {
    format!("--train-samples={}", (steps - 1) * 8 * ranks + 1)
}

/// Two epochs of `steps` steps.
fn options(ranks: usize, steps: usize, recipe: &str) -> Vec<String> {
    let base = "--epochs=2 --train-batch-size=8 --test-samples=37 --log-every=3 --shuffle";
    base.split(' ')
        .chain(recipe.split_whitespace())
        .map(str::to_owned)
        .chain([samples(ranks, steps)])
        .collect()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

#[test]
fn averaging_after_each_step_equals_averaged_gradients() {
    let lab = Lab::new();
    let recipe = "--optimizer=sgd --lr=0.05 --weight-decay=1e-3 --l2=1e-4";
    for (ranks, more) in [(1, ""), (2, ""), (3, "--accumulate=2"), (4, "--dropout=0.3")] {
        let options = options(ranks, 4, &format!("{recipe} {more}"));
        let options = words(&options);
        let (gradients, local) = (&format!("gradients{ranks}"), &format!("local{ranks}"));
        lab.train(ranks, gradients, &options);
        lab.train(ranks, local, &[&options[..], &["--sync-every=1"]].concat());
        let off = lab.weights_apart(gradients, local);
        assert!(off < 2e-6, "{ranks} ranks: {off}");
        // With more steps between synchronisations, the result differs.
        if ranks > 1 {
            lab.train(ranks, local, &[&options[..], &["--sync-every=3", "--overwrite"]].concat());
            assert!(lab.weights_apart(gradients, local) > 1e-5);
        }
    }
}

/// Networks whose ranks differ in everything that a checkpoint has to store.
const STREAMING: &str =
    "--sync-every=4 --fragments=2 --sync-delay=1 --merge=0.5 --outer=nesterov --batch-norm --dropout=0.3";

/// Each run is stopped after each of its steps. The checkpoints of every step let ranks stop there.
#[test]
fn a_run_that_is_stopped_after_every_step_has_the_bits_of_an_uninterrupted_one() {
    let lab = Lab::new();
    for (ranks, recipe) in [
        (1, STREAMING.to_owned()),
        (2, format!("{STREAMING} --local-after=1")),
        (3, STREAMING.to_owned()),
        (4, "--sync-every=3 --optimizer=sgd --momentum=0.9 --grad-dtype=f16 --outer=nesterov".to_owned()),
    ] {
        let options = options(ranks, 5, &recipe);
        let options = words(&options);
        let name = |kind: &str| format!("{kind}{ranks}");
        let (whole, cut) = (&name("whole"), &name("cut"));
        assert_eq!(lab.train(ranks, whole, &options)["steps"], 10);
        lab.trains_the_same(ranks, whole, &options, &["weights_sha256", "test_loss", "train_loss"]);
        for step in 1..=10 {
            let mut job = match step {
                1 => lab.command(ranks, cut, &options),
                _ => lab.resume(ranks, cut, &[]),
            };
            if step == 1 {
                job.arg("--checkpoint-every=1");
            }
            job.options.seed += step as u64;
            job.stops[step % ranks].request(libc::SIGUSR1);
            let output = run(job);
            let last = lab.newest(cut);
            assert!(last.ends_with(format!("step-{step:08}")), "{}", text(&output));
            let expected = if step == 10 { 0 } else { 75 };
            assert_eq!(output.status.code(), Some(expected), "{}", text(&output));
            if step % 3 == 0 {
                let rest = &name(&format!("rest{step}-"));
                let copied = Command::new("cp").arg("-a").args([lab.path(cut), lab.path(rest)]).status();
                assert!(copied.expect("cp starts").success());
                output_of(lab.resume(ranks, rest, &["--checkpoint-every=none"]));
                lab.assert_same(rest, whole);
            }
        }
        lab.assert_same(cut, whole);
    }
}

/// A rank learns of another rank's stop request two steps later, or at once before a test inside an epoch.
#[test]
fn a_stop_takes_effect_two_steps_later() {
    let lab = Lab::new();
    for (ranks, recipe, step) in [
        (1, "--sync-every=4", 3),
        (2, "--sync-every=4 --fragments=2 --sync-delay=2", 3),
        (3, "--sync-every=100", 3),
        (4, "--sync-every=100 --eval-every=2", 2),
    ] {
        let options = options(ranks, 5, recipe);
        let options = words(&options);
        let (whole, cut) = (&format!("whole{ranks}-{step}"), &format!("cut{ranks}-{step}"));
        lab.train(ranks, whole, &options);
        let job = lab.command(ranks, cut, &options);
        job.stops[ranks - 1].request(libc::SIGUSR1);
        let output = must_fail(job);
        assert_eq!(output.status.code(), Some(75), "{}", text(&output));
        assert!(lab.newest(cut).ends_with(format!("step-{step:08}")), "{recipe}: {}", text(&output));
        output_of(lab.resume(ranks, cut, &[]));
        lab.assert_same(cut, whole);
        assert_eq!(lab.completed(cut)["bytes_per_step"], lab.completed(whole)["bytes_per_step"]);
    }
}

/// A complete run keeps the state of each rank, so more epochs have the bits of a run in one go.
#[test]
fn more_epochs_have_the_bits_of_a_run_in_one_go() {
    let lab = Lab::new();
    let options = options(3, 3, STREAMING);
    let [epochs, rest @ ..] = &words(&options)[..] else { panic!("{options:?}") };
    lab.train(3, "whole", &[&["--epochs=3"], rest].concat());
    lab.train(3, "parts", &[&[*epochs], rest].concat());
    output_of(lab.resume(3, "parts", &["--epochs=3"]));
    let of = |name: &str| lab.completed(name)["weights_sha256"].clone();
    assert_eq!(of("parts"), of("whole"));
}

#[test]
fn tests_and_checkpoints_inside_an_epoch_change_nothing() {
    let lab = Lab::new();
    for ranks in [2, 3] {
        let options = options(ranks, 5, STREAMING);
        let options = words(&options);
        let (plain, often) = (&format!("plain{ranks}"), &format!("often{ranks}"));
        let expected = lab.train(ranks, plain, &options);
        let more = ["--eval-every=1", "--checkpoint-every=3"];
        let run = lab.train(ranks, often, &[&options[..], &more].concat());
        for key in ["weights_sha256", "test_accuracy", "test_loss", "train_loss", "bytes_per_step"] {
            assert_eq!(run[key], expected[key], "{ranks} ranks: {key}");
        }
        // The saved network is the one that was tested.
        let evaluated = output_of(lab.on(ranks, &["eval", "--checkpoint"], plain));
        let loss = expected["test_loss"].as_f64().unwrap();
        assert!(evaluated.contains(&format!("test loss {loss:.6} ")), "{evaluated}");
    }
}

/// The file of the ranks' tensors is checked like the other files of a checkpoint.
#[test]
fn a_damaged_file_of_ranks_is_set_aside_with_its_checkpoint() {
    let lab = Lab::new();
    let options = options(2, 4, "--sync-every=4 --checkpoint-every=3");
    lab.train(2, "whole", &words(&options));
    let bytes = fs::read(lab.newest("whole").join("ranks.safetensors")).expect("the file");
    let half = &bytes[..bytes.len() / 2];
    let flipped: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 5000)).collect();
    for found in [None, Some(half), Some(&flipped)] {
        let copied = Command::new("cp").arg("-a").args([lab.path("whole"), lab.path("run")]).status();
        assert!(copied.expect("cp starts").success());
        let newest = lab.newest("run");
        match found {
            None => fs::remove_file(newest.join("ranks.safetensors")).unwrap(),
            Some(bytes) => fs::write(newest.join("ranks.safetensors"), bytes).unwrap(),
        }
        let printed = output_of(lab.resume(2, "run", &[]));
        let aside = newest.with_extension("damaged");
        let named = ["ranks.safetensors", aside.to_str().unwrap(), "resuming after step 6"];
        assert!(named.iter().all(|word| printed.contains(word)), "{printed}");
        lab.assert_same("run", "whole");
        fs::remove_dir_all(lab.path("run")).unwrap();
    }
    let averaged = options[..options.len() - 1].iter().filter(|word| !word.contains("sync"));
    lab.train(2, "averaged", &averaged.map(String::as_str).collect::<Vec<_>>());
    assert!(!lab.newest("averaged").join("ranks.safetensors").exists(), "all ranks have the same");
}

#[test]
fn local_updates_after_an_epoch_begin_with_the_bits_of_averaged_gradients() {
    let lab = Lab::new();
    let options = options(3, 4, "");
    let options = words(&options);
    lab.train(3, "gradients", &options);
    lab.train(3, "local", &[&options[..], &["--sync-every=2", "--local-after=1"]].concat());
    lab.train(3, "from-start", &[&options[..], &["--sync-every=2"]].concat());
    let losses = |name: &str| lab.column::<String>(name, "test_loss");
    let [gradients, local, from_start] = ["gradients", "local", "from-start"].map(losses);
    assert_eq!(gradients[0], local[0], "the first epoch");
    assert!(gradients[1] != local[1] && from_start[0] != local[0], "{gradients:?} {local:?} {from_start:?}");
}

/// Bytes of a step: the gradients with a few control values, or every H steps the changes with 16 values of notes for each rank.
#[test]
fn fewer_synchronisations_and_narrow_types_send_fewer_bytes() {
    let lab = Lab::new();
    let options = options(2, 6, "");
    let options = words(&options);
    let train = |name: &str, more: &[&str]| {
        let run = lab.train(2, name, &[&options[..], more].concat());
        let params = run["params"].as_f64().expect("a number");
        (run["bytes_per_step"].as_f64().expect("a number"), params)
    };
    let (bytes, params) = train("gradients", &[]);
    let control = |bytes: f64, width: f64| (width..=8.0 * width).contains(&(bytes - width * params));
    assert!(control(bytes, 4.0), "{bytes}");
    let narrow = train("narrow", &["--grad-dtype=bf16"]).0;
    assert!(control(narrow, 2.0), "{narrow}");
    let message = params + 2.0 * 16.0;
    assert_eq!(train("local", &["--sync-every=3"]).0, 4.0 * message / 3.0);
    assert_eq!(train("local16", &["--sync-every=3", "--grad-dtype=bf16"]).0, 2.0 * message / 3.0);
    assert_eq!(train("fragments", &["--sync-every=4", "--fragments=2"]).0, 4.0 * (params + 64.0) / 4.0);
    let alone = lab.train(1, "alone", &[&options[..], &["--sync-every=3"]].concat());
    assert_eq!(alone["bytes_per_step"], 0.0);
    let csv = succeeds(
        job(1).args(["report", "--format=csv"]).args(["gradients", "local"].map(|run| lab.path(run))),
    );
    let kb = |row: usize| column(&csv, row, "kb_per_step").parse::<f64>().expect("a number");
    assert!(kb(1) != kb(2) && kb(1).max(kb(2)) * 1024.0 - bytes < 60.0, "{csv}");
}

/// Overwrites the values of a training sample of `data`, made by [`Lab::data`], so that its loss is NaN.
fn poison(data: &str, sample: usize) {
    let path = Path::new(data).join("train_data/train_x.npy");
    let mut bytes = fs::read(&path).expect("the samples");
    let start = bytes.len() - 64 * 512 * 4 + sample * 512 * 4;
    bytes[start..start + 512 * 4]
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .for_each(|value| *value = 3e38f32.to_le_bytes());
    fs::write(path, bytes).expect("they can be written");
}

/// The poisoned sample is in step 2 of one rank. Other ranks go on until the next exchange of signals: when a
/// fragment synchronises after step 4, before a test or checkpoint after step 3, or at the end of an epoch.
#[test]
fn a_nan_loss_of_one_rank_ends_all_ranks_at_the_next_exchange() {
    for (ranks, rank, more) in [
        (1, 0, ""),
        (2, 1, ""),
        (3, 0, "--fragments=2 --sync-delay=1"),
        (3, 2, "--sync-every=100"),
        (2, 0, "--sync-every=100 --eval-every=3"),
        (2, 1, "--sync-every=100 --checkpoint-every=3"),
    ] {
        let lab = Lab::new();
        let data = lab.data("features", 64, 20);
        poison(&data, ranks * 4 + rank);
        let options = format!("--model=mlp --epochs=2 --train-batch-size=4 --sync-every=4 {more}");
        let mut job = lab.command(ranks, "run", &options.split_whitespace().collect::<Vec<_>>());
        job.args(["--data-root", &data]);
        let place = format!("rank {rank} (");
        let line =
            refused(job, 1, &["loss is ", "at epoch 1, step 2;", &place, "there is no checkpoint yet"]);
        assert!(line.contains("NaN") || line.contains("inf"), "{line}");
    }
}

#[test]
fn options_of_local_updates_that_do_not_fit_are_rejected_with_one_line() {
    let lab = Lab::new();
    for (options, words) in [
        ("--outer=nesterov", &["--outer nesterov: ", "--sync-every H"][..]),
        ("--local-after=1", &["--local-after 1: ", "--sync-every H"]),
        ("--fragments=2", &["--fragments 2: ", "--sync-every H"]),
        ("--sync-delay=1", &["--sync-delay 1: ", "--sync-every H"]),
        ("--merge=0.5", &["--merge 0.5: ", "--sync-every H"]),
        ("--sync-every=4 --outer-lr=0.5", &["--outer-lr 0.5: ", "--outer nesterov"]),
        ("--sync-every=4 --outer-momentum=0", &["--outer-momentum 0: ", "--outer nesterov"]),
        ("--sync-every=4 --fragments=3", &["--fragments 3: ", "--sync-every (4)"]),
        ("--sync-every=4 --sync-delay=4", &["--sync-delay 4: ", "--sync-every (4)"]),
        ("--sync-every=4 --merge=0.5", &["--merge 0.5: ", "--sync-delay"]),
        ("--sync-every=4 --sync-delay=1 --merge=1", &["--merge 1: ", "below 1"]),
        ("--sync-every=0", &["--sync-every 0: ", "from 1"]),
        ("--sync-every=4 --local-after=3", &["--local-after 3: ", "epochs (3)"]),
        ("--sync-every=4 --precision=fp16", &["--sync-every 4: ", "--precision fp16", "bf16"]),
        ("--sync-every=4 --quantize=qat", &["--sync-every 4: ", "--quantize qat", "ptq"]),
        ("--sync-every=1000 --fragments=1000", &["--fragments 1000: ", "at most", "(6)"]),
    ] {
        let options: Vec<&str> = options.split(' ').collect();
        refused(lab.command(2, "out", &options), 2, words);
    }
    assert!(!lab.path("out").exists(), "nothing was created");
    lab.train(2, "run", &["--epochs=1", "--train-samples=64", "--sync-every=2"]);
    for (option, value) in
        [("sync-every", "3"), ("outer", "nesterov"), ("fragments", "2"), ("sync-delay", "1")]
    {
        let job = lab.resume(2, "run", &["--epochs=2", &format!("--{option}={value}")]);
        refused(job, 2, &[&format!("--{option} {value}: cannot change in a resumed run")]);
    }
}
