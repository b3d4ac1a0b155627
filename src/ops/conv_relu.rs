//! Convolution, alone and with ReLU, in one operator.

use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use super::conv_operator::apply;
use super::tail::Tail;

/// `conv` of `images` `[batch, channels, height, width]`; to be used where
/// something else than ReLU follows, such as batch norm.
pub fn conv(images: Tensor<4>, conv: &Conv2d) -> Tensor<4> {
    apply(images.clone(), conv, Tail::Nothing).unwrap_or_else(|| conv.forward(images))
}

/// ReLU of `conv` of `images` `[batch, channels, height, width]`. Its gradient is
/// 0 where the convolution gives exactly 0.
pub fn conv_relu(images: Tensor<4>, conv: &Conv2d) -> Tensor<4> {
    apply(images.clone(), conv, Tail::Relu).unwrap_or_else(|| relu(conv.forward(images)))
}
