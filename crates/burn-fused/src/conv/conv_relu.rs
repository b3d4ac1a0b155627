//! Convolution with bias, with or without ReLU, as one operator.

use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;

use super::conv_operator::apply;
use crate::epilogue::Epilogue;
use crate::precision::in_f32;

/// `conv` of `images` `[batch, channels, height, width]`, without an epilogue: for
/// a convolution that is followed by something other than ReLU, such as batch norm.
///
/// A 3x3 convolution with padding 1, biases, stride 1, dilation 1 and one group is
/// one operator on flex and libtorch; others run Burn's.
///
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::conv;
///
/// let device = Device::flex().autodiff();
/// let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
/// let layer = Conv2dConfig::new([3, 16], [3, 3]).with_padding(padding).init(&device);
/// let output = conv(Tensor::ones([2, 3, 8, 8], &device), &layer);
/// assert_eq!(output.dims(), [2, 16, 8, 8]);
/// ```
///
/// # Panics
/// If the channels of `images`, of the weights and of the bias do not match, the kernel is larger than the
/// padded images, or stride, dilation, groups or kernel size are 0.
#[track_caller]
pub fn conv(images: Tensor<4>, conv: &Conv2d) -> Tensor<4> {
    apply(images.clone(), conv, Epilogue::Identity).unwrap_or_else(|| in_f32(images, |x| conv.forward(x)))
}

/// ReLU of `conv` of `images` `[batch, channels, height, width]`, of the same height
/// and width, in one operator as [`conv`]. The gradient is 0 where the convolution
/// gives exactly 0.
///
/// ```
/// # use burn::nn::PaddingConfig2d;
/// # use burn::nn::conv::Conv2dConfig;
/// # use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::conv_relu;
///
/// # let device = Device::flex().autodiff();
/// # let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
/// # let layer = Conv2dConfig::new([3, 16], [3, 3]).with_padding(padding).init(&device);
/// let output = conv_relu(Tensor::ones([2, 3, 8, 8], &device), &layer);
/// assert!(output.min().into_scalar::<f32>() >= 0.0);
/// ```
///
/// # Panics
/// As [`conv`].
#[track_caller]
pub fn conv_relu(images: Tensor<4>, conv: &Conv2d) -> Tensor<4> {
    apply(images.clone(), conv, Epilogue::Relu).unwrap_or_else(|| in_f32(images, |x| relu(conv.forward(x))))
}
