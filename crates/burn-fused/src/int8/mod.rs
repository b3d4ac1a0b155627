//! 8-bit quantization: formulas, and integer inference.
//!
//! Weights are i8, -127 to 127, symmetric, with one scale for all or one for each
//! output channel; activations are u8, 0 to 255, with one scale and zero point for a
//! tensor. A quantized q is the real (q - zero point) · scale.
//!
//! | item | computes |
//! | --- | --- |
//! | [`Scheme::parameters`] | scale and zero point of a range: PyTorch's `calculate_qparams` |
//! | [`min_max`], [`Observer`] | ranges of values and their moving averages |
//! | [`quantize`], [`quantize_weights`], [`dequantize`] | integers of real values, and back |
//! | [`Weights::quantize`], [`fixed_point`] | a layer's integers: weights, biases, ratio of scales |
//! | [`Model`] | inference on integers |
//!
//! # The integer model
//!
//! A layer with weights sums, in 32 bits, bias + Σ weight · (input - zero point), where
//! pixels of the border are the zero point. The sum becomes the output's byte by one
//! fixed-point formula, with 64-bit products and no floating-point number
//! ([`fixed_point`] gives m and s):
//!
//! ```text
//! ratio = input scale · weight scale / output scale = m / 2^s, 2^30 <= m < 2^31
//! q = clamp(zero point + floor((sum · m + 2^(s-1)) / 2^s), lowest, 255)
//! ```
//!
//! `lowest` is the output's zero point if ReLU follows, else 0. Ties are rounded up.
//! Ratios below 2^-24 have s = 54 and a smaller m. Max pooling takes the maximum of
//! bytes. [`Model::new`] checks that no sum overflows, for any input.
//!
//! Kernels use AVX-512 with VNNI, AVX2 or portable code, depending on the current [SIMD
//! level](crate::simd::Level). Integer sums are exact, so all give the same bits.

mod executor;
mod lanes;
mod layer;
mod model;
mod requantize;
mod rows;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod words;

pub use crate::kernels::quantization::{
    Int8Error, Observer, QParams, SMALLEST_SCALE, Scheme, dequantize, min_max, min_max_by_channel, quantize,
    quantize_weights,
};
pub use layer::{AveragePool, Conv, Layer, Linear, MaxPool, Weights};
pub use model::{Model, Stage, Workspace};
pub use requantize::fixed_point;
