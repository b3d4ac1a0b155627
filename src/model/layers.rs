//! The layers of networks, and forward through a list of them.
//!
//! Operation counts, quantization and export read the same list of layers as forward. Forward looks ahead in
//! the list, and replaces a sequence such as convolution, ReLU, pooling by one fused operator.

use burn::module::Module;
use burn::nn as burns;
use burn::tensor::{DType, Device, Tensor};
use burn_fused::Epilogue;
use burn_fused::conv::conv_relu_pool_twice;
use burn_fused::nn::activation::Activation;
use burn_fused::nn::conv::{Conv2d, Conv2dConfig};
use burn_fused::nn::pool::{AdaptiveAvgPool2d, MaxPool2d, MaxPool2dConfig};
use burn_fused::nn::{
    BatchNorm, BatchNormConfig, BatchPlace, Dropout, Linear, LinearConfig, PaddingConfig2d,
};

use super::ActivationKind;
use crate::spans::{self, Operator};

/// A layer and its name in PyTorch, which is the prefix of its parameters' names.
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
    /// Means of windows that cover the image.
    AveragePool(AdaptiveAvgPool2d),
    /// Reshapes `[batch, channels, height, width]` to `[batch, features]`. Contains the number of features.
    Flatten(usize),
    /// Dropout, which has an effect only in training.
    Dropout(Dropout),
    /// Linear layer.
    Linear(Linear),
}

/// Makes a 3x3 convolution with padding 1, which keeps height and width.
pub(super) fn conv3x3(inputs: usize, outputs: usize, device: &Device) -> Layer {
    let config = Conv2dConfig::new([inputs, outputs], [3, 3]);
    Layer::Conv(config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device))
}

/// Makes a batch norm with PyTorch's running variance, which is unbiased.
pub(super) fn norm(channels: usize, device: &Device) -> Layer {
    Layer::Norm(BatchNorm { unbiased: true, ..BatchNormConfig::new(channels).init(device) })
}

/// Makes a 2x2 max pooling, which halves height and width.
pub(super) fn pool2x2() -> Layer {
    Layer::Pool(MaxPool2dConfig::new([2, 2]).init())
}

/// Makes a linear layer.
pub(super) fn linear(inputs: usize, outputs: usize, device: &Device) -> Layer {
    Layer::Linear(LinearConfig::new(inputs, outputs).init(device))
}

/// Describes the operator that computes the first of `layers`. Returns the operator's epilogue (the ReLU, or
/// the ReLU and the pooling, that the operator also computes), the suffix of the operator's name, and the
/// number of layers that the operator computes. Only the operators of a convolution and a batch norm have an
/// epilogue.
fn epilogue(layers: &[&Layer]) -> (Epilogue, &'static str, usize) {
    use Layer::{Activation as Then, Conv, Norm, Pool};
    match layers {
        [Conv(_) | Norm(_), Then(Activation::Relu(_)), Pool(_), ..] => {
            (Epilogue::ReluPool, "+relu+max pool", 3)
        }
        [Conv(_) | Norm(_), Then(Activation::Relu(_)), ..] => (Epilogue::Relu, "+relu", 2),
        _ => (Epilogue::Identity, "", 1),
    }
}

/// Applies the layers to `images` and returns class scores `[batch, classes]`. Dropout has an effect only if
/// there is a `place`, which says where in the training the batch is.
///
/// With `fused`, layers are operators of `burn_fused`, and the operator of a convolution or a batch norm
/// includes a ReLU and a pooling that directly follow. If two convolutions follow each other, each with ReLU
/// and pooling, one operator computes both. Without `fused`, all layers are Burn's, except batch norms,
/// dropout, and linear layers on 16-bit features. Average pooling is always Burn's.
pub(super) fn apply(
    layers: &[NamedLayer<'_>],
    images: Tensor<4>,
    place: Option<&BatchPlace>,
    fused: bool,
) -> Tensor<2> {
    let is_flatten = |named: &NamedLayer<'_>| matches!(named.layer, Layer::Flatten(_));
    let flatten = layers.iter().position(is_flatten).expect("every network ends with layers of features");
    let images = apply_to_images(&layers[..flatten], images, fused);
    let features = spans::layer(|| Operator::new("flatten", "flatten"), images, |x| x.flatten(1, 3));
    apply_to_features(&layers[flatten + 1..], features, place, fused)
}

/// Applies the layers before the flattening: convolutions and poolings.
fn apply_to_images(layers: &[NamedLayer<'_>], mut images: Tensor<4>, fused: bool) -> Tensor<4> {
    use Layer::{Activation as Then, AveragePool, Conv, Norm, Pool};
    use burn_fused::nn::activation::Activation::Relu;
    let kinds: Vec<&Layer> = layers.iter().map(|named| named.layer).collect();
    let mut at = 0;
    while at < kinds.len() {
        let (epilogue, suffix, mut count) = epilogue(if fused { &kinds[at..] } else { &[] });
        let name = layers[at].name;
        let operator = |kind: &'static str| move || Operator::new(name, format!("{kind}{suffix}"));
        images = match kinds[at..] {
            [Conv(a), Then(Relu(_)), Pool(_), Conv(b), Then(Relu(_)), Pool(_), ..] if fused => {
                count = 6;
                let names = || format!("{name}, {}", layers[at + 3].name);
                let operator = || Operator::new(names(), "2x conv+relu+max pool");
                spans::layer(operator, images, |x| conv_relu_pool_twice(x, a, b))
            }
            [Conv(layer), ..] if !fused => spans::layer(operator("conv"), images, |x| {
                burns::conv::Conv2d::from(layer.clone()).forward(x)
            }),
            [Pool(layer), ..] if !fused => spans::layer(operator("max pool"), images, |x| {
                burns::pool::MaxPool2d::from(layer.clone()).forward(x)
            }),
            [Conv(layer), ..] => spans::layer(operator("conv"), images, |x| layer.forward_with(x, epilogue)),
            [Norm(layer), ..] => {
                spans::layer(operator("batch norm"), images, |x| layer.forward_with(x, epilogue))
            }
            [Then(layer), ..] => {
                spans::layer(|| activation(name, layer), images, |x| activated(layer, x, fused))
            }
            [Pool(layer), ..] => spans::layer(operator("max pool"), images, |x| layer.forward(x)),
            [AveragePool(layer), ..] => spans::layer(operator("average pool"), images, |x| layer.forward(x)),
            _ => unreachable!("dropout and linear layers take features"),
        };
        at += count;
    }
    images
}

/// Applies the layers after the flattening.
fn apply_to_features(
    layers: &[NamedLayer<'_>],
    mut features: Tensor<2>,
    place: Option<&BatchPlace>,
    fused: bool,
) -> Tensor<2> {
    use Layer::{Activation as Then, Dropout, Linear, Norm};
    let kinds: Vec<&Layer> = layers.iter().map(|named| named.layer).collect();
    let mut at = 0;
    while at < kinds.len() {
        // In evaluation, batch norm and ReLU are separate operators, so that a profile shows the time of the
        // activation.
        let in_training = features.device().is_autodiff();
        let (epilogue, suffix, count) = epilogue(if fused && in_training { &kinds[at..] } else { &[] });
        let name = layers[at].name;
        let operator = |kind: &'static str| move || Operator::new(name, format!("{kind}{suffix}"));
        features = match kinds[at] {
            Norm(layer) => {
                spans::layer(operator("batch norm"), features, |x| layer.forward_with(x, epilogue))
            }
            Then(layer) => spans::layer(|| activation(name, layer), features, |x| activated(layer, x, fused)),
            Dropout(layer) => spans::layer(operator("dropout"), features, |x| match place {
                Some(place) => layer.forward_at(x, place),
                None => x,
            }),
            // Burn's linear layer does not accept 16-bit features with f32 weights.
            Linear(layer) if !fused && features.dtype() == DType::F32 => {
                spans::layer(operator("linear"), features, |x| burns::Linear::from(layer.clone()).forward(x))
            }
            Linear(layer) => spans::layer(operator("linear"), features, |x| layer.forward(x)),
            _ => unreachable!("convolutions and poolings take images"),
        };
        at += count;
    }
    features
}

/// Returns the name of an activation's operator.
fn activation(name: &str, layer: &Activation) -> Operator {
    Operator::new(name, ActivationKind::from_layer(layer).to_string())
}

/// Applies an activation, by `burn_fused`'s operator or by Burn's.
fn activated<const D: usize>(layer: &Activation, x: Tensor<D>, fused: bool) -> Tensor<D> {
    if fused { layer.forward(x) } else { burns::activation::Activation::from(layer.clone()).forward(x) }
}
