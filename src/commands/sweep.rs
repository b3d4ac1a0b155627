//! `mpiburn sweep`: starts the runs of a sweep file, one after the other.

mod possible;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Args, FromArgMatches};

use self::possible::{Possible, hostfile};
use super::launch::{line, prepare, variables};
use crate::cli::{SweepArgs, TrainArgs};
use crate::config::RunConfig;
use crate::launch;
use crate::record::{RunDir, RunState, Status, SweepRecord, SweepRun, lock};
use crate::stop::StopRequest;
use crate::sweep::{PlannedRun, SweepFile, plan, scaled};

/// Result of one run.
enum Ended {
    Completed(String),
    Failed(String),
    Stopped,
}

/// Starts the runs that are not completed; returns the exit code.
///
/// # Errors
/// When the sweep file is invalid, or the folder has results of other options.
pub fn run(args: &SweepArgs) -> anyhow::Result<i32> {
    let file = SweepFile::read(&args.file, &option_names())?;
    let mut runs = plan(&file, &args.scale)?;
    let configs: Vec<RunConfig> =
        runs.iter().map(|run| configuration(run, args)).collect::<anyhow::Result<_>>()?;
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let folder = args.out.clone().unwrap_or_else(|| match args.scale.as_str() {
        "full" => Path::new("results").join(&name),
        scale => Path::new("results").join(format!("{name}-{scale}")),
    });
    let mut record = SweepRecord {
        name,
        title: file.title.clone(),
        reference: file.reference.clone(),
        scale: args.scale.clone(),
        scaled: scaled(&file, &args.scale),
        runs: Vec::new(),
    };
    let mut builds = Vec::new();
    let mut possible = Possible::default();
    for (run, config) in runs.iter().zip(&configs) {
        let made_by = done(&folder.join(&run.name), run, config)?;
        let (state, error) = match (&made_by, possible.reason_against(run, config, args)) {
            (Some(_), _) => (RunState::Completed, None),
            (None, None) => (RunState::Waiting, None),
            (None, reason) => (RunState::Skipped, reason),
        };
        builds.extend(made_by);
        let (name, repeat, varied) = (run.name.clone(), run.repeat, run.varied.clone());
        record.runs.push(SweepRun { name, repeat, varied, state, error });
    }
    if args.dry_run {
        runs.retain(|run| chosen(args, run));
        for run in &runs {
            println!("{}", line(&command(run, args, &folder)?.command()?));
        }
        return Ok(0);
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot write {}", folder.display()))?;
    let _lock = lock(&folder)?;
    record.write(&folder)?;
    warn_of_other_builds(&builds, &folder);
    for (reason, names) in record.skipped() {
        log::info!("skipped: {} of {} runs ({}): {reason}", names.len(), runs.len(), names.join(", "));
    }
    let stopped = make(&runs, args, &folder, &mut record)?;
    Ok(closing(&record, args, &folder, stopped))
}

/// Names of all options of `mpiburn train`, aliases included.
pub(super) fn option_names() -> Vec<String> {
    let command = TrainArgs::augment_args(clap::Command::new("train"));
    let names =
        command.get_arguments().flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default());
    // The sweep sets run directories itself.
    names
        .map(ToString::to_string)
        .filter(|n| !["out", "log-path", "resume", "set", "overwrite"].contains(&n.as_str()))
        .collect()
}

fn words(run: &PlannedRun, args: &SweepArgs) -> Vec<String> {
    let option = |(name, value): &(String, Option<String>)| match value {
        Some(value) => format!("--{name}={value}"),
        None => format!("--{name}"),
    };
    run.options.iter().map(option).chain(args.options.iter().cloned()).collect()
}

/// The run's configuration, validated as by the run itself, but for what this build includes.
pub(super) fn configuration(run: &PlannedRun, args: &SweepArgs) -> anyhow::Result<RunConfig> {
    let command = TrainArgs::augment_args(clap::Command::new("train").no_binary_name(true));
    let matches = command.try_get_matches_from(words(run, args)).map_err(|error| {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        anyhow::anyhow!("{}, run {}: {first}", args.file.display(), run.name)
    })?;
    let typed = TrainArgs::from_arg_matches(&matches)?;
    RunConfig::of_any_build(&typed).with_context(|| format!("{}, run {}", args.file.display(), run.name))
}

/// The build of the run if it exists, is complete and has these options.
fn done(path: &Path, run: &PlannedRun, config: &RunConfig) -> anyhow::Result<Option<String>> {
    let Ok((_, record)) = RunDir::open::<RunConfig>(path) else { return Ok(None) };
    if record.status != Status::Completed {
        return Ok(None);
    }
    let mut other = differences(&record.config, config)?;
    if record.topology != run.topology.to_string() {
        other.push(format!("topology {}, now {}", record.topology, run.topology));
    }
    if !other.is_empty() {
        bail!(
            "{} has other options ({}): remove it, or choose another folder with --out",
            path.display(),
            other.join("; ")
        );
    }
    Ok(Some(record.git))
}

/// A table with times of two builds compares the builds as well.
fn warn_of_other_builds(builds: &[String], folder: &Path) {
    let this = env!("MPIBURN_GIT");
    let mut others: Vec<&str> = builds.iter().map(String::as_str).filter(|build| *build != this).collect();
    let count = others.len();
    others.sort_unstable();
    others.dedup();
    if count > 0 {
        log::warn!(
            "{count} of the kept runs are from another build ({}; this is {this}): remove {} to repeat all runs",
            others.join(", "),
            folder.display()
        );
    }
}

fn differences(old: &RunConfig, new: &RunConfig) -> anyhow::Result<Vec<String>> {
    let (old, new) = (serde_json::to_value(old)?, serde_json::to_value(new)?);
    let fields = old.as_object().into_iter().flatten();
    let different = fields.filter(|(name, value)| new[name.as_str()] != **value);
    Ok(different.map(|(name, value)| format!("{name} {value}, now {}", new[name.as_str()])).collect())
}

fn chosen(args: &SweepArgs, run: &PlannedRun) -> bool {
    args.only.as_ref().is_none_or(|text| run.name.contains(text.as_str()))
}

fn command(run: &PlannedRun, args: &SweepArgs, folder: &Path) -> anyhow::Result<launch::Launch> {
    let mut program = vec!["train".to_owned()];
    program.extend(words(run, args));
    program.extend([
        "--out".to_owned(),
        folder.join(&run.name).display().to_string(),
        "--overwrite".to_owned(),
    ]);
    let hostfile = hostfile(run, args);
    // A single machine needs no host file.
    let hostfile = (run.topology.nodes > 1 || hostfile.exists()).then_some(hostfile);
    prepare(run.topology, run.launcher, &args.how, hostfile, program)
}

/// Starts the waiting runs; returns whether it was stopped.
fn make(
    runs: &[PlannedRun],
    args: &SweepArgs,
    folder: &Path,
    record: &mut SweepRecord,
) -> anyhow::Result<bool> {
    let stop = StopRequest::listen().context("cannot install signal handlers")?;
    let total = runs.len();
    for (index, run) in runs.iter().enumerate() {
        if record.runs[index].state != RunState::Waiting || !chosen(args, run) {
            continue;
        }
        let ended = match stop.signal() {
            Some(_) => Ended::Stopped,
            None => make_one(run, args, folder, &stop),
        };
        let (state, error, summary) = match ended {
            Ended::Completed(summary) => (RunState::Completed, None, summary),
            Ended::Failed(error) => (RunState::Failed, Some(error.clone()), format!("failed: {error}")),
            Ended::Stopped => return Ok(true),
        };
        log::info!("[{}/{total}] {}: {summary}", index + 1, run.name);
        record.runs[index].state = state;
        record.runs[index].error = error;
        record.write(folder)?;
    }
    Ok(false)
}

fn make_one(run: &PlannedRun, args: &SweepArgs, folder: &Path, stop: &StopRequest) -> Ended {
    let started = || -> anyhow::Result<(launch::Outcome, PathBuf)> {
        let mut launch = command(run, args, folder)?;
        launch::check(&mut launch)?;
        let path = folder.join(format!("{}.log", run.name));
        let log = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let streams = launch::Streams::Log(log);
        let (command, by) = (launch.command()?, launch.launcher);
        Ok((launch::run(&command, &variables(&launch), by, streams, stop)?.0, path))
    };
    let (outcome, log) = match started() {
        Ok(ended) => ended,
        Err(error) => return Ended::Failed(format!("{error:#}")),
    };
    if outcome.stopped {
        return Ended::Stopped;
    }
    let results =
        RunDir::open::<RunConfig>(&folder.join(&run.name)).ok().and_then(|(_, record)| record.results);
    match (outcome.code, results) {
        (0, Some(results)) => Ended::Completed(format!(
            "{:.2} s of training, {:.3} ms per step, test accuracy {:.2}%",
            results.train_seconds, results.ms_per_step, results.test_accuracy
        )),
        (code, _) => Ended::Failed(format!("{} ({})", reason(&log, code), log.display())),
    }
}

/// The line of a log with the reason of a failure: the program's error, or else the
/// first line of mpirun's framed message, or srun's error.
fn reason(log: &Path, code: i32) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let own =
        text.lines().rev().find_map(|line| line.strip_prefix("mpiburn: ").or(line.strip_prefix("error: ")));
    let mut lines = text.lines().skip_while(|line| !line.starts_with("-----"));
    let framed = lines.find(|line| !line.starts_with('-') && !line.trim().is_empty());
    let of_srun = text
        .lines()
        .rev()
        .find(|line| line.starts_with("srun: fatal: ") || line.starts_with("srun: error: "));
    own.or(framed).or(of_srun).map_or_else(|| launch::explain(code), |line| line.trim().to_owned())
}

/// Reports completed and failed runs; returns the exit code.
fn closing(record: &SweepRecord, args: &SweepArgs, folder: &Path, stopped: bool) -> i32 {
    let count = |state| record.runs.iter().filter(|run| run.state == state).count();
    let (done, failed) = (count(RunState::Completed), count(RunState::Failed));
    let shown = folder.display();
    let skipped = match count(RunState::Skipped) {
        0 => String::new(),
        skipped => format!(", {skipped} skipped"),
    };
    let report = match done {
        0 => String::new(),
        _ => format!("; mpiburn report {shown} shows them"),
    };
    log::info!("{done} of {} runs are in {shown}{skipped}{report}", record.runs.len());
    for run in record.runs.iter().filter(|run| run.state == RunState::Failed) {
        eprintln!("mpiburn: {} failed: {}", run.name, run.error.as_deref().unwrap_or_default());
    }
    if stopped {
        eprintln!("mpiburn: stopped; continue with mpiburn sweep {}", args.file.display());
    }
    match (stopped, failed) {
        (true, _) => super::failure::RESUMABLE.into(),
        (false, 0) => 0,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_the_programs_error_or_the_launchers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reason_of = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            reason(file.path(), 1)
        };
        assert_eq!(reason_of("srun: error: x\n-----\nframed\n-----\nmpiburn: own\n"), "own");
        assert_eq!(reason_of("a\n-----\n\nframed\n-----\nsrun: error: x\n"), "framed");
        assert_eq!(reason_of("srun: error: a\nsrun: fatal: no cluster\nbye\n"), "srun: fatal: no cluster");
        assert_eq!(reason_of("bye\n"), launch::explain(1));
    }
}
