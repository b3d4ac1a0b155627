//! Options of `mpiburn train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{NetworkArgs, QuantizationArgs, RecipeArgs};
use crate::model::ModelKind;
use crate::names::NameOf;

/// Whether something is done.
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
  mpirun -n 2 --bind-to core mpiburn train --resume results/convnet-1x2-mpi-20260101-120000"
)]
pub struct TrainArgs {
    /// Network to train: convnet (28x28 grey images), vgg (32x32 colour images) or mlp (512 features).
    #[arg(long, default_value = "convnet", value_parser = NameOf::<ModelKind>::parser(), help_heading = "Model")]
    pub model: String,
    #[command(flatten)]
    pub network: NetworkArgs,
    /// Initial weights, as PyTorch names and lays them out.
    #[arg(long, value_name = "FILE.safetensors", help_heading = "Model")]
    pub init: Option<PathBuf>,
    /// Seed of initial weights and shuffling, the same on every rank.
    #[arg(long, default_value_t = 123, help_heading = "Model")]
    pub seed: u64,

    /// Folder of the data set, present on every host.
    #[arg(long, value_name = "DIR", default_value = "data/digits", help_heading = "Data")]
    pub data_root: PathBuf,
    /// Samples of one rank's training batch.
    #[arg(long, visible_alias = "batch-size", value_name = "N", default_value_t = 32, help_heading = "Data")]
    pub train_batch_size: usize,
    /// Samples of one rank's test batch.
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = "Data")]
    pub test_batch_size: usize,
    /// Draw a new order of the training samples for every epoch.
    #[arg(long, help_heading = "Data")]
    pub shuffle: bool,
    /// Train on the first N samples only.
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub train_samples: Option<usize>,
    /// Test on the first N samples only.
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub test_samples: Option<usize>,
    /// Number of classes, to be checked against the data set.
    #[arg(long, value_name = "N", help_heading = "Data")]
    pub num_classes: Option<usize>,
    /// Loader workers; samples lie in memory here, so the number changes nothing.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Data")]
    pub num_workers: usize,

    /// Passes over the training set.
    #[arg(long, value_name = "N", default_value_t = 3, help_heading = "Training")]
    pub epochs: usize,
    /// Batches of one rank whose gradients make one step, with one all-reduce.
    #[arg(long, value_name = "K", default_value_t = 1, help_heading = "Training")]
    pub accumulate: usize,
    #[command(flatten)]
    pub recipe: RecipeArgs,
    #[command(flatten)]
    pub quantization: QuantizationArgs,

    /// Where tensors live: flex, ndarray, tch or tch-cuda:N.
    #[arg(long, default_value = "flex", help_heading = "Distribution")]
    pub device: String,
    /// Whether convolution, ReLU and pooling are one operator.
    #[arg(long, value_enum, value_name = "on|off", default_value = "on", help_heading = "Model")]
    pub fused: Switch,
    /// Transport of the gradients: mpi or gloo.
    #[arg(long, default_value = "mpi", help_heading = "Distribution")]
    pub backend: String,
    /// Network interface of gloo's connections [default: the one that reaches the other hosts].
    #[arg(long, value_name = "NAME", help_heading = "Distribution")]
    pub interface: Option<String>,
    /// gloo's all-reduce algorithm.
    #[arg(long, value_name = "NAME", default_value = "ring", value_parser = ["ring", "bcube", "halving-doubling"], help_heading = "Distribution")]
    pub gloo_algorithm: String,
    /// Order of the sums: native (the backend's own) or ordered (by rank, the same bits everywhere).
    #[arg(long, value_name = "HOW", default_value = "native", help_heading = "Distribution")]
    pub reduce: String,
    /// Type in which gradients travel: f32, bf16 or f16.
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = "Distribution")]
    pub grad_dtype: String,
    /// Whether gradients travel while backward goes on.
    #[arg(long, value_enum, value_name = "on|off", default_value = "on", help_heading = "Distribution")]
    pub overlap: Switch,
    /// Size of a bucket of gradients in MB at most; the first holds 1 MB, and a network smaller
    /// than eight buckets is cut into eight, down to 1 MB.
    #[arg(
        long,
        value_name = "MB",
        default_value_t = 25.0,
        allow_negative_numbers = true,
        help_heading = "Distribution"
    )]
    pub bucket_mb: f64,
    /// Seconds after which a collective that does not end ends the job.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 120.0,
        allow_negative_numbers = true,
        help_heading = "Distribution"
    )]
    pub comm_timeout: f64,
    /// Number of ranks, to be checked against what mpirun started.
    #[arg(long, value_name = "N", help_heading = "Distribution")]
    pub world_size: Option<usize>,
    /// Threads of one rank.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Distribution")]
    pub threads: usize,

    /// Run directory, on rank 0's host [default: results/<model>-<topology>-<backend>-<time>].
    #[arg(long, visible_alias = "log-path", value_name = "DIR", help_heading = "Results")]
    pub out: Option<PathBuf>,
    /// Empty the run directory first if it exists.
    #[arg(long, help_heading = "Results")]
    pub overwrite: bool,
    /// Steps between two lines of training loss and accuracy.
    #[arg(long, value_name = "STEPS", default_value_t = 100, help_heading = "Results")]
    pub log_every: usize,
    /// Steps between two checkpoints, besides the one at each epoch's end.
    #[arg(long, value_name = "STEPS", help_heading = "Results")]
    pub checkpoint_every: Option<usize>,
    /// Go on with the run in DIR; every other option comes from its run.json.
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    pub resume: Option<PathBuf>,

    /// Names of the options that were typed, rather than left at their defaults.
    #[arg(skip)]
    pub typed: Vec<String>,
}
