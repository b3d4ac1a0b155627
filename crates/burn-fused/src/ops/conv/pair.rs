//! Two convolutions of few channels, each with ReLU and pooling, as one operator of Burn. The activations
//! between the convolutions stay in the processor's cache.
//!
//! The operator exists only on flex. On other backends, and for shapes and types that it does not support,
//! two operators run instead.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::nn::conv::Conv2d;
use burn::tensor::{DType, Tensor};

use super::operator::{ConvLayer, conv_relu_pool, parameters, shape_of};
use crate::kernels::conv::{Back, BackwardPass, ForwardPass, Parameters, Shape, pair_fits};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::quantization::{Int8Error, QParams, Scheme};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex};
use crate::ops::fake_quantize::{fake_quantize, range};
use crate::ops::flex_tensor::{contiguous, tensor, values};
use crate::ops::shapes;
use crate::runtime::poll::Poll;

/// Applies [`conv_relu_pool`] to `images` `[batch, channels, height, width]` with `first`, and then to the
/// result with `second`. Returns `[batch, outputs, height / 4, width / 4]`.
///
/// On flex, this is one operator for f32 tensors if both layers meet the conditions of
/// [`conv`](super::conv()), if height and width are multiples of 4, and if, in each layer, input channels
/// times output channels is at most 128. Values and gradients are bit-identical to those of two calls of
/// [`conv_relu_pool`].
///
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::{conv_relu_pool, conv_relu_pool_twice};
///
/// let device = Device::flex().autodiff();
/// let layer = |inputs, outputs| {
///     let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
///     Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device)
/// };
/// let (first, second) = (layer(1, 4), layer(4, 8));
/// let images = Tensor::<4>::ones([2, 1, 8, 8], &device);
/// let output = conv_relu_pool_twice(images.clone(), &first, &second);
/// assert_eq!(output.dims(), [2, 8, 2, 2]);
/// let apart = conv_relu_pool(conv_relu_pool(images, &first), &second);
/// assert_eq!(output.into_data(), apart.into_data());
/// ```
///
/// # Panics
/// If the channels of `images`, `first` and `second` do not match, or if one of the two calls of
/// [`conv_relu_pool`] would panic.
#[track_caller]
pub fn conv_relu_pool_twice(images: Tensor<4>, first: &impl ConvLayer, second: &impl ConvLayer) -> Tensor<4> {
    pair(images, &first.as_burns(), &second.as_burns(), None)
}

/// Does the same as [`conv_relu_pool_twice`], with [fake quantization](fake_quantize) of the activations
/// between the two convolutions. `quantize` gets the minimum and maximum of these activations over the batch,
/// or an error if there are no activations or one of them is NaN or infinite. It returns the parameters of
/// [`Scheme::Affine`], or `None` to leave the activations unquantized. Values and gradients are bit-identical
/// to those of separate operators.
///
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::{conv_relu_pool, conv_relu_pool_twice_quantized};
/// use burn_fused::fake_quantize::{fake_quantize, range};
/// use burn_fused::int8::Scheme;
///
/// let device = Device::flex().autodiff();
/// let layer = |inputs, outputs| {
///     let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
///     Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device)
/// };
/// let (first, second) = (layer(1, 4), layer(4, 8));
/// let images = Tensor::<4>::ones([2, 1, 8, 8], &device);
/// let output = conv_relu_pool_twice_quantized(images.clone(), &first, &second, &mut |found| {
///     let [min, max] = found.ok()?;
///     Scheme::Affine.parameters(min, max).ok()
/// });
/// let middle = conv_relu_pool(images, &first);
/// let [min, max] = range(&middle).unwrap();
/// let parameters = Scheme::Affine.parameters(min, max).unwrap();
/// let apart = conv_relu_pool(fake_quantize(middle, Scheme::Affine, &[parameters], 0), &second);
/// assert_eq!(output.into_data(), apart.into_data());
/// ```
///
/// # Panics
/// In the same cases as [`conv_relu_pool_twice`], or if `quantize` returns invalid parameters.
#[track_caller]
pub fn conv_relu_pool_twice_quantized(
    images: Tensor<4>,
    first: &impl ConvLayer,
    second: &impl ConvLayer,
    quantize: &mut dyn FnMut(Result<[f32; 2], Int8Error>) -> Option<QParams>,
) -> Tensor<4> {
    pair(images, &first.as_burns(), &second.as_burns(), Some(quantize))
}

#[track_caller]
fn pair(
    mut images: Tensor<4>,
    first: &Conv2d,
    second: &Conv2d,
    mut quantize: Option<&mut Parameters<'_>>,
) -> Tensor<4> {
    let [batch, channels, height, width] = shapes::of_conv(images.dims(), first);
    shapes::of_conv([batch, channels, height / 2, width / 2], second);
    if let (Some((weights1, bias1)), Some((weights2, bias2))) = (parameters(first), parameters(second)) {
        let [x, weights1, weights2] = [images, weights1, weights2].map(Tensor::into_dispatch);
        let [bias1, bias2] = [bias1, bias2].map(Tensor::into_dispatch);
        let tensors = [x, weights1, bias1, weights2, bias2];
        let output = on_flex(tensors, shapes_of, |tensors, shapes, backward| {
            forward(tensors, shapes, quantize.take(), backward)
        });
        images = match output {
            Ok(output) => return Tensor::from_dispatch(output),
            Err([images, ..]) => Tensor::from_dispatch(images),
        };
    }
    let middle = conv_relu_pool(images, first);
    let found = quantize.and_then(|quantize| quantize(range(&middle)));
    let middle = match found {
        Some(found) => fake_quantize(middle, Scheme::Affine, &[found], 0),
        None => middle,
    };
    conv_relu_pool(middle, second)
}

/// Returns the sizes of both convolutions if the tensors are f32 and the operator supports their shapes.
fn shapes_of([images, weights1, bias1, weights2, bias2]: [&FlexTensor; 5]) -> Option<[Shape; 2]> {
    let first = shape_of([images, weights1, bias1])?;
    let [outputs, inputs, 3, 3] = weights2.shape().dims() else { return None };
    let second = Shape { inputs, outputs, height: first.height / 2, width: first.width / 2, ..first };
    let f32s = [images, weights2, bias2].iter().all(|tensor| tensor.dtype() == DType::F32);
    let fits = f32s && inputs == first.outputs && outputs > 0 && pair_fits([first, second]);
    fits.then_some([first, second])
}

/// Returns the output, and its backward. The tensors are images, then weights and biases of each convolution.
fn forward(
    tensors: [FlexTensor; 5],
    shapes: [Shape; 2],
    quantize: Option<&mut Parameters<'_>>,
    backward: bool,
) -> (FlexTensor, Backward<impl Saved + use<>, 5>) {
    let [images, weights1, bias1, weights2, bias2] = tensors.map(contiguous);
    let layers = [[weights1, bias1], [weights2, bias2]];
    let (level, input) = (Level::current(), values(&images));
    let (epilogue, parameters) =
        (Epilogue::ReluPool, layers.each_ref().map(|layer| layer.each_ref().map(values)));
    let pass = ForwardPass { level, shapes, epilogue, input, layers: parameters, quantize, backward };
    let (output, between) = pass.run();
    let [height, width] = shapes[1].output_size(Epilogue::ReluPool);
    let output = output.into_tensor(&[shapes[1].batch, shapes[1].outputs, height, width]);
    let between = Arc::new(between);
    let backward = Backward::new(move |gradient, of_input| {
        let weights = layers.each_ref().map(|[weights, _]| values(weights));
        let back = Back {
            input: values(&images),
            weights: weights[1],
            output: &[],
            argmax: &between.argmax[1],
            gradient: values(&gradient),
            normed: None,
            of_input,
        };
        let (between, poll) = (Some(&*between), Poll::current());
        let pass = BackwardPass { level, shapes, epilogue, back, weights, between, poll };
        let [mut first, second] = pass.run();
        let of_images = first.input.take().map(|found| found.into_tensor(&images.shape()));
        let [[weights1, bias1], [weights2, bias2]] = [(first, 0), (second, 1)].map(|(found, n)| {
            let [weights, bias] = &layers[n];
            [found.weights.into_tensor(&weights.shape()), tensor(found.bias, &bias.shape())].map(Some)
        });
        [of_images, weights1, bias1, weights2, bias2]
    });
    (output, backward)
}

#[cfg(test)]
#[path = "pair_tests.rs"]
mod tests;
