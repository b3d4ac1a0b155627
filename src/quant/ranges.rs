//! Ranges of a network's values, which determine scales and zero points.

use std::fmt;

use burn_fused::int8::{Observer, QParams, Scheme};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::QuantError;
use crate::values;

/// Minimum and maximum.
pub type Range = [f32; 2];

/// Granularity of weight scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WeightScheme {
    /// One per output channel.
    #[default]
    Channel,
    /// One per tensor.
    Tensor,
}

impl WeightScheme {
    /// Scales of a layer with this number of output channels.
    pub fn scales(self, outputs: usize) -> usize {
        match self {
            Self::Channel => outputs,
            Self::Tensor => 1,
        }
    }
}

impl fmt::Display for WeightScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&values::name(self))
    }
}

/// The ranges of a network; each is `None` until it is observed.
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
    /// Ranges of the weights, with batch norm folded in: one per output channel, or
    /// one for all.
    pub weights: Option<Vec<Range>>,
    /// Range of the output, after ReLU.
    pub output: Option<Range>,
}

impl Ranges {
    /// Unobserved ranges of a network with this number of groups.
    pub fn of(groups: usize) -> Self {
        Self { input: None, groups: vec![GroupRanges::default(); groups] }
    }
}

/// Scale and zero point of the activations `of` a layer or the input.
pub(super) fn parameters(range: Option<Range>, of: &str) -> Result<QParams, QuantError> {
    Observer::from_range(range).parameters(Scheme::Affine).map_err(|error| QuantError::values(of, error))
}
