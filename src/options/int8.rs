//! Options of `mpiburn quantize` and `mpiburn export`.

use std::path::PathBuf;

use clap::Args;

use crate::quant::{QuantizeKind, WeightScheme};
use crate::values::{one_of, positive};

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn quantize results/try
  mpiburn quantize results/try --weight-scheme tensor
  mpiburn eval results/try --int8"
)]
pub struct QuantizeArgs {
    /// The run: its folder, its run.json, or one of its checkpoints.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// How to quantize: ptq takes the ranges of activations from calibration samples; qat takes all ranges
    /// from a run with --quantize qat.
    #[arg(long, value_name = "KIND", default_value = "ptq", value_parser = one_of::<QuantizeKind>())]
    pub kind: QuantizeKind,
    /// Take the ranges of activations from the first N training samples [default: 1024].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub calibration: Option<usize>,
    /// Scales of the weights: one for each output channel (channel), or one for each layer (tensor)
    /// [default: channel].
    #[arg(long, value_name = "SCHEME", value_parser = one_of::<WeightScheme>())]
    pub weight_scheme: Option<WeightScheme>,
    /// Folder of the data set [default: that of the run].
    #[arg(long, value_name = "DIR")]
    pub data_root: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    args_override_self = true,
    after_help = "\
Examples:
  mpiburn export results/try --out model.onnx
  mpiburn export results/try --out model-int8.onnx --int8"
)]
pub struct ExportArgs {
    /// The run: its folder, its run.json, or one of its checkpoints.
    #[arg(value_name = "RUN")]
    pub run: PathBuf,
    /// File to write; an existing file is replaced.
    #[arg(long, value_name = "FILE.onnx")]
    pub out: PathBuf,
    /// Export the checkpoint's int8 model instead of its float network. The file then contains scales and
    /// zero points.
    #[arg(long)]
    pub int8: bool,
}
