//! A linear layer with its bias, and in f32 also with its activation, as one operator.
//!
//! In Burn, backward multiplies transposed copies of inputs and weights, and the activation is a separate
//! pass over memory. Here, matrix products read their factors in the stored layout, without copies.

mod half;
#[cfg(test)]
mod tests;
mod wide;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

use crate::kernels::activation::ActivationFunction;
use crate::kernels::half::{Half, MatmulPrecision};
use crate::ops::activation::activate;
use crate::ops::extension::{on_flex, on_flex_or};
use crate::ops::precision::rounded_to;
use crate::ops::shapes::expect;

/// A linear layer: Burn's, or the one of `burn_fused::nn`.
pub trait LinearLayer {
    /// Returns the weights `[inputs, outputs]` and the bias `[outputs]`.
    fn parameters(&self) -> (Tensor<2>, Option<Tensor<1>>);
}

impl LinearLayer for burn::nn::Linear {
    fn parameters(&self) -> (Tensor<2>, Option<Tensor<1>>) {
        (self.weight.val(), self.bias.as_ref().map(|bias| bias.val()))
    }
}

/// Sizes of a layer and its batch.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    /// Number of samples.
    batch: usize,
    /// Number of features of a sample.
    inputs: usize,
    /// Number of outputs of a sample.
    outputs: usize,
}

impl Sizes {
    /// Reads the sizes from inputs `[..., inputs]` and weights `[inputs, outputs]`. Returns `None` if the
    /// weights are empty.
    fn from_tensors(x: &FlexTensor, weights: &FlexTensor) -> Option<Self> {
        let [inputs, outputs] = weights.shape().dims();
        let batch = x.shape().num_elements().checked_div(inputs)?;
        (outputs > 0).then_some(Self { batch, inputs, outputs })
    }

    /// Returns the shape of the output for these inputs.
    fn output_shape(self, x: &FlexTensor) -> Vec<usize> {
        let mut shape = x.shape().to_vec();
        shape.pop();
        shape.push(self.outputs);
        shape
    }
}

/// Applies `layer` to `x` `[..., inputs]`, and returns `[..., outputs]`.
///
/// On flex, the layer is one operator for `x` in f32, and for `x` in bf16 or f16 beside parameters in f32
/// ([mixed precision](crate::precision)). The output has the type of `x`. Other types and backends run Burn's
/// operators.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::linear::linear;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(64, 10).init(&device);
/// let scores = linear(Tensor::<2>::ones([2, 64], &device), &layer);
/// assert_eq!(scores.dims(), [2, 10]);
/// let gradients = scores.sum().backward();
/// assert!(layer.weight.val().grad(&gradients).is_some());
/// ```
///
/// # Panics
/// If `x` does not have the layer's number of inputs, or the bias does not have one value for each output.
#[track_caller]
pub fn linear<const D: usize>(x: Tensor<D>, layer: &impl LinearLayer) -> Tensor<D> {
    linear_activated(x, layer, ActivationFunction::Identity)
}

/// Applies `layer` as [`linear`] does, then `activation`.
///
/// # Panics
/// In the same cases as [`linear`].
#[track_caller]
pub fn linear_activated<const D: usize>(
    x: Tensor<D>,
    layer: &impl LinearLayer,
    activation: ActivationFunction,
) -> Tensor<D> {
    let (weights, bias) = layer.parameters();
    let [inputs, outputs] = weights.dims();
    let rule = "Number of columns of input tensor and inputs of the layer must be equal.";
    expect("linear", rule, x.dims()[D - 1], inputs);
    if let Some(bias) = &bias {
        let rule = "Number of values of the bias and outputs of the layer must be equal.";
        expect("linear", rule, bias.dims(), [outputs]);
    }
    let has_bias = bias.is_some();
    // The number of an operator's tensors is fixed, so an empty tensor stands for an absent bias.
    let bias = bias.unwrap_or_else(|| Tensor::empty([0], &x.device()));
    let is_half = Half::from_dtype(x.dtype()).is_some();
    let mut tensors = [x.into_dispatch(), weights.into_dispatch(), bias.into_dispatch()];
    if is_half {
        tensors = match on_flex(tensors, half::sizes_of, half::forward) {
            Ok(output) => return activate(Tensor::from_dispatch(output), activation),
            Err(tensors) => tensors,
        };
    }
    let forward = |tensors, sizes, backward| {
        wide::forward(tensors, sizes, (activation, MatmulPrecision::current()), backward)
    };
    on_flex_or("linear", tensors, wide::sizes_of, forward, |[x, weights, bias]| {
        let (x, weights) = (Tensor::<D>::from_dispatch(x), Tensor::<2>::from_dispatch(weights));
        let (dtype, bias) = (x.dtype(), Tensor::<1>::from_dispatch(bias));
        let bias = has_bias.then(|| rounded_to(bias, dtype));
        activation.composed(burn::tensor::module::linear(x, rounded_to(weights, dtype), bias))
    })
}
