//! Convolution, ReLU and max pooling as one operator.

use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::module::max_pool2d;
use burn::tensor::ops::MaxPoolOptions;

use super::conv_operator::apply;
use crate::epilogue::Epilogue;
use crate::precision::in_f32;

/// ReLU of `conv` of `images` `[batch, channels, height, width]`, then 2x2 max
/// pooling: `[batch, outputs, height / 2, width / 2]`, in one operator under the
/// conditions of [`conv`](super::conv()). Of equal values, the first in reading order
/// gets the gradient; a last odd row or column gets none.
///
/// ```
/// # use burn::nn::PaddingConfig2d;
/// # use burn::nn::conv::Conv2dConfig;
/// # use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::conv_relu_pool;
///
/// # let device = Device::flex().autodiff();
/// # let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
/// # let layer = Conv2dConfig::new([3, 16], [3, 3]).with_padding(padding).init(&device);
/// let output = conv_relu_pool(Tensor::ones([2, 3, 9, 8], &device), &layer);
/// assert_eq!(output.dims(), [2, 16, 4, 4]);
/// ```
///
/// # Panics
/// As [`conv`](super::conv()).
#[track_caller]
pub fn conv_relu_pool(images: Tensor<4>, conv: &Conv2d) -> Tensor<4> {
    apply(images.clone(), conv, Epilogue::ReluPool)
        .unwrap_or_else(|| in_f32(images, |x| max_pool2d(relu(conv.forward(x)), MaxPoolOptions::new([2, 2]))))
}
