// A convolutional network that classifies MNIST's images. main.rs includes this file twice, with `nn` and
// `optim` of Burn and of burn_fused.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use nn::conv::{Conv2d, Conv2dConfig};
use nn::loss::CrossEntropyLossConfig;
use nn::pool::{MaxPool2d, MaxPool2dConfig};
use nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use optim::{AdamWConfig, ModuleOptimizer};

use super::{Image, Network, SIDE};

/// A convolution, batch normalisation, ReLU, and max pooling of 2x2 pixels.
#[derive(Module, Debug)]
pub struct Block {
    conv: Conv2d,
    norm: BatchNorm,
    activation: Relu,
    pool: MaxPool2d,
}

impl Block {
    fn new(channels: [usize; 2], device: &Device) -> Self {
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        Self {
            conv: Conv2dConfig::new(channels, [3, 3]).with_padding(padding).init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            activation: Relu::new(),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }
}

#[derive(Module, Debug)]
pub struct Cnn {
    block1: Block,
    block2: Block,
    linear1: Linear,
    linear2: Linear,
    activation: Relu,
}

impl Network for Cnn {
    fn new(device: &Device) -> Self {
        Self {
            block1: Block::new([1, 32], device),
            block2: Block::new([32, 64], device),
            linear1: LinearConfig::new(64 * 7 * 7, 128).init(device),
            linear2: LinearConfig::new(128, 10).init(device),
            activation: Relu::new(),
        }
    }

    fn scores(&self, images: &[Image], device: &Device) -> Tensor<2> {
        let mut pixels = Vec::with_capacity(images.len() * SIDE * SIDE);
        images.iter().for_each(|image| pixels.extend_from_slice(&image.pixels));
        let pixels = TensorData::new(pixels, [images.len(), 1, SIDE, SIDE]);
        let x = forward(&self.block2, forward(&self.block1, Tensor::from_data(pixels, device)));
        let x = self.activation.forward(self.linear1.forward(x.flatten(1, 3)));
        self.linear2.forward(x)
    }

    fn loss(&self, images: &[Image], device: &Device) -> Tensor<1> {
        let labels: Vec<i32> = images.iter().map(|image| i32::from(image.label)).collect();
        let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [images.len()]), device);
        CrossEntropyLossConfig::new().init(device).forward(self.scores(images, device), labels)
    }

    fn optimizer() -> ModuleOptimizer {
        AdamWConfig::new().with_epsilon(1e-8).init()
    }
}
