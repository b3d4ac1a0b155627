//! Batch normalisation in training, with an epilogue (ReLU, or ReLU and pooling), as one operator: algorithm
//! 1 of Ioffe and Szegedy, "Batch normalization" (2015), and its gradients.
//!
//! Burn's operator makes transposed copies of the whole batch. This operator reads the pixels of a channel
//! without copies. The pixels stay in the processor's cache from the computation of the mean to the
//! computation of the output.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::Tensor;
use burn::tensor::module::batch_norm_train;

use crate::kernels::epilogue::Epilogue;
use crate::kernels::norm::{BatchShape, Input, Moments, gradients, inferred, normalised};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex, primitive, unsupported_tensors};
use crate::ops::flex_tensor::{contiguous, tensor, values};
use crate::ops::precision::{compose_mixed, supported, tensor_of, wide};
use crate::ops::shapes::{expect, refuse};

/// A normalised batch, and its statistics.
#[derive(Debug)]
pub struct Normalised<const D: usize> {
    /// The normalised values, in the input's shape; with [`Epilogue::ReluPool`], half as high and wide.
    pub output: Tensor<D>,
    /// Mean of each channel, `[channels]`; it is not differentiated.
    pub mean: Tensor<1>,
    /// Biased variance of each channel, `[channels]`: the sum of squares is divided by the number of values.
    /// It is not differentiated.
    pub variance: Tensor<1>,
}

/// Normalises each channel of `x` `[batch, channels, ...]` by its mean and variance over the batch, with
/// `epsilon` added to the variance. Then multiplies by `scale` `[channels]`, adds `shift` `[channels]`, and
/// applies `epilogue`.
///
/// On flex, the normalisation is one operator for `x` in f32, bf16 or f16. 16-bit values are normalised in
/// f32, and the output has the type of `x`. For other backends and types, the normalisation is composed of
/// Burn's operators.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::Epilogue;
/// use burn_fused::norm::batch_norm;
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<2>::from_data([[1.0, 5.0], [3.0, 5.0]], &device);
/// let (scale, shift) = (Tensor::ones([2], &device), Tensor::zeros([2], &device));
/// let normalised = batch_norm(x, scale, shift, 1e-5, Epilogue::Relu);
/// assert_eq!(normalised.mean.into_data().to_vec::<f32>().unwrap(), [2.0, 5.0]);
/// assert_eq!(normalised.variance.into_data().to_vec::<f32>().unwrap(), [1.0, 0.0]);
/// // ReLU takes what is below the mean.
/// assert_eq!(normalised.output.into_data().to_vec::<f32>().unwrap()[0], 0.0);
/// ```
///
/// # Panics
/// If `x` has fewer than two dimensions or no channels, if `epilogue` is [`Epilogue::ReluPool`] and `x`
/// is not four-dimensional, or if `scale` or `shift` does not have one value for each channel.
#[track_caller]
pub fn batch_norm<const D: usize>(
    x: Tensor<D>,
    scale: Tensor<1>,
    shift: Tensor<1>,
    epsilon: f64,
    epilogue: Epilogue,
) -> Normalised<D> {
    assert!(
        D >= 2 && (epilogue != Epilogue::ReluPool || D == 4),
        "{epilogue:?} does not support inputs with {D} dimensions"
    );
    let channels = x.dims()[1];
    if channels == 0 {
        refuse("batch_norm", "The input must have channels.", format_args!("got: {:?}", x.dims()));
    }
    let rule = "Scale and shift must have one value for each channel of the input tensor.";
    expect("batch_norm", rule, [scale.dims(), shift.dims()], [[channels]; 2]);
    let tensors = [x.into_dispatch(), scale.into_dispatch(), shift.into_dispatch()];
    let mut moments = None;
    let output = on_flex(
        tensors,
        |tensors| shape_of(tensors, epilogue),
        |tensors, shape, backward| {
            let (output, found, backward) = forward(tensors, shape, epilogue, epsilon, backward);
            moments = Some(found);
            (output, backward)
        },
    );
    match output {
        Ok(output) => statistics(Tensor::from_dispatch(output), &moments.expect("forward has run")),
        Err(tensors) => {
            let [x, scale, shift] = unsupported_tensors("batch_norm", tensors);
            let [scale, shift] = [scale, shift].map(Tensor::<1>::from_dispatch);
            let mut statistics = None;
            let output = compose_mixed(Tensor::from_dispatch(x), scale.dtype(), |x| {
                let found = batch_norm_train(x, scale, shift, epsilon);
                statistics = Some((found.mean, found.variance));
                epilogue.composed(found.output)
            });
            let (mean, variance) = statistics.expect("Burn's operator has run");
            Normalised { output, mean, variance }
        }
    }
}

/// Returns the output with its statistics, on the same device.
pub(crate) fn statistics<const D: usize>(output: Tensor<D>, moments: &Moments) -> Normalised<D> {
    let [mean, variance] = [&moments.mean, &moments.variance].map(|values| {
        let values = Tensor::<1>::from_primitive::<Flex>(tensor(values.clone(), &[values.len()]));
        match output.gradient_checkpointing_strategy() {
            Some(strategy) => Tensor::from_inner(values).with_gradient_checkpointing_strategy(strategy),
            None => values,
        }
    });
    Normalised { output, mean, variance }
}

/// Does the same as [`batch_norm`], but with the given mean and variance instead of those of the batch.
/// Returns `None` if a tensor is on an autodiff device or on another backend than flex, if the output is
/// empty, if `x` is not f32, bf16 or f16, or if another tensor is not f32.
pub(crate) fn batch_norm_inference<const D: usize>(
    x: &Tensor<D>,
    [mean, variance, scale, shift]: [Tensor<1>; 4],
    epsilon: f64,
    epilogue: Epilogue,
) -> Option<Tensor<D>> {
    let is_in_graph = |parameter: &Tensor<1>| parameter.device().is_autodiff();
    if x.device().is_autodiff() || [&mean, &variance, &scale, &shift].into_iter().any(is_in_graph) {
        return None;
    }
    let x = x.clone().into_dispatch();
    let parameters = [mean, variance, scale, shift].map(Tensor::into_dispatch);
    let x = contiguous(primitive(&x)?.clone());
    let [mean, variance, scale, shift] = parameters.each_ref().map(primitive);
    let parameters = [mean?, variance?, scale?, shift?].map(|tensor| contiguous(tensor.clone()));
    let [mean, variance, scale, shift] = &parameters;
    let shape = BatchShape::from_dims(&x.shape(), epilogue)
        .filter(|_| supported(&x, &[mean, variance, scale, shift]))?;
    let mut moments = Moments::default();
    for (&mean, &variance) in values(mean).iter().zip(values(variance)) {
        moments.push(mean, f64::from(variance), epsilon);
    }
    let level = Level::current();
    let input = Input { shape, epilogue, x: &wide(level, &x), parameters: [scale, shift].map(values) };
    let output = inferred(level, input, &moments);
    let output = tensor_of(x.dtype(), level, output, &shape.output_dims(&x.shape(), epilogue));
    Some(Tensor::from_primitive::<Flex>(output))
}

/// Returns the sizes of the batch if the types are supported and the output is not empty.
fn shape_of([x, scale, shift]: [&FlexTensor; 3], epilogue: Epilogue) -> Option<BatchShape> {
    BatchShape::from_dims(&x.shape(), epilogue).filter(|_| supported(x, &[scale, shift]))
}

/// Returns the output of a batch, its statistics, and its backward. The tensors are the batch, the scale and
/// the shift.
fn forward(
    tensors: [FlexTensor; 3],
    shape: BatchShape,
    epilogue: Epilogue,
    epsilon: f64,
    backward: bool,
) -> (FlexTensor, Moments, Backward<impl Saved, 3>) {
    let tensors = tensors.map(contiguous);
    let [x, scale, shift] = &tensors;
    let level = Level::current();
    let input = Input { shape, epilogue, x: &wide(level, x), parameters: [scale, shift].map(values) };
    let (output, moments, argmax) = normalised(level, input, epsilon, backward);
    let output = tensor_of(x.dtype(), level, output, &shape.output_dims(&x.shape(), epilogue));
    let (found, results) = (moments.clone(), Arc::new((moments, argmax)));
    let backward = Backward::new(move |gradient, _of_x| {
        let ([x, scale, shift], (moments, argmax)) = (&tensors, &*results);
        let gradient = &wide(level, &gradient);
        let input = Input { shape, epilogue, x: &wide(level, x), parameters: [scale, shift].map(values) };
        let (of_x, [of_scale, of_shift]) = gradients(level, input, moments, argmax, gradient);
        let of_x = tensor_of(x.dtype(), level, of_x, &x.shape());
        [of_x, tensor(of_scale, &scale.shape()), tensor(of_shift, &shift.shape())].map(Some)
    });
    (output, found, backward)
}
