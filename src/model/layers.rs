//! The layers of a network in the order of forward: for forward itself, operation counts,
//! quantization and export.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::module::adaptive_avg_pool2d;
use burn::tensor::{DType, Device, Tensor};

use super::Activation;
use super::batch_norm::BatchNorm;
use super::dropout::{BatchPlace, Dropout};
use crate::spans::{self, Operator};
use burn_fused::conv::{conv, conv_relu, conv_relu_pool, conv_relu_pool_twice};
use burn_fused::linear::linear;

/// A layer with the name of PyTorch's module: the prefix of its parameters'
/// names.
#[derive(Debug, Clone, Copy)]
pub struct NamedLayer<'a> {
    /// For example `conv1` or `block2.3`.
    pub name: &'a str,
    /// The layer.
    pub layer: &'a Layer,
}

/// A layer of one of the networks.
#[derive(Module, Debug)]
pub enum Layer {
    /// Convolution.
    Conv(Conv2d),
    /// Batch normalisation.
    Norm(BatchNorm),
    /// An element-wise activation.
    Activation(Activation),
    /// Maximum of each window.
    Pool(MaxPool2d),
    /// Means of windows that cover the image, as PyTorch's `AdaptiveAvgPool2d`: height and width of the output.
    AveragePool([usize; 2]),
    /// `[batch, channels, height, width]` to `[batch, features]`: the number of features.
    Flatten(usize),
    /// Dropout, which has an effect only in training.
    Dropout(Dropout),
    /// Linear layer.
    Linear(Linear),
}

/// A 3x3 convolution with padding 1: height and width are unchanged.
pub(super) fn conv3x3(inputs: usize, outputs: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new([inputs, outputs], [3, 3])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}

/// 2x2 max pooling: half the height and width.
pub(super) fn pool2x2() -> MaxPool2d {
    MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init()
}

/// Class scores `[batch, classes]` of `images` by the layers in order. With `fused`, convolutions, batch norms and
/// linear layers are `burn_fused` operators, fused with a directly following ReLU and pooling.
pub(super) fn apply(
    layers: &[NamedLayer<'_>],
    mut images: Tensor<4>,
    place: Option<&BatchPlace>,
    fused: bool,
) -> Tensor<2> {
    use Layer::{Activation as Then, AveragePool, Conv, Dropout, Flatten, Linear, Norm, Pool};
    const RELU: Activation = Activation::Relu;
    let kinds: Vec<&Layer> = layers.iter().map(|named| named.layer).collect();
    let mut at = 0;
    while !matches!(kinds[at], Flatten(_)) {
        let operator = |kind: &'static str| move || Operator::new(layers[at].name, kind);
        let named = |kind: Activation| move || Operator::new(layers[at].name, kind.to_string());
        let count;
        (images, count) = match kinds[at..] {
            [Conv(a), Then(RELU), Pool(_), Conv(b), Then(RELU), Pool(_), ..] if fused => {
                let names = || format!("{}, {}", layers[at].name, layers[at + 3].name);
                let operator = || Operator::new(names(), "2x conv+relu+max pool");
                (spans::layer(operator, images, |x| conv_relu_pool_twice(x, a, b)), 6)
            }
            [Conv(layer), Then(RELU), Pool(_), ..] if fused => {
                (spans::layer(operator("conv+relu+max pool"), images, |x| conv_relu_pool(x, layer)), 3)
            }
            [Conv(layer), Then(RELU), ..] if fused => {
                (spans::layer(operator("conv+relu"), images, |x| conv_relu(x, layer)), 2)
            }
            [Conv(layer), ..] if fused => (spans::layer(operator("conv"), images, |x| conv(x, layer)), 1),
            [Conv(layer), ..] => (spans::layer(operator("conv"), images, |x| layer.forward(x)), 1),
            [Norm(layer), Then(RELU), Pool(_), ..] if fused => {
                (spans::layer(operator("batch norm+relu+max pool"), images, |x| layer.relu_pool(x)), 3)
            }
            [Norm(layer), Then(RELU), ..] if fused => {
                (spans::layer(operator("batch norm+relu"), images, |x| layer.relu(x)), 2)
            }
            [Norm(layer), ..] => (spans::layer(operator("batch norm"), images, |x| layer.forward(x)), 1),
            [Then(kind), ..] => (spans::layer(named(*kind), images, |x| kind.of(x)), 1),
            [Pool(layer), ..] => (spans::layer(operator("max pool"), images, |x| layer.forward(x)), 1),
            [AveragePool(size), ..] => {
                (spans::layer(operator("average pool"), images, |x| adaptive_avg_pool2d(x, *size)), 1)
            }
            _ => unreachable!("dropout and linear layers take features"),
        };
        at += count;
    }
    let mut x = spans::layer(|| Operator::new("flatten", "flatten"), images, |x| x.flatten(1, 3));
    at += 1;
    while at < kinds.len() {
        let operator = |kind: &'static str| move || Operator::new(layers[at].name, kind);
        let named = |kind: Activation| move || Operator::new(layers[at].name, kind.to_string());
        let count;
        (x, count) = match kinds[at..] {
            // One operator in training alone.
            [Norm(layer), Then(RELU), ..] if fused && x.device().is_autodiff() => {
                (spans::layer(operator("batch norm+relu"), x, |x| layer.relu(x)), 2)
            }
            [Norm(layer), ..] => (spans::layer(operator("batch norm"), x, |x| layer.forward(x)), 1),
            [Then(kind), ..] => (spans::layer(named(*kind), x, |x| kind.of(x)), 1),
            [Dropout(layer), ..] => (spans::layer(operator("dropout"), x, |x| layer.forward(x, place)), 1),
            // Burn's layer takes no 16-bit features beside weights in f32.
            [Linear(layer), ..] if !fused && x.dtype() == DType::F32 => {
                (spans::layer(operator("linear"), x, |x| layer.forward(x)), 1)
            }
            [Linear(layer), ..] => (spans::layer(operator("linear"), x, |x| linear(x, layer)), 1),
            _ => unreachable!("convolutions and poolings take images"),
        };
        at += count;
    }
    x
}
