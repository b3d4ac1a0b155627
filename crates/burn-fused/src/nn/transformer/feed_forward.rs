//! The position-wise feed-forward network of a transformer layer.

use burn::nn::Initializer;
use burn::nn::transformer as burns;
use burn::tensor::{Device, Tensor, assert_shape};

use crate::nn::activation::{Activation, ActivationConfig};
use crate::nn::convert::{config, module};
use crate::nn::{Dropout, Linear};

config! {
    /// Configuration of [`PositionWiseFeedForward`]; replaces
    /// [`burn::nn::transformer::PositionWiseFeedForwardConfig`].
    pub struct PositionWiseFeedForwardConfig of burns::PositionWiseFeedForwardConfig {
        /// Width of an input and of an output.
        pub d_model: usize,
        /// Width between the two layers.
        pub d_ff: usize,
        /// Probability that dropout sets a value between the layers to zero in training.
        #[config(default = 0.1)]
        pub dropout: f64,
        /// How parameters are initialised.
        #[config(default = "Initializer::KaimingUniform{gain: 1.0 / 3f64.sqrt(), fan_out_only: false}")]
        pub initializer: Initializer,
        /// Activation between the layers.
        #[config(default = "ActivationConfig::Gelu")]
        pub activation: ActivationConfig,
    }

    /// Creates a network with new parameters.
    ///
    /// # Panics
    /// If `dropout` is not in the range [0, 1).
    pub fn init(&self, device: &Device) -> PositionWiseFeedForward;
}

module! {
    /// Two linear layers with an activation between them; replaces
    /// [`burn::nn::transformer::PositionWiseFeedForward`]. If the activation is ReLU or GELU, the operator of
    /// the first layer computes it.
    ///
    /// As with Burn's module, a record does not include parameters of the activation.
    pub struct PositionWiseFeedForward of burns::PositionWiseFeedForward {
        /// Linear layer, `d_model` to `d_ff`.
        pub linear_inner: Linear,
        /// Linear layer, `d_ff` to `d_model`.
        pub linear_outer: Linear,
        /// Dropout between the layers.
        pub dropout: Dropout,
        /// Activation between the layers.
        #[module(skip)]
        pub activation: Activation,
    }
}

impl PositionWiseFeedForward {
    /// Returns the outputs `[..., d_model]` for `input` `[..., d_model]`.
    ///
    /// # Panics
    /// If the last axis of `input` is not `d_model`.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [d_model, _] = self.linear_inner.weight.shape().dims();
        assert_shape!(input, [.., d_model]);
        let inner = match self.activation.epilogue() {
            Some(activation) => self.linear_inner.forward_activated(input, activation),
            None => self.activation.forward(self.linear_inner.forward(input)),
        };
        self.linear_outer.forward(self.dropout.forward(inner))
    }
}
