//! Forward through a group's layers in training, with fake-quantized weights.

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

/// Flattens the images of the last group with a convolution to features, after its average pooling.
pub(super) fn flat(last: Option<&Group<'_>>, images: Tensor<4>) -> Tensor<2> {
    match last.and_then(|group| group.average) {
        Some(size) => adaptive_avg_pool2d(images, size).flatten(1, 3),
        None => images.flatten(1, 3),
    }
}

impl Group<'_> {
    /// Applies a convolution and its group. Weights are fake-quantized with `parameters`, if given. With
    /// `folded`, batch norm's running statistics are folded into the weights.
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

    /// Whether one operator computes the group's convolution, ReLU and pooling.
    pub(super) fn is_conv_relu_pool(&self, folded: bool) -> bool {
        self.pool.is_some() && (folded || self.norm.is_none())
    }

    /// Applies a linear layer and its group, as [`images`](Self::images) does a convolution.
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

    /// Returns weights and biases; if `folded`, with the batch norm's running statistics folded in. The
    /// gradients of the norm's own weight and bias flow through them.
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

    /// Returns the float weights and biases in evaluation, with batch norm folded in. Weights are outputs
    /// first, as in PyTorch's layout.
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
    tensor.into_data().try_into_vec().unwrap_or_else(|_| unreachable!("they are f32"))
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
