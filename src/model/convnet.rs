//! ConvNet: the small convolutional network of the MNIST experiments, 4,266
//! parameters.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

use super::batch_norm::BatchNorm;
use super::dropout::{BatchPlace, Dropout};
use super::layers::{conv3x3, pool2x2};
use super::{Activation, Architecture, Layer, Model, NamedLayer, NetworkOptions};
use crate::spans::{self, Operator};
use burn_fused::conv::{conv, conv_relu_pool_twice};
use burn_fused::linear::linear;

/// Conv2d(1→4, 3x3, pad 1) · ReLU · MaxPool2d(2) · Conv2d(4→8, 3x3, pad 1) · ReLU
/// · MaxPool2d(2) · flatten · Linear(392→classes), for `[batch, 1, 28, 28]`.
/// Batch norms, if any, follow the convolutions, and dropout precedes the linear
/// layer.
#[derive(Module, Debug)]
pub struct ConvNet {
    conv1: Conv2d,
    bn1: Option<BatchNorm>,
    conv2: Conv2d,
    bn2: Option<BatchNorm>,
    dropout: Option<Dropout>,
    linear: Linear,
    pool: MaxPool2d,
    #[module(skip)]
    activation: Activation,
    fused: bool,
}

impl Architecture for ConvNet {
    const INPUT_SHAPE: [usize; 3] = [1, 28, 28];
    const CLASSES: usize = 10;

    fn init(options: &NetworkOptions, classes: usize, device: &Device) -> Self {
        let norm = |channels| options.batch_norm.then(|| BatchNorm::init(channels, device));
        Self {
            conv1: conv3x3(1, 4, device),
            bn1: norm(4),
            conv2: conv3x3(4, 8, device),
            bn2: norm(8),
            dropout: Dropout::new(options.dropout),
            linear: LinearConfig::new(8 * 7 * 7, classes).init(device),
            pool: pool2x2(),
            activation: options.activation,
            fused: true,
        }
    }

    fn set_fused(&mut self, on: bool) {
        self.fused = on;
    }

    fn layers(&self) -> Vec<NamedLayer<'_>> {
        let mut layers = Vec::new();
        for (number, conv, norm) in [(1, &self.conv1, &self.bn1), (2, &self.conv2, &self.bn2)] {
            layers.push(Layer::Conv(conv).named(format!("conv{number}")));
            layers.extend(norm.as_ref().map(|norm| Layer::Norm(norm).named(format!("bn{number}"))));
            layers.push(Layer::Activation(self.activation).named(format!("activation{number}")));
            layers.push(Layer::Pool(&self.pool).named(format!("pool{number}")));
        }
        layers.push(Layer::Flatten.named("flatten"));
        layers.extend(self.dropout.as_ref().map(|layer| Layer::Dropout(layer).named("dropout")));
        layers.push(Layer::Linear(&self.linear).named("linear"));
        layers
    }
}

impl Model for ConvNet {
    type Input = Tensor<4>;
    type Output = Tensor<2>;

    fn apply(&self, images: Tensor<4>, place: Option<&BatchPlace>) -> Tensor<2> {
        let plain = self.bn1.is_none() && self.activation == Activation::Relu;
        let x = match self.fused && plain {
            true => {
                let operator = || Operator::new("conv1, conv2", "2x conv+relu+max pool");
                spans::layer(operator, images, |x| conv_relu_pool_twice(x, &self.conv1, &self.conv2))
            }
            false => {
                let x = self.block(1, images);
                self.block(2, x)
            }
        };
        let x = spans::layer(|| Operator::new("flatten", "flatten"), x, |x| x.flatten(1, 3));
        let x = match &self.dropout {
            Some(dropout) => {
                let operator = || Operator::new("dropout", "dropout");
                spans::layer(operator, x, |x| dropout.forward(x, place))
            }
            None => x,
        };
        spans::layer(
            || Operator::new("linear", "linear"),
            x,
            |x| match self.fused {
                true => linear(x, &self.linear),
                false => self.linear.forward(x),
            },
        )
    }
}

impl ConvNet {
    /// A convolution with what follows it, up to the pooling; `number` counts from 1.
    fn block(&self, number: usize, x: Tensor<4>) -> Tensor<4> {
        let (layer, norm) = match number {
            1 => (&self.conv1, &self.bn1),
            _ => (&self.conv2, &self.bn2),
        };
        let x = spans::layer(
            || Operator::new(format!("conv{number}"), "conv"),
            x,
            |x| match self.fused {
                true => conv(x, layer),
                false => layer.forward(x),
            },
        );
        let norm_name = || format!("bn{number}");
        let x = match norm {
            Some(norm) if self.fused && self.activation == Activation::Relu => {
                let operator = || Operator::new(norm_name(), "batch norm+relu+max pool");
                return spans::layer(operator, x, |x| norm.relu_pool(x));
            }
            Some(norm) => spans::layer(|| Operator::new(norm_name(), "batch norm"), x, |x| norm.forward(x)),
            None => x,
        };
        let kind = self.activation;
        let operator = || Operator::new(format!("activation{number}"), kind.to_string());
        let x = spans::layer(operator, x, |x| kind.of(x));
        let operator = || Operator::new(format!("pool{number}"), "max pool");
        spans::layer(operator, x, |x| self.pool.forward(x))
    }
}
