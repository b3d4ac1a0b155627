//! The deeper convolutional network of the CIFAR-10 experiments.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::ops::conv_relu::conv_relu;
use crate::ops::conv_relu_pool::conv_relu_pool;

/// Three blocks of two Conv2d(3x3, pad 1) · ReLU and a MaxPool2d(2), channels
/// 3→32→64, 64→128→256, 256→256→256, then Linear 4096→256 · ReLU · 256→32 ·
/// ReLU · 32→classes, for `[batch, 3, 32, 32]`.
#[derive(Module, Debug)]
pub struct Vgg {
    block1: Block,
    block2: Block,
    block3: Block,
    block4: Head,
    pub(super) fused: bool,
}

/// Two convolutions and a pooling: half the height and width.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
}

/// The three linear layers.
#[derive(Module, Debug)]
struct Head {
    linear1: Linear,
    linear2: Linear,
    linear3: Linear,
}

impl Vgg {
    /// A network whose weights are drawn from the device's random numbers.
    pub fn init(classes: usize, device: &Device) -> Self {
        Self {
            block1: Block::init([3, 32, 64], device),
            block2: Block::init([64, 128, 256], device),
            block3: Block::init([256, 256, 256], device),
            block4: Head {
                linear1: LinearConfig::new(256 * 4 * 4, 256).init(device),
                linear2: LinearConfig::new(256, 32).init(device),
                linear3: LinearConfig::new(32, classes).init(device),
            },
            fused: true,
        }
    }

    /// Class scores `[batch, classes]` of images `[batch, 3, 32, 32]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.block1.forward(images, self.fused);
        let x = self.block2.forward(x, self.fused);
        let x = self.block3.forward(x, self.fused).flatten(1, 3);
        let x = relu(self.block4.linear1.forward(x));
        let x = relu(self.block4.linear2.forward(x));
        self.block4.linear3.forward(x)
    }
}

impl Block {
    fn init(channels: [usize; 3], device: &Device) -> Self {
        let conv = |inputs, outputs| {
            Conv2dConfig::new([inputs, outputs], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            conv1: conv(channels[0], channels[1]),
            conv2: conv(channels[1], channels[2]),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
        }
    }

    fn forward(&self, x: Tensor<4>, fused: bool) -> Tensor<4> {
        if fused {
            return conv_relu_pool(conv_relu(x, &self.conv1), &self.conv2);
        }
        let x = relu(self.conv1.forward(x));
        self.pool.forward(relu(self.conv2.forward(x)))
    }
}
