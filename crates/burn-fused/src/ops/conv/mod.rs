//! 3x3 convolutions with padding 1, fused with the ReLU, max pooling or batch normalisation that follows them
//! in a network.

mod norm;
pub(crate) mod operator;
mod pair;
#[cfg(feature = "tch")]
mod tch;
#[cfg(test)]
mod tests;

pub use crate::kernels::conv::Algorithm;
pub(crate) use norm::conv_norm;
pub(crate) use operator::conv_with;
pub use operator::{ConvLayer, conv, conv_relu, conv_relu_pool};
pub use pair::{conv_relu_pool_twice, conv_relu_pool_twice_quantized};
