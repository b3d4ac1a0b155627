//! Checks every sweep file and every file of published figures in this repository.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, FromArgMatches};

use super::sweep::{configuration, options};
use crate::options::tests::completed;
use crate::options::{RunConfig, SweepArgs};
use launch::LauncherKind;
use launch::sweep::{PlannedRun, SweepFile, plan};
use run_report::published::{self, published};
use run_report::rows::group;
use run_report::runs::{Run, Section};
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

/// Returns the arguments of `mpiburn sweep FILE`.
fn typed(file: &Path) -> SweepArgs {
    let command = SweepArgs::augment_args(clap::Command::new("sweep").no_binary_name(true));
    let matches = command.try_get_matches_from([file]).expect("a path is enough");
    SweepArgs::from_arg_matches(&matches).expect("valid arguments")
}

/// Returns the sweep's runs with `--scale scale`, after a check that `train` accepts their options.
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
                assert_eq!(
                    settings(&full),
                    settings(&quick),
                    "{}: both scales give the same table",
                    path.display()
                );
            }
            // The errors of the two scales are usually the same.
            (full, quick) => wrong.extend(BTreeSet::from([full.err(), quick.err()]).into_iter().flatten()),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the run as a report would read it after its completion.
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

/// If a file of published figures had a misspelt column, or a value that no run has, the report's column
/// `ours` would be empty, without a message.
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

/// Checks constants that run-report repeats, because it depends neither on this program nor on burn-mpi.
#[test]
fn reports_compute_with_the_values_of_the_program() {
    use run_report::{collectives, cost_model};
    assert_eq!(collectives::NO_GPU, burn_mpi_nccl::NoNccl::SHORT);
    assert_eq!(cost_model::CONTROL, burn_mpi::internals::CONTROL);
    for (mb, params) in [("0.25", 4266), ("25", 4266), ("25", 20_000_000), ("2", 9_000_000)] {
        let config = RunConfig::read(["--bucket-mb", mb]).expect("a valid configuration");
        let options = config.communication.sync_options(0);
        let known = cost_model::bucket_limits(params, mb.parse().expect("a number"));
        assert_eq!(known, burn_mpi::internals::bucket_limits(params, &options), "{mb} MB, {params} values");
    }
}
