//! Errors of quantization.

use burn_fused::int8::Int8Error;

/// An error of quantization, with the layer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantError {
    /// A layer without an integer version.
    #[error("layer {layer} cannot be quantized: {reason}")]
    Layer {
        /// PyTorch's name of it.
        layer: String,
        /// The reason.
        reason: String,
    },
    /// A range that was never observed.
    #[error("the model was never calibrated: the range of {of} is unknown")]
    NotCalibrated {
        /// The input, or the output of a layer.
        of: String,
    },
    /// Ranges of a different network.
    #[error("the ranges are those of {found} layers, and the network has {expected}")]
    OtherNetwork {
        /// Groups of the ranges.
        found: usize,
        /// Groups of the network.
        expected: usize,
    },
    /// Values or ranges that cannot be quantized.
    #[error("{of}: {error}")]
    Values {
        /// The layer, or the input.
        of: String,
        /// The reason.
        error: Int8Error,
    },
    /// An invalid integer model.
    #[error("the integer model: {0}")]
    Model(#[from] Int8Error),
}

impl QuantError {
    pub(super) fn layer(layer: &str, reason: impl Into<String>) -> Self {
        Self::Layer { layer: layer.to_owned(), reason: reason.into() }
    }

    pub(super) fn values(of: &str, error: Int8Error) -> Self {
        match error {
            Int8Error::NotCalibrated => Self::NotCalibrated { of: of.to_owned() },
            error => Self::Values { of: of.to_owned(), error },
        }
    }
}
