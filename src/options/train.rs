//! Options of `mpiburn train`.

use std::path::PathBuf;

use clap::Args;

use super::{TraceArgs, Words};
use crate::train::RunConfig;
use crate::values::{positive, seconds};

#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpirun -n 2 --bind-to core mpiburn train --data-root data/digits
  mpirun -n 2 --bind-to core mpiburn train --resume results/try --epochs 10
  mpirun -n 4 --bind-to core mpiburn train --resume results/try --reshard
  mpirun -n 4 --oversubscribe --bind-to core:overload-allowed mpiburn train
  mpirun -n 2 --bind-to core mpiburn train --model vgg --augment crop,flip \\
      --optimizer adamw --schedule onecycle --max-lr 1e-3 --early-stopping 2
  mpirun -n 2 --bind-to core mpiburn train --trace steps.json.gz"
)]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: RunConfig,
    #[command(flatten)]
    pub stall: StallArgs,
    /// Expected number of ranks; the job fails if mpirun started another number.
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Distribution")]
    pub world_size: Option<usize>,
    /// Run directory, on rank 0's host [default: results/MODEL-TOPOLOGY-BACKEND-TIME].
    #[arg(
        long,
        visible_alias = "log-path",
        value_name = "DIR",
        conflicts_with = "resume",
        help_heading = "Results"
    )]
    pub out: Option<PathBuf>,
    /// Replace the run in the directory.
    ///
    /// The old run's checkpoints, curves and records are deleted. Your own files beside them stay.
    #[arg(long, conflicts_with = "resume", help_heading = "Results")]
    pub overwrite: bool,
    /// Continue a run from its last checkpoint, with the options in its run.json.
    ///
    /// Options given beside --resume override the run's options, and run.json records the change. The value
    /// none removes an option without a default: --clip-norm none. Options that the checkpoint depends on,
    /// such as --model, cannot change.
    #[arg(long, value_name = "RUN", help_heading = "Results")]
    pub resume: Option<PathBuf>,
    /// With --resume: continue on another number of ranks.
    ///
    /// The samples of a step stay the same, so the batch size per rank changes: a run of 4 ranks with batches
    /// of 32 has batches of 64 on 2 ranks. The number of ranks must divide the batch of all ranks (128)
    /// evenly. On the run's own number of ranks, the option has no effect.
    #[arg(long, help_heading = "Results")]
    pub reshard: bool,
    /// Write the number of the last step to a file in the run directory, and tag messages on standard error
    /// with their kind. `launch --restart` adds this option.
    #[arg(long, hide = true)]
    pub note_steps: bool,
    #[command(flatten)]
    pub trace: TraceArgs,
    /// The options on the command line, without defaults.
    #[arg(skip)]
    pub typed: Words,
}

/// `--stall-warning`, for every command that averages gradients.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Distribution")]
pub struct StallArgs {
    /// If a rank waits longer than this in a collective, print a line that names the missing ranks. Finding
    /// the missing ranks takes up to 6 seconds more.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub stall_warning: f64,
}
