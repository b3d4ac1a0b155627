//! Options of `mpiburn profile`, and the options of time lines, which `mpiburn train` has too.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

use super::{RunArgs, StallArgs, Words};
use crate::profile::SortKey;
use crate::train::RunConfig;
use crate::values::{one_of, up_to};

/// Maximum of `--batches`.
const MAX_BATCHES: usize = 1_000_000;

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn profile --model vgg
  mpiburn profile --model mlp --activation gelu --sort total
  mpiburn profile --model vgg --int8
  mpiburn profile results/try --train --json profile.json
  mpirun -n 2 --bind-to core mpiburn profile --model vgg --train --batches 20
  mpirun -n 2 --bind-to core mpiburn profile --model vgg --train \\
      --batches 20 --trace steps.json.gz

With RUN, the network, its weights and the data set are the run's. The batch size, the optimizer, the penalties and, \
with --train, the precision are also the run's, unless an option sets them. Without RUN, a network with initial weights \
is profiled on noise.

Rank 0's times are printed. Batches with and without profiling alternate, to measure the cost of profiling."
)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Batches to profile.
    #[arg(
        long,
        value_name = "N",
        default_value = "100",
        value_parser = up_to(MAX_BATCHES, "the times of all batches are kept in memory")
    )]
    pub batches: usize,
    /// Profile training steps instead of inference.
    #[arg(long)]
    pub train: bool,
    /// Profile inference of an int8 model: the model beside the checkpoint or, without RUN, a model that is
    /// calibrated on noise.
    #[arg(long)]
    pub int8: bool,
    /// Sort by self CPU time (self), total CPU time (total) or peak memory (memory).
    #[arg(long, value_name = "COLUMN", default_value = "self", value_parser = one_of::<SortKey>())]
    pub sort: SortKey,
    /// Write the operators to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Write the operators and the configuration to FILE, replacing it.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub trace: TraceArgs,
    #[command(flatten)]
    pub stall: StallArgs,
    /// Options of `mpiburn train`. Options of tests, epochs and results have no effect.
    #[command(flatten)]
    pub config: RunConfig,
    /// The options on the command line, without defaults.
    #[arg(skip)]
    pub typed: Words,
}

/// Maximum number of steps on one time line. An event takes about 200 bytes, and a step of vgg on two ranks
/// has 150 events.
pub const MOST_STEPS: usize = 1000;

#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Results")]
pub struct TraceArgs {
    /// Write one time line of all ranks to FILE, replacing it. The file is compressed if its name ends in
    /// .gz. Perfetto (ui.perfetto.dev) and chrome://tracing open it.
    #[arg(long, value_name = "FILE.json[.gz]")]
    pub trace: Option<PathBuf>,
    /// First and last step on the time line, counted as in the log; at most 1000 steps [default: 20..40, or
    /// the last 21 steps if the run has fewer than 40].
    #[arg(long, value_name = "FIRST..LAST", value_parser = steps, requires = "trace")]
    pub trace_steps: Option<RangeInclusive<usize>>,
}

/// Parses a range of steps such as `20..40`, which includes its first and its last step.
fn steps(text: &str) -> Result<RangeInclusive<usize>, String> {
    let parts = text.split_once("..");
    let ends = parts.and_then(|(first, last)| Some([first.parse().ok()?, last.parse().ok()?]));
    match ends {
        Some([first, last]) if first == 0 || last < first => {
            Err("steps are counted from 1, and the first must not be after the last".into())
        }
        Some([first, last]) if last - first >= MOST_STEPS => {
            Err(format!("has {} steps: name at most {MOST_STEPS}", last - first + 1))
        }
        Some([first, last]) => Ok(first..=last),
        None => Err("name the first and the last step, such as 20..40".into()),
    }
}

#[cfg(test)]
mod trace_tests {
    use super::*;

    #[test]
    fn ranges_of_steps_include_both_ends() {
        assert_eq!(["20..40", "7..7", "1..1000"].map(steps), [Ok(20..=40), Ok(7..=7), Ok(1..=1000)]);
        for (text, expected) in [
            ("", "such as 20..40"),
            ("20", "such as 20..40"),
            ("a..b", "such as 20..40"),
            ("-1..4", "such as 20..40"),
            ("20..=40", "such as 20..40"),
            ("1..18446744073709551616", "such as 20..40"),
            ("0..4", "counted from 1"),
            ("9..4", "after the last"),
            ("1..1001", "has 1001 steps: name at most 1000"),
            ("1..18446744073709551615", "name at most 1000"),
        ] {
            let found = steps(text).unwrap_err();
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
