//! Errors of quantization and of integer models.

use thiserror::Error;

/// Why values or layers cannot be quantized, or why a model is invalid. Layers are counted from 0.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Int8Error {
    /// There are no values to compute a range from, no weights to quantize, or no biases.
    #[error("there are no values to compute a range from; calibrate with at least one sample")]
    NoValues,
    /// Values, or the ends of a range, are NaN or infinite.
    #[error("the values to quantize, or the ends of the range, contain NaN or infinity")]
    NonFinite,
    /// A range whose minimum is above its maximum.
    #[error("the range is empty: its minimum {min} is above its maximum {max}")]
    EmptyRange {
        /// Minimum.
        min: f32,
        /// Maximum.
        max: f32,
    },
    /// Quantization parameters were requested from an observer that has not observed a batch.
    #[error("the observer was never calibrated: it has seen no values")]
    NotCalibrated,
    /// A scale that is not positive, finite and normal, or a zero point that the scheme does not allow.
    #[error("scale {scale} with zero point {zero_point} is invalid")]
    Parameters {
        /// Scale.
        scale: f32,
        /// Zero point.
        zero_point: i32,
    },
    /// A range whose width overflows f32, or scales so far apart that no fixed-point multiplier represents
    /// their ratio.
    #[error("the scale is out of range: a ratio of {ratio:e} has no fixed-point multiplier")]
    ScaleOverflow {
        /// Input scale · weight scale / output scale, or the scale itself.
        ratio: f64,
    },
    /// Accumulators or biases that do not fit 32 bits.
    #[error("output {output} overflows a 32-bit accumulator")]
    Accumulator {
        /// Output channel.
        output: usize,
    },
    /// A number of values that does not match the shape.
    #[error("{what}: {got} values, expected {expected}")]
    Length {
        /// Which values.
        what: &'static str,
        /// Actual number of values.
        got: usize,
        /// Number of values that the shape requires.
        expected: usize,
    },
    /// Sizes of a layer that do not fit its input, or are too large.
    #[error("a {layer} of {sizes} does not fit an input of {input:?} (channels, height, width)")]
    Shape {
        /// Kind of layer.
        layer: &'static str,
        /// Sizes of the layer.
        sizes: String,
        /// Input shape.
        input: [usize; 3],
    },
    /// Multipliers or shifts that are inconsistent with the scales.
    #[error("multiplier {multiplier} and shift {shift} of output {output} do not match the scales")]
    Multiplier {
        /// Output channel. If all outputs share one multiplier, the value is 0.
        output: usize,
        /// Multiplier.
        multiplier: i32,
        /// Shift in bits.
        shift: u8,
    },
    /// A model without a layer that has weights.
    #[error("the model has no layer with weights")]
    NoLayers,
    /// An invalid layer.
    #[error("layer {layer}: {error}")]
    Layer {
        /// Index of the layer.
        layer: usize,
        /// What is wrong.
        error: Box<Int8Error>,
    },
}

impl Int8Error {
    /// Adds the index of the layer that has the error.
    pub(crate) fn at(self, layer: usize) -> Self {
        Self::Layer { layer, error: Box::new(self) }
    }
}

/// Checks that `got`, a number of values, is `expected`.
pub(crate) fn expect_len(what: &'static str, got: usize, expected: usize) -> Result<(), Int8Error> {
    if got == expected { Ok(()) } else { Err(Int8Error::Length { what, got, expected }) }
}
