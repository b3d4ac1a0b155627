//! The network of `bench fused`, trained and timed with one implementation.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::median_ms;
use crate::data::{Normalizer, Shard};
use crate::device::DeviceKind;
use crate::model::seeded;
use burn_fused::conv::conv_relu;
use burn_fused::loss::{Score, cross_entropy};
use burn_mpi::ParamLayout;

/// Height and width of the digits.
const SIDE: usize = 28;
const CLASSES: usize = 10;
const TEST_BATCH: usize = 128;

/// Implementation of a convolution and its ReLU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// One fused operator with its own backward.
    Fused,
    /// Burn's convolution, then Burn's ReLU.
    Separate,
}

impl Operator {
    fn apply(self, conv: &Conv2d, images: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Fused => conv_relu(images, conv),
            Self::Separate => relu(conv.forward(images)),
        }
    }
}

/// Parameters that all rows of the table share.
#[derive(Debug, Clone, Copy)]
pub struct Task {
    /// Channels of the convolution, input and output.
    pub channels: usize,
    /// Learning rate of Adam.
    pub lr: f64,
    /// Seed of the initial weights.
    pub seed: u64,
}

/// ReLU(Conv2d(C→C, 3x3, pad 1)), `layers` times with the same weights, then
/// Linear(C·28·28→10), for `[batch, 1, 28, 28]`.
///
/// The report that the table reproduces applied one convolution N times, so its input
/// and output have the same shape; with several channels, the image is repeated over
/// them.
#[derive(Module, Debug)]
struct Repeated {
    conv: Conv2d,
    linear: Linear,
    layers: usize,
    channels: usize,
}

impl Repeated {
    fn init(layers: usize, task: Task, device: &Device) -> Self {
        let Task { channels, .. } = task;
        Self {
            conv: Conv2dConfig::new([channels, channels], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device),
            linear: LinearConfig::new(channels * SIDE * SIDE, CLASSES).init(device),
            layers,
            channels,
        }
    }

    fn forward(&self, images: Tensor<4>, operator: Operator) -> Tensor<2> {
        let images = match self.channels {
            1 => images,
            channels => images.repeat_dim(1, channels),
        };
        let x = (0..self.layers).fold(images, |x, _| operator.apply(&self.conv, x));
        self.linear.forward(x.flatten(1, 3))
    }
}

/// A network in training, and its times.
pub struct Candidate {
    /// Number of times that the convolution is applied.
    pub layers: usize,
    operator: Operator,
    network: Repeated,
    optimizer: ModuleOptimizer,
    lr: f64,
    device: Device,
    forward: Vec<Duration>,
    backward: Vec<Duration>,
}

impl Candidate {
    /// An untrained network. All networks of the same task and layers have the same
    /// initial weights on every device.
    pub fn new(layers: usize, task: Task, device: DeviceKind, operator: Operator) -> Self {
        // Random generators differ between devices: the weights are always drawn on
        // flex, which every build has.
        let flex = Device::flex();
        let (layout, weights) = seeded(task.seed, &flex, || {
            let drawn = Repeated::init(layers, task, &flex);
            let layout = ParamLayout::of(&drawn);
            let weights = layout.read(&drawn);
            (layout, weights)
        });
        let device = device.device();
        let network = layout.write(Repeated::init(layers, task, &device.clone().autodiff()), &weights);
        let optimizer = AdamConfig::new().with_epsilon(1e-8).init();
        let (forward, backward) = (Vec::new(), Vec::new());
        Self { layers, operator, network, optimizer, lr: task.lr, device, forward, backward }
    }

    /// One training step; returns its loss.
    pub fn step(&mut self, normalizer: &Normalizer, bytes: &[u8], labels: &[u8]) -> f64 {
        let images = normalizer.images(bytes, &self.device.clone().autodiff());
        let began = Instant::now();
        // The loss includes its value, so forward is complete on lazy backends as well.
        let Score { loss, value, .. } = cross_entropy(self.network.forward(images, self.operator), labels);
        let forwarded = Instant::now();
        let gradients = GradientsParams::from_grads(loss.backward(), &self.network);
        self.backward.push(forwarded.elapsed());
        self.forward.push(forwarded - began);
        self.network = self.optimizer.step(self.lr, self.network.clone(), gradients);
        value
    }

    /// Milliseconds of a forward and of a backward, medians over steps.
    pub fn median_ms(&self) -> (f64, f64) {
        (median_ms(&self.forward), median_ms(&self.backward))
    }

    /// Accuracy in percent.
    pub fn accuracy(&self, normalizer: &Normalizer, test: &Shard) -> f64 {
        let network = self.network.valid();
        let right = |from| {
            let (bytes, labels) = test.samples(from, TEST_BATCH);
            let images = normalizer.images(bytes, &self.device);
            cross_entropy(network.forward(images, self.operator), labels).correct
        };
        let right: usize = (0..test.len()).step_by(TEST_BATCH).map(right).sum();
        100.0 * right as f64 / test.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::generate::Synthetic;
    use crate::data::{SampleSource, ShardPlan, Split, shard::Order};

    const TASK: Task = Task { channels: 3, lr: 1e-2, seed: 1 };

    fn noise(samples: usize) -> (Normalizer, Shard) {
        let source = Synthetic::new([1, SIDE, SIDE], CLASSES, samples);
        let plan = ShardPlan { samples, world_size: 1, batch_size: samples };
        let shard = Shard::load(&source, Split::Train, &plan, 0, Order::Sequential).unwrap();
        (Normalizer::new(source.description()), shard)
    }

    #[test]
    fn the_number_of_layers_does_not_change_the_number_of_weights() {
        let weights = |layers| ParamLayout::of(&Repeated::init(layers, TASK, &Device::flex())).len();
        assert_eq!(weights(1), 3 * 3 * 9 + 3 + 3 * 784 * 10 + 10);
        assert_eq!(weights(10), weights(1));
    }

    #[test]
    fn one_batch_is_memorised_and_timed() {
        memorise(Operator::Fused);
        memorise(Operator::Separate);
    }

    fn memorise(operator: Operator) {
        let (normalizer, shard) = noise(8);
        let (bytes, labels) = shard.samples(0, 8);
        let mut candidate = Candidate::new(2, TASK, DeviceKind::Flex, operator);
        let losses: Vec<f64> = (0..40).map(|_| candidate.step(&normalizer, bytes, labels)).collect();
        assert!(losses[39] < 0.1 * losses[0], "{losses:?}");
        assert_eq!(candidate.accuracy(&normalizer, &shard), 100.0);
        let (forward, backward) = candidate.median_ms();
        assert!(forward > 0.0 && backward > 0.0);
    }

    #[test]
    fn both_operators_have_the_same_losses() {
        let (normalizer, shard) = noise(8);
        let (bytes, labels) = shard.samples(0, 8);
        let losses = |operator| -> Vec<f64> {
            let mut candidate = Candidate::new(4, TASK, DeviceKind::Flex, operator);
            (0..5).map(|_| candidate.step(&normalizer, bytes, labels)).collect()
        };
        for (fused, separate) in losses(Operator::Fused).into_iter().zip(losses(Operator::Separate)) {
            assert!((fused - separate).abs() < 1e-4 * separate.abs().max(1e-2), "{fused} and {separate}");
        }
    }
}
