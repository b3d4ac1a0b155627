//! A convolution, the batch normalisation that follows it, and an epilogue (ReLU, or ReLU and pooling), as
//! one operator.
//!
//! The sums (the outputs of the convolution) stay in the order of SIMD lanes in which they are computed,
//! until backward has used them. Two separate operators would copy the sums to and from the order of images
//! several times. A first layer, whose input has few channels, does not store its sums at all.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use super::operator::{parameters, shape_of};
use super::{Algorithm, ConvLayer};
use crate::kernels::conv::{Convolution, NormBackward, NormForward, Route, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::norm::Moments;
use crate::kernels::simd::{Level, MAX_LANES};
use crate::ops::extension::{Backward, Saved, on_flex};
use crate::ops::flex_tensor::{contiguous, tensor, values};
use crate::ops::norm::{Normalised, statistics};
use crate::runtime::poll::Poll;

/// Convolves `images`, normalises the result with `scale` and `shift` as
/// [`batch_norm`](crate::norm::batch_norm) does, and applies `epilogue`. Returns `None` if the operator does
/// not support the tensors or the layer.
pub(crate) fn conv_norm(
    images: &Tensor<4>,
    conv: &impl ConvLayer,
    [scale, shift]: [Tensor<1>; 2],
    epsilon: f64,
    epilogue: Epilogue,
) -> Option<Normalised<4>> {
    let (weights, bias) = parameters(&conv.as_burns())?;
    let tensors = [
        images.clone().into_dispatch(),
        weights.into_dispatch(),
        bias.into_dispatch(),
        scale.into_dispatch(),
        shift.into_dispatch(),
    ];
    let sizes = |tensors: [&FlexTensor; 5]| {
        let [images, weights, bias, scale, shift] = tensors;
        let shape = shape_of([images, weights, bias])?;
        let route = Route::for_shape(shape, Algorithm::current());
        let fits = tensors.iter().all(|tensor| tensor.dtype() == DType::F32)
            && [scale, shift].iter().all(|tensor| *tensor.shape() == [shape.outputs])
            && shape.output_len(epilogue) > 0;
        // The saved sums include the lanes that have no image or channel. To waste little memory and time on
        // them, require that at least 3/4 of the lanes are used.
        let used = match route {
            Route::Direct => shape.batch,
            Route::Winograd => shape.outputs,
            Route::Gemm | Route::Tiles => 0,
        };
        (fits && used > 0 && 4 * used >= 3 * used.next_multiple_of(MAX_LANES)).then_some((shape, route))
    };
    let mut moments = None;
    let output = on_flex(tensors, sizes, |tensors, sizes, backward| {
        let (output, found, backward) = forward(tensors, sizes, epilogue, epsilon, backward);
        moments = Some(found);
        (output, backward)
    });
    Some(statistics(Tensor::from_dispatch(output.ok()?), &moments?))
}

/// Returns the output, the statistics by which it is normalised, and its backward. The tensors are images,
/// weights, biases, scale and shift.
fn forward(
    tensors: [FlexTensor; 5],
    (shape, route): (Shape, Route),
    epilogue: Epilogue,
    epsilon: f64,
    backward: bool,
) -> (FlexTensor, Moments, Backward<impl Saved, 5>) {
    let tensors = tensors.map(contiguous);
    let [input, weights, bias, scale, shift] = tensors.each_ref().map(values);
    let conv = Convolution { level: Level::current(), route, shape, epilogue };
    let (layer, parameters) = ([weights, bias], [scale, shift]);
    let (output, saved) = NormForward { conv, input, layer, parameters, epsilon, backward }.run();
    let [height, width] = shape.output_size(epilogue);
    let output = output.into_tensor(&[shape.batch, shape.outputs, height, width]);
    let (moments, saved) = (saved.moments.clone(), Arc::new(saved));
    let kept = saved.needs_output(epilogue).then(|| output.clone());
    let backward = Backward::new(move |gradient, of_input| {
        let Shape { batch, inputs, outputs, height, width } = shape;
        let [input, weights, bias, scale, shift] = tensors.each_ref().map(values);
        let pass = NormBackward {
            conv,
            input,
            layer: [weights, bias],
            parameters: [scale, shift],
            saved: &saved,
            output: kept.as_ref().map_or(&[], values),
            gradient: values(&gradient),
            of_input,
            poll: Poll::current(),
        };
        let (found, of_parameters) = pass.run();
        let [of_scale, of_shift] = of_parameters.map(|values| Some(tensor(values, &[outputs])));
        [
            found.input.map(|found| found.into_tensor(&[batch, inputs, height, width])),
            Some(found.weights.into_tensor(&[outputs, inputs, 3, 3])),
            Some(tensor(found.bias, &[outputs])),
            of_scale,
            of_shift,
        ]
    });
    (output, moments, backward)
}
