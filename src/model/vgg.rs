//! VGG: the deeper convolutional network of the CIFAR-10 experiments.

use burn::tensor::Device;
use burn_fused::nn::pool::AdaptiveAvgPool2dConfig;

use super::layers::{conv3x3, linear, norm, pool2x2};
use super::{Dimensions, Layer, NetworkOptions};

/// Largest height and width without average pooling. At this size, the first linear layer has 4 million
/// weights.
const LARGEST: usize = 64;

/// Returns the layers of three blocks and a head, for `[batch, c, h, w]`.
///
/// A block has two Conv2d(3x3, pad 1) · ReLU and a MaxPool2d(2). The channels are c→32→64, 64→128→256 and
/// 256→256→256. The head is Linear 256·⌊h/8⌋·⌊w/8⌋→256 · ReLU · 256→32 · ReLU · 32→classes.
///
/// If the height or width of images is above 64 pixels, average pooling precedes the head, as in
/// torchvision's VGG, and limits ⌊h/8⌋ and ⌊w/8⌋ to 8. If the options add batch norm, a norm follows each
/// convolution. If they add dropout, it follows the first ReLU of the head.
pub(super) fn layers(
    options: &NetworkOptions,
    dimensions: Dimensions,
    device: &Device,
) -> Vec<(String, Layer)> {
    let Dimensions { input: [channels, height, width], classes } = dimensions;
    let mut layers = Vec::new();
    for (number, channels) in (1..).zip([[channels, 32, 64], [64, 128, 256], [256; 3]]) {
        layers.extend(numbered(number, block(channels, options, device)));
    }
    let size = [height, width].map(|side| (side / 8).min(LARGEST / 8));
    if height.max(width) > LARGEST {
        layers.push(("average".into(), Layer::AveragePool(AdaptiveAvgPool2dConfig::new(size).init())));
    }
    let features = 256 * size[0] * size[1];
    layers.push(("flatten".into(), Layer::Flatten(features)));
    let linear = |inputs, outputs| linear(inputs, outputs, device);
    let activation = || Layer::Activation(options.activation_layer());
    let mut head = vec![linear(features, 256), activation()];
    head.extend(options.dropout_layer().map(Layer::Dropout));
    head.extend([linear(256, 32), activation(), linear(32, classes)]);
    layers.extend(numbered(4, head));
    layers
}

/// Numbers the layers of a block as PyTorch does: activations and poolings count too.
fn numbered(block: usize, layers: Vec<Layer>) -> impl Iterator<Item = (String, Layer)> {
    layers.into_iter().enumerate().map(move |(index, layer)| (format!("block{block}.{index}"), layer))
}

/// Returns two convolutions with activations, and a pooling that halves height and width.
fn block(channels: [usize; 3], options: &NetworkOptions, device: &Device) -> Vec<Layer> {
    let mut layers = Vec::new();
    for pair in channels.windows(2) {
        layers.push(conv3x3(pair[0], pair[1], device));
        if options.batch_norm {
            layers.push(norm(pair[1], device));
        }
        layers.push(Layer::Activation(options.activation_layer()));
    }
    layers.push(pool2x2());
    layers
}
