//! ConvNet: the small convolutional network of the MNIST experiments, with 4,266 parameters for MNIST's
//! images.

use burn::tensor::Device;

use super::layers::{conv3x3, linear, norm, pool2x2};
use super::{Dimensions, Layer, NetworkOptions};

/// Returns the layers Conv2d(c→4, 3x3, pad 1) · ReLU · MaxPool2d(2) · Conv2d(4→8, 3x3, pad 1) · ReLU ·
/// MaxPool2d(2) · flatten · Linear(8·⌊h/4⌋·⌊w/4⌋→classes), for `[batch, c, h, w]`. If the options add batch
/// norm, a norm follows each convolution. If they add dropout, it precedes the linear layer.
pub(super) fn layers(
    options: &NetworkOptions,
    dimensions: Dimensions,
    device: &Device,
) -> Vec<(String, Layer)> {
    let Dimensions { input: [channels, height, width], classes } = dimensions;
    let mut layers = Vec::new();
    for (number, inputs, outputs) in [(1, channels, 4), (2, 4, 8)] {
        layers.push((format!("conv{number}"), conv3x3(inputs, outputs, device)));
        if options.batch_norm {
            layers.push((format!("bn{number}"), norm(outputs, device)));
        }
        layers.push((format!("activation{number}"), Layer::Activation(options.activation_layer())));
        layers.push((format!("pool{number}"), pool2x2()));
    }
    let features = 8 * (height / 4) * (width / 4);
    layers.push(("flatten".into(), Layer::Flatten(features)));
    layers.extend(options.dropout_layer().map(|layer| ("dropout".into(), Layer::Dropout(layer))));
    layers.push(("linear".into(), linear(features, classes, device)));
    layers
}
