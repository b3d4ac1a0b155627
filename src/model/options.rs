//! Options of a network, in addition to its kind.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu, sigmoid, tanh};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::names;

/// Options of a kind of network; the defaults are the experiments'.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkOptions {
    /// Activation after every layer but the last.
    pub activation: Activation,
    /// Whether a batch norm follows each convolution. The mlp always has one.
    pub batch_norm: bool,
    /// Dropout probability of features before the last layers of the head, from
    /// 0 to less than 1; 0 disables dropout.
    pub dropout: f64,
    /// Width of the mlp's hidden layer, if not the default.
    pub hidden: Option<usize>,
}

/// An element-wise activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x Φ(x)` with the normal distribution's Φ, exact, as PyTorch's default:
    /// Hendrycks and Gimpel, "Gaussian error linear units" (2016).
    Gelu,
}

impl Activation {
    /// Applies the function to each element of `x`.
    pub fn of<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Relu => relu(x),
            Self::Tanh => tanh(x),
            Self::Sigmoid => sigmoid(x),
            Self::Gelu => gelu(x),
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&names::name(self))
    }
}

impl FromStr for Activation {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        names::parse("activation", text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_written_alike_everywhere() {
        for activation in Activation::value_variants() {
            assert_eq!(activation.to_string().parse(), Ok(*activation));
            assert_eq!(serde_json::to_value(activation).unwrap(), activation.to_string());
        }
        let message = "swish".parse::<Activation>().unwrap_err();
        assert_eq!(message, "unknown activation swish: choose relu, tanh, sigmoid or gelu");
    }
}
