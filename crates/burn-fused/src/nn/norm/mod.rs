//! Normalisation layers: everything in [`burn::nn::norm`], with fused layers that replace Burn's layers of
//! the same names.

mod batch_norm;
mod normalization;
#[cfg(test)]
mod tests;

use burn::module::{Content, DisplaySettings, Module, ModuleDisplay, Param};
use burn::tensor::{Device, Tensor, assert_shape};

use super::convert::{config, module, shown_as_burns};
use crate::kernels::norm::layer_norm::Rule;
use crate::ops::norm::normalise_rows;

// As in Burn, `nn` and `nn::norm` both export these types.
pub use super::{GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig};
pub use batch_norm::{BatchNorm, BatchNormConfig};
pub use burn::nn::norm::*;
pub use normalization::{Normalization, NormalizationConfig};

config! {
    /// Configuration of a [`LayerNorm`] layer; replaces [`burn::nn::LayerNormConfig`].
    pub struct LayerNormConfig of burn::nn::LayerNormConfig {
        /// Number of features.
        pub d_model: usize,
        /// Number that is added to the variance.
        #[config(default = 1e-5)]
        pub epsilon: f64,
        /// Whether a bias, beta, is added.
        #[config(default = true)]
        pub bias: bool,
    }
}

impl LayerNormConfig {
    /// Creates a layer with gamma 1 and beta 0.
    pub fn init(&self, device: &Device) -> LayerNorm {
        let burn::nn::LayerNorm { gamma, beta, .. } =
            burn::nn::LayerNormConfig::from(self.clone()).init(device);
        LayerNorm { gamma, beta, epsilon: self.epsilon }
    }
}

/// Layer normalisation as one operator: Ba et al., "Layer normalization" (2016). Replaces
/// [`burn::nn::LayerNorm`].
///
/// Computes `(x - mean) / sqrt(variance + epsilon) * gamma + beta` for each row.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct LayerNorm {
    /// Scale `[d_model]`.
    pub gamma: Param<Tensor<1>>,
    /// Bias `[d_model]`.
    pub beta: Option<Param<Tensor<1>>>,
    /// Number that is added to the variance.
    pub(crate) epsilon: f64,
}

impl From<LayerNorm> for burn::nn::LayerNorm {
    fn from(ours: LayerNorm) -> Self {
        // The size 1 does not matter: parameters are initialised at their first use, and the next lines
        // replace them before their first use.
        let config = burn::nn::LayerNormConfig::new(1).with_epsilon(ours.epsilon);
        let mut burns = config.with_bias(false).init(&Device::flex());
        (burns.gamma, burns.beta) = (ours.gamma, ours.beta);
        burns
    }
}

/// Burn's field `epsilon` is private. The conversion reads `epsilon` from the layer's display, which shows
/// all digits.
impl From<burn::nn::LayerNorm> for LayerNorm {
    fn from(burns: burn::nn::LayerNorm) -> Self {
        // Display a copy of the layer with other parameters. To display the layer's own parameters would
        // initialise them, and an initialised parameter is no longer a leaf of the graph after it moves to
        // another device.
        let mut shown = burns.clone();
        shown.gamma = Param::from_tensor(Tensor::empty([0], &Device::flex()));
        let content = shown.custom_content(Content::new(DisplaySettings::new()));
        let attributes = content.map(|content| content.attributes).unwrap_or_default();
        let epsilon = attributes.iter().find(|attribute| attribute.name == "epsilon");
        let epsilon = epsilon.and_then(|epsilon| epsilon.value.parse().ok());
        let epsilon = epsilon.expect("Burn's LayerNorm displays its epsilon");
        Self { gamma: burns.gamma, beta: burns.beta, epsilon }
    }
}

shown_as_burns!(LayerNorm of burn::nn::LayerNorm);

impl LayerNorm {
    /// Returns the normalised rows of `input` `[..., d_model]`.
    ///
    /// # Panics
    /// If the last axis of `input` is not `d_model`.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let [d_model] = self.gamma.shape().dims();
        assert_shape!(input, [.., d_model]);
        let rule = Rule { epsilon: self.epsilon as f32, centred: true };
        let (gamma, beta) = (self.gamma.val(), self.beta.as_ref().map(Param::val));
        normalise_rows(input, gamma, beta, rule, |x| burn::nn::LayerNorm::from(self.clone()).forward(x))
    }
}

config! {
    /// Configuration of an [`RmsNorm`] layer; replaces [`burn::nn::RmsNormConfig`].
    pub struct RmsNormConfig of burn::nn::RmsNormConfig {
        /// Number of features.
        pub d_model: usize,
        /// Number that is added to the mean of squares.
        #[config(default = 1e-5)]
        pub epsilon: f64,
    }

    /// Creates a layer with gamma 1.
    ///
    /// # Panics
    /// If `epsilon` is not positive.
    pub fn init(&self, device: &Device) -> RmsNorm;
}

module! {
    /// RMS normalisation as one operator: Zhang and Sennrich, "Root mean square layer normalization" (2019).
    /// Replaces [`burn::nn::RmsNorm`].
    ///
    /// Computes `x / sqrt(mean(x²) + epsilon) * gamma` for each row.
    pub struct RmsNorm of burn::nn::RmsNorm {
        /// Scale `[d_model]`.
        pub gamma: Param<Tensor<1>>,
        /// Number that is added to the mean of squares.
        pub epsilon: f64,
    }
}

impl RmsNorm {
    /// Returns the normalised rows of `x` `[..., d_model]`.
    ///
    /// # Panics
    /// If the last axis of `x` is not `d_model`.
    #[track_caller]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let [d_model] = self.gamma.shape().dims();
        assert_shape!(x, [.., d_model]);
        let rule = Rule { epsilon: self.epsilon as f32, centred: false };
        normalise_rows(x, self.gamma.val(), None, rule, |x| burn::nn::RmsNorm::from(self.clone()).forward(x))
    }
}
