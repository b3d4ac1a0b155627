//! Options of `mpiburn train`.

use std::path::PathBuf;

use clap::Args;

use super::{TraceArgs, Words};
use crate::train::RunConfig;
use crate::values::seconds;

#[derive(Debug, Clone, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpirun -n 2 --bind-to core mpiburn train --data-root data/digits
  mpirun -n 4 --oversubscribe --bind-to core:overload-allowed mpiburn train --epochs 1 --train-samples 6000
  mpirun -n 2 --bind-to core mpiburn train --model vgg --data-root data/objects --batch-norm --dropout 0.5 --early-stopping 2
  mpirun -n 2 --bind-to core mpiburn train --model vgg --data-root data/objects --augment crop,flip --optimizer adamw --schedule onecycle --max-lr 1e-3
  mpirun -n 2 --bind-to core mpiburn train --trace steps.json.gz --trace-steps 100..120
  mpirun -n 2 --bind-to core mpiburn train --resume results/convnet-1x2-mpi-20260101-120000
  mpirun -n 2 --bind-to core mpiburn train --resume results/try --lr 1e-4 --epochs 10"
)]
pub struct TrainArgs {
    #[command(flatten)]
    pub config: RunConfig,
    #[command(flatten)]
    pub stall: StallArgs,
    /// Expected number of ranks; an error if mpirun started another number.
    #[arg(long, value_name = "N", help_heading = "Distribution")]
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
    /// Replace the run in the directory, if there is one, with all in its folders; other files beside them stay.
    #[arg(long, conflicts_with = "resume", help_heading = "Results")]
    pub overwrite: bool,
    /// Resume the run in DIR with its own options, but for those that are given: the ones that may change do, and
    /// run.json notes it; none takes one back, as in --clip-norm none.
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub resume: Option<PathBuf>,
    /// Note each step in the run directory, for `launch --restart`, which adds this option.
    #[arg(long, hide = true)]
    pub note_steps: bool,
    #[command(flatten)]
    pub trace: TraceArgs,
    /// The options that were given, rather than left at their defaults.
    #[arg(skip)]
    pub typed: Words,
}

/// When a rank says whom it waits for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Distribution")]
pub struct StallArgs {
    /// After this many seconds in a collective, print whom the rank waits for.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub stall_warning: f64,
}
