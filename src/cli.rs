//! Command line arguments; `config` validates and interprets them.

mod bench;
mod data;
mod int8;
mod launch;
mod link;
mod network;
mod profile;
mod quantization;
mod recipe;
mod report;
mod trace;
mod train;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::device::DeviceKind;
use crate::names::OneOf;

pub use bench::{AllreduceArgs, BenchArgs, BenchKind, CollectivesArgs, FusedArgs, Int8Args, StepArgs};
pub use data::{DataArgs, DataKind, InfoArgs, MakeArgs};
pub use int8::{ExportArgs, QuantKind, QuantizeArgs};
pub use launch::{HowArgs, LaunchArgs, SweepArgs};
pub use link::LinkArgs;
pub use network::NetworkArgs;
pub use profile::ProfileArgs;
pub use quantization::QuantizationArgs;
pub use recipe::RecipeArgs;
pub use report::{Format, ReportArgs};
pub use trace::{StepRange, TraceArgs};
pub use train::{GLOO_ALGORITHMS, TrainArgs};

const EXAMPLES: &str = "\
Examples:
  mpiburn data digits --out data/digits                   generate the default data set
  mpirun -n 2 --bind-to core mpiburn train                train on two cores
  mpirun -n 2 --bind-to core mpiburn train --epochs 1 --train-batch-size 64 --out results/try
  mpirun -n 2 --bind-to core mpiburn train --resume results/try
  mpiburn eval --checkpoint results/try";

/// Trains Burn models data-parallel over MPI.
#[derive(Debug, Parser)]
#[command(name = "mpiburn", version, about, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// More log output (-v: debug, -vv: trace); RUST_LOG overrides it.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// Log warnings and errors only.
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Reads a command line, whose first word is the program.
    ///
    /// # Errors
    /// clap's, which include the texts of `--help` and `--version`.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let matches = with_negative_numbers(Self::command()).try_get_matches_from(words)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let options = matches.subcommand().map(|(_, options)| options);
        match &mut cli.command {
            Command::Train(args) => args.typed = options.map(typed).unwrap_or_default(),
            Command::Profile(args) => args.options.typed = options.map(typed).unwrap_or_default(),
            Command::Bench(BenchArgs { kind: BenchKind::Step(args) }) => {
                let options = options.and_then(|options| options.subcommand()).map(|(_, options)| options);
                args.train.typed = options.map(typed).unwrap_or_default();
            }
            _ => {}
        }
        Ok(cli)
    }
}

/// Lets `-1` be an option's value, which is then refused as one; clap would take it for an option and
/// offer what cannot help.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_positional();
    let command = command.mut_args(|arg| if takes(&arg) { arg.allow_negative_numbers(true) } else { arg });
    command.mut_subcommands(with_negative_numbers)
}

/// Names of the options that were typed.
fn typed(options: &ArgMatches) -> Vec<String> {
    let is_typed = |id: &&clap::Id| options.value_source(id.as_str()) == Some(ValueSource::CommandLine);
    let names = options.ids().filter(is_typed).map(ToString::to_string);
    // Argument groups have ids as well: the names of their structs.
    names.filter(|id| !id.ends_with("Args")).collect()
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model, as a rank of an MPI job or as a single process.
    Train(Box<TrainArgs>),
    /// Evaluate a checkpoint on the test split.
    Eval(EvalArgs),
    /// Write a checkpoint's network as an ONNX file.
    Export(ExportArgs),
    /// Make an int8 model of a checkpoint, and evaluate both on the test split.
    Quantize(QuantizeArgs),
    /// Benchmark collectives, training steps and operators.
    Bench(BenchArgs),
    /// Time and memory of each operator, in inference or training.
    Profile(Box<ProfileArgs>),
    /// Generate or inspect a data set.
    Data(DataArgs),
    /// Start an MPI job on a topology.
    Launch(LaunchArgs),
    /// Start the runs of a sweep file.
    Sweep(SweepArgs),
    /// Tables, plots and predictions from run directories.
    Report(ReportArgs),
}

impl Command {
    /// The subcommand that all ranks of a job must have in common, such as `bench step`.
    pub fn name(&self) -> String {
        let name = match self {
            Self::Train(args) if args.resume.is_some() => "train --resume",
            Self::Train(_) => "train",
            Self::Eval(_) => "eval",
            Self::Export(_) => "export",
            Self::Quantize(_) => "quantize",
            Self::Bench(args) => return format!("bench {}", args.kind.name()),
            Self::Profile(_) => "profile",
            Self::Data(_) => "data",
            Self::Launch(_) => "launch",
            Self::Sweep(_) => "sweep",
            Self::Report(_) => "report",
        };
        name.to_owned()
    }
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
    /// Batch size per rank.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub test_batch_size: usize,
    /// Test on the first N samples only [default: as in the run].
    #[arg(long, value_name = "N")]
    pub test_samples: Option<usize>,
    /// Compute device.
    #[arg(long, default_value = "flex", value_parser = OneOf::names(DeviceKind::NAMES))]
    pub device: String,
    /// Measure the int8 model beside the checkpoint instead.
    #[arg(long)]
    pub int8: bool,
    /// Write the scores of every sample to FILE, replacing it: f32, a row for each sample.
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<PathBuf>,
}
