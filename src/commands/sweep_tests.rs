//! Checks every sweep file and every file of published figures of this project.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches};
use serde_json::json;

use super::sweep::{configuration, options};
use crate::options::{RunConfig, SweepArgs, schema};
use launch::sweep::{PlannedRun, SweepFile, plan};
use launch::{LauncherKind, Topology};
use run_record::DataRecord;
use run_report::published::{self, published};
use run_report::rows::group;
use run_report::runs::{Run, RunRecord, Section};
use run_report::{benchmarks, profiles};

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(folder).expect("the folder exists");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == ending));
    files.sort();
    assert!(!files.is_empty(), "no {ending} files");
    files
}

/// The arguments of `mpiburn sweep FILE`.
fn typed(file: &Path) -> SweepArgs {
    let command = SweepArgs::augment_args(clap::Command::new("sweep").no_binary_name(true));
    let matches = command.try_get_matches_from([file]).expect("a path is enough");
    SweepArgs::from_arg_matches(&matches).expect("valid arguments")
}

/// The sweep's runs at `scale`, each with options that `train` accepts.
fn runs(path: &Path, scale: &str) -> Result<(SweepFile, Vec<PlannedRun>), String> {
    let file = SweepFile::read(path, &options()).map_err(|error| error.to_string())?;
    let runs = plan(&file, scale).map_err(|error| error.to_string())?;
    for run in &runs {
        configuration(run, &typed(path)).map_err(|error| format!("{error:#}"))?;
    }
    Ok((file, runs))
}

#[test]
fn every_run_of_every_sweep_has_a_valid_configuration() {
    let mut wrong = Vec::new();
    for path in files("jobs/sweeps", "toml") {
        match (runs(&path, "full"), runs(&path, "quick")) {
            (Ok((_, full)), Ok((_, quick))) => {
                let settings = |runs: &[PlannedRun]| {
                    runs.iter()
                        .map(|run| (run.topology.to_string(), run.varied.clone()))
                        .collect::<BTreeSet<_>>()
                };
                assert_eq!(settings(&full), settings(&quick), "{}: the same table", path.display());
            }
            // The errors of both scales are usually the same.
            (full, quick) => wrong.extend(BTreeSet::from([full.err(), quick.err()]).into_iter().flatten()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The run as it would be read after its completion.
fn done(planned: &PlannedRun) -> Run {
    let words: Vec<String> = planned
        .options
        .iter()
        .map(|(name, value)| value.as_ref().map_or(format!("--{name}"), |value| format!("--{name}={value}")))
        .collect();
    let config = RunConfig::read(words).expect("a valid configuration");
    let launcher = match planned.launcher {
        LauncherKind::Mpirun => "mpirun",
        LauncherKind::Srun => "srun",
        LauncherKind::Alone => "alone",
    };
    completed(&config, planned.topology, launcher)
}

/// A run of `config` as a report reads it.
pub fn completed(config: &RunConfig, topology: Topology, launcher: &str) -> Run {
    let ranks = topology.ranks();
    let data = DataRecord { train_available: 60_000, test_available: 10_000, ..DataRecord::default() };
    let json = json!({
        "status": "completed", "config": config, "params": 4266, "topology": topology.to_string(),
        "world_size": ranks, "hosts": vec!["a"; ranks], "places": [], "launcher": launcher,
        "command_line": [], "machines": [], "history": [], "data": data,
        "oversubscribed": false, "shared_machine": false, "started_at": "2026-01-31T00:00:00Z", "git": "",
        "versions": {}, "steps": 100, "train_seconds": 4.0, "test_seconds": 1.0, "total_seconds": 5.0,
        "ms_per_step": 40.0, "images_per_second": 100.0, "comm_seconds": 0.0, "step_ms": {},
        "test_accuracy": 97.5, "test_loss": 0.1, "train_accuracy": 95.0, "train_loss": 0.2, "per_rank": [],
        "peak_rss_mb": 50.0, "weights_sha256": "", "epochs_run": 3, "start_up_seconds": 0.5, "checkpoint_seconds": 0.0,
        "others_cpu_percent_by_host": {}, "schema": schema(),
    });
    let mut record: RunRecord = serde_json::from_value(json).expect("a record");
    let results = record.results.take().expect("results");
    Run { path: PathBuf::new(), sweep: None, record, results, digest: String::new() }
}

/// A misspelt column, or a value that no run has, would silently omit our figures.
#[test]
fn every_published_table_matches_runs_of_its_sweep() {
    let mut referred = BTreeSet::new();
    let mut wrong = Vec::new();
    for path in files("jobs/sweeps", "toml") {
        let (file, planned) = match runs(&path, "full") {
            Ok(read) => read,
            Err(error) => {
                wrong.push(error);
                continue;
            }
        };
        let Some(name) = file.reference else { continue };
        let figures =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("results/reference").join(format!("{name}.csv"));
        referred.insert(figures.clone());
        let section = Section { runs: planned.iter().map(done).collect(), ..Section::default() };
        let figures = published::read(&figures).expect("the file of published figures is valid");
        let sheet = published(&section, &group(&section.runs), &figures);
        let ours = sheet.columns.iter().position(|column| column.key == "ours").expect("the column exists");
        let beside = sheet.rows.iter().filter(|row| row[ours].shown() != "–").count();
        if beside == 0 {
            wrong.push(format!("{}: none of its runs matches a line of {name}.csv", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let others = profiles::REFERENCES.into_iter().chain(benchmarks::REFERENCES);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/reference");
    referred.extend(others.map(|name| folder.join(format!("{name}.csv"))));
    assert_eq!(files("results/reference", "csv").into_iter().collect::<BTreeSet<_>>(), referred);
}

/// What reports know of the program, and of burn-mpi.
#[test]
fn reports_compute_with_the_values_of_the_program() {
    use run_report::{collectives, predict};
    assert_eq!(collectives::NO_GPU, burn_mpi_nccl::NoNccl::SHORT);
    assert_eq!(predict::CONTROL, burn_mpi::lab::CONTROL);
    for (mb, params) in [("0.25", 4266), ("25", 4266), ("25", 20_000_000), ("2", 9_000_000)] {
        let config = RunConfig::read(["--bucket-mb", mb]).expect("a valid configuration");
        let options = config.communication.sync_options();
        let known = predict::bucket_limits(params, mb.parse().expect("a number"));
        assert_eq!(known, burn_mpi::lab::bucket_limits(params, &options), "{mb} MB, {params} values");
    }
}
