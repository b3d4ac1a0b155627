//! VGG: the deeper convolutional network of the CIFAR-10 experiments.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::tensor::Device;

use super::batch_norm::BatchNorm;
use super::dropout::Dropout;
use super::layers::{Elementwise, ListedLayer, conv3x3, pool2x2};
use super::{Architecture, Dimensions, Layer, Made, NamedLayer, NetworkOptions};

/// Three blocks of two Conv2d(3x3, pad 1) · ReLU and a MaxPool2d(2), channels
/// c→32→64, 64→128→256, 256→256→256, then Linear 256·⌊h/8⌋·⌊w/8⌋→256 · ReLU ·
/// 256→32 · ReLU · 32→classes, for `[batch, c, h, w]`. Above 64 pixels, ⌊h/8⌋ and ⌊w/8⌋ are at most 8: means of
/// windows come before the linear layers, as in torchvision's VGG. Batch norms, if any, follow
/// the convolutions, and dropout the first linear layer's ReLU.
#[derive(Module, Debug)]
pub struct Vgg {
    block1: Vec<ListedLayer>,
    block2: Vec<ListedLayer>,
    block3: Vec<ListedLayer>,
    block4: Vec<ListedLayer>,
    #[module(skip)]
    pub(super) made: Made,
}

impl Vgg {
    /// A network with weights drawn from the device's random number generator.
    pub(super) fn init(options: &NetworkOptions, dimensions: Dimensions, device: &Device) -> Self {
        Self {
            block1: block([dimensions.input[0], 32, 64], options, device),
            block2: block([64, 128, 256], options, device),
            block3: block([256, 256, 256], options, device),
            block4: head(dimensions, options, device),
            made: Made::of(options, dimensions),
        }
    }
}

impl Architecture for Vgg {
    fn made(&self) -> &Made {
        &self.made
    }

    fn layers(&self) -> Vec<NamedLayer<'_>> {
        let mut layers = Vec::new();
        for (number, block) in [(1, &self.block1), (2, &self.block2), (3, &self.block3)] {
            let block = block.iter().enumerate();
            layers.extend(block.map(|(index, layer)| layer.layer().named(format!("block{number}.{index}"))));
        }
        let [_, height, width] = self.made.dimensions.input;
        if height.max(width) > LARGEST {
            layers.push(Layer::AveragePool(pooled(self.made.dimensions)).named("average"));
        }
        layers.push(Layer::Flatten.named("flatten"));
        let head = self.block4.iter().enumerate();
        layers.extend(head.map(|(index, layer)| layer.layer().named(format!("block4.{index}"))));
        layers
    }
}

/// Two convolutions and a pooling: half the height and width.
fn block(channels: [usize; 3], options: &NetworkOptions, device: &Device) -> Vec<ListedLayer> {
    let mut layers = Vec::new();
    for pair in channels.windows(2) {
        layers.push(ListedLayer::Conv(conv3x3(pair[0], pair[1], device)));
        if options.batch_norm {
            layers.push(ListedLayer::Norm(BatchNorm::init(pair[1], device)));
        }
        layers.push(ListedLayer::Elementwise(Elementwise { activation: options.activation }));
    }
    layers.push(ListedLayer::Pool(pool2x2()));
    layers
}

/// Largest height and width without average pooling: the first linear layer has 4 million weights then.
const LARGEST: usize = 64;

/// Height and width that the linear layers take.
fn pooled(dimensions: Dimensions) -> [usize; 2] {
    let [_, height, width] = dimensions.input;
    [height, width].map(|side| (side / 8).min(LARGEST / 8))
}

/// The three linear layers.
fn head(dimensions: Dimensions, options: &NetworkOptions, device: &Device) -> Vec<ListedLayer> {
    let [height, width] = pooled(dimensions);
    let linear = |inputs, outputs| ListedLayer::Linear(LinearConfig::new(inputs, outputs).init(device));
    let activation = || ListedLayer::Elementwise(Elementwise { activation: options.activation });
    let mut layers = vec![linear(256 * height * width, 256), activation()];
    layers.extend(Dropout::new(options.dropout).map(ListedLayer::Dropout));
    layers.extend([linear(256, 32), activation(), linear(32, dimensions.classes)]);
    layers
}
