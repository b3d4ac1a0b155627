//! Quantization options of a run.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{CALIBRATION, PostTraining, QatOptions, WeightScheme};
use crate::names;

/// Kind of quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum QuantizeKind {
    /// Quantization-aware training: training computes with fake-quantized values.
    Qat,
    /// Static post-training quantization: ranges of activations are observed on
    /// calibration samples, after each epoch of a float training.
    Ptq,
    /// Dynamic quantization: only weights are stored as integers; activations are
    /// quantized by the range of each batch.
    Dynamic,
}

impl fmt::Display for QuantizeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&names::name(self))
    }
}

impl FromStr for QuantizeKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        names::parse("quantization", text)
    }
}

/// Quantization of a run, as stored in `run.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Quantization {
    /// Kind; `None` for a float run.
    pub quantize: Option<QuantizeKind>,
    /// Scales of weights.
    pub weight_scheme: WeightScheme,
    /// Epochs after which observers are frozen.
    pub freeze_after: Option<usize>,
    /// Epochs after which batch norm uses its running statistics.
    pub fold_after: Option<usize>,
    /// Calibration samples of static post-training quantization.
    pub calibration: Option<usize>,
}

impl Quantization {
    /// Options of quantization-aware training.
    pub fn qat(&self) -> QatOptions {
        let Self { weight_scheme, freeze_after, fold_after, .. } = *self;
        QatOptions { scheme: weight_scheme, freeze_after, fold_after }
    }

    /// How the int8 model follows from the float weights; `None` unless it does.
    pub fn post_training(&self) -> Option<PostTraining> {
        let scheme = self.weight_scheme;
        match self.quantize? {
            QuantizeKind::Qat => None,
            QuantizeKind::Ptq => {
                Some(PostTraining::Static { calibration: self.calibration.unwrap_or(CALIBRATION), scheme })
            }
            QuantizeKind::Dynamic => Some(PostTraining::Dynamic { scheme }),
        }
    }
}
