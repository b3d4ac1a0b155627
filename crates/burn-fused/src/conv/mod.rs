//! 3x3 convolutions with padding 1, with ReLU and max pooling fused where a network
//! has them.

mod algorithm;
mod conv_mixed;
mod conv_operator;
mod conv_pair;
mod conv_relu;
mod conv_relu_pool;
#[cfg(feature = "tch")]
mod conv_tch;
#[cfg(test)]
mod conv_tests;
mod cpu;

pub use algorithm::Algorithm;
pub use conv_pair::{conv_relu_pool_twice, conv_relu_pool_twice_quantized};
pub use conv_relu::{conv, conv_relu};
pub use conv_relu_pool::conv_relu_pool;
