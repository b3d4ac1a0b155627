//! `mpiburn sweep`: starts the runs of a sweep file, one after the other.
//!
//! A sweep can be interrupted and started again at any time. At each start, the sweep looks at the run
//! directories. It skips completed runs, resumes interrupted runs from their last checkpoint, and starts the
//! other runs.

mod earlier;
mod run_options;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use self::earlier::{Earlier, earlier, warn_of_other_builds};
use self::run_options::{check_typed, words};
pub(super) use self::run_options::{configuration, options};
use super::launch::{mpi_flavour, prepare, print_dry};
use super::{Refused, gpu, program};
use crate::options::{RunConfig, SweepArgs};
use launch::sweep::{PlannedRun, SweepFile, check_folder, failure_line, plan, scaled};
use launch::{LauncherKind, StopRequest, Topology, hostfile, hostfile_place, line, quoted};
use run_record::files;
use run_record::{RecordError, RunDir, RunState, SweepRecord, SweepRun, checkpoint, lock};
use terminal::digits::{decimals, seconds};

/// Starts the runs that are not completed, and returns the exit code.
///
/// # Errors
/// If the sweep file is invalid, or the folder has results of other options, is in use or cannot be written.
pub fn run(args: &SweepArgs) -> anyhow::Result<i32> {
    let sweep = Sweep::read(args)?;
    let (mut record, before) = sweep.look().map_err(|error| {
        // The error may advise the user to remove the folder. This would be wrong while another process uses
        // the sweep, so if the folder is in use, the error says that instead. To find out, lock the folder.
        // Locking creates a file, so only lock the folder of a sweep.
        let is_sweep = SweepRecord::read(&sweep.folder).is_ok();
        match is_sweep.then(|| lock(&sweep.folder)) {
            Some(Err(in_use @ RecordError::InUse { .. })) => in_use.into(),
            _ => error,
        }
    })?;
    if args.dry_run {
        sweep.print_dry(&record, &before)?;
        return Ok(0);
    }
    let folder = &sweep.folder;
    check_folder(folder, &record)?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot write {}", folder.display()))?;
    let _lock = lock(folder)?;
    record.write(folder)?;
    warn_of_other_builds(&before, folder);
    sweep.tell_skipped(&record);
    for at in (0..sweep.runs.len()).filter(|&at| record.runs[at].state == RunState::Completed) {
        sweep.reduce(at, &record);
    }
    let stopped = sweep.make(&mut record)?;
    sweep.count_others(&mut record)?;
    Ok(closing(&record, folder, stopped))
}

/// The runs of a sweep file, and where their results are.
struct Sweep<'a> {
    args: &'a SweepArgs,
    file: SweepFile,
    runs: Vec<PlannedRun>,
    /// The configuration of each run.
    configs: Vec<RunConfig>,
    /// The folder that contains the run directories.
    folder: PathBuf,
}

impl<'a> Sweep<'a> {
    /// Reads the file, and checks the options of all runs.
    fn read(args: &'a SweepArgs) -> anyhow::Result<Self> {
        let file = SweepFile::read(&args.file, &options())?;
        check_typed(&file, args)?;
        let runs = plan(&file, &args.scale)?;
        if let (Some(text), false) = (&args.only, runs.iter().any(|run| chosen(args, &run.name))) {
            let problem = format!("no run has this text in its name; names look like {}", runs[0].name);
            bail!(Refused(format!("--only {text}: {problem}")));
        }
        // A scale is a section of options that `--scale` selects, such as [quick]. Any unknown section counts
        // as a scale, but it may be misspelt. So the log mentions each unknown section that this sweep does
        // not use.
        for name in file.scales.keys().filter(|name| **name != args.scale && *name != "quick") {
            log::info!("[{name}] in {} is a scale, used only with --scale {name}", args.file.display());
        }
        let configs = runs.iter().map(|run| configuration(run, args)).collect::<anyhow::Result<_>>()?;
        let name = name_of(args);
        let folder = args.out.clone().unwrap_or_else(|| match args.scale.as_str() {
            "full" => Path::new("results").join(name),
            scale => Path::new("results").join(format!("{name}-{scale}")),
        });
        Ok(Self { args, file, runs, configs, folder })
    }

    /// Looks at the folder. Returns for each run its state, and what an earlier start of the sweep has left
    /// of it.
    fn look(&self) -> anyhow::Result<(SweepRecord, Vec<Earlier>)> {
        let Self { args, file, .. } = self;
        let mut record = SweepRecord {
            name: name_of(args),
            title: file.title.clone(),
            reference: file.reference.clone(),
            scale: args.scale.clone(),
            scaled: scaled(file, &args.scale),
            command: Some(line(&without_only(&typed()))),
            runs: Vec::new(),
        };
        let mut before = Vec::new();
        // Results of `impossible` by launcher and topology. Each is computed once: looking up an unknown host
        // can take seconds.
        let mut asked = BTreeMap::new();
        for (run, config) in self.runs.iter().zip(&self.configs) {
            let PlannedRun { topology, launcher, .. } = *run;
            let found = earlier(&self.folder.join(&run.name), run, config)?;
            let of_launcher =
                asked.entry((topology, launcher)).or_insert_with(|| self.impossible(topology, launcher));
            // Slurm starts ranks on other machines, so this machine's GPUs do not matter.
            let here = (launcher != LauncherKind::Srun).then_some(topology.ranks_per_node);
            let reason = of_launcher.clone().or_else(|| gpu::impossible(config, here));
            let (state, error) = match (&found, reason) {
                (Earlier::Completed(_), _) => (RunState::Completed, None),
                // An unreadable run counts as failed, and the sweep goes on with the other runs. If `--only`
                // excludes the run, it does not count as failed.
                (Earlier::Unreadable(error), _) if chosen(args, &run.name) => {
                    (RunState::Failed, Some(error.to_string()))
                }
                (_, None) => (RunState::Waiting, None),
                (_, reason) => (RunState::Skipped, reason),
            };
            before.push(found);
            let (name, repeat, varied) = (run.name.clone(), run.repeat, run.varied.clone());
            record.runs.push(SweepRun { name, repeat, varied, state, error });
        }
        Ok((record, before))
    }

    /// Returns why `launcher` cannot start a job on `topology`, or `None` if it can.
    fn impossible(&self, topology: Topology, launcher: LauncherKind) -> Option<String> {
        // A script that replaces the launcher chooses the machines itself.
        if self.args.how.script(launcher).is_some() {
            return None;
        }
        let hostfile = hostfile_place(&self.args.hostfiles, topology);
        ::launch::impossible(topology, launcher, mpi_flavour(), &hostfile)
    }

    fn print_dry(&self, record: &SweepRecord, before: &[Earlier]) -> anyhow::Result<()> {
        for ((run, before), planned) in self.runs.iter().zip(before).zip(&record.runs) {
            if !chosen(self.args, &run.name) {
                continue;
            }
            let resumes = matches!(before, Earlier::Interrupted);
            let printed = self.command(run, resumes).and_then(|mut launch| print_dry(&mut launch));
            match (printed, planned.state, &planned.error) {
                // Some skipped runs have no command line, such as two ranks without a launcher.
                (Err(_), RunState::Skipped, Some(reason)) => log::info!("skipped: {}: {reason}", run.name),
                (printed, ..) => printed?,
            }
        }
        Ok(())
    }

    fn tell_skipped(&self, record: &SweepRecord) {
        for (reason, mut names) in record.skipped() {
            names.retain(|name| chosen(self.args, name));
            if !names.is_empty() {
                let (count, all) = (names.len(), self.runs.len());
                log::info!("skipped: {count} of {all} runs ({}): {reason}", names.join(", "));
            }
        }
    }

    /// Prepares the launch of a run, from its first step or from its last checkpoint.
    fn command(&self, run: &PlannedRun, resumes: bool) -> anyhow::Result<launch::Launch> {
        let mut program = vec!["train".to_owned()];
        let out = self.folder.join(&run.name).display().to_string();
        if resumes {
            program.extend(["--resume".to_owned(), out]);
        } else {
            program.extend(words(run, self.args));
            program.extend(["--out".to_owned(), out, "--overwrite".to_owned()]);
        }
        let hostfile = hostfile(&self.args.hostfiles, run.topology);
        prepare(run.topology, run.launcher, &self.args.how, hostfile, program)
    }

    /// Starts the waiting runs. Returns whether a signal stopped the sweep.
    fn make(&self, record: &mut SweepRecord) -> anyhow::Result<bool> {
        let stop = StopRequest::listen_as_launcher().context("cannot install signal handlers")?;
        let total = self.runs.len();
        for (at, run) in self.runs.iter().enumerate() {
            if record.runs[at].state != RunState::Waiting || !chosen(self.args, &run.name) {
                continue;
            }
            if stop.signal().is_some() {
                return Ok(true);
            }
            // Look again: another process may have continued this run while the sweep worked on others.
            let ended = self.earlier(at).and_then(|before| match before {
                Earlier::Completed(_) => Ok(Some("completed by another process".into())),
                Earlier::Unreadable(error) => Err(error.into()),
                Earlier::Nothing => self.make_one(run, false, &stop),
                Earlier::Interrupted => {
                    log::info!("[{}/{total}] {}: continues from its last checkpoint", at + 1, run.name);
                    self.make_one(run, true, &stop)
                }
            });
            let (state, error, summary) = match ended.map_err(|error| format!("{error:#}")) {
                Ok(Some(summary)) => {
                    self.reduce(at, record);
                    (RunState::Completed, None, summary)
                }
                Ok(None) => return Ok(true),
                Err(error) => (RunState::Failed, Some(error.clone()), format!("failed: {error}")),
            };
            log::info!("[{}/{total}] {}: {summary}", at + 1, run.name);
            record.runs[at].state = state;
            record.runs[at].error = error;
            record.write(&self.folder)?;
        }
        Ok(false)
    }

    fn earlier(&self, at: usize) -> anyhow::Result<Earlier> {
        let run = &self.runs[at];
        earlier(&self.folder.join(&run.name), run, &self.configs[at])
    }

    /// Marks failed runs as completed if another process has completed them since. For example, the job of a
    /// run may have gone on after its sweep was killed.
    fn count_others(&self, record: &mut SweepRecord) -> anyhow::Result<()> {
        for at in 0..self.runs.len() {
            if record.runs[at].state == RunState::Failed
                && matches!(self.earlier(at), Ok(Earlier::Completed(_)))
            {
                log::info!("{}: counts as completed, because its run.json says so", self.runs[at].name);
                (record.runs[at].state, record.runs[at].error) = (RunState::Completed, None);
                self.reduce(at, record);
                record.write(&self.folder)?;
            }
        }
        Ok(())
    }

    /// Reduces the checkpoints of a completed run, unless the run has `--keep`: removes all but the last and,
    /// with early stopping, the best, and keeps only the weights of these.
    fn reduce(&self, at: usize, record: &SweepRecord) {
        if self.configs[at].keep.is_some() {
            return;
        }
        let name = &self.runs[at].name;
        let checkpoints = |name: &str| self.folder.join(name).join("checkpoints");
        let is_other = |other: &&SweepRun| other.state == RunState::Completed && other.name != *name;
        let others: Vec<_> =
            record.runs.iter().filter(is_other).map(|other| checkpoints(&other.name)).collect();
        // Lock the run: a process that continues the run needs the optimizer's state in its checkpoints.
        let reduced =
            lock(&self.folder.join(name)).and_then(|_lock| checkpoint::reduce(&checkpoints(name), &others));
        if let Err(error) = reduced {
            log::warn!("cannot remove the optimizer's state from checkpoints of {name}: {error}");
        }
    }

    /// Starts a run and waits for its end. Returns its summary, or `None` if a signal stopped it.
    fn make_one(
        &self,
        run: &PlannedRun,
        resumes: bool,
        stop: &StopRequest,
    ) -> anyhow::Result<Option<String>> {
        let mut launch = self.command(run, resumes)?;
        if let Err(error) = launch::check(&mut launch, stop) {
            return if stop.signal().is_some() { Ok(None) } else { Err(error) };
        }
        let path = self.folder.join(format!("{}.log", run.name));
        let log = files::create_here(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let (outcome, _) = launch.run(launch::Streams::Log(log), stop)?;
        if outcome.stopped {
            return Ok(None);
        }
        let record =
            RunDir::open::<RunConfig>(&self.folder.join(&run.name)).map(|(_, record)| record.results);
        match (outcome.code, record) {
            (0, Err(error)) => Err(error.into()),
            (0, Ok(Some(results))) => Ok(Some(format!(
                "{} s of training, {:.*} ms per step, test accuracy {:.2}%",
                seconds(results.train_seconds),
                decimals(results.ms_per_step, 3),
                results.ms_per_step,
                results.test_accuracy
            ))),
            (code, _) => bail!("{} ({})", launch::cause_in(&path, code), path.display()),
        }
    }
}

/// Returns the name of the sweep: the name of its file without the ending.
fn name_of(args: &SweepArgs) -> String {
    args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Returns the command as it was typed, with all options.
fn typed() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once(program()).chain(words).collect()
}

/// Returns the command for all runs: `words` without `--only`.
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

/// Reports the completed, skipped and failed runs, and returns the exit code.
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
        _ => format!("; {} report {} shows them", quoted(program()), quoted(folder.display())),
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
        (true, _) => launch::EXIT_RESUMABLE.into(),
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
}
