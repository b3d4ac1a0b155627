//! ConvNet: the small convolutional network of the MNIST experiments, 4,266
//! parameters for these images.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Device;

use super::batch_norm::BatchNorm;
use super::dropout::Dropout;
use super::layers::{conv3x3, pool2x2};
use super::{Architecture, Dimensions, Layer, Made, NamedLayer, NetworkOptions};

/// Conv2d(c→4, 3x3, pad 1) · ReLU · MaxPool2d(2) · Conv2d(4→8, 3x3, pad 1) · ReLU
/// · MaxPool2d(2) · flatten · Linear(8·⌊h/4⌋·⌊w/4⌋→classes), for `[batch, c, h, w]`.
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
    pub(super) made: Made,
}

impl ConvNet {
    /// A network with weights drawn from the device's random number generator.
    pub(super) fn init(options: &NetworkOptions, dimensions: Dimensions, device: &Device) -> Self {
        let [channels, height, width] = dimensions.input;
        let norm = |channels| options.batch_norm.then(|| BatchNorm::init(channels, device));
        Self {
            conv1: conv3x3(channels, 4, device),
            bn1: norm(4),
            conv2: conv3x3(4, 8, device),
            bn2: norm(8),
            dropout: Dropout::new(options.dropout),
            linear: LinearConfig::new(8 * (height / 4) * (width / 4), dimensions.classes).init(device),
            pool: pool2x2(),
            made: Made::of(options, dimensions),
        }
    }
}

impl Architecture for ConvNet {
    fn made(&self) -> &Made {
        &self.made
    }

    fn layers(&self) -> Vec<NamedLayer<'_>> {
        let mut layers = Vec::new();
        for (conv, norm, names) in [
            (&self.conv1, &self.bn1, ["conv1", "bn1", "activation1", "pool1"]),
            (&self.conv2, &self.bn2, ["conv2", "bn2", "activation2", "pool2"]),
        ] {
            layers.push(Layer::Conv(conv).named(names[0]));
            layers.extend(norm.as_ref().map(|norm| Layer::Norm(norm).named(names[1])));
            layers.push(Layer::Activation(self.made.activation).named(names[2]));
            layers.push(Layer::Pool(&self.pool).named(names[3]));
        }
        layers.push(Layer::Flatten.named("flatten"));
        layers.extend(self.dropout.as_ref().map(|layer| Layer::Dropout(layer).named("dropout")));
        layers.push(Layer::Linear(&self.linear).named("linear"));
        layers
    }
}
