//! Operators with a backward of their own for Burn's CPU backend, flex.
//!
//! Burn composes the backward of a convolution of transposed convolutions and
//! stores each result in between. The operators here compute convolution, bias,
//! ReLU and pooling in one pass, forward and backward, in SIMD code that is chosen
//! at run time. They take Burn's tensors and modules, take part in its autodiff,
//! and need nothing else: no MPI, and no change to a model but its `forward`.
//!
//! | operator | computes |
//! | --- | --- |
//! | [`conv::conv`] | 3x3 convolution with a border of one pixel, and bias |
//! | [`conv::conv_relu`] | the same, then ReLU |
//! | [`conv::conv_relu_pool`] | the same, then the maximum of each 2x2 |
//! | [`conv::conv_relu_pool_twice`] | two such blocks of few channels |
//! | [`norm::batch_norm`] | batch normalisation in training, with an [`Epilogue`] |
//! | [`linear::linear`] | linear layer of at most 32 outputs |
//! | [`loss::cross_entropy`], [`loss::smoothed_cross_entropy`] | loss, gradient and accuracy of class scores |
//! | [`int8::fake_quantize`], [`int8::Model`] | quantization of slices; inference on 8-bit integers |
//!
//! Where an operator does not support a shape, a type or a backend, it is composed
//! of Burn's operators: the result is the same but for rounding.
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
//! # SIMD levels
//!
//! Each operator has one algorithm, which is compiled for each [`simd::Level`]:
//! AVX-512, AVX2, NEON, and portable code. At first the widest that the processor
//! has is used; [`simd::Level::use_level`] chooses another. The same level gives the
//! same bits on every machine, so processes that train together should agree on
//! [`simd::Level::shared`]. The program's own loops can be compiled for each level
//! as well: [`simd::Kernel`].
//!
//! # Features
//!
//! `ndarray` and `tch` let operators dispatch to Burn's backends of these names too.
//! `mimalloc` adds [settings](memory) of that allocator.

#![deny(missing_docs, unsafe_op_in_unsafe_fn)]
#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "deprecated upstream, and still supported here")
)]

pub mod conv;
mod epilogue;
mod extension;
mod flex_tensor;
pub mod int8;
pub mod linear;
pub mod loss;
pub mod memory;
pub mod norm;
mod poll;
pub mod simd;

pub use epilogue::Epilogue;
pub use poll::set_poll;
