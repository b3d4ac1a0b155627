//! Options of `mpiburn train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{NetworkArgs, QuantizationArgs, RecipeArgs, TraceArgs};
use crate::device::DeviceKind;
use crate::model::ModelKind;
use crate::names::OneOf;
use crate::train::Precision;
use burn_fused::conv::Algorithm;
use burn_mpi::{Backend, Reduction, WireType};

/// gloo's all-reduce algorithms, also for builds without gloo.
pub const GLOO_ALGORITHMS: [&str; 3] = ["ring", "bcube", "halving-doubling"];

/// A switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

impl Switch {
    pub fn is_on(self) -> bool {
        self == Self::On
    }
}

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
  mpirun -n 2 --bind-to core mpiburn train --resume results/try --set lr=1e-4 --set epochs=10"
)]
pub struct TrainArgs {
    /// Network to train: convnet (28x28 grey images), vgg (32x32 colour images) or mlp (512 features).
    #[arg(long, default_value = "convnet", value_parser = OneOf::values::<ModelKind>(), help_heading = "Model")]
    pub model: String,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Initial weights, with PyTorch's parameter names and layouts.
    #[arg(long, value_name = "FILE.safetensors", help_heading = "Model")]
    pub init: Option<PathBuf>,
    /// Seed of initial weights and shuffling, the same on every rank.
    #[arg(long, default_value_t = 123, help_heading = "Model")]
    pub seed: u64,

    /// Folder of the data set, present on every host.
    #[arg(long, value_name = "DIR", default_value = "data/digits", help_heading = "Data")]
    pub data_root: PathBuf,
    /// Training batch size per rank.
    #[arg(
        long,
        visible_aliases = ["batch-size", "batch"],
        value_name = "N",
        default_value_t = 32,
        help_heading = "Data"
    )]
    pub train_batch_size: usize,
    /// Test batch size per rank.
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Data")]
    pub test_batch_size: usize,
    /// Shuffle the training samples in every epoch.
    #[arg(long, help_heading = "Data")]
    pub shuffle: bool,
    /// Train on the first N samples only.
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub train_samples: Option<usize>,
    /// Test on the first N samples only.
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub test_samples: Option<usize>,
    /// Expected number of classes; an error if the data set has another number.
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub num_classes: Option<usize>,
    /// Number of data loader workers, accepted without effect: samples are in memory.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Data")]
    pub num_workers: usize,

    /// Number of epochs.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Training")]
    pub epochs: usize,
    /// Gradient accumulation: batches per rank and step, with one all-reduce.
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = "Training")]
    pub accumulate: usize,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub quantization: QuantizationArgs,

    /// Type of activations and products: f32 (no), bf16, or fp16 with loss scaling. Weights,
    /// optimizer, loss and batch norm's statistics stay in f32.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "no",
        value_parser = OneOf::values::<Precision>(),
        help_heading = "Training"
    )]
    pub precision: String,
    /// Compute device. All but flex need a build of their own: make build DEVICES=ndarray,tch, or
    /// DEVICES=cuda.
    #[arg(
        long,
        default_value = "flex",
        value_parser = OneOf::names(DeviceKind::NAMES),
        help_heading = "Distribution"
    )]
    pub device: String,
    /// Fuse convolution, ReLU and pooling into one operator.
    #[arg(long, value_enum, value_name = "on|off", default_value = "on", help_heading = "Model")]
    pub fused: Switch,
    /// Algorithm of convolutions with many channels on flex, where operators are fused.
    #[arg(
        long,
        value_name = "HOW",
        default_value = "winograd",
        value_parser = OneOf::names(Algorithm::ALL.map(Algorithm::name)),
        help_heading = "Model"
    )]
    pub conv: String,
    /// Transport of the gradients; nccl between GPUs.
    #[arg(
        long,
        default_value = "mpi",
        value_parser = OneOf::names(Backend::ALL.map(Backend::name)),
        help_heading = "Distribution"
    )]
    pub backend: String,
    /// Network interface of gloo's connections [default: the one with a route to the other hosts].
    #[arg(long, value_name = "NAME", help_heading = "Distribution")]
    pub interface: Option<String>,
    /// gloo's all-reduce algorithm.
    #[arg(long, value_name = "NAME", default_value = "ring", value_parser = OneOf::names(GLOO_ALGORITHMS), help_heading = "Distribution")]
    pub gloo_algorithm: String,
    /// Order of summation: native (the backend's) or ordered (by rank, the same bits everywhere).
    #[arg(
        long,
        value_name = "HOW",
        default_value = "native",
        value_parser = OneOf::names(Reduction::ALL.map(Reduction::name)),
        help_heading = "Distribution"
    )]
    pub reduce: String,
    /// Data type of the gradients' all-reduce.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "f32",
        value_parser = OneOf::names(WireType::ALL.map(WireType::name)),
        help_heading = "Distribution"
    )]
    pub grad_dtype: String,
    /// Overlap the gradients' all-reduce with backward.
    #[arg(long, value_enum, value_name = "on|off", default_value = "on", help_heading = "Distribution")]
    pub overlap: Switch,
    /// Maximum size of a gradient bucket in MB; the first has at most 1 MB, and a network smaller
    /// than eight buckets is split into eight of at least 1 MB.
    #[arg(
        long,
        value_name = "MB",
        default_value_t = 25.0,
        allow_negative_numbers = true,
        help_heading = "Distribution"
    )]
    pub bucket_mb: f64,
    /// Abort if a collective takes longer than this many seconds; ranks are asked for 6 more who is missing.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120.0,
        allow_negative_numbers = true,
        help_heading = "Distribution"
    )]
    pub comm_timeout: f64,
    /// After this many seconds in a collective, print whom the rank waits for.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60.0,
        allow_negative_numbers = true,
        help_heading = "Distribution"
    )]
    pub stall_warning: f64,
    /// Expected number of ranks; an error if mpirun started another number.
    #[arg(long, value_name = "N", help_heading = "Distribution")]
    pub world_size: Option<usize>,
    /// Number of threads per rank.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Distribution")]
    pub threads: usize,

    /// Run directory, on rank 0's host [default: results/MODEL-TOPOLOGY-BACKEND-TIME].
    #[arg(long, visible_alias = "log-path", value_name = "DIR", help_heading = "Results")]
    pub out: Option<PathBuf>,
    /// Replace the run in the directory, if there is one, with all in its folders; other files beside them stay.
    #[arg(long, help_heading = "Results")]
    pub overwrite: bool,
    /// Steps between log lines of training loss and accuracy.
    #[arg(long, value_name = "STEPS", default_value_t = 100, help_heading = "Results")]
    pub log_every: usize,
    /// Steps between checkpoints, in addition to the one after each epoch.
    #[arg(long, value_name = "STEPS", help_heading = "Results")]
    pub checkpoint_every: Option<usize>,
    /// Checkpoints to keep: the newest K, and the one with the highest test accuracy [default: the
    /// newest 3].
    #[arg(long, value_name = "K", help_heading = "Results")]
    pub keep: Option<usize>,
    /// Resume the run in DIR; all other options but --set and --trace come from its run.json.
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub resume: Option<PathBuf>,
    /// With --resume: change an option of the run, such as lr=1e-4; run.json notes it. Repeatable.
    #[arg(long, value_name = "KEY=VALUE", requires = "resume", help_heading = "Results")]
    pub set: Vec<String>,

    /// Note each step in the run directory, for `launch --restart`, which adds this option.
    #[arg(long, hide = true)]
    pub note_steps: bool,

    #[command(flatten)]
    pub trace: TraceArgs,

    /// Names of the options that were given, rather than left at their defaults.
    #[arg(skip)]
    pub typed: Vec<String>,
}
