//! Runs for tests, as `run.json` would describe them.

use std::path::{Path, PathBuf};

use super::runs::Run;
use run_record::{
    Attempt, Change, DataRecord, RankPlace, RankRecord, Results, RunRecord, Schema, Status, StepMs,
    WORLD_SIZE,
};
use serde_json::{Map, Value};

/// Makes the `config` of a run with these options, given as `--name`, `--name=value`, or `--name` followed by
/// the value.
fn config(options: &[&str]) -> Map<String, Value> {
    let rows = Schema::of_older_runs().0;
    let mut config: Map<String, Value> = rows.into_iter().map(|(field, row)| (field, row.default)).collect();
    let words = options.iter().flat_map(|word| word.split('='));
    let mut words = words.peekable();
    while let Some(option) = words.next() {
        let name = match option {
            "--batch-size" => "train_batch_size".to_owned(),
            option => option.trim_start_matches("--").replace('-', "_"),
        };
        if name == "quantized" {
            config["quantize"] = "qat".into();
            continue;
        }
        let text = words.next_if(|word| !word.starts_with("--")).unwrap_or("true");
        let value = config.get_mut(&name).unwrap_or_else(|| panic!("no option {name}"));
        *value = if value.is_f64() {
            text.parse::<f64>().expect("a number").into()
        } else {
            serde_json::from_str(text).unwrap_or_else(|_| text.into())
        };
    }
    config
}

/// Whether a line of `text` contains all `facts`, in this order.
pub fn tells(text: &str, facts: &[&str]) -> bool {
    let is_told = |line: &str| {
        facts.iter().try_fold(line, |rest, fact| rest.split_once(fact).map(|(_, rest)| rest)).is_some()
    };
    text.lines().any(is_told)
}

/// Returns `run` as if it had begun on `ranks` ranks and was resumed on its own number of ranks after step 10.
pub fn resumed_on(ranks: usize, mut run: Run) -> Run {
    let to = run.record.world_size.into();
    let change = Change { field: WORLD_SIZE.into(), from: ranks.into(), to };
    run.record.history.push(Attempt { started_at: String::new(), step: 10, changed: vec![change] });
    run
}

/// Makes a completed run of `train` with `options`, in which the training took `train_seconds`. `topology`
/// has the number of machines, and the number of processes on each.
pub fn run(topology: (usize, usize), options: &[&str], train_seconds: f64) -> Run {
    let options = config(options);
    let limit = |name: &str| options[name].as_u64().map_or(60_000, |limit| limit as usize);
    let (machines, processes) = topology;
    let world_size = machines * processes;
    let host = |rank: usize| format!("node{}", rank / processes);
    let place = |rank| RankPlace {
        rank,
        host: host(rank),
        pid: 1,
        binding: "0".into(),
        cores: 4,
        boot_id: host(rank),
    };
    let epochs = options["epochs"].as_u64().expect("a number") as usize;
    let steps = 60_000usize.div_ceil(32 * world_size) * epochs;
    let exposed = if world_size > 1 { 0.1 * train_seconds } else { 0.0 };
    Run {
        path: PathBuf::from(format!(
            "results/{machines}x{processes}-{}",
            options["backend"].as_str().expect("text")
        )),
        sweep: None,
        digest: String::new(),
        results: Results {
            steps,
            epochs_run: epochs,
            start_up_seconds: 0.5,
            train_seconds,
            test_seconds: 1.0,
            checkpoint_seconds: 0.0,
            total_seconds: train_seconds + 1.0,
            ms_per_step: 1e3 * train_seconds / steps as f64,
            images_per_second: 60_000.0 * epochs as f64 / train_seconds,
            comm_seconds: exposed,
            step_ms: StepMs {
                backward: 400.0 * train_seconds / steps as f64,
                exposed: 1e3 * exposed / steps as f64,
                ..StepMs::default()
            },
            bytes_per_step: Some(if world_size > 1 { 17_064.0 } else { 0.0 }),
            test_accuracy: 97.5,
            int8_test_accuracy: None,
            int8_test_loss: None,
            float_inference_seconds: None,
            int8_inference_seconds: None,
            test_loss: 0.1,
            by_class: None,
            train_accuracy: 95.0,
            train_loss: 0.2,
            per_rank: Vec::new(),
            peak_rss_mb: 50.0,
            live_mb: Some(5.0),
            skipped_steps: None,
            loss_scale: None,
            others_cpu_percent: None,
            others_cpu_percent_by_host: Default::default(),
            weights_sha256: String::new(),
            best_epoch: None,
            stopped_early_after: None,
            target_reached: None,
            steps_to_target: None,
            epochs_to_target: None,
            seconds_to_target: None,
        },
        record: RunRecord {
            status: Status::Completed,
            error: None,
            command_line: Vec::new(),
            params: 4266,
            topology: format!("{machines}x{processes}"),
            world_size,
            hosts: (0..world_size).map(host).collect(),
            places: (0..world_size).map(place).collect(),
            launcher: "mpirun".into(),
            machines: Vec::new(),
            simd_level: None,
            bf16_products: None,
            connection: None,
            data: DataRecord {
                train_samples: limit("train_samples").min(60_000),
                train_available: 60_000,
                test_samples: limit("test_samples").min(10_000),
                test_available: 10_000,
                // The share of MNIST's largest class.
                test_largest_class: limit("test_samples").min(10_000) * 1135 / 10_000,
                ..DataRecord::default()
            },
            oversubscribed: false,
            shared_machine: false,
            started_at: "2026-01-31T00:00:00Z".into(),
            ended_at: None,
            git: String::new(),
            git_dirty: None,
            history: Vec::new(),
            failed_attempts: Vec::new(),
            failed_checkpoints: None,
            versions: [("mpi".to_owned(), "Open MPI v4.1.4, package: Debian".to_owned())].into(),
            results: None,
            schema: Schema::of_older_runs(),
            config: options,
        },
    }
}

/// Returns `run` with a target accuracy of 97% that was reached after half of the steps, or not at all.
pub fn with_target(mut run: Run, is_reached: bool) -> Run {
    run.record.config.insert("target_accuracy".into(), 97.0.into());
    let results = &mut run.results;
    results.target_reached = Some(is_reached);
    results.steps_to_target = is_reached.then_some(results.steps / 2);
    results.epochs_to_target = is_reached.then_some(results.epochs_run as f64 / 2.0);
    results.seconds_to_target = is_reached.then_some(results.train_seconds / 2.0);
    run
}

/// Returns `run` in the folder `path`, with an `epochs.csv` of these test losses and a decreasing training
/// loss.
pub fn with_test_losses(run: Run, path: &Path, losses: &[f64]) -> Run {
    let header = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,seconds,learning_rate,\
                  int8_test_accuracy,int8_test_loss\n"
        .to_owned();
    let line =
        |(i, loss): (usize, &f64)| format!("{},{},50,{loss},50,1,0.001,,\n", i + 1, 1.0 / (i + 1) as f64);
    let text = header + &losses.iter().enumerate().map(line).collect::<String>();
    std::fs::create_dir_all(path).expect("the folder can be created");
    std::fs::write(path.join("epochs.csv"), text).expect("the file can be written");
    Run { path: path.to_owned(), ..run }
}

/// Makes the results of ranks. `samples` has a number for each rank: the rank has as many training samples,
/// and as many test samples.
pub fn ranks(samples: &[usize]) -> Vec<RankRecord> {
    let of_rank = |(rank, &samples): (usize, &usize)| RankRecord {
        rank,
        host: String::new(),
        train_samples: samples,
        test_samples: samples,
        train_loss: Some(0.5),
        train_accuracy: Some(80.0),
        test_loss: Some(0.5),
        test_accuracy: Some(90.0),
        int8_test_loss: None,
        int8_test_accuracy: None,
        comm_seconds: 0.0,
        peak_rss_mb: 1.0,
        live_mb: None,
    };
    samples.iter().enumerate().map(of_rank).collect()
}
