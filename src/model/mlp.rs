//! The small network for feature vectors: 17,172 parameters with 512 features
//! and 20 classes.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

/// Features of a sample.
pub(super) const FEATURES: usize = 512;
const HIDDEN: usize = 32;

/// Linear(512→32) · BatchNorm1d(32) · ReLU · Linear(32→classes), for
/// `[batch, 1, 1, 512]`.
#[derive(Module, Debug)]
pub struct Mlp {
    layer1: Linear,
    bn1: BatchNorm,
    layer2: Linear,
}

impl Mlp {
    /// A network whose weights are drawn from the device's random numbers.
    pub fn init(classes: usize, device: &Device) -> Self {
        Self {
            layer1: LinearConfig::new(FEATURES, HIDDEN).init(device),
            bn1: BatchNormConfig::new(HIDDEN).init(device),
            layer2: LinearConfig::new(HIDDEN, classes).init(device),
        }
    }

    /// Class scores `[batch, classes]` of feature vectors `[batch, 1, 1, 512]`.
    pub fn forward(&self, features: Tensor<4>) -> Tensor<2> {
        let x = self.layer1.forward(features.flatten::<2>(1, 3));
        self.layer2.forward(relu(self.bn1.forward(x)))
    }
}
