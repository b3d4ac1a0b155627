//! `mpiburn sweep`: starts the runs of a sweep file, one after the other.

mod earlier;
mod options;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};

use self::earlier::{Earlier, check_folder, earlier, warn_of_other_builds};
use self::options::{check_typed, words};
pub(super) use self::options::{configuration, options};
use super::launch::{hostfile, hostfile_place, mpi_flavour, prepare, print_dry};
use super::{Refused, gpu};
use crate::options::{RunConfig, SweepArgs};
use launch::sweep::{PlannedRun, SweepFile, plan, scaled};
use launch::{LauncherKind, StopRequest, line, quoted};
use run_record::files;
use run_record::{RunDir, RunState, SweepRecord, SweepRun, checkpoint, lock};
use terminal::digits::{decimals, seconds};

/// Starts the runs that are not completed; returns the exit code.
///
/// # Errors
/// When the sweep file is invalid, or the folder has results of other options.
pub fn run(args: &SweepArgs) -> anyhow::Result<i32> {
    let file = SweepFile::read(&args.file, &options())?;
    check_typed(&file, args)?;
    let runs = plan(&file, &args.scale)?;
    if let (Some(text), false) = (&args.only, runs.iter().any(|run| chosen(args, &run.name))) {
        let problem = format!("no run has this in its name; runs are named like {}", runs[0].name);
        bail!(Refused(format!("--only {text}: {problem}")));
    }
    // Whoever meant a section of the sweep itself would miss it without a word.
    for name in file.scales.keys().filter(|name| **name != args.scale && *name != "quick") {
        log::info!("[{name}] in {} is a scale: it is used with --scale {name} alone", args.file.display());
    }
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
        command: Some(line(&without_only(&typed()))),
        runs: Vec::new(),
    };
    let (mut builds, mut before) = (Vec::new(), Vec::new());
    // The answers of launchers so far: looking up an unknown host can take seconds.
    let mut asked = BTreeMap::new();
    for (run, config) in runs.iter().zip(&configs) {
        let PlannedRun { topology, launcher, .. } = *run;
        let found = earlier(&folder.join(&run.name), run, config)?;
        let of_launcher = asked.entry((topology, launcher)).or_insert_with(|| {
            let hostfile = hostfile_place(&args.hostfiles, topology);
            // A script in the launcher's place knows its own machines.
            let is_own = args.how.script(launcher).is_none();
            is_own.then(|| ::launch::impossible(topology, launcher, mpi_flavour(), &hostfile)).flatten()
        });
        // Slurm starts ranks on other machines than this one.
        let here = (launcher != LauncherKind::Srun).then_some(topology.ranks_per_node);
        let reason = of_launcher.clone().or_else(|| gpu::impossible(config, here));
        let (state, error) = match (&found, reason) {
            (Earlier::Completed(_), _) => (RunState::Completed, None),
            // The others start; a run that --only leaves out does not fail.
            (Earlier::Unreadable(error), _) if chosen(args, &run.name) => {
                (RunState::Failed, Some(error.to_string()))
            }
            (_, None) => (RunState::Waiting, None),
            (_, reason) => (RunState::Skipped, reason),
        };
        if let Earlier::Completed(build) = &found {
            builds.push(build.clone());
        }
        before.push(found);
        let (name, repeat, varied) = (run.name.clone(), run.repeat, run.varied.clone());
        record.runs.push(SweepRun { name, repeat, varied, state, error });
    }
    if args.dry_run {
        for ((run, before), planned) in runs.iter().zip(&before).zip(&record.runs) {
            if !chosen(args, &run.name) {
                continue;
            }
            let resumes = matches!(before, Earlier::Interrupted);
            let printed = command(run, args, &folder, resumes).and_then(|mut launch| print_dry(&mut launch));
            match (printed, planned.state, &planned.error) {
                // Such as two ranks without a launcher, which have no command line.
                (Err(_), RunState::Skipped, Some(reason)) => log::info!("skipped: {}: {reason}", run.name),
                (printed, ..) => printed?,
            }
        }
        return Ok(0);
    }
    check_folder(&folder, &record)?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot write {}", folder.display()))?;
    let _lock = lock(&folder)?;
    record.write(&folder)?;
    warn_of_other_builds(&builds, &folder);
    for (reason, mut names) in record.skipped() {
        names.retain(|name| chosen(args, name));
        if !names.is_empty() {
            log::info!("skipped: {} of {} runs ({}): {reason}", names.len(), runs.len(), names.join(", "));
        }
    }
    let all = || runs.iter().zip(&configs).enumerate();
    for (_, (run, config)) in all().filter(|(i, _)| record.runs[*i].state == RunState::Completed) {
        reduce(run, config, &folder, &record);
    }
    let stopped = make(&runs, &configs, args, &folder, &mut record)?;
    for (index, (run, config)) in all() {
        // Another process may have gone on with it: the job of a sweep that was killed.
        if record.runs[index].state == RunState::Failed
            && matches!(earlier(&folder.join(&run.name), run, config), Ok(Earlier::Completed(_)))
        {
            log::info!("{}: its run.json says that it is completed, so it counts", run.name);
            (record.runs[index].state, record.runs[index].error) = (RunState::Completed, None);
            reduce(run, config, &folder, &record);
            record.write(&folder)?;
        }
    }
    Ok(closing(&record, &folder, stopped))
}

/// The command as it was typed, all options included.
fn typed() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("mpiburn".to_owned()).chain(words).collect()
}

/// The command for all runs: without `--only`.
fn without_only(words: &[String]) -> Vec<String> {
    let own = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let is_value = |at: usize| at > 0 && at < own && words[at - 1] == "--only";
    let is_left =
        |at: usize| at >= own || !(is_value(at) || words[at] == "--only" || words[at].starts_with("--only="));
    (0..words.len()).filter(|&at| is_left(at)).map(|at| words[at].clone()).collect()
}

fn chosen(args: &SweepArgs, name: &str) -> bool {
    args.only.as_ref().is_none_or(|text| name.contains(text.as_str()))
}

/// The launch of a run, from the beginning or from its last checkpoint.
fn command(
    run: &PlannedRun,
    args: &SweepArgs,
    folder: &Path,
    resumes: bool,
) -> anyhow::Result<launch::Launch> {
    let mut program = vec!["train".to_owned()];
    let out = folder.join(&run.name).display().to_string();
    match resumes {
        true => program.extend(["--resume".to_owned(), out]),
        false => {
            program.extend(words(run, args));
            program.extend(["--out".to_owned(), out, "--overwrite".to_owned()]);
        }
    }
    let hostfile = hostfile(&args.hostfiles, run.topology);
    prepare(run.topology, run.launcher, &args.how, hostfile, program)
}

/// Starts the waiting runs; returns whether it was stopped.
fn make(
    runs: &[PlannedRun],
    configs: &[RunConfig],
    args: &SweepArgs,
    folder: &Path,
    record: &mut SweepRecord,
) -> anyhow::Result<bool> {
    let stop = StopRequest::listen_as_launcher().context("cannot install signal handlers")?;
    let total = runs.len();
    for (index, run) in runs.iter().enumerate() {
        if record.runs[index].state != RunState::Waiting || !chosen(args, &run.name) {
            continue;
        }
        if stop.signal().is_some() {
            return Ok(true);
        }
        // Other runs have taken their time: another process may have gone on with this one.
        let ended = earlier(&folder.join(&run.name), run, &configs[index]).and_then(|before| match before {
            Earlier::Completed(_) => Ok(Some("another process has completed it".into())),
            Earlier::Unreadable(error) => Err(error.into()),
            Earlier::Nothing => make_one(run, args, folder, false, &stop),
            Earlier::Interrupted => {
                log::info!("[{}/{total}] {}: goes on from its last checkpoint", index + 1, run.name);
                make_one(run, args, folder, true, &stop)
            }
        });
        let ended = ended.map_err(|error| format!("{error:#}"));
        let (state, error, summary) = match ended {
            Ok(Some(summary)) => {
                reduce(run, &configs[index], folder, record);
                (RunState::Completed, None, summary)
            }
            Ok(None) => return Ok(true),
            Err(error) => (RunState::Failed, Some(error.clone()), format!("failed: {error}")),
        };
        log::info!("[{}/{total}] {}: {summary}", index + 1, run.name);
        record.runs[index].state = state;
        record.runs[index].error = error;
        record.write(folder)?;
    }
    Ok(false)
}

/// Leaves what a completed run's checkpoints are for: its weights. With a `--keep` they stay as they are.
fn reduce(run: &PlannedRun, config: &RunConfig, folder: &Path, record: &SweepRecord) {
    if config.keep.is_some() {
        return;
    }
    let path = folder.join(&run.name);
    let checkpoints = |name: &str| folder.join(name).join("checkpoints");
    let is_other = |other: &&SweepRun| other.state == RunState::Completed && other.name != run.name;
    let others: Vec<_> = record.runs.iter().filter(is_other).map(|other| checkpoints(&other.name)).collect();
    // Of a run that goes on, the optimizer's state is in use.
    let reduced = lock(&path).and_then(|_lock| checkpoint::reduce(&checkpoints(&run.name), &others));
    if let Err(error) = reduced {
        log::warn!("checkpoints of {} stay as they are: {error}", run.name);
    }
}

/// Starts a run; returns its summary, or `None` if it was stopped.
fn make_one(
    run: &PlannedRun,
    args: &SweepArgs,
    folder: &Path,
    resumes: bool,
    stop: &StopRequest,
) -> anyhow::Result<Option<String>> {
    let mut launch = command(run, args, folder, resumes)?;
    if let Err(error) = launch::check(&mut launch, stop) {
        return if stop.signal().is_some() { Ok(None) } else { Err(error) };
    }
    let path = folder.join(format!("{}.log", run.name));
    let log = files::create_here(&path).with_context(|| format!("cannot write {}", path.display()))?;
    let (outcome, _) = launch.run(launch::Streams::Log(log), stop)?;
    if outcome.stopped {
        return Ok(None);
    }
    let record = RunDir::open::<RunConfig>(&folder.join(&run.name)).map(|(_, record)| record.results);
    match (outcome.code, record) {
        (0, Err(error)) => Err(error.into()),
        (0, Ok(Some(results))) => Ok(Some(format!(
            "{} s of training, {:.*} ms per step, test accuracy {:.2}%",
            seconds(results.train_seconds),
            decimals(results.ms_per_step, 3),
            results.ms_per_step,
            results.test_accuracy
        ))),
        (code, _) => bail!("{} ({})", reason(&path, code), path.display()),
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
    own.or(framed).or(of_srun).map_or_else(|| launch::explain(code, None), |line| line.trim().to_owned())
}

/// The line for runs that failed for one reason; a missing data set would otherwise be told once for each.
fn failure_line(runs: &[&SweepRun]) -> String {
    let name = |index: usize| runs[index].name.as_str();
    let others = match runs.len() - 1 {
        0 => String::new(),
        1 => format!("; so did {}", name(1)),
        more => format!("; so did {more} others, {} to {}", name(1), name(more)),
    };
    format!("{} failed: {}{others}", name(0), runs[0].error.as_deref().unwrap_or_default())
}

/// Reports completed and failed runs; returns the exit code.
fn closing(record: &SweepRecord, folder: &Path, stopped: bool) -> i32 {
    let count = |state| record.runs.iter().filter(|run| run.state == state).count();
    let (done, failed) = (count(RunState::Completed), count(RunState::Failed));
    let shown = folder.display();
    let skipped = match count(RunState::Skipped) {
        0 => String::new(),
        skipped => format!(", {skipped} skipped"),
    };
    let report = match done {
        0 => String::new(),
        _ => format!("; mpiburn report {} shows them", quoted(folder.display())),
    };
    log::info!("{done} of {} runs are in {shown}{skipped}{report}", record.runs.len());
    for runs in record.failed() {
        eprintln!("mpiburn: {}", failure_line(&runs));
    }
    if stopped {
        eprintln!("mpiburn: stopped; continue with {}", line(&typed()));
    } else if failed > 0 {
        log::info!("completed runs are kept; start the others with {}", line(&typed()));
    }
    match (stopped, failed) {
        (true, _) => launch::RESUMABLE.into(),
        (false, 0) => 0,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_for_all_runs_has_all_options_but_only() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for only in ["--only 1x2", "--only=1x2"] {
            let typed = words(&format!("mpiburn sweep a.toml {only} --scale quick --out r -- --only 1"));
            assert_eq!(
                without_only(&typed).join(" "),
                "mpiburn sweep a.toml --scale quick --out r -- --only 1"
            );
        }
    }

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
        assert_eq!(reason_of("bye\n"), launch::explain(1, None));
    }
}
