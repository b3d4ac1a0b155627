//! The small convolutional network of the MNIST experiments: 4,266 parameters.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::ops::conv_relu_pool::conv_relu_pool;

/// Conv2d(1→4, 3x3, pad 1) · ReLU · MaxPool2d(2) · Conv2d(4→8, 3x3, pad 1) ·
/// ReLU · MaxPool2d(2) · flatten · Linear(392→classes), for `[batch, 1, 28, 28]`.
#[derive(Module, Debug)]
pub struct ConvNet {
    conv1: Conv2d,
    conv2: Conv2d,
    linear: Linear,
    pool: MaxPool2d,
    pub(super) fused: bool,
}

impl ConvNet {
    /// A network whose weights are drawn from the device's random numbers.
    pub fn init(classes: usize, device: &Device) -> Self {
        let conv = |inputs, outputs| {
            Conv2dConfig::new([inputs, outputs], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device)
        };
        Self {
            conv1: conv(1, 4),
            conv2: conv(4, 8),
            linear: LinearConfig::new(8 * 7 * 7, classes).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            fused: true,
        }
    }

    /// Class scores `[batch, classes]` of images `[batch, 1, 28, 28]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = self.block(&self.conv1, images);
        let x = self.block(&self.conv2, x);
        self.linear.forward(x.flatten(1, 3))
    }

    fn block(&self, conv: &Conv2d, x: Tensor<4>) -> Tensor<4> {
        match self.fused {
            true => conv_relu_pool(x, conv),
            false => self.pool.forward(relu(conv.forward(x))),
        }
    }
}
