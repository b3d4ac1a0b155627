//! The command line: what can be typed, and nothing of what it means.

mod bench;
mod data;
mod int8;
mod launch;
mod link;
mod network;
mod quantization;
mod recipe;
mod report;
mod train;

use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use bench::{AllreduceArgs, BenchArgs, BenchKind, CollectivesArgs, FusedArgs, Int8Args, StepArgs};
pub use data::{DataArgs, DataKind, InfoArgs, MakeArgs};
pub use int8::{ExportArgs, QuantKind, QuantizeArgs};
pub use launch::{HowArgs, LaunchArgs, SweepArgs};
pub use link::LinkArgs;
pub use network::NetworkArgs;
pub use quantization::QuantizationArgs;
pub use recipe::RecipeArgs;
pub use report::{Format, ReportArgs};
pub use train::TrainArgs;

const EXAMPLES: &str = "\
Examples:
  mpiburn data digits --out data/digits                   make the default data set
  mpirun -n 2 --bind-to core mpiburn train                train on two cores
  mpirun -n 2 --bind-to core mpiburn train --epochs 1 --train-batch-size 64 --out results/try
  mpirun -n 2 --bind-to core mpiburn train --resume results/try
  mpiburn eval --checkpoint results/try";

/// Trains Burn models data-parallel over MPI.
#[derive(Debug, Parser)]
#[command(name = "mpiburn", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// Say more (-v: debug, -vv: trace). RUST_LOG wins over both.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Say only warnings and errors.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads this process's command line.
    ///
    /// # Errors
    /// clap's, which also carry the texts of `--help` and `--version`.
    pub fn read() -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches()?;
        let mut cli = Self::from_arg_matches(&matches)?;
        if let (Command::Train(args), Some((_, options))) = (&mut cli.command, matches.subcommand()) {
            let typed = |id: &&clap::Id| options.value_source(id.as_str()) == Some(ValueSource::CommandLine);
            args.typed = options.ids().filter(typed).map(ToString::to_string).collect();
            // Groups of options have ids too, which are their structs' names.
            args.typed.retain(|id| !id.ends_with("Args"));
        }
        Ok(cli)
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model; a member of an MPI job, or a world of one.
    Train(Box<TrainArgs>),
    /// Measure a checkpoint on the test set.
    Eval(EvalArgs),
    /// Write a checkpoint's network as an ONNX file.
    Export(ExportArgs),
    /// Make an int8 model of a checkpoint, and measure both on the test set.
    Quantize(QuantizeArgs),
    /// Measure what travels between ranks.
    Bench(BenchArgs),
    /// Make a data set, or look at one.
    Data(DataArgs),
    /// Start a job on a topology, from outside MPI.
    Launch(LaunchArgs),
    /// Make a list of runs, from outside MPI.
    Sweep(SweepArgs),
    /// Tables, pictures and predictions from run directories.
    Report(ReportArgs),
}

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct EvalArgs {
    /// A run directory, or one of its checkpoints.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: PathBuf,
    /// Folder of the data set [default: that of the run].
    #[arg(long, value_name = "DIR")]
    pub data_root: Option<PathBuf>,
    /// Samples of one rank's batch.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub test_batch_size: usize,
    /// Test on the first N samples only [default: as the run did].
    #[arg(long, value_name = "N")]
    pub test_samples: Option<usize>,
    /// Where tensors live: flex, ndarray, tch or tch-cuda:N.
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Measure the int8 model beside the checkpoint instead.
    #[arg(long)]
    pub int8: bool,
    /// Write the scores of every sample to FILE, replacing it: f32, a row for each sample.
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<PathBuf>,
}
