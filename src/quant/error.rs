//! Errors of quantization.

use burn_fused::int8::Int8Error;

/// Says what cannot be quantized, and why.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct QuantError(String);

impl QuantError {
    /// Makes the error of a layer that has no integer version. `layer` is PyTorch's name of the layer.
    pub(super) fn layer(layer: &str, reason: impl Into<String>) -> Self {
        Self(format!("layer {layer} cannot be quantized: {}", reason.into()))
    }

    /// Makes the error of invalid values or ranges. `layer` says whose values they are: a layer's name, or
    /// `the input`.
    pub fn values(layer: &str, error: Int8Error) -> Self {
        Self(match error {
            Int8Error::NotCalibrated => {
                format!("the range of {layer} is unknown: the model was never calibrated")
            }
            error => format!("{layer}: {error}"),
        })
    }
}

impl From<Int8Error> for QuantError {
    fn from(error: Int8Error) -> Self {
        Self(format!("int8 model: {error}"))
    }
}
