//! Options of `mpiburn profile`.

use std::path::PathBuf;

use clap::Args;

use super::{StallArgs, TraceArgs, Words};
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
  mpiburn profile --checkpoint results/try --train --json profile.json
  mpirun -n 2 --bind-to core mpiburn profile --model vgg --train --batches 20
  mpirun -n 2 --bind-to core mpiburn profile --model vgg --train --batches 20 --trace steps.json.gz

Rank 0's times are printed. Batches with and without profiling alternate, which gives its cost."
)]
pub struct ProfileArgs {
    /// A run directory, or one of its checkpoints: its network with activation and weights, and its data
    /// set. Batch size, optimizer and penalties, and with --train precision, are the run's where no
    /// option gives them [default: a network with initial weights, and noise].
    #[arg(long, value_name = "RUN")]
    pub checkpoint: Option<PathBuf>,
    /// Batches to profile.
    #[arg(
        long,
        value_name = "N",
        default_value = "100",
        value_parser = up_to(MAX_BATCHES, "the times of each are kept")
    )]
    pub batches: usize,
    /// Profile training steps instead of inference.
    #[arg(long)]
    pub train: bool,
    /// Profile inference of an int8 model: the one beside the checkpoint, or one that is calibrated on
    /// the noise.
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
    /// Options of `mpiburn train`; those of test, epochs and results have no effect.
    #[command(flatten)]
    pub config: RunConfig,
    /// The options that were given, rather than left at their defaults.
    #[arg(skip)]
    pub typed: Words,
}
