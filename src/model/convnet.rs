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
            true => conv_relu_pool_twice(images, &self.conv1, &self.conv2),
            false => {
                let x = self.block(&self.conv1, self.bn1.as_ref(), images);
                self.block(&self.conv2, self.bn2.as_ref(), x)
            }
        };
        let x = x.flatten(1, 3);
        let x = match &self.dropout {
            Some(dropout) => dropout.forward(x, place),
            None => x,
        };
        match self.fused {
            true => linear(x, &self.linear),
            false => self.linear.forward(x),
        }
    }
}

impl ConvNet {
    fn block(&self, layer: &Conv2d, norm: Option<&BatchNorm>, x: Tensor<4>) -> Tensor<4> {
        let x = match self.fused {
            true => conv(x, layer),
            false => layer.forward(x),
        };
        let x = match norm {
            Some(norm) if self.fused && self.activation == Activation::Relu => return norm.relu_pool(x),
            Some(norm) => norm.forward(x),
            None => x,
        };
        self.pool.forward(self.activation.of(x))
    }
}
