//! 3x3 convolutions with padding 1, with ReLU and max pooling fused where a network
//! has them.

mod algorithm;
mod conv_mixed;
mod conv_norm;
mod conv_operator;
mod conv_pair;
#[cfg(feature = "tch")]
mod conv_tch;
#[cfg(test)]
mod conv_tests;
mod cpu;

pub use algorithm::Algorithm;
pub(crate) use conv_norm::conv_norm;
pub use conv_operator::{ConvLayer, conv, conv_relu, conv_relu_pool};
pub use conv_pair::{conv_relu_pool_twice, conv_relu_pool_twice_quantized};
