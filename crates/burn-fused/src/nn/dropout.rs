//! Dropout.

use burn::config::Config;
use burn::module::{Flag, Module, Param};
use burn::tensor::{Device, Tensor};

use super::convert::{converts, shown_as_burns};
use crate::dropout::{Mask, dropout};

/// Configuration of a [`Dropout`] layer, as [`burn::nn::DropoutConfig`].
#[derive(Config, Debug)]
pub struct DropoutConfig {
    /// Probability of a value to be set to zero.
    pub prob: f64,
}

converts!(DropoutConfig of burn::nn::DropoutConfig { prob });

impl DropoutConfig {
    /// The layer, which is active.
    ///
    /// # Panics
    /// If the probability is not in the range [0, 1).
    pub fn init(&self) -> Dropout {
        burn::nn::DropoutConfig::from(self.clone()).init().into()
    }
}

/// Dropout: Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting" (2014). As
/// [`burn::nn::Dropout`], without a tensor of random numbers.
///
/// The random numbers are a function of one number that is drawn from the generator of the device: a step repeats
/// after [`Device::seed`], with other numbers than Burn's layer would draw.
#[derive(Module, Debug)]
#[module(custom_display)]
pub struct Dropout {
    /// Probability of a value to be set to zero. Other values are scaled by `1 / (1 - prob)`.
    pub prob: f64,
    /// Whether the layer is active on a device with autodiff; `freeze` clears it.
    pub training: Param<Flag>,
}

converts!(Dropout of burn::nn::Dropout { prob, training });
shown_as_burns!(Dropout of burn::nn::Dropout);

impl Dropout {
    /// `input` with values set to zero at random; `input` itself without autodiff, or if the layer is frozen.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        dropout(input, self)
    }

    /// A new mask for values on `device`; none if the layer is inactive there.
    pub(crate) fn mask(&self, device: &Device) -> Option<Mask> {
        if self.training.is_enabled() { Mask::draw(self.prob, device) } else { None }
    }
}
