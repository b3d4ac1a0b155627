//! Options of `mpiburn train` about quantization.

use clap::Args;

use crate::names::OneOf;
use crate::quant::{QuantizeKind, WeightScheme};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Quantization")]
pub struct QuantizationArgs {
    /// 8-bit integers: qat (trained with fake quantization), ptq (trained in floats; ranges of
    /// activations from calibration samples) or dynamic (trained in floats; weights alone). At each
    /// epoch's end the int8 model is tested on the test set.
    #[arg(long, value_name = "KIND", value_parser = OneOf::values::<QuantizeKind>())]
    pub quantize: Option<String>,
    /// The same as --quantize qat.
    #[arg(long)]
    pub quantized: bool,
    /// Scales of weights: one for each output channel, or one for a layer's tensor [default: channel].
    #[arg(long, value_name = "SCHEME", value_parser = OneOf::values::<WeightScheme>())]
    pub weight_scheme: Option<String>,
    /// Keep all ranges as they are after so many epochs of qat.
    #[arg(long, value_name = "EPOCH")]
    pub freeze_after: Option<usize>,
    /// Have batch norm use its running statistics after so many epochs of qat.
    #[arg(long, value_name = "EPOCH")]
    pub fold_after: Option<usize>,
    /// Training samples that ptq observes at each epoch's end [default: 1024].
    #[arg(long, value_name = "N")]
    pub calibration: Option<usize>,
}
