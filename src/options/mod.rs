//! The command line of `mpiburn`, and the rules for the options of a training.

mod bench;
mod check;
mod data;
mod fields;
mod int8;
mod launch;
mod predict;
mod profile;
mod train;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;

use crate::device::DeviceKind;
use crate::values::Positive;
use burn_mpi::internals::mpi_library;

pub use self::data::{DataArgs, DataKind, InfoArgs, MakeArgs};
pub use crate::train::RunConfig;
use crate::train::{OPTIONS, spec};
pub use bench::{
    AllreduceArgs, BenchArgs, BenchKind, CollectivesArgs, FusedArgs, Int8Args, LinkArgs, StepArgs,
};
pub use check::ConfigError;
pub use fields::schema;
pub use int8::{ExportArgs, QuantizeArgs};
pub use launch::{HowArgs, LaunchArgs, SweepArgs};
pub use predict::PredictArgs;
pub use profile::ProfileArgs;
pub use profile::TraceArgs;
pub use run_report::{Format, ReportArgs};
pub use train::{StallArgs, TrainArgs};
pub use words::{Words, as_typed, is_of_value, one_line};

/// `run.json`, whose `config` is a [`RunConfig`].
pub type RunRecord = run_record::RunRecord<RunConfig>;

const EXAMPLES: &str = "\
Examples:
  mpiburn data digits --out data/digits          generate the default data set
  mpirun -n 2 --bind-to core mpiburn train       train on two cores
  mpirun -n 2 --bind-to core mpiburn train --epochs 1 --out results/try
  mpirun -n 2 --bind-to core mpiburn train --resume results/try
  mpiburn eval results/try";

/// Version, commit, MPI library and features of this build, for `--version`.
fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let changed = if env!("MPIBURN_GIT_DIRTY") == "true" { " with changes" } else { "" };
        let features = [
            ("gloo", cfg!(feature = "gloo")),
            ("nccl", cfg!(feature = "nccl")),
            ("ndarray", cfg!(feature = "ndarray")),
            ("tch", cfg!(feature = "tch")),
            ("cuda", cfg!(feature = "cuda")),
        ];
        let features = features.into_iter().filter_map(|(name, is_built)| is_built.then_some(name));
        format!(
            "{} (commit {}{changed}, {}, features: {})",
            env!("CARGO_PKG_VERSION"),
            env!("MPIBURN_GIT"),
            mpi_library(),
            features.collect::<Vec<_>>().join(" ")
        )
    });
    &TEXT
}

/// Trains Burn models data-parallel over MPI.
#[derive(Debug, Parser)]
#[command(name = "mpiburn", version, long_version = version(), about, after_help = EXAMPLES, max_term_width = 100)]
pub struct Cli {
    /// More log output (-v: debug, -vv: trace); RUST_LOG overrides it.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 900)]
    pub verbose: u8,
    /// Print only warnings, errors and results. Leave out the log, the progress bar, and the tables of the
    /// commands `train` and `data import`.
    #[arg(short, long, global = true, conflicts_with = "verbose", display_order = 901)]
    pub quiet: bool,
    #[command(subcommand)]
    pub command: Command,
    /// The name of the subcommand, such as `bench step`. All ranks of a job must run the same subcommand.
    #[arg(skip)]
    pub name: String,
    /// The options of the subcommand with their values, defaults included.
    #[arg(skip)]
    pub options: Vec<(String, String)>,
}

impl Cli {
    /// Reads a command line. The first word is the name of the program.
    ///
    /// # Errors
    /// Returns clap's error. clap also returns the texts of `--help` and `--version` as errors.
    pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut command = as_shown(Self::command());
        let matches = command.try_get_matches_from_mut(words)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        let (mut command, mut matches, mut names) = (&command, &matches, Vec::new());
        while let Some((name, inner)) = matches.subcommand() {
            names.push(name);
            command = command.find_subcommand(name).unwrap_or(command);
            matches = inner;
        }
        cli.options = words::values(command, matches);
        let typed = Words::typed(command, matches);
        names.extend(typed.has("resume").then_some("--resume"));
        cli.name = names.join(" ");
        match &mut cli.command {
            Command::Train(args) => args.typed = typed,
            Command::Profile(args) => args.typed = typed,
            Command::Bench(BenchArgs { kind: BenchKind::Step(args) }) => args.typed = typed,
            _ => {}
        }
        Ok(cli)
    }

    /// Returns the words of a command line that set the same verbosity: `-q`, or `-v` as often as it was
    /// typed.
    pub fn verbosity(&self) -> Vec<String> {
        if self.quiet { vec!["-q".into()] } else { vec!["-v".into(); usize::from(self.verbose)] }
    }
}

/// Applies the settings that all options share. A value may begin with a minus, so that the option's parser
/// rejects `-1` with its own error. Without this setting, clap would take `-1` for an unknown option and
/// suggest another option. A default of `none` is not shown. `-h` has the common options and the examples,
/// `--help` has everything.
pub fn as_shown(command: clap::Command) -> clap::Command {
    let has_all = OPTIONS.iter().all(|spec| command.get_arguments().any(|arg| arg.get_id() == spec.field));
    let trains = command.get_name() == "train";
    let shown = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values() && !arg.is_positional();
        let hides = arg.get_default_values().iter().any(|value| value == "none");
        let is_rare = arg.get_long().is_some_and(|option| {
            RARE.contains(&option)
                || spec(option).is_some_and(|spec| !spec.common)
                || (!trains && ["epochs", "early-stopping"].contains(&option))
        });
        let hides_short = arg.is_hide_short_help_set() || (has_all && is_rare);
        arg.allow_negative_numbers(takes_values).hide_default_value(hides).hide_short_help(hides_short)
    };
    let command = command.mut_args(shown).mut_subcommands(as_shown);
    let Some(after) = command.get_after_help().map(ToString::to_string) else { return command };
    let examples = after.split("\n\n").next().unwrap_or_default().to_owned();
    command.after_help(examples).after_long_help(after)
}

/// Options that `-h` leaves out, in addition to those that `schema.rs` marks as not common.
const RARE: [&str; 4] = ["world-size", "stall-warning", "trace", "trace-steps"];

/// The run that a command reads: the argument RUN, or the value of `--checkpoint`.
#[derive(Debug, Clone, Args)]
#[group(id = "named-run", multiple = false)]
pub struct RunArgs {
    /// The run: its folder, its run.json, or one of its checkpoints.
    #[arg(value_name = "RUN")]
    run: Option<PathBuf>,
    /// The same as RUN.
    #[arg(long, value_name = "RUN", hide_short_help = true)]
    checkpoint: Option<PathBuf>,
}

impl RunArgs {
    /// Returns the path that names the run; `None` if none was given.
    pub fn path(&self) -> Option<&PathBuf> {
        self.run.as_ref().or(self.checkpoint.as_ref())
    }
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model, as a rank of an MPI job or as a single process.
    Train(Box<TrainArgs>),
    /// Evaluate a checkpoint on the test split.
    Eval(EvalArgs),
    /// Predict the classes of pictures, or of the rows of a table.
    Predict(PredictArgs),
    /// Write a checkpoint's network as an ONNX file.
    Export(ExportArgs),
    /// Make an int8 model from a checkpoint, and evaluate both networks on the test split.
    Quantize(QuantizeArgs),
    /// Benchmark collectives, training steps and operators.
    Bench(BenchArgs),
    /// Measure time and memory of each operator, in inference or training.
    Profile(Box<ProfileArgs>),
    /// Generate, import or inspect a data set.
    Data(DataArgs),
    /// Start an MPI job on a topology.
    Launch(LaunchArgs),
    /// Start the runs of a sweep file.
    Sweep(SweepArgs),
    /// Print the number of cores of this machine and the number of CPUs that ranks may use. The check before
    /// a launch runs this command on each host.
    #[command(hide = true)]
    Cores,
    /// Make tables, plots and predictions from run directories.
    Report(ReportArgs),
    /// Print the completions of a shell.
    #[command(after_help = "\
Example:
  mpiburn completions bash \\
      > ~/.local/share/bash-completion/completions/mpiburn")]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write manual pages, for example into ~/.local/share/man/man1.
    Man {
        /// The folder to write to.
        folder: PathBuf,
    },
}

impl Command {
    /// Returns whether several ranks run the command together. Other commands run in one process.
    pub const fn has_ranks(&self) -> bool {
        matches!(
            self,
            Self::Train(_)
                | Self::Eval(_)
                | Self::Predict(_)
                | Self::Export(_)
                | Self::Quantize(_)
                | Self::Bench(_)
                | Self::Profile(_)
        )
    }
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    mut_group("named-run", |group| group.required(true)),
    after_help = "\
Examples:
  mpiburn eval results/try
  mpiburn eval results/try --int8 --logits scores.npy
  mpirun -n 2 --bind-to core mpiburn eval results/try/checkpoints/step-00000938"
)]
pub struct EvalArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// Folder of the data set [default: that of the run].
    #[arg(long, value_name = "DIR")]
    pub data_root: Option<PathBuf>,
    /// Batch size per rank.
    #[arg(long, value_name = "N", default_value = "128")]
    pub test_batch_size: Positive,
    /// Test on the first N samples only [default: as in the run].
    #[arg(long, value_name = "N")]
    pub test_samples: Option<Positive>,
    /// Compute device: flex, ndarray, tch, tch-cuda:N, cuda or cuda:N.
    #[arg(long, default_value = "flex")]
    pub device: DeviceKind,
    /// Evaluate the int8 model beside the checkpoint instead of the float network.
    #[arg(long)]
    pub int8: bool,
    /// Write the scores of every sample to FILE, replacing it: f32, one row for each sample.
    #[arg(long, value_name = "FILE.npy")]
    pub logits: Option<PathBuf>,
}

#[cfg(test)]
pub mod tests;
