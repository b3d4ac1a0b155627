//! Runs for the tests of this module, as `run.json` would describe them.

use std::path::{Path, PathBuf};

use super::runs::Run;
use crate::options::{RunConfig, RunRecord};
use crate::record::{DataRecord, Results, Status, StepMs, versions};
use burn_mpi::Place;

/// A completed run of `train` with `options` on NxC that took `train_seconds`.
pub fn run(topology: (usize, usize), options: &[&str], train_seconds: f64) -> Run {
    let config = RunConfig::read(options).expect("a valid configuration");
    let (machines, processes) = topology;
    let world_size = machines * processes;
    let host = |rank: usize| format!("node{}", rank / processes);
    let place =
        |rank| Place { rank, host: host(rank), pid: 1, binding: "0".into(), cores: 4, boot_id: host(rank) };
    let steps = 60_000usize.div_ceil(32 * world_size) * config.epochs;
    let exposed = if world_size > 1 { 0.1 * train_seconds } else { 0.0 };
    Run {
        path: PathBuf::from(format!("results/{machines}x{processes}-{}", config.communication.backend)),
        sweep: None,
        digest: String::new(),
        results: Results {
            steps,
            epochs_run: None,
            start_up_seconds: None,
            train_seconds,
            test_seconds: 1.0,
            checkpoint_seconds: None,
            total_seconds: train_seconds + 1.0,
            ms_per_step: 1e3 * train_seconds / steps as f64,
            images_per_second: 60_000.0 * config.epochs as f64 / train_seconds,
            comm_seconds: exposed,
            step_ms: StepMs {
                backward: 400.0 * train_seconds / steps as f64,
                exposed: 1e3 * exposed / steps as f64,
                ..StepMs::default()
            },
            test_accuracy: 97.5,
            int8_test_accuracy: None,
            int8_test_loss: None,
            float_inference_seconds: None,
            int8_inference_seconds: None,
            test_loss: 0.1,
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
            data: Some(DataRecord {
                train_sha256: String::new(),
                train_samples: config.data.train_samples.map_or(60_000, |limit| limit.min(60_000)),
                train_available: 60_000,
                test_samples: config.data.test_samples.map_or(10_000, |limit| limit.min(10_000)),
                test_available: 10_000,
                // MNIST's share.
                test_largest_class: Some(
                    config.data.test_samples.unwrap_or(10_000).min(10_000) * 1135 / 10_000,
                ),
            }),
            oversubscribed: false,
            shared_machine: false,
            started_at: "2026-01-31T00:00:00Z".into(),
            ended_at: None,
            git: String::new(),
            git_dirty: None,
            history: Vec::new(),
            failed_attempts: Vec::new(),
            failed_checkpoints: None,
            versions: versions("Open MPI v4.1.4, package: Debian", None),
            results: None,
            config,
        },
    }
}

/// `run` in the folder `path`, with an `epochs.csv` of these test losses and a
/// decreasing training loss.
pub fn with_test_losses(run: Run, path: &Path, losses: &[f64]) -> Run {
    let header = "epoch,train_loss,train_accuracy,test_loss,test_accuracy,seconds\n".to_owned();
    let line = |(i, loss): (usize, &f64)| format!("{},{},50,{loss},50,1\n", i + 1, 1.0 / (i + 1) as f64);
    let text = header + &losses.iter().enumerate().map(line).collect::<String>();
    std::fs::create_dir_all(path).expect("the folder can be created");
    std::fs::write(path.join("epochs.csv"), text).expect("the file can be written");
    Run { path: path.to_owned(), ..run }
}
