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

    /// Checks ranges read from a file: finite, minimum first, and as many ranges of
    /// weights as `scales` requires for each group.
    ///
    /// # Errors
    /// If a range is invalid; the first is named, with the reason.
    pub fn check(&self, scales: &[usize]) -> Result<(), QuantError> {
        if self.groups.len() != scales.len() {
            return Err(QuantError::OtherNetwork { found: self.groups.len(), expected: scales.len() });
        }
        let check = |of: String, ranges: &[Range]| match ranges.iter().find(|range| !is_range(range)) {
            Some(&[min, max]) => Err(QuantError::Range { of, min, max }),
            None => Ok(()),
        };
        check("the input".into(), self.input.as_slice())?;
        for (at, (group, &scales)) in self.groups.iter().zip(scales).enumerate() {
            check(format!("the output of layer {}", at + 1), group.output.as_slice())?;
            let Some(weights) = &group.weights else { continue };
            if weights.len() != scales {
                return Err(QuantError::WeightRanges {
                    layer: at + 1,
                    found: weights.len(),
                    expected: scales,
                });
            }
            check(format!("the weights of layer {}", at + 1), weights)?;
        }
        Ok(())
    }

    /// Scale and zero point of the input.
    ///
    /// # Errors
    /// If it was never observed, or the range is invalid.
    pub fn input_parameters(&self) -> Result<QParams, QuantError> {
        parameters(self.input, "the input")
    }
}

/// Whether these are a valid minimum and maximum.
fn is_range(&[min, max]: &Range) -> bool {
    min.is_finite() && max.is_finite() && min <= max
}

/// Scale and zero point of the activations `of` a layer or the input.
pub(super) fn parameters(range: Option<Range>, of: &str) -> Result<QParams, QuantError> {
    Observer::from_range(range).parameters(Scheme::Affine).map_err(|error| QuantError::values(of, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_ranges_are_named() {
        let good = Ranges {
            input: Some([-1.0, 1.0]),
            groups: vec![GroupRanges { weights: Some(vec![[-0.5, 0.5]; 4]), output: Some([0.0, 2.0]) }],
        };
        assert_eq!(good.check(&[4]), Ok(()));
        assert_eq!(Ranges::of(2).check(&[4, 1]), Ok(()), "not observed yet");
        let check = |change: fn(&mut Ranges)| {
            let mut ranges = good.clone();
            change(&mut ranges);
            ranges.check(&[4]).unwrap_err().to_string()
        };
        for (message, expected) in [
            (check(|ranges| ranges.input = Some([3.0, -3.0])), "the range of the input is 3..-3"),
            (
                check(|ranges| ranges.groups[0].output = Some([f32::NAN, 1.0])),
                "the output of layer 1 is NaN..1",
            ),
            (
                check(|ranges| ranges.groups[0].weights = Some(vec![])),
                "layer 1 has 0 ranges of weights, and needs 4",
            ),
            (check(|ranges| ranges.groups.clear()), "the ranges are those of 0 layers"),
        ] {
            assert!(message.contains(expected), "{message}");
        }
    }
}
