//! Options of a network, apart from its kind.

use burn_fused::nn::activation::{Activation, Gelu, Relu, Sigmoid, Tanh};
use burn_fused::nn::{Dropout, DropoutConfig};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::values::{Below1, Optional, bounded, display_names, one_of, or_none, up_to};

/// Maximum width of the mlp's hidden layer. With 512 features, each unit has 512 weights of 4 bytes, so the
/// layer takes at most 2 GiB.
const MAX_HIDDEN: usize = 1 << 20;

bounded! {
    /// A width of a hidden layer.
    Hidden(usize) = up_to(MAX_HIDDEN, "with 512 features, a layer of this width takes 2 GiB");
}

/// Options of a network. The defaults are the networks of `docs/experiments.md`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Args, Serialize, Deserialize)]
#[command(next_help_heading = "Model")]
pub struct NetworkOptions {
    /// Activation function after every layer except the last.
    #[arg(long, value_name = "NAME", default_value = "relu", value_parser = one_of::<ActivationKind>())]
    pub activation: ActivationKind,
    /// Batch norm between each convolution and its activation; mlp always has batch norm.
    #[arg(long)]
    pub batch_norm: bool,
    /// Dropout probability in training. Dropout precedes the last layer; in vgg it precedes the
    /// second-to-last layer.
    #[arg(long, value_name = "P", default_value = "0")]
    pub dropout: Below1,
    /// Width of mlp's hidden layer [default: 32].
    #[arg(long, value_name = "N", default_value = "none", value_parser = or_none::<Hidden>)]
    pub hidden: Optional<Hidden>,
}

impl NetworkOptions {
    /// Returns the activation as a layer.
    pub fn activation_layer(&self) -> Activation {
        match self.activation {
            ActivationKind::Relu => Relu::new().into(),
            ActivationKind::Tanh => Tanh::new().into(),
            ActivationKind::Sigmoid => Sigmoid::new().into(),
            ActivationKind::Gelu => Gelu::new().into(),
        }
    }

    /// Returns the dropout layer; `None` if the probability is 0.
    pub fn dropout_layer(&self) -> Option<Dropout> {
        let probability = self.dropout.get();
        (probability > 0.0).then(|| DropoutConfig::new(probability).init())
    }
}

/// An element-wise activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ActivationKind {
    /// `max(x, 0)`.
    #[default]
    Relu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x Φ(x)` with the normal distribution function Φ, computed exactly, as in PyTorch by default:
    /// Hendrycks and Gimpel, "Gaussian error linear units" (2016).
    Gelu,
}

display_names!(ActivationKind);

impl ActivationKind {
    /// Returns the kind of an activation layer of one of the networks.
    pub fn from_layer(layer: &Activation) -> Self {
        match layer {
            Activation::Relu(_) => Self::Relu,
            Activation::Tanh(_) => Self::Tanh,
            Activation::Sigmoid(_) => Self::Sigmoid,
            Activation::Gelu(_) => Self::Gelu,
            other => unreachable!("no option has {other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_written_alike_everywhere() {
        for activation in ActivationKind::value_variants() {
            assert_eq!(serde_json::to_value(activation).unwrap(), activation.to_string());
        }
    }
}
