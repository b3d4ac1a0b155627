//! Sequential layers, numbered as in PyTorch's `Sequential`: layers without
//! parameters count too.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{DType, Device, Tensor};

use super::batch_norm::BatchNorm;
use super::dropout::{BatchPlace, Dropout};
use super::{Activation, Layer};
use crate::spans::{self, Operator};
use burn_fused::conv::{conv, conv_relu, conv_relu_pool};
use burn_fused::linear::linear;

/// A layer for images `[batch, channels, height, width]`.
#[derive(Module, Debug)]
pub(super) enum ImageLayer {
    Conv(Conv2d),
    Norm(BatchNorm),
    Elementwise(Elementwise),
    Pool(MaxPool2d),
}

/// A layer for features `[batch, features]`.
#[derive(Module, Debug)]
pub(super) enum FeatureLayer {
    Linear(Linear),
    Elementwise(Elementwise),
    Dropout(Dropout),
}

impl ImageLayer {
    /// The layer as an entry of the layer list.
    pub(super) fn layer(&self) -> Layer<'_> {
        match self {
            Self::Conv(layer) => Layer::Conv(layer),
            Self::Norm(layer) => Layer::Norm(layer),
            Self::Elementwise(layer) => Layer::Activation(layer.activation),
            Self::Pool(layer) => Layer::Pool(layer),
        }
    }
}

impl FeatureLayer {
    /// The layer as an entry of the layer list.
    pub(super) fn layer(&self) -> Layer<'_> {
        match self {
            Self::Linear(layer) => Layer::Linear(layer),
            Self::Elementwise(layer) => Layer::Activation(layer.activation),
            Self::Dropout(layer) => Layer::Dropout(layer),
        }
    }
}

/// An activation as a layer.
#[derive(Module, Debug)]
pub(super) struct Elementwise {
    #[module(skip)]
    pub(super) activation: Activation,
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

/// `layer` of `x`: Burn's layer for f32 unless `fused`, and for 16-bit features the operator
/// that takes them beside weights in f32.
pub(super) fn dense(layer: &Linear, x: Tensor<2>, fused: bool) -> Tensor<2> {
    match x.dtype() {
        DType::F32 if !fused => layer.forward(x),
        _ => linear(x, layer),
    }
}

/// Applies the layers of the named block in order; with `fused`, convolutions and batch
/// norms are `burn_fused` operators, fused with a directly following ReLU and pooling.
pub(super) fn apply_to_images(
    (block, all): (&str, &[ImageLayer]),
    mut x: Tensor<4>,
    fused: bool,
) -> Tensor<4> {
    use ImageLayer::{Conv, Elementwise as Then, Norm, Pool};
    const RELU: Activation = Activation::Relu;
    let mut layers = all;
    loop {
        let first = all.len() - layers.len();
        let operator = |kind: &'static str| move || Operator::new(format!("{block}.{first}"), kind);
        (x, layers) = match layers {
            [] => return x,
            [Conv(layer), Then(Elementwise { activation: RELU }), Pool(_), rest @ ..] if fused => {
                (spans::layer(operator("conv+relu+max pool"), x, |x| conv_relu_pool(x, layer)), rest)
            }
            [Conv(layer), Then(Elementwise { activation: RELU }), rest @ ..] if fused => {
                (spans::layer(operator("conv+relu"), x, |x| conv_relu(x, layer)), rest)
            }
            [Conv(layer), rest @ ..] if fused => {
                (spans::layer(operator("conv"), x, |x| conv(x, layer)), rest)
            }
            [Conv(layer), rest @ ..] => (spans::layer(operator("conv"), x, |x| layer.forward(x)), rest),
            [Norm(layer), Then(Elementwise { activation: RELU }), Pool(_), rest @ ..] if fused => {
                (spans::layer(operator("batch norm+relu+max pool"), x, |x| layer.relu_pool(x)), rest)
            }
            [Norm(layer), Then(Elementwise { activation: RELU }), rest @ ..] if fused => {
                (spans::layer(operator("batch norm+relu"), x, |x| layer.relu(x)), rest)
            }
            [Norm(layer), rest @ ..] => (spans::layer(operator("batch norm"), x, |x| layer.forward(x)), rest),
            [Then(layer), rest @ ..] => {
                let kind = layer.activation;
                let operator = || Operator::new(format!("{block}.{first}"), kind.to_string());
                (spans::layer(operator, x, |x| kind.of(x)), rest)
            }
            [Pool(layer), rest @ ..] => (spans::layer(operator("max pool"), x, |x| layer.forward(x)), rest),
        };
    }
}

/// Applies the layers of the named block in order; with `fused`, linear layers are `burn_fused`
/// operators.
pub(super) fn apply_to_features(
    (block, layers): (&str, &[FeatureLayer]),
    mut x: Tensor<2>,
    place: Option<&BatchPlace>,
    fused: bool,
) -> Tensor<2> {
    for (index, layer) in layers.iter().enumerate() {
        let operator = || {
            let kind = match layer {
                FeatureLayer::Linear(_) => "linear".to_owned(),
                FeatureLayer::Elementwise(layer) => layer.activation.to_string(),
                FeatureLayer::Dropout(_) => "dropout".to_owned(),
            };
            Operator::new(format!("{block}.{index}"), kind)
        };
        x = spans::layer(operator, x, |x| match layer {
            FeatureLayer::Linear(layer) => dense(layer, x, fused),
            FeatureLayer::Elementwise(layer) => layer.activation.of(x),
            FeatureLayer::Dropout(layer) => layer.forward(x, place),
        });
    }
    x
}
