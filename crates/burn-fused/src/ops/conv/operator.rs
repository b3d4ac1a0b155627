//! Convolution with bias, and optional ReLU and max pooling, as one operator of Burn.
//!
//! On flex, the kernels of [`kernels::conv`](crate::kernels::conv) run forward and backward; 16-bit images
//! use [`mixed`]. On libtorch, libtorch's own backward runs. On other backends, and for other types on flex,
//! the operator is composed of Burn's operators.

use std::borrow::Cow;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Tensor};

use super::Algorithm;
use crate::kernels::conv::{Back, Convolution, Route, Shape, mixed};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::half::Half;
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, tensor, values};
use crate::ops::precision::{compose_mixed, rounded_to, supported};
use crate::ops::shapes;
use crate::runtime::fallback::any_unsupported;
use crate::runtime::poll::Poll;

/// A convolution layer: Burn's, or the one of `burn_fused::nn`.
pub trait ConvLayer {
    /// Returns Burn's layer with the same parameters and options.
    fn as_burns(&self) -> Cow<'_, Conv2d>;
}

impl ConvLayer for Conv2d {
    fn as_burns(&self) -> Cow<'_, Conv2d> {
        Cow::Borrowed(self)
    }
}

/// Applies `conv` to `images` `[batch, channels, height, width]` without ReLU or pooling, for example before
/// batch normalisation.
///
/// A 3x3 convolution with padding 1, biases, stride 1, dilation 1 and one group is one operator on flex and
/// libtorch. Other convolutions run Burn's operators.
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
/// If the channels of `images`, weights, bias and groups do not match, if the kernel is larger than the
/// padded images, or if a stride, a dilation, the number of groups or a kernel size is 0. A kernel with
/// stride 1 may be one pixel larger; the output then has no pixels, as in Burn.
#[track_caller]
pub fn conv(images: Tensor<4>, conv: &impl ConvLayer) -> Tensor<4> {
    conv_with(images, &conv.as_burns(), Epilogue::Identity)
}

/// Applies `conv` to `images` `[batch, channels, height, width]`, then ReLU. Under the conditions of
/// [`conv`], this is one operator, and height and width stay the same. The gradient is 0 where the
/// convolution gives exactly 0.
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
/// In the same cases as [`conv`].
#[track_caller]
pub fn conv_relu(images: Tensor<4>, conv: &impl ConvLayer) -> Tensor<4> {
    conv_with(images, &conv.as_burns(), Epilogue::Relu)
}

/// Applies `conv` to `images` `[batch, channels, height, width]`, then ReLU and 2x2 max pooling. Under the
/// conditions of [`conv`](super::conv()), this is one operator, and the output is
/// `[batch, outputs, height / 2, width / 2]`. Of equal maxima in a window, the first in reading order gets
/// the gradient. If height or width is odd, the last row or column gets no gradient.
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
/// In the same cases as [`conv`](super::conv()).
#[track_caller]
pub fn conv_relu_pool(images: Tensor<4>, conv: &impl ConvLayer) -> Tensor<4> {
    conv_with(images, &conv.as_burns(), Epilogue::ReluPool)
}

/// Applies `conv` to `images`, then `epilogue`.
///
/// # Panics
/// In the same cases as [`shapes::of_conv`].
#[track_caller]
pub(crate) fn conv_with(images: Tensor<4>, conv: &Conv2d, epilogue: Epilogue) -> Tensor<4> {
    shapes::of_conv(images.dims(), conv);
    let Some((weights, bias)) = parameters(conv) else {
        return compose_mixed(images, conv.weight.val().dtype(), |x| epilogue.composed(conv.forward(x)));
    };
    #[cfg(feature = "tch")]
    if let Some(output) = super::tch::conv_epilogue([&images, &weights], &bias, epilogue) {
        return output;
    }
    let tensors = [images.into_dispatch(), weights.into_dispatch(), bias.into_dispatch()];
    let forward = |tensors, shape, backward| forward(tensors, shape, epilogue, backward);
    on_flex_or("conv2d", tensors, shape_of, forward, |[images, weights, bias]| {
        let [images, weights] = [images, weights].map(Tensor::<4>::from_dispatch);
        let (dtype, bias) = (images.dtype(), Tensor::<1>::from_dispatch(bias));
        let (weights, bias) = (rounded_to(weights, dtype), rounded_to(bias, dtype));
        let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
        epilogue.composed(conv2d(images, weights, Some(bias), options))
    })
}

/// Returns the weights and biases of `conv` if it is 3x3 with padding 1, biases, stride 1, dilation 1 and one
/// group. Returns `None` for other convolutions, which the operators do not support, and logs the reason
/// once.
pub(super) fn parameters(conv: &Conv2d) -> Option<(Tensor<4>, Tensor<1>)> {
    let reasons = [
        (conv.kernel_size != [3, 3], "kernels other than 3x3"),
        (!matches!(conv.padding, PaddingConfig2d::Explicit(1, 1, 1, 1)), "paddings other than 1"),
        (conv.stride != [1, 1], "strides other than 1"),
        (conv.dilation != [1, 1], "dilations other than 1"),
        (conv.groups != 1, "convolutions with more than one group"),
        (conv.bias.is_none(), "convolutions without a bias"),
    ];
    if any_unsupported("conv2d", &reasons) {
        return None;
    }
    conv.bias.as_ref().map(|bias| (conv.weight.val(), bias.val()))
}

/// Returns the sizes of the operator if the types are supported, and the shapes match and are not empty.
pub(super) fn shape_of([images, weights, bias]: [&FlexTensor; 3]) -> Option<Shape> {
    let [batch, inputs, height, width] = images.shape().dims();
    let [outputs, weight_inputs, 3, 3] = weights.shape().dims() else { return None };
    let fits = supported(images, &[weights, bias]) && inputs == weight_inputs;
    let shape = Shape { batch, inputs, outputs, height, width };
    (fits && ![batch, inputs, outputs, height, width].contains(&0)).then_some(shape)
}

/// Returns the output, and its backward. The tensors are images, weights and biases.
fn forward(
    tensors: [FlexTensor; 3],
    shape: Shape,
    epilogue: Epilogue,
    backward: bool,
) -> (FlexTensor, Backward<impl Saved, 3>) {
    let [images, weights, bias] = tensors.map(contiguous);
    let (level, mut route) = (Level::current(), Route::for_shape(shape, Algorithm::current()));
    if images.dtype() == DType::BF16 {
        route = route.in_bf16(shape);
    }
    let conv = Convolution { level, route, shape, epilogue };
    let [height, width] = shape.output_size(epilogue);
    let size = [shape.batch, shape.outputs, height, width];
    let parameters = [&weights, &bias].map(values);
    // `argmax` has the position of the maximum in each pooling window. For f32 images, it is one buffer for
    // the batch. For 16-bit images, it has a buffer for each block of images.
    let (output, argmax) = match Half::from_dtype(images.dtype()) {
        Some(half) => {
            let (output, argmax) = mixed::forward(half, conv, half.bits(&images), parameters, backward);
            (half.tensor(output, &size), argmax)
        }
        None => {
            let (output, argmax) = conv.forward(values(&images), parameters, backward);
            (output.into_tensor(&size), vec![argmax])
        }
    };
    let (result, argmax) = (output.clone(), Arc::new(argmax));
    let backward = Backward::new(move |gradient, of_input| {
        let Shape { batch, inputs, outputs, height, width } = shape;
        let size = [batch, inputs, height, width];
        let tensors = [&images, &output, &gradient];
        let (weights, poll) = (values(&weights), Poll::current());
        let (of_images, of_weights, of_bias) = match Half::from_dtype(images.dtype()) {
            Some(half) => {
                let [input, output, gradient] = tensors.map(|tensor| half.bits(tensor));
                let back = Back { input, weights, output, argmax: &[], gradient, normed: None, of_input };
                let found = mixed::backward(half, conv, back, &argmax, poll);
                (found.input.map(|found| half.tensor(found, &size)), found.weights, found.bias)
            }
            None => {
                let [input, output, gradient] = tensors.map(values);
                let argmax = &argmax[0];
                let back = Back { input, weights, output, argmax, gradient, normed: None, of_input };
                let found = conv.backward(back, poll);
                (found.input.map(|found| found.into_tensor(&size)), found.weights, found.bias)
            }
        };
        let of_weights = of_weights.into_tensor(&[outputs, inputs, 3, 3]);
        [of_images, Some(of_weights), Some(tensor(of_bias, &[outputs]))]
    });
    (result, backward)
}
