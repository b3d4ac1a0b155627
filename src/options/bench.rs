//! Options of `mpiburn bench`.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};

use super::{RunArgs, StallArgs, Words};
use crate::model::ModelKind;
use crate::train::{BackendKind, RunConfig};
use crate::values::{above_0, between, from_0, named, one_of, positive, range, up_to};
use burn_fused::simd::Level;
use burn_mpi::WireType;

/// Maximum number of timed calls. Calls of a microsecond each then take ten seconds.
const MOST: u64 = 10_000_000;

/// Returns a parser of a number of timed calls, from 1 to [`MOST`].
fn timed() -> impl Fn(&str) -> Result<usize, String> + Clone {
    up_to(MOST as usize, "all times are kept in memory")
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub kind: BenchKind,
}

#[derive(Debug, Subcommand)]
pub enum BenchKind {
    /// Measure latency and bandwidth of the all-reduce, by message size and backend.
    Allreduce(AllreduceArgs),
    /// Call each operation of each backend: list those that work, with their latency.
    Collectives(CollectivesArgs),
    /// Break down the time of one training step, on random samples of the model's shape.
    Step(Box<StepArgs>),
    /// Measure latency and bandwidth of the link between two ranks.
    Link(LinkArgs),
    /// Compare an int8 model with its float network: time, memory, file size and accuracy.
    Int8(Int8Args),
    /// Compare fused convolution and ReLU with Burn's operators on each CPU backend.
    Fused(FusedArgs),
}

#[derive(Debug, Args)]
pub struct StepArgs {
    /// Steps to measure with overlap, and again without. A single rank measures them only once.
    #[arg(long, value_name = "N", default_value = "30", value_parser = timed())]
    pub steps: usize,
    /// Steps before the first measured step.
    #[arg(long, value_name = "N", default_value = "3", value_parser = range::<usize>(0, MOST))]
    pub warm_up: usize,
    /// Matrix products to time before the steps and again after them, for comparison; none if 0.
    #[arg(long, value_name = "N", default_value = "5", value_parser = range::<usize>(0, MOST))]
    pub products: usize,
    /// SIMD level of the operators, not of Burn's matrix products [default: the widest that all ranks support].
    #[arg(long, value_name = "LEVEL", value_parser = PossibleValuesParser::new(Level::ALL.map(Level::name)))]
    pub simd: Option<String>,
    /// Write the figures to FILE, replacing it.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
    #[command(flatten)]
    pub stall: StallArgs,
    /// Options of `mpiburn train`. Options of data and results have no effect.
    #[command(flatten)]
    pub config: RunConfig,
    /// The options on the command line, without defaults.
    #[arg(skip)]
    pub typed: Words,
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpirun -n 2 --bind-to core mpiburn bench allreduce
  mpirun -n 2 --bind-to core mpiburn bench allreduce --sizes 4..64MiB \\
      --csv latency.csv --plot latency.svg

Latency is the mean over ranks of one call's time, after a barrier. The bus bandwidth is \
2(n-1)/n x size / median for n ranks, with 1 MB = 10^6 bytes."
)]
pub struct AllreduceArgs {
    /// Message sizes in bytes, KiB or MiB. 4..64MiB is each power of two in the range.
    #[arg(long, value_name = "SIZES", default_value = "4,17408,13631488")]
    pub sizes: String,
    /// Methods to time, in turn: mpi, ordered, gloo, gloo-ordered, nccl, nccl-ordered. The ordered methods
    /// sum in rank order [default: all in this build; nccl only if each rank has a GPU].
    #[arg(long, value_name = "NAMES")]
    pub backends: Option<String>,
    /// Type of the values.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        value_parser = named::<WireType, _>(WireType::ALL.map(WireType::name))
    )]
    pub dtype: WireType,
    /// Timed calls of each size [default: 1000 up to 64KiB, 100 above].
    #[arg(long, value_name = "N", value_parser = timed())]
    pub iterations: Option<usize>,
    /// Write the table to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Draw latency over size to FILE, replacing it.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct CollectivesArgs {
    /// Timed calls of each operation.
    #[arg(long, value_name = "N", default_value = "100", value_parser = timed())]
    pub iterations: usize,
    /// Write the table to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn bench fused
  mpiburn bench fused --layers 2,4,10 --channels 8 --csv fused.csv

The network is one Conv2d(C to C, 3x3, pad 1) with ReLU, applied N times with the same weights, and \
a linear layer; the image is repeated over the C channels. Each table row trains its own network, all from \
the same initial weights on the same batches."
)]
pub struct FusedArgs {
    /// Number of times that the convolution is applied. Each number has its own rows.
    #[arg(
        long,
        value_name = "N,N",
        value_delimiter = ',',
        default_value = "2,10",
        value_parser = up_to(1000, "the outputs of all layers are kept in memory")
    )]
    pub layers: Vec<usize>,
    /// Input and output channels of the convolution.
    #[arg(
        long,
        value_name = "C",
        default_value = "1",
        value_parser = up_to(1024, "a convolution of 1024 channels has 9 million weights, and eight networks are trained")
    )]
    pub channels: usize,
    /// Folder of the data set.
    #[arg(long, value_name = "DIR", default_value = "data/digits")]
    pub data_root: PathBuf,
    /// Train one epoch on the first N samples.
    #[arg(long, value_name = "N", default_value = "12800", value_parser = positive)]
    pub train_samples: usize,
    /// Batch size.
    #[arg(
        long,
        visible_alias = "batch-size",
        value_name = "N",
        default_value = "32",
        value_parser = up_to(65_536, "a batch is kept in memory")
    )]
    pub train_batch_size: usize,
    /// Learning rate of Adam.
    #[arg(long, value_name = "X", default_value = "0.0005", value_parser = above_0)]
    pub lr: f64,
    /// Seed of the initial weights.
    #[arg(long, default_value_t = 123, value_parser = from_0::<u64>)]
    pub seed: u64,
    /// Write the table to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn bench int8
  mpiburn bench int8 results/try --csv int8.csv --json int8.json

RUN needs an int8 model: train with --quantize, or make one with mpiburn quantize. Without RUN, the network has \
initial weights and the samples are noise: only times, memory and bytes are meaningful then. float-burn has Burn's own \
operators. Bytes allocated are the bytes that one inference allocates, after a first inference."
)]
pub struct Int8Args {
    #[command(flatten)]
    pub run: RunArgs,
    /// Network to measure without a RUN: convnet, vgg or mlp.
    #[arg(long, default_value = "convnet", value_parser = one_of::<ModelKind>(), conflicts_with = "named-run")]
    pub model: ModelKind,
    /// Folder of the data set [default: that of the run].
    #[arg(long, value_name = "DIR", requires = "named-run")]
    pub data_root: Option<PathBuf>,
    /// Timed inferences of each model and batch size. If they take more than 10 seconds, fewer are timed, but
    /// at least 5.
    #[arg(long, value_name = "N", default_value = "200", value_parser = timed())]
    pub iterations: usize,
    /// Write the table to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
    /// Write the table and the SIMD level to FILE, replacing it.
    #[arg(long, value_name = "FILE.json")]
    pub json: Option<PathBuf>,
}

/// Maximum of `--pause-us`, in microseconds: ten seconds. No step computes longer without communication.
const LONGEST_PAUSE_US: f64 = 1e7;

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Example:
  mpirun -n 2 --host alpha,beta --bind-to core mpiburn bench link \\
      --csv results/link.csv
  mpiburn report --scaling results/NAME --link results/link.csv

Both ranks send at once, as in an all-reduce; the time of a message is the median exchange. Shapers \
and switches forward a message faster after a pause: set --pause-us to the computing time of the \
step that is to be predicted. The latency is the shortest median. A line that begins at this latency \
is fitted to the times by least squares, weighted by the inverse of the size; the bandwidth is the inverse of its slope."
)]
pub struct LinkArgs {
    /// Transport to send over.
    #[arg(long, default_value = "mpi", value_parser = one_of::<BackendKind>())]
    pub backend: BackendKind,
    /// Message sizes in bytes, KiB or MiB. 4..64KiB is each power of two in the range [default: 4..4MiB, up
    /// to the size that takes 0.1 s].
    #[arg(long, value_name = "SIZES")]
    pub sizes: Option<String>,
    /// Exchanges of each size [default: the number that fits into a second, from 10 to 1000].
    #[arg(long, value_name = "N", value_parser = timed())]
    pub iterations: Option<usize>,
    /// Computing time between two messages, in microseconds.
    #[arg(long, value_name = "US", default_value = "0", value_parser = between(0.0, LONGEST_PAUSE_US))]
    pub pause_us: f64,
    /// Write the times to FILE, replacing it.
    #[arg(long, value_name = "FILE.csv")]
    pub csv: Option<PathBuf>,
}
