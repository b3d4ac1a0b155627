//! Runs that are resumed on another number of ranks (`--reshard`) go on as if the number had not changed.

use burn_mpi::ShardPlan;
use serde_json::Value;

use crate::harness::*;

/// Samples of an epoch of 17 steps. The last step has 7 samples: ranks have different numbers of samples in
/// it, or none.
const SAMPLES: usize = 24 * 16 + 7;
/// Samples of a step over all ranks.
const GLOBAL: usize = 24;
const EPOCHS: usize = 9;

/// Options for `ranks` ranks. With `--lr-scaling`, the learning rate depends on the number of ranks.
fn options(ranks: usize, more: &[&str]) -> Vec<String> {
    let size = |name: &str, value: usize| format!("--{name}={value}");
    let sizes =
        [size("train-batch-size", GLOBAL / ranks), size("train-samples", SAMPLES), size("epochs", EPOCHS)];
    let words = ["--test-samples=37", "--log-every=1", "--shuffle", "--keep=99"];
    sizes.into_iter().chain(words.iter().chain(more).map(ToString::to_string)).collect()
}

fn words(options: &[String]) -> Vec<&str> {
    options.iter().map(String::as_str).collect()
}

/// The training loss of each step over all ranks. `ranks_at` returns the number of ranks of the 0-based step.
fn losses(lab: &Lab, name: &str, ranks_at: impl Fn(usize) -> usize) -> Vec<f64> {
    let mut sums = vec![(0.0, 0); EPOCHS * SAMPLES.div_ceil(GLOBAL)];
    let most = (0..sums.len()).map(&ranks_at).max().expect("steps");
    for rank in 0..most {
        for (number, loss) in lab.curve(name, rank, "train.loss") {
            let step = number - 1;
            let world_size = ranks_at(step);
            let plan = ShardPlan { samples: SAMPLES, world_size, batch_size: GLOBAL / world_size };
            assert!(rank < world_size, "{name}: step {number} has a point of rank {rank} of {world_size}");
            let samples = plan.batch_len(rank, step % plan.steps());
            sums[step] = (sums[step].0 + loss * samples as f64, sums[step].1 + samples);
        }
    }
    for (step, (_, samples)) in sums.iter().enumerate() {
        let expected = if step % 17 == 16 { 7 } else { GLOBAL };
        assert_eq!(*samples, expected, "{name}: step {}", step + 1);
    }
    sums.into_iter().map(|(sum, samples)| sum / samples as f64).collect()
}

/// The number of points of the training loss that TensorBoard shows for a rank.
fn tensorboard_points(lab: &Lab, name: &str, rank: usize) -> usize {
    let tag = b"train/loss";
    let folder = lab.path(name).join(format!("tensorboard/rank{rank}"));
    let count = |text: &[u8]| text.windows(tag.len()).filter(|found| found == tag).count();
    let files = std::fs::read_dir(folder).expect("a folder");
    files.map(|file| count(&std::fs::read(file.expect("a file").path()).expect("its bytes"))).sum()
}

fn is_near(values: &[f64], others: &[f64], slack: f64, what: &str) {
    assert_eq!(values.len(), others.len(), "{what}");
    for (at, (value, other)) in values.iter().zip(others).enumerate() {
        assert!((value - other).abs() < slack, "{what} {at}: {value} {other}");
    }
}

/// Runs 4 ranks, then the ranks of `numbers`, each stopped some steps later, inside an epoch. Checks the
/// number of samples in each checkpoint. Returns the number of steps before each change.
fn changed_run(lab: &Lab, name: &str, numbers: &[usize], more: &[&str]) -> Vec<usize> {
    let mut steps = Vec::new();
    let begin = lab.command(4, name, &words(&options(4, more)));
    let output = lab.stopped_after(9, name, begin);
    assert_eq!(output.status.code(), Some(75), "{}", text(&output));
    for (at, &ranks) in numbers.iter().enumerate() {
        let position = lab.position(name);
        let number = |key: &str| position[key].as_u64().expect("a number") as usize;
        let (step, in_epoch) = (number("step"), number("step_in_epoch"));
        steps.push(step);
        let samples = position["epoch_tallies"].as_array().expect("a list").iter();
        let samples: f64 = samples.map(|tally| tally["samples"].as_f64().expect("a number")).sum();
        // At the end of an epoch, the tally of the next one is empty.
        assert_eq!(samples as usize, (in_epoch * GLOBAL).min(SAMPLES), "{position}");
        let mut job = lab.resume(ranks, name, &["--reshard"]);
        job.options.seed += at as u64;
        if at + 1 == numbers.len() {
            let printed = output_of(job);
            assert!(printed.contains("ranks from here on (was "), "{printed}");
        } else {
            let output = lab.stopped_after(step + 14, name, job);
            assert_eq!(output.status.code(), Some(75), "{}", text(&output));
        }
    }
    steps
}

/// The stops are inside epochs. Adam and SGD with momentum have moments; Adam's are divided among the ranks.
/// With `--lr-scaling`, the rate stays that of 4 ranks.
#[test]
fn other_numbers_of_ranks_go_on_with_the_samples_and_the_losses_of_the_first() {
    let lab = Lab::new();
    let adam =
        ["--lr=1e-4", "--lr-scaling=linear", "--schedule=cosine", "--warmup-epochs=1", "--shard-optimizer"];
    let sgd = ["--optimizer=sgd", "--momentum=0.9", "--lr=2e-3", "--accumulate=1"];
    for (name, more) in [("adam", &adam[..]), ("sgd", &sgd[..])] {
        let (whole, cut) = (&format!("{name}-whole"), &format!("{name}-cut"));
        let expected = lab.train(4, whole, &words(&options(4, more)));
        let numbers = [2, 3, 1, 4, 6];
        let steps = changed_run(&lab, cut, &numbers, more);
        let ranks_at = |step: usize| {
            let changes = steps.iter().filter(|&&before| before <= step).count();
            if changes == 0 { 4 } else { numbers[changes - 1] }
        };
        let [plain, changed] = [losses(&lab, whole, |_| 4), losses(&lab, cut, ranks_at)];
        assert!(plain.len() - steps[0] >= 100);
        is_near(&changed, &plain, 1e-4, name);
        for (title, slack) in [("learning_rate", 1e-15), ("train_loss", 1e-4), ("test_loss", 1e-3)] {
            let of = |run: &str| lab.column::<f64>(run, title);
            is_near(&of(cut), &of(whole), slack, title);
        }
        let run = lab.completed(cut);
        assert_eq!((&run["steps"], &run["epochs_run"]), (&expected["steps"], &expected["epochs_run"]));
        assert_eq!((&run["world_size"], &run["config"]["train_batch_size"]), (&6.into(), &4.into()));
        let accuracy = |run: &Value| run["test_accuracy"].as_f64().expect("a number");
        assert!((accuracy(&run) - accuracy(&expected)).abs() < 100.0 / 36.0, "at most one of 37 differs");

        for rank in 0..6 {
            let points = tensorboard_points(&lab, cut, rank);
            assert_eq!(
                points,
                lab.curve(cut, rank, "train.loss").len(),
                "TensorBoard's points of rank {rank}"
            );
        }

        let shown = shown(&lab, &[cut]);
        let line = format!("ranks 4 → 2 from step {}", steps[0] + 1);
        assert!(shown.contains(&line) && shown.contains("ranks 4 → 6 from "), "{shown}");
        assert!(shown.contains("--train-batch-size 6 → 12 from "), "{shown}");
    }
}

#[test]
fn a_number_of_ranks_that_does_not_divide_the_batch_is_rejected_and_without_reshard_any_other() {
    let lab = Lab::new();
    let options = ["--train-batch-size=6", "--train-samples=96", "--test-samples=20"];
    lab.train(2, "run", &[&options[..], &["--epochs=1"]].concat());
    let line = refused(lab.resume(3, "run", &["--epochs=2"]), 2, &["2 ranks", "this job has 3", "--reshard"]);
    assert!(line.contains("mpirun -n 2"), "{line}");
    let uneven = ["--reshard", "12 samples (2 ranks x 6)", "divided by 5", "use 1, 2, 3, 4 or 6 ranks"];
    refused(lab.resume(5, "run", &["--epochs=2", "--reshard"]), 2, &uneven);
    // A complete run does not change.
    let before = std::fs::read(lab.path("run/run.json")).unwrap();
    output_of(lab.resume(4, "run", &["--reshard"]));
    assert_eq!(std::fs::read(lab.path("run/run.json")).unwrap(), before);
    let done = ["the run is complete", "--epochs 2"];
    refused(lab.resume(4, "run", &["--reshard", "--lr-scaling=linear", "--epochs=1"]), 2, &done);
    for damaged in ["0", "7", "9223372036854775808"] {
        let changed = String::from_utf8(before.clone()).unwrap();
        let changed = changed.replace("\"world_size\": 2,", &format!("\"world_size\": {damaged},"));
        std::fs::write(lab.path("run/run.json"), changed).unwrap();
        let facts = [&format!("world_size of run.json is {damaged}"), "hosts names 2", "restore run.json"];
        refused(lab.resume(4, "run", &["--epochs=2", "--reshard"]), 1, &facts);
    }
    std::fs::write(lab.path("run/run.json"), &before).unwrap();
    let fixed = ["--epochs=2", "--reshard", "--train-batch-size=6"];
    refused(lab.resume(4, "run", &fixed), 2, &["--train-batch-size 6: cannot change"]);
    refused(lab.command(2, "new", &["--reshard"]), 2, &["--reshard: requires --resume"]);
    assert_eq!(lab.run_json("run")["world_size"], 2);

    // On the run's own number of ranks, it has no effect.
    output_of(lab.resume(2, "run", &["--reshard"]));
    output_of(lab.resume(2, "run", &["--epochs=2", "--reshard"]));
    let run = lab.completed("run");
    assert_eq!(run["history"][1]["changed"].as_array().map(Vec::len), Some(1), "{run}");
    output_of(lab.resume(4, "run", &["--epochs=3", "--reshard", "--train-batch-size=3"]));
    assert_eq!(lab.completed("run")["world_size"], 4);
}

/// run.json has the new number of ranks, the checkpoint the old one.
#[test]
fn a_run_that_is_killed_before_its_first_checkpoint_on_other_ranks_goes_on_from_the_old_one() {
    let lab = Lab::new();
    let options = ["--train-batch-size=6", "--train-samples=100", "--test-samples=20", "--lr-scaling=sqrt"];
    let more = ["--checkpoint-every=2", "--keep=99", "--batch-norm", "--log-every=1"];
    let options = [&options[..], &more].concat();
    lab.train(4, "run", &[&options[..], &["--epochs=1"]].concat());
    let old = lab.checkpoints("run");
    output_of(lab.resume(2, "run", &["--reshard", "--epochs=2"]));
    for checkpoint in lab.checkpoints("run").iter().filter(|path| !old.contains(path)).chain(&old[1..]) {
        std::fs::remove_dir_all(checkpoint).expect("it can be removed");
    }
    edit(&lab.path("run/run.json"), |run| run["status"] = "running".into());
    refused(lab.resume(4, "run", &[]), 2, &["the run has 2 ranks", "--reshard"]);
    output_of(lab.resume(3, "run", &["--reshard"]));
    let run = lab.completed("run");
    assert_eq!((&run["world_size"], &run["steps"]), (&3.into(), &10.into()));
    assert_eq!(lab.position("run")["first_ranks"], 4);
    // The first 4 ranks had made 5 steps, but only 2 of them count.
    assert_eq!((lab.curve("run", 3, "train.loss").len(), tensorboard_points(&lab, "run", 3)), (2, 2));
    assert_eq!((lab.curve("run", 2, "train.loss").len(), tensorboard_points(&lab, "run", 2)), (10, 10));
    assert!(lab.column::<f64>("run", "learning_rate").iter().all(|rate| *rate == 2.0 * 0.0005));
    shown(&lab, &["run"]);

    edit(&lab.path("run/run.json"), |run| run["world_size"] = 4.into());
    let words = ["world_size of run.json is 4", "hosts names 3", "restore run.json"];
    refused(lab.resume(4, "run", &["--epochs=3"]), 1, &words);
}

/// What differs between ranks, or is chosen by tests, goes on: running statistics, ranges of int8, early
/// stopping, the target accuracy, and the scale of fp16.
#[test]
fn every_kind_of_state_goes_on_with_other_ranks() {
    let lab = Lab::new();
    let base =
        ["--train-batch-size=8", "--train-samples=250", "--test-samples=37", "--shuffle", "--epochs=3"];
    let recipes = [
        &["--batch-norm", "--dropout=0.3", "--early-stopping=2", "--quantize=qat"][..],
        &["--quantize=ptq", "--calibration=32", "--target-accuracy=12", "--accumulate=3"],
        &["--precision=fp16", "--class-weights=balanced", "--eval-every=3", "--reduce=ordered"],
    ];
    for (at, more) in recipes.iter().enumerate() {
        let name = &format!("run{at}");
        let output = lab.stopped_after(2, name, lab.command(3, name, &[&base[..], more].concat()));
        assert_eq!(output.status.code(), Some(75), "{}", text(&output));
        let output = lab.stopped_after(6, name, lab.resume(4, name, &["--reshard"]));
        assert!(output.status.success() || output.status.code() == Some(75), "{}", text(&output));
        if !output.status.success() {
            output_of(lab.resume(2, name, &["--reshard"]));
        }
        let run = lab.completed(name);
        assert_eq!(run["config"]["train_batch_size"], 24 / run["world_size"].as_u64().unwrap());
        shown(&lab, &[name]);
        output_of(lab.on(1, &["eval"], name));
    }
}

#[test]
fn ranks_with_their_own_parameters_keep_their_number() {
    let lab = Lab::new();
    let options = ["--epochs=2", "--train-samples=64", "--test-samples=20", "--sync-every=2"];
    lab.train(2, "run", &options);
    refused(lab.resume(1, "run", &["--reshard", "--epochs=3"]), 2, &["--reshard: ", "--sync-every"]);
}
