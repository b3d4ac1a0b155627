//! `--trace`: records one time line of a training or a profile. It shows when each rank ran which operator
//! and which all-reduce.
//!
//! Each rank logs spans on its own clock. A span is one operator or one all-reduce, with its start and end.
//! The clocks are compared before and after the recorded steps, so that rank 0 can put all spans on one time
//! axis.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use serde_json::{Value, json};

use super::on_root;
use crate::options::{ConfigError, RunConfig, TraceArgs};
use crate::profile::{Clock, RankTrace, TraceFile, longest_wait};
use crate::spans::{Log, SpanRecorder, end_batch};
use crate::train::TrainError;
use burn_mpi::{ClockOffset, CommError, World};
use run_record::is_of_run;

/// Steps that are recorded if `--trace-steps` is not given, counted from the first step of this process.
const DEFAULT: RangeInclusive<usize> = 20..=40;

/// A time line that is being recorded.
pub struct Tracing {
    path: PathBuf,
    steps: RangeInclusive<usize>,
    since: Instant,
    start: Vec<ClockOffset>,
    run: Value,
}

/// Checks on rank 0 that the file can be written.
///
/// # Errors
/// Every rank returns the error if rank 0 cannot write the file.
pub fn check_writable(world: &World, args: &TraceArgs) -> anyhow::Result<()> {
    let Some(path) = &args.trace else { return Ok(()) };
    on_root(world, || TraceFile::check(path).with_context(|| cannot_write(path))).map(drop)
}

/// Checks `path`, the file of `--trace` in the run directory `out`. The directory may not exist yet.
///
/// # Errors
/// If the file is in a folder of the run directory, or is a file that the run writes itself.
pub fn check_in_run(path: &Path, out: &Path) -> Result<(), ConfigError> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if path.parent() != Some(out) || is_of_run(name) {
        let problem =
            "conflicts with the run's own files: choose another name in the run directory, or another folder";
        return Err(ConfigError::new("trace", path.display(), problem));
    }
    Ok(())
}

fn cannot_write(path: &Path) -> String {
    format!("--trace {}: cannot be written", path.display())
}

/// Returns the steps to record: steps after step `done`, up to step `total`. Returns `None` without
/// `--trace`.
///
/// # Errors
/// If no step is left, or `--trace-steps` names steps that are done already or that the run does not have.
pub fn steps(
    args: &TraceArgs,
    done: usize,
    total: usize,
) -> Result<Option<RangeInclusive<usize>>, ConfigError> {
    let Some(path) = &args.trace else { return Ok(None) };
    if done >= total {
        let problem = format!("the run is complete after {total} steps; leave the option out");
        return Err(ConfigError::new("trace", path.display(), problem));
    }
    let Some(range) = args.trace_steps.clone() else {
        let last = (*DEFAULT.end()).min(total - done);
        let first = last.saturating_sub(DEFAULT.end() - DEFAULT.start()).max(1);
        return Ok(Some(done + first..=done + last));
    };
    let (first, last) = (*range.start(), *range.end());
    if first <= done || last > total {
        let which = if done == 0 { "the run has" } else { "this part of the run has" };
        let problem = format!("{which} steps {} to {total}; choose from these", done + 1);
        return Err(ConfigError::new("trace-steps", format!("{first}..{last}"), problem));
    }
    Ok(Some(range))
}

impl Tracing {
    /// Starts a time line: compares the clocks of all ranks before the first step.
    ///
    /// # Errors
    /// If MPI fails.
    pub fn start(
        world: &World,
        args: &TraceArgs,
        steps: RangeInclusive<usize>,
        config: &RunConfig,
    ) -> Result<Self, CommError> {
        let since = Instant::now();
        Ok(Self {
            path: args.trace.clone().unwrap_or_default(),
            steps,
            since,
            start: world.clock_offsets(|| since.elapsed())?,
            run: json!({
                "program": format!("mpiburn {} of {}", env!("CARGO_PKG_VERSION"), env!("MPIBURN_GIT")),
                "model": config.model,
                "backend": config.communication.backend.to_string(),
                "train_batch_size": config.data.train_batch_size,
                "mpi": world.mpi_library(),
            }),
        })
    }

    /// Returns an empty log for the steps to record, on this rank's clock.
    pub fn log(&self) -> Log {
        Log::new(self.since, self.steps.clone())
    }

    /// Gathers what `recorder` has logged on every rank. Rank 0 writes the file, and logs the longest wait of
    /// one rank for another. All ranks must call this method.
    ///
    /// # Errors
    /// If the transport fails, or the file cannot be written.
    pub fn finish(self, world: &World, recorder: &SpanRecorder) -> anyhow::Result<()> {
        let end = world.clock_offsets(|| self.since.elapsed())?;
        let clocks: Vec<Clock> =
            self.start.into_iter().zip(end).map(|(start, end)| Clock { start, end }).collect();
        let ranks: Vec<RankTrace> = world.gather(&RankTrace::new(recorder, &clocks[world.rank()]))?;
        let Some([first, last]) = ranks[0].range() else {
            if world.is_root() {
                let (path, first) = (self.path.display(), self.steps.start());
                log::warn!(
                    "--trace {path}: not written, because the run ended before step {first}, the first step to record"
                );
            }
            return Ok(());
        };
        let mut run = self.run;
        run["first_step"] = json!(first);
        run["last_step"] = json!(last);
        let file = TraceFile { ranks: &ranks, clocks: &clocks, places: world.places(), run };
        on_root(world, || file.write(&self.path).with_context(|| cannot_write(&self.path)))?;
        if world.is_root() {
            let error = clocks.iter().map(Clock::error_ns).max().unwrap_or(0);
            log::info!(
                "time line of steps {first} to {last} in {}; clocks of ranks agree within {:.1} µs",
                self.path.display(),
                1e-3 * error as f64
            );
            if let Some(wait) = longest_wait(&ranks) {
                log::info!("{wait}");
            }
        }
        Ok(())
    }

    /// Ends the time line of a training. Writes the file if all ranks ended after the same step. If they did
    /// not, warns that the file is not written.
    ///
    /// # Errors
    /// Returns the errors of [`finish`](Self::finish) if the training succeeded.
    pub fn finish_training(self, world: &World, result: Result<(), &TrainError>) -> anyhow::Result<()> {
        // An error may have ended the training inside a step.
        end_batch();
        let recorder = SpanRecorder::stop().unwrap_or_default();
        let path = self.path.clone();
        let finished = match result {
            Ok(()) => return self.finish(world, &recorder),
            Err(TrainError::Stopped { .. } | TrainError::Ends(_)) => self.finish(world, &recorder),
            Err(_) => Err(anyhow::anyhow!("the ranks did not end after the same step")),
        };
        if let Err(error) = finished
            && world.is_root()
        {
            log::warn!("--trace {}: not written: {error:#}", path.display());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::tests::tells;

    fn found(steps_named: Option<&str>, done: usize, total: usize) -> Result<[usize; 2], String> {
        let trace_steps = steps_named.map(|text| {
            let (first, last) = text.split_once("..").unwrap();
            first.parse().unwrap()..=last.parse().unwrap()
        });
        let args = TraceArgs { trace: Some("t.json".into()), trace_steps };
        let range = steps(&args, done, total).map_err(|error| error.to_string())?.expect("a range");
        Ok([*range.start(), *range.end()])
    }

    #[test]
    fn the_default_is_21_steps_after_the_first_or_the_last_of_a_short_run() {
        assert_eq!(found(None, 0, 600), Ok([20, 40]));
        assert_eq!(found(None, 0, 30), Ok([10, 30]));
        assert_eq!(found(None, 0, 7), Ok([1, 7]));
        assert_eq!(found(None, 100, 600), Ok([120, 140]));
        assert_eq!(found(None, 100, 103), Ok([101, 103]));
        assert_eq!(steps(&TraceArgs::default(), 0, 600), Ok(None));
    }

    #[test]
    fn steps_that_the_run_does_not_have_are_rejected_with_those_it_has() {
        assert_eq!(found(Some("600..600"), 0, 600), Ok([600, 600]));
        for (range, done, expected) in [
            ("590..601", 0, "--trace-steps 590..601: … steps 1 to 600"),
            ("100..120", 100, "--trace-steps 100..120: … steps 101 to 600"),
        ] {
            let problem = found(Some(range), done, 600).unwrap_err();
            assert!(tells(&problem, expected), "{problem}");
        }
        let complete = found(None, 600, 600).unwrap_err();
        assert!(tells(&complete, "--trace t.json: … complete … 600 steps"), "{complete}");
    }
}
