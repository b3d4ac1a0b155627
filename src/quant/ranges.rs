//! Ranges of a network's values, from which scales and zero points are computed.

use burn_fused::int8::{Observer, QParams, Scheme};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::{CALIBRATION, PostTraining, QuantError};
use crate::values::{Optional, Positive, display_names, one_of, one_of_or_none, or_none};

/// Minimum and maximum.
pub type Range = [f32; 2];

/// Which weights of a layer share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WeightScheme {
    /// One scale for each output channel.
    #[default]
    Channel,
    /// One scale for all weights of a layer.
    Tensor,
}

display_names!(WeightScheme, QuantizeKind);

impl WeightScheme {
    /// Returns the number of scales of a layer with this number of output channels.
    pub fn scales(self, outputs: usize) -> usize {
        match self {
            Self::Channel => outputs,
            Self::Tensor => 1,
        }
    }
}

/// The ranges of a network. Each range is `None` until it is observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// Range of the network's input.
    pub input: Option<Range>,
    /// Ranges of each [`Group`](super::Group), in the order of forward.
    pub groups: Vec<GroupRanges>,
}

/// The ranges of a [`Group`](super::Group).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupRanges {
    /// Ranges of the weights, with batch norm folded in: one range for each output channel, or one for all.
    pub weights: Option<Vec<Range>>,
    /// Range of the output, after ReLU.
    pub output: Option<Range>,
}

impl Ranges {
    /// Returns unobserved ranges for a network with this number of groups.
    pub fn for_groups(groups: usize) -> Self {
        Self { input: None, groups: vec![GroupRanges::default(); groups] }
    }
}

/// Computes the scale and zero point for values of this `range`. Errors name `layer`, which says whose values
/// they are: `the input`, or the output of a layer.
pub(super) fn parameters(range: Option<Range>, layer: &str) -> Result<QParams, QuantError> {
    Observer::from_range(range).parameters(Scheme::Affine).map_err(|error| QuantError::values(layer, error))
}

/// Kind of quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum QuantizeKind {
    /// Quantization-aware training: training computes with fake-quantized values.
    Qat,
    /// Static post-training quantization: ranges of activations are observed on calibration samples, after
    /// each epoch of a float training.
    Ptq,
}

/// Quantization of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Quantization")]
pub struct Quantization {
    /// Make a model of 8-bit integers: qat trains with fake quantization; ptq trains in floats and takes the
    /// ranges of activations from calibration samples. After each epoch, the int8 model is tested too.
    #[arg(long, value_name = "KIND", default_value = "none", value_parser = one_of_or_none::<QuantizeKind>())]
    pub quantize: Optional<QuantizeKind>,
    /// The same as --quantize qat.
    #[arg(long)]
    #[serde(skip)]
    pub quantized: bool,
    /// Scales of the weights: one for each output channel (channel), or one for each layer (tensor).
    #[arg(long, value_name = "SCHEME", default_value = "channel", value_parser = one_of::<WeightScheme>())]
    pub weight_scheme: WeightScheme,
    /// Freeze the ranges of weights and activations after this many epochs of qat.
    #[arg(long, value_name = "EPOCHS", default_value = "none", value_parser = or_none::<Positive>)]
    pub freeze_after: Optional<Positive>,
    /// Fold batch norm into the weights after this many epochs of qat, with batch norm's running statistics.
    /// Until then, batch norm uses the statistics of each batch.
    #[arg(long, value_name = "EPOCHS", default_value = "none", value_parser = or_none::<Positive>)]
    pub fold_after: Optional<Positive>,
    /// Training samples that ptq observes at each epoch's end [default: 1024].
    #[arg(long, value_name = "N", default_value = "none", value_parser = or_none::<Positive>)]
    pub calibration: Optional<Positive>,
}

impl Quantization {
    /// Returns the options of post-training quantization; `None` if the run does not use it.
    pub fn post_training(&self) -> Option<PostTraining> {
        (self.quantize? == QuantizeKind::Ptq).then(|| PostTraining {
            scheme: self.weight_scheme,
            calibration: self.calibration.map_or(CALIBRATION, Positive::get),
        })
    }
}
