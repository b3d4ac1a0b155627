//! Forward through the layers of one group, with weights in float or fake-quantized. A group is a layer with
//! weights and the layers that belong to it.
//!
//! Fake quantization rounds f32 values to the values that 8-bit integers with a scale can represent.

use burn::module::{Param, ParamId};
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn::tensor::module::adaptive_avg_pool2d;
use burn_fused::Epilogue;
use burn_fused::fake_quantize::fake_quantize;
use burn_fused::int8::{QParams, Scheme};
use burn_fused::nn::conv::Conv2d;
use burn_fused::nn::{BatchNorm, Linear};

use super::{Group, Product};

/// Flattens `images` to features. `images` is the output of `last`, the last group with a convolution. If
/// `last` has average pooling, applies the pooling first. If no group has a convolution, `last` is `None`,
/// and `images` is the input of the network.
pub(super) fn flat(last: Option<&Group<'_>>, images: Tensor<4>) -> Tensor<2> {
    match last.and_then(|group| group.average) {
        Some(size) => adaptive_avg_pool2d(images, size).flatten(1, 3),
        None => images.flatten(1, 3),
    }
}

impl Group<'_> {
    /// Applies the group's convolution, batch norm, ReLU and max pooling. `parameters` are the scales and
    /// zero points for fake quantization of the weights; `None` leaves the weights in float. If `folded`,
    /// batch norm with its running statistics is folded into the weights instead of being a separate layer.
    pub(super) fn images(&self, x: Tensor<4>, parameters: Option<&[QParams]>, folded: bool) -> Tensor<4> {
        let layer = self.convolution(parameters, folded);
        let epilogue = if self.pool.is_some() { Epilogue::ReluPool } else { Epilogue::Relu };
        match self.norm.filter(|_| !folded) {
            Some(norm) => norm.forward_with(layer.forward(x), epilogue),
            None => layer.forward_with(x, epilogue),
        }
    }

    /// Returns the group's convolution, with the weights that [`images`](Self::images) uses.
    pub(super) fn convolution(&self, parameters: Option<&[QParams]>, folded: bool) -> Conv2d {
        let Product::Conv(layer) = self.product else { unreachable!("a linear layer takes features") };
        let weight = quantized(layer.weight.val(), parameters, 0);
        let channels = [layer.weight.dims()[0], 1, 1, 1];
        let (weight, bias) = self.fold(weight, layer.bias.as_ref(), channels, folded);
        Conv2d { weight, bias, ..layer.clone() }
    }

    /// Returns whether the group is a convolution, ReLU and pooling without a separate batch norm, so that
    /// one operator computes it.
    pub(super) fn is_conv_relu_pool(&self, folded: bool) -> bool {
        self.pool.is_some() && (folded || self.norm.is_none())
    }

    /// Applies the group's linear layer, batch norm and ReLU. `parameters` and `folded` mean the same as in
    /// [`images`](Self::images).
    pub(super) fn features(&self, x: Tensor<2>, parameters: Option<&[QParams]>, folded: bool) -> Tensor<2> {
        let x = self.linear(parameters, folded).forward(x);
        match self.norm.filter(|_| !folded) {
            Some(norm) if self.relu => norm.forward_with(x, Epilogue::Relu),
            Some(norm) => norm.forward(x),
            None if self.relu => relu(x),
            None => x,
        }
    }

    /// Returns the group's linear layer, with the weights that [`features`](Self::features) uses.
    fn linear(&self, parameters: Option<&[QParams]>, folded: bool) -> Linear {
        let Product::Linear(layer) = self.product else { unreachable!("a convolution takes images") };
        let weight = quantized(layer.weight.val(), parameters, 1);
        let outputs = [1, layer.weight.dims()[1]];
        let (weight, bias) = self.fold(weight, layer.bias.as_ref(), outputs, folded);
        Linear { weight, bias }
    }

    /// Returns weights and biases. If `folded`, batch norm with its running statistics is folded in.
    /// Gradients then flow through weights and biases to gamma and beta of the norm.
    fn fold<const D: usize>(
        &self,
        weight: Tensor<D>,
        bias: Option<&Param<Tensor<1>>>,
        outputs: [usize; D],
        folded: bool,
    ) -> (Param<Tensor<D>>, Option<Param<Tensor<1>>>) {
        let bias = bias.map(Param::val);
        let (weight, bias) = match self.norm.filter(|_| folded).map(BatchNorm::running_affine) {
            Some([factor, shift]) => {
                let bias = match bias {
                    Some(bias) => bias * factor.clone() + shift,
                    None => shift,
                };
                (weight * factor.reshape(outputs), Some(bias))
            }
            None => (weight, bias),
        };
        (parameter(weight), bias.map(parameter))
    }

    /// Returns the weights and biases in float, with batch norm folded in by its running statistics. Outputs
    /// are the first dimension of the weights, as in PyTorch.
    pub(super) fn folded(&self) -> [Vec<f32>; 2] {
        let (weights, bias) = match self.product {
            Product::Conv(_) => {
                let Conv2d { weight, bias, .. } = self.convolution(None, true);
                (values_of(weight.val()), bias)
            }
            Product::Linear(_) => {
                let Linear { weight, bias } = self.linear(None, true);
                (values_of(weight.val().transpose()), bias)
            }
        };
        let zeros = || vec![0.0; self.product.outputs()];
        [weights, bias.map_or_else(zeros, |bias| values_of(bias.val()))]
    }
}

/// Returns the values of an f32 tensor.
pub(super) fn values_of<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec().unwrap_or_else(|_| unreachable!("the tensor is f32"))
}

fn quantized<const D: usize>(weight: Tensor<D>, parameters: Option<&[QParams]>, axis: usize) -> Tensor<D> {
    match parameters {
        Some(parameters) => fake_quantize(weight, Scheme::Symmetric, parameters, axis),
        None => weight,
    }
}

/// Wraps a tensor of the autodiff graph in a parameter.
fn parameter<const D: usize>(value: Tensor<D>) -> Param<Tensor<D>> {
    Param::initialized(ParamId::new(), value)
}
