//! `mpiburn bench fused`: compares this project's fused convolution and ReLU with Burn's two separate
//! operators. The fused operator runs on Burn's backend flex. Burn's operators run on each CPU backend of
//! this build. The benchmark trains a small network with each of these implementations, and prints step times
//! and test accuracies.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::{check_alone, median_ms, publish};
use crate::commands::{outputs, use_threads};
use crate::device::DeviceKind;
use crate::model::{inputs, seeded};
use crate::options::{ConfigError, FusedArgs};
use burn_fused::conv::conv_relu;
use burn_fused::loss::{Score, cross_entropy};
use burn_mpi::{ParamLayout, World};
use data::{DataError, Description, Normalizer, Shard, Split, size_of_sample};
use run_report::benchmarks;
use run_report::fused::FusedRow;

/// Height and width of the digits.
const SIDE: usize = 28;
const CLASSES: usize = 10;
const TEST_BATCH: usize = 128;

/// Number of steps that one network trains before the next network trains. Networks alternate, so that a
/// change in the machine's speed affects all of them.
const TURN: usize = 10;

/// An implementation of the network.
#[derive(Debug, Clone, Copy)]
struct Way {
    name: &'static str,
    device: DeviceKind,
    /// Whether convolution and ReLU are one operator with its own backward, rather than Burn's two operators.
    fused: bool,
}

/// The implementations, in the order of the table's rows.
const WAYS: [Way; 4] = [
    Way { name: "fused", device: DeviceKind::Flex, fused: true },
    Way { name: "unfused", device: DeviceKind::Flex, fused: false },
    Way { name: "ndarray", device: DeviceKind::NdArray, fused: false },
    Way { name: "tch", device: DeviceKind::Tch, fused: false },
];

/// Trains each network with each implementation of this build, and prints the table.
pub fn run(world: &World, args: &FusedArgs) -> anyhow::Result<()> {
    check_alone(world, "an operator")?;
    outputs::check(&[("csv", args.csv.as_ref())], &[])?;
    use_threads(1)?;
    let source = data::open(&args.data_root)?;
    let Description { shape, classes, .. } = *source.description();
    let expected = [1, SIDE, SIDE];
    if shape != expected || classes > CLASSES {
        let problem = format!(
            "has samples of {} in {classes} classes, but the networks require {} in at most {CLASSES} classes",
            size_of_sample(shape),
            size_of_sample(expected)
        );
        return Err(ConfigError::new("data-root", args.data_root.display(), problem).into());
    }
    let load = |split, samples: usize| Shard::first(&source, split, samples.min(source.len(split)));
    let (train, test) = (load(Split::Train, args.train_samples)?, load(Split::Test, usize::MAX)?);
    let rows = measure(args, &Normalizer::new(source.description()), &train, &test)?;
    let heading = format!(
        "Conv2d({0}→{0}, 3x3, pad 1) + ReLU, `layers` times with the same weights; {1} digits in batches of {2}; \
         medians over steps, one thread",
        args.channels,
        train.len(),
        args.train_batch_size
    );
    publish(&heading, &benchmarks::table(&rows), args.csv.as_deref(), &rows)?;
    let missing: Vec<_> =
        WAYS.iter().filter(|way| way.device.check_built().is_err()).map(|way| way.name).collect();
    if !missing.is_empty() {
        println!("to measure the missing rows: make build DEVICES={}", missing.join(","));
    }
    Ok(())
}

/// Returns the number of layers and the implementation of each row of the table.
fn ways(args: &FusedArgs) -> impl Iterator<Item = (usize, Way)> {
    args.layers.iter().flat_map(|&layers| WAYS.map(|way| (layers, way)))
}

fn measure(
    args: &FusedArgs,
    normalizer: &Normalizer,
    train: &Shard,
    test: &Shard,
) -> Result<Vec<FusedRow>, DataError> {
    let built = ways(args).filter(|(_, way)| way.device.check_built().is_ok());
    let mut candidates: Vec<_> = built.map(|(layers, way)| Candidate::new(layers, args, way)).collect();
    let batch = args.train_batch_size;
    let starts: Vec<usize> = (0..train.len()).step_by(batch).collect();
    for turn in starts.chunks(TURN) {
        for candidate in &mut candidates {
            for &from in turn {
                let (bytes, labels) = train.read(from, batch)?;
                candidate.step(normalizer, &bytes, labels);
            }
        }
    }
    let row = |candidate: &Candidate| {
        Ok(FusedRow {
            operator: candidate.way.name.into(),
            layers: candidate.network.layers,
            channels: args.channels,
            batch,
            steps: starts.len(),
            forward_ms: median_ms(&candidate.forward),
            backward_ms: median_ms(&candidate.backward),
            test_accuracy: candidate.accuracy(normalizer, test)?,
        })
    };
    candidates.iter().map(row).collect()
}

/// The network: ReLU(Conv2d(C→C, 3x3, pad 1)) `layers` times with the same weights, then Linear(C·28·28→10).
/// Its input is `[batch, 1, 28, 28]`.
///
/// A published report, whose figures are in results/reference/fused.csv, applied one convolution N times.
/// This benchmark repeats the report's measurements, so the convolution's input and output must have the same
/// shape. If C is more than 1, each channel of the first input is a copy of the image.
#[derive(Module, Debug)]
struct RepeatedConv {
    conv: Conv2d,
    linear: Linear,
    layers: usize,
    channels: usize,
}

impl RepeatedConv {
    fn init(layers: usize, channels: usize, device: &Device) -> Self {
        Self {
            conv: Conv2dConfig::new([channels, channels], [3, 3])
                .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
                .init(device),
            linear: LinearConfig::new(channels * SIDE * SIDE, CLASSES).init(device),
            layers,
            channels,
        }
    }

    fn forward(&self, images: Tensor<4>, fused: bool) -> Tensor<2> {
        let images = match self.channels {
            1 => images,
            channels => images.repeat_dim(1, channels),
        };
        let x = (0..self.layers)
            .fold(images, |x, _| if fused { conv_relu(x, &self.conv) } else { relu(self.conv.forward(x)) });
        self.linear.forward(x.flatten(1, 3))
    }
}

/// A network in training, and its times.
struct Candidate {
    way: Way,
    network: RepeatedConv,
    optimizer: ModuleOptimizer,
    lr: f64,
    device: Device,
    forward: Vec<Duration>,
    backward: Vec<Duration>,
}

impl Candidate {
    /// Makes an untrained network. All networks with the same options and number of layers have the same
    /// initial weights on every device.
    fn new(layers: usize, args: &FusedArgs, way: Way) -> Self {
        let init = |device: &Device| RepeatedConv::init(layers, args.channels, device);
        // Random generators differ between devices, so the weights are always drawn on flex, which every
        // build has.
        let flex = Device::flex();
        let drawn = seeded(args.seed, &flex, || {
            let drawn = init(&flex);
            ParamLayout::of_module(&drawn).read(&drawn)
        });
        let device = way.device.device();
        let network = init(&device.clone().autodiff());
        let network = ParamLayout::of_module(&network).write(network, &drawn);
        let optimizer = AdamConfig::new().with_epsilon(1e-8).init();
        Self { way, network, optimizer, lr: args.lr, device, forward: Vec::new(), backward: Vec::new() }
    }

    /// Does one training step and returns its loss.
    fn step(&mut self, normalizer: &Normalizer, bytes: &[u8], labels: &[u16]) -> f64 {
        let images = inputs(normalizer.values(bytes), normalizer.shape(), &self.device.clone().autodiff());
        let began = Instant::now();
        // `cross_entropy` reads the value of the loss, so forward is complete here on lazy backends as well.
        let Score { loss, value, .. } = cross_entropy(self.network.forward(images, self.way.fused), labels);
        let forwarded = Instant::now();
        let gradients = GradientsParams::from_grads(loss.backward(), &self.network);
        self.backward.push(forwarded.elapsed());
        self.forward.push(forwarded - began);
        self.network = self.optimizer.step(self.lr, self.network.clone(), gradients);
        value
    }

    /// Returns the accuracy on `test` in percent.
    fn accuracy(&self, normalizer: &Normalizer, test: &Shard) -> Result<f64, DataError> {
        let network = self.network.valid();
        let mut right = 0;
        for from in (0..test.len()).step_by(TEST_BATCH) {
            let (bytes, labels) = test.read(from, TEST_BATCH)?;
            let images = inputs(normalizer.values(&bytes), normalizer.shape(), &self.device);
            right += cross_entropy(network.forward(images, self.way.fused), labels).correct;
        }
        Ok(100.0 * right as f64 / test.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;
    use data::generate::noise;

    fn task() -> FusedArgs {
        let words = ["fused", "--channels=3", "--lr=1e-2", "--seed=1"];
        let matches = FusedArgs::augment_args(clap::Command::new("fused")).get_matches_from(words);
        FusedArgs::from_arg_matches(&matches).unwrap()
    }

    fn of_noise(samples: usize) -> (Normalizer, Shard) {
        let source = noise([1, SIDE, SIDE], CLASSES, samples);
        let shard = Shard::first(&source, Split::Train, samples).unwrap();
        (Normalizer::new(source.description()), shard)
    }

    #[test]
    fn the_number_of_layers_does_not_change_the_number_of_weights() {
        let weights = |layers| ParamLayout::of_module(&RepeatedConv::init(layers, 3, &Device::flex())).len();
        assert_eq!(weights(1), 3 * 3 * 9 + 3 + 3 * 784 * 10 + 10);
        assert_eq!(weights(10), weights(1));
    }

    #[test]
    fn one_batch_is_memorised_and_timed() {
        memorise(FUSED);
        memorise(UNFUSED);
    }

    const FUSED: Way = WAYS[0];
    const UNFUSED: Way = WAYS[1];

    fn memorise(way: Way) {
        let (normalizer, shard) = of_noise(8);
        let (bytes, labels) = shard.read(0, 8).unwrap();
        let mut candidate = Candidate::new(2, &task(), way);
        let losses: Vec<f64> = (0..40).map(|_| candidate.step(&normalizer, &bytes, labels)).collect();
        assert!(losses[39] < 0.1 * losses[0], "{losses:?}");
        assert_eq!(candidate.accuracy(&normalizer, &shard).unwrap(), 100.0);
        assert!(median_ms(&candidate.forward) > 0.0 && median_ms(&candidate.backward) > 0.0);
    }

    #[test]
    fn both_operators_have_the_same_losses() {
        let (normalizer, shard) = of_noise(8);
        let (bytes, labels) = shard.read(0, 8).unwrap();
        let losses = |way| -> Vec<f64> {
            let mut candidate = Candidate::new(4, &task(), way);
            (0..5).map(|_| candidate.step(&normalizer, &bytes, labels)).collect()
        };
        for (fused, separate) in losses(FUSED).into_iter().zip(losses(UNFUSED)) {
            assert!((fused - separate).abs() < 1e-4 * separate.abs().max(1e-2), "{fused} and {separate}");
        }
    }
}
