//! Ranges of a network's values, from which scales and zero points follow.

use std::fmt;
use std::str::FromStr;

use burn_fused::int8::{Observer, QParams, Scheme};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::QuantError;
use crate::names;

/// Minimum and maximum.
pub type Range = [f32; 2];

/// How many scales the weights of a layer have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum WeightScheme {
    /// One for each output channel.
    #[default]
    Channel,
    /// One for all.
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
        f.pad(&names::name(self))
    }
}

impl FromStr for WeightScheme {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        names::parse("weight scheme", text)
    }
}

/// The ranges of a network; each is absent until it is observed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ranges {
    /// Of the network's input.
    pub input: Option<Range>,
    /// Of each [`Group`](super::Group), in the order of forward.
    pub groups: Vec<GroupRanges>,
}

/// The ranges of a [`Group`](super::Group).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupRanges {
    /// Of the weights, batch norm folded into them: one for each output channel, or
    /// one for all.
    pub weights: Option<Vec<Range>>,
    /// Of the output, after ReLU.
    pub output: Option<Range>,
}

impl Ranges {
    /// For a network of so many groups.
    pub fn of(groups: usize) -> Self {
        Self { input: None, groups: vec![GroupRanges::default(); groups] }
    }

    /// Scale and zero point of the input.
    ///
    /// # Errors
    /// Where it was never observed, or has none.
    pub fn input_parameters(&self) -> Result<QParams, QuantError> {
        parameters(self.input, "the input")
    }
}

/// Scale and zero point of the activations `of` something.
pub(super) fn parameters(range: Option<Range>, of: &str) -> Result<QParams, QuantError> {
    Observer::from_range(range).parameters(Scheme::Affine).map_err(|error| QuantError::values(of, error))
}
