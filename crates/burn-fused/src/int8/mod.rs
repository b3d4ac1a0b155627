//! 8-bit quantization: formulas, and integer inference.
//!
//! Weights are i8 from -127 to 127. Their zero point is 0, and a layer has one scale for all weights or one
//! for each output channel. Activations are u8 from 0 to 255, and each tensor has one scale and one zero
//! point. A quantized value q stands for the real number (q - zero point) · scale.
//!
//! | item | computes |
//! | --- | --- |
//! | [`Scheme::parameters`] | scale and zero point of a range: PyTorch's `calculate_qparams` |
//! | [`min_max`], [`Observer`] | ranges of values and their moving averages |
//! | [`quantize`], [`quantize_weights`], [`dequantize`] | integers of real values; real values of integers |
//! | [`Weights::quantize`], [`fixed_point`] | a layer's integers: weights, biases, and ratio of scales |
//! | [`Model`] | inference on integers |
//!
//! # The integer model
//!
//! A layer with weights computes, in 32 bits, bias + Σ weight · (input - zero point). The value of a padding
//! pixel is the zero point. A fixed-point formula turns the sum into q, the byte of the output, with 64-bit
//! products and without floating-point numbers ([`fixed_point`] gives m and s):
//!
//! ```text
//! ratio = input scale · weight scale / output scale = m / 2^s, 2^30 <= m < 2^31
//! q = clamp(zero point + floor((sum · m + 2^(s-1)) / 2^s), lowest, 255)
//! ```
//!
//! `lowest` is the output's zero point if ReLU follows, and 0 if not. Ties are rounded up. Ratios below 2^-24
//! have s = 54 and a smaller m. Max pooling takes the maximum of bytes. [`Model::new`] checks that no sum
//! overflows, whatever the input.
//!
//! # Quantization-aware training
//!
//! Training computes with [fake-quantized](crate::fake_quantize) values, so that the loss includes the error
//! of rounding. Each activation has an [`Observer`], which keeps a moving average of the activation's range
//! from step to step. Ranges of weights are computed anew in each step. Gradients pass through the
//! quantization to the f32 weights, which the optimizer updates.
//!
//! ```
//! use burn::module::Param;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_fused::fake_quantize::{channel_ranges, fake_quantize, range};
//! use burn_fused::int8::{Int8Error, Observer, Scheme};
//! use burn_fused::nn::{Linear, LinearConfig};
//!
//! fn step(layer: &Linear, observer: &mut Observer, x: Tensor<2>) -> Result<Tensor<2>, Int8Error> {
//!     let weight = layer.weight.val();
//!     // One scale for each output.
//!     let ranges = channel_ranges(&weight, 1)?.into_iter();
//!     let scales = ranges.map(|[min, max]| Scheme::Symmetric.parameters(min, max)).collect::<Result<Vec<_>, _>>()?;
//!     let weight = fake_quantize(weight, Scheme::Symmetric, &scales, 1);
//!     let quantized = Linear { weight: Param::initialized(layer.weight.id, weight), bias: layer.bias.clone() };
//!     let output = quantized.forward(x);
//!     observer.observe(range(&output)?)?;
//!     Ok(fake_quantize(output, Scheme::Affine, &[observer.parameters(Scheme::Affine)?], 0))
//! }
//!
//! let device = Device::flex().autodiff();
//! let (layer, mut observer) = (LinearConfig::new(8, 3).init(&device), Observer::default());
//! let x = Tensor::random([5, 8], Distribution::Default, &device);
//! let gradients = step(&layer, &mut observer, x)?.sum().backward();
//! assert!(layer.weight.val().grad(&gradients).is_some());
//! # Ok::<(), Int8Error>(())
//! ```
//!
//! Processes that train together should average the ranges, so that all of them get the same integers.
//! [`running_affine`](crate::nn::BatchNorm::running_affine) returns a batch norm as a factor and a shift,
//! which a program can fold into the weights of the layer before.
//!
//! # Kernels
//!
//! Kernels use AVX-512 with VNNI, AVX2, or portable code, depending on the current [SIMD
//! level](crate::simd::Level). Integer sums are exact, so all kernels compute the same bits.

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
