//! The layers of a network in the order of forward, for operation counts,
//! quantization and export.

use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;

use super::{Activation, BatchNorm, Dropout};

/// A layer with the name of PyTorch's module: the prefix of its parameters'
/// names.
#[derive(Debug, Clone)]
pub struct NamedLayer<'a> {
    /// For example `conv1` or `block2.3`.
    pub name: String,
    /// The layer.
    pub layer: Layer<'a>,
}

/// A layer of one of the networks.
#[derive(Debug, Clone, Copy)]
pub enum Layer<'a> {
    /// Convolution.
    Conv(&'a Conv2d),
    /// Batch normalisation.
    Norm(&'a BatchNorm),
    /// An element-wise activation.
    Activation(Activation),
    /// Maximum of each window.
    Pool(&'a MaxPool2d),
    /// `[batch, channels, height, width]` to `[batch, features]`.
    Flatten,
    /// Dropout, which has an effect only in training.
    Dropout(&'a Dropout),
    /// Linear layer.
    Linear(&'a Linear),
}

impl<'a> Layer<'a> {
    /// The layer with its name.
    pub fn named(self, name: impl Into<String>) -> NamedLayer<'a> {
        NamedLayer { name: name.into(), layer: self }
    }
}
