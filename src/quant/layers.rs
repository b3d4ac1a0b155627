//! A group's layers in training, with fake-quantized weights.

use burn::module::{Param, ParamId};
use burn::nn::Linear;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use burn_fused::conv::{conv, conv_relu, conv_relu_pool};
use burn_fused::fake_quantize::fake_quantize;
use burn_fused::int8::{QParams, Scheme};
use burn_fused::linear::linear;

use super::{Group, Product};
use crate::model::{BatchNorm, RunningAffine};

impl Group<'_> {
    /// A convolution and its group, with weights quantized by `parameters`, if
    /// given. With `folded`, batch norm's running statistics are folded into the
    /// weights.
    pub(super) fn images(&self, x: Tensor<4>, parameters: Option<&[QParams]>, folded: bool) -> Tensor<4> {
        let layer = self.convolution(parameters, folded);
        let Some(norm) = self.norm.filter(|_| !folded) else {
            return self.relu_and_pool(x, &layer);
        };
        let x = conv(x, &layer);
        match (self.relu, self.pool) {
            (true, Some(_)) if self.pools_squares() => norm.relu_pool(x),
            (true, None) => norm.relu(x),
            (relu, pool) => pooled(pool, if relu { norm.relu(x) } else { norm.forward(x) }),
        }
    }

    /// The group's convolution, with the weights of [`images`](Self::images).
    pub(super) fn convolution(&self, parameters: Option<&[QParams]>, folded: bool) -> Conv2d {
        let Product::Conv(layer) = self.product else { unreachable!("a linear layer takes features") };
        let weight = quantized(layer.weight.val(), parameters, 0);
        let bias = layer.bias.as_ref().map(Param::val);
        let (weight, bias) = match self.norm {
            Some(norm) if folded => fold(norm, weight, bias, [layer.weight.dims()[0], 1, 1, 1]),
            _ => (weight, bias),
        };
        Conv2d { weight: parameter(weight), bias: bias.map(parameter), ..layer.clone() }
    }

    /// Whether one operator has the group's convolution, ReLU and pooling.
    pub(super) fn is_conv_relu_pool(&self, folded: bool) -> bool {
        self.relu && self.pools_squares() && (folded || self.norm.is_none())
    }

    /// `layer`, without a batch norm, with ReLU and pooling.
    fn relu_and_pool(&self, x: Tensor<4>, layer: &Conv2d) -> Tensor<4> {
        match (self.relu, self.pool) {
            (true, Some(_)) if self.pools_squares() => conv_relu_pool(x, layer),
            (true, pool) => pooled(pool, conv_relu(x, layer)),
            (false, pool) => pooled(pool, conv(x, layer)),
        }
    }

    /// Whether the fused operators support the pooling.
    fn pools_squares(&self) -> bool {
        self.pool.is_some_and(|pool| [pool.kernel_size, pool.stride] == [[2, 2]; 2])
    }

    /// A linear layer and its group, as [`images`](Self::images).
    pub(super) fn features(&self, x: Tensor<2>, parameters: Option<&[QParams]>, folded: bool) -> Tensor<2> {
        let Product::Linear(layer) = self.product else { unreachable!("a convolution takes images") };
        let weight = quantized(layer.weight.val(), parameters, 1);
        let bias = layer.bias.as_ref().map(Param::val);
        let (weight, bias, norm) = match self.norm {
            Some(norm) if folded => {
                let (weight, bias) = fold(norm, weight, bias, [1, layer.weight.dims()[1]]);
                (weight, bias, None)
            }
            norm => (weight, bias, norm),
        };
        let x = linear(x, &Linear { weight: parameter(weight), bias: bias.map(parameter) });
        match (norm, self.relu) {
            (Some(norm), true) => norm.relu(x),
            (Some(norm), false) => norm.forward(x),
            (None, true) => relu(x),
            (None, false) => x,
        }
    }
}

fn pooled(pool: Option<&burn::nn::pool::MaxPool2d>, x: Tensor<4>) -> Tensor<4> {
    match pool {
        Some(pool) => pool.forward(x),
        None => x,
    }
}

fn quantized<const D: usize>(weight: Tensor<D>, parameters: Option<&[QParams]>, axis: usize) -> Tensor<D> {
    match parameters {
        Some(parameters) => fake_quantize(weight, Scheme::Symmetric, parameters, axis),
        None => weight,
    }
}

/// Weights and biases with the batch norm's running statistics folded in. The
/// norm's weight and bias get their gradients through these.
fn fold<const D: usize>(
    norm: &BatchNorm,
    weight: Tensor<D>,
    bias: Option<Tensor<1>>,
    channels: [usize; D],
) -> (Tensor<D>, Option<Tensor<1>>) {
    let RunningAffine { factor, shift } = norm.running_affine();
    let bias = match bias {
        Some(bias) => bias * factor.clone() + shift,
        None => shift,
    };
    (weight * factor.reshape(channels), Some(bias))
}

/// A parameter that is a tensor of the autodiff graph.
fn parameter<const D: usize>(value: Tensor<D>) -> Param<Tensor<D>> {
    Param::initialized(ParamId::new(), value)
}
