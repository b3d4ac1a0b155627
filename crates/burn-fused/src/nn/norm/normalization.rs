//! An enum of all normalisation layers, for models whose configuration selects the layer.

use burn::config::Config;
use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig, LayerNorm,
    LayerNormConfig, RmsNorm, RmsNormConfig,
};
use crate::nn::Identity;
use crate::nn::convert::variants;

/// Configuration of a [`Normalization`] layer; replaces [`burn::nn::norm::NormalizationConfig`].
#[derive(Config, Debug)]
#[non_exhaustive]
pub enum NormalizationConfig {
    /// No normalisation.
    Identity,
    /// Batch normalisation.
    Batch(BatchNormConfig),
    /// Group normalisation.
    Group(GroupNormConfig),
    /// Instance normalisation.
    Instance(InstanceNormConfig),
    /// Layer normalisation.
    Layer(LayerNormConfig),
    /// RMS normalisation.
    Rms(RmsNormConfig),
}

/// One of the normalisation layers; replaces [`burn::nn::norm::Normalization`].
#[derive(Module, Debug)]
#[non_exhaustive]
pub enum Normalization {
    /// No normalisation.
    Identity(Identity),
    /// Batch normalisation.
    Batch(BatchNorm),
    /// Group normalisation.
    Group(GroupNorm),
    /// Instance normalisation.
    Instance(InstanceNorm),
    /// Layer normalisation.
    Layer(LayerNorm),
    /// RMS normalisation.
    Rms(RmsNorm),
}

/// Defines the conversions of both enums, and the methods that do the same for each variant.
macro_rules! normalisations {
    ($($variant:ident of $layer:ident and $config:ident with $features:ident),* $(,)?) => {
        variants!(NormalizationConfig of burn::nn::norm::NormalizationConfig {
            Identity, $($variant(config: $config)),*
        });
        variants!(Normalization of burn::nn::norm::Normalization {
            Identity(layer: Identity), $($variant(layer: $layer)),*
        });

        impl NormalizationConfig {
            /// Creates a layer with new parameters.
            ///
            /// # Panics
            /// If `init` of the layer's configuration panics.
            pub fn init(&self, device: &Device) -> Normalization {
                match self {
                    Self::Identity => Identity::new().into(),
                    $(Self::$variant(config) => config.init(device).into()),*
                }
            }

            /// Returns the configuration with another number of features.
            pub fn with_num_features(self, num_features: usize) -> Self {
                match self {
                    Self::Identity => self,
                    $(Self::$variant(config) => $config { $features: num_features, ..config }.into()),*
                }
            }

            /// Returns the number of features; 0 for [`Identity`](Self::Identity).
            pub fn num_features(&self) -> usize {
                match self {
                    Self::Identity => 0,
                    $(Self::$variant(config) => config.$features),*
                }
            }
        }

        impl Normalization {
            /// Returns the normalised `input`, in the same shape. Which values are normalised together
            /// depends on the layer.
            #[track_caller]
            pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
                match self {
                    Self::Identity(layer) => layer.forward(input),
                    $(Self::$variant(layer) => layer.forward(input)),*
                }
            }
        }
    };
}

normalisations!(
    Batch of BatchNorm and BatchNormConfig with num_features,
    Group of GroupNorm and GroupNormConfig with num_channels,
    Instance of InstanceNorm and InstanceNormConfig with num_channels,
    Layer of LayerNorm and LayerNormConfig with d_model,
    Rms of RmsNorm and RmsNormConfig with d_model,
);

impl Normalization {
    /// Returns the number of features; 0 for [`Identity`](Self::Identity).
    pub fn num_features(&self) -> usize {
        match self {
            Self::Identity(_) => 0,
            Self::Batch(layer) => layer.gamma.shape()[0],
            Self::Group(layer) => layer.num_channels,
            Self::Instance(layer) => layer.num_channels,
            Self::Layer(layer) => layer.gamma.shape()[0],
            Self::Rms(layer) => layer.gamma.shape()[0],
        }
    }
}
