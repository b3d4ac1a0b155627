//! Fused operators with custom backward passes for Burn's CPU backend, flex.
//!
//! Burn computes the backward pass of a convolution with transposed convolutions, and stores each
//! intermediate result. The operators here compute convolution, bias, ReLU and pooling in one pass, forward
//! and backward, in SIMD code that is selected at run time. They take Burn's tensors and modules, and support
//! Burn's autodiff.
//!
//! [`nn`] exports everything in [`burn::nn`], and [`optim`] everything in [`burn::optim`]. Fused modules and
//! optimizers replace Burn's under the same names, so a program changes only its imports. The operators are
//! also available as functions:
//!
//! | operator | computes |
//! | --- | --- |
//! | [`conv::conv`] | 3x3 convolution with padding 1, and bias |
//! | [`conv::conv_relu`] | 3x3 convolution, bias and ReLU |
//! | [`conv::conv_relu_pool`] | 3x3 convolution, bias, ReLU and 2x2 max pooling |
//! | [`conv::conv_relu_pool_twice`] | two layers of `conv_relu_pool` in a row, with few channels |
//! | [`conv::conv_relu_pool_twice_quantized`] | the same, with fake quantization between the two layers |
//! | [`norm::batch_norm`] | batch normalisation in training, with an [`Epilogue`] |
//! | [`linear::linear`], [`linear::linear_activated`] | linear layer; the same with an activation |
//! | [`fake_quantize::fake_quantize`] | fake quantization, with straight-through gradients |
//! | [`loss::cross_entropy`], [`loss::smoothed_cross_entropy`] | loss, gradient and accuracy of class scores |
//! | [`optim`] | updates of AdamW, Adam and SGD: parameters and moments in one pass |
//! | [`optim::flat`] | the same updates and those of RMSprop, on slices |
//! | [`int8::quantize`], [`int8::Model`] | quantization of slices; inference on 8-bit integers |
//!
//! If an operator does not support a shape, a type or a backend, it is composed of Burn's operators instead.
//! This changes its results by rounding only. If operands do not fit each other, an operator panics before it
//! computes anything, on every backend. If the reason is a shape, the message has the format of Burn's own
//! checks.
//!
//! A module that is composed of Burn's operators logs the reason with the [`log`] crate, at level debug, once
//! for each module and reason. With `env_logger`, `RUST_LOG=burn_fused=debug` shows these lines:
//!
//! ```text
//! lstm is composed of Burn's operators: activations other than sigmoid and tanh are not supported
//! ```
//!
//! ```
//! use burn::nn::PaddingConfig2d;
//! use burn::nn::conv::Conv2dConfig;
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_fused::conv::conv_relu_pool;
//! use burn_fused::loss::cross_entropy;
//!
//! let device = Device::flex().autodiff();
//! let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
//! let layer = Conv2dConfig::new([1, 4], [3, 3]).with_padding(padding).init(&device);
//! let images = Tensor::<4>::random([2, 1, 8, 8], Distribution::Default, &device);
//!
//! // [2, 1, 8, 8] to [2, 4, 4, 4].
//! let features = conv_relu_pool(images, &layer);
//! assert_eq!(features.dims(), [2, 4, 4, 4]);
//!
//! let score = cross_entropy(features.flatten(1, 3), &[3, 7]);
//! let gradients = score.loss.backward();
//! let of_weights = layer.weight.val().grad(&gradients);
//! assert_eq!(of_weights.map(|gradient| gradient.dims()), Some([4, 1, 3, 3]));
//! ```
//!
//! # Mixed precision
//!
//! Convolutions, linear layers and batch normalisation accept activations in bf16 or f16 beside parameters in
//! f32. [`precision::autocast`] casts the input of a model to bf16 or f16, and its scores back to f32 for the
//! loss. Outputs and gradients of activations have the type of the activations, which halves their memory.
//! Gradients of parameters are f32. See [`precision`].
//!
//! If the processor multiplies bf16 faster than f32, with AMX or AVX-512 BF16, activations can stay in f32:
//! `MatmulPrecision::Bf16.use_precision()` ([`precision::MatmulPrecision`]) rounds only the factors of large
//! matrix products to bf16. This applies to linear layers, including the linear layers of attention and
//! transformers.
//!
//! # SIMD levels
//!
//! Each operator is compiled for each [`simd::Level`]: AVX-512, AVX2, NEON, and portable code. The default is
//! the widest level that the processor supports; [`simd::Level::use_level`] selects another. A level gives
//! the same bits on every machine. Processes that train together should therefore all use the same level:
//! [`simd::Level::shared`] finds one. Products of bf16 also depend on instruction sets that are not part of a
//! level. [`precision::bf16_products`] tells how a process computes them, so that processes can agree on one
//! way.
//!
//! # Threads
//!
//! Operators divide their work among threads if an estimate from their sizes says that this pays: if each
//! thread has at least 5 µs of work. [`use_threads`] makes the calling thread a member of a pool of its own.
//! A thread sleeps after 200 µs without work.
//!
//! **Training has the same bits on any number of threads**, at the same SIMD level. Operators cut their work
//! by sizes alone, and add the sums of parts in the order of the parts. This applies to the operators of this
//! crate; Burn's own operators make no such promise.
//!
//! Each thread has buffers of its own, for a block of images at a time. The thread that runs a pass also has
//! buffers that grow with the number of threads: up to two transformed blocks for each thread, for gradients
//! of weights by Winograd and on AMX tiles. None of them grows with the batch. [`memory::counting_allocator`]
//! counts them like all memory.
//!
//! [`shared_time`] tells how much of a program's time threads have shared.
//!
//! # Algorithms of convolutions
//!
//! The shape of a convolution determines its algorithm. The first that applies runs:
//!
//! - Direct convolution, if input channels times output channels is at most 128.
//! - Winograd F(4x4, 3x3), if there are at least 16 input channels and at least 64 pixels in the batch, and
//!   if the 4x4 tiles that cover an image contain at least 4 of its pixels on average: tiles at the edge also
//!   cover pixels outside of the image. Winograd is three times as fast as im2col + GEMM and less exact; with
//!   [`conv::Algorithm::Gemm`], im2col + GEMM runs instead.
//! - im2col + GEMM.
//!
//! If the processor has AMX, bf16 images with at least 16 input and 16 output channels run on AMX tiles
//! instead of Winograd or im2col + GEMM.
//!
//! # Sources
//!
//! Each part of the sources uses only parts that are named after it: first `nn`, `optim` and `int8`; then
//! `ops`, the operators; then `kernels`, the loops of operators over slices, without any type of Burn; last
//! `runtime`, the memory pools, counters, threads and callbacks of the process.
//!
//! # Features
//!
//! With `ndarray`, `tch` and `cuda`, operators also accept tensors of Burn's backends of these names.
//! `mimalloc` adds [settings](memory) of the mimalloc allocator.

#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "deprecated upstream, and still supported here")
)]

pub mod int8;
mod kernels;
pub mod nn;
mod ops;
pub mod optim;
mod runtime;
#[cfg(test)]
mod tests;

pub use kernels::activation::ActivationFunction;
pub use kernels::epilogue::Epilogue;
pub use ops::stamp::stamp_backward;
pub use ops::{conv, fake_quantize, linear, loss, norm, precision};
pub use runtime::memory;
pub use runtime::poll::set_poll;
pub use runtime::threads::{ThreadsError, shared_time, use_threads};

/// The examples of the README, as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// SIMD levels: operators are compiled for each instruction set, and the level is selected at run time.
pub mod simd {
    pub use crate::kernels::simd::Level;
}

/// Returns the number of GPUs that libtorch sees: 0 without a driver, or if libtorch was built without CUDA.
#[cfg(feature = "tch")]
pub fn libtorch_gpus() -> usize {
    usize::try_from(tch::Cuda::device_count()).unwrap_or_default()
}
