//! The networks of the experiments.
//!
//! A network is a list of layers with PyTorch's names. Forward, operation counts, quantization and export all
//! read this list, so a new network needs only a file with a function `layers`, and its lines in this file.

mod convnet;
pub mod flop;
mod layers;
mod mlp;
mod network_options;
#[cfg(test)]
mod parameters_tests;
#[cfg(test)]
mod spans_tests;
mod vgg;

use std::sync::{Arc, Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_fused::nn::BatchPlace;
use burn_fused::precision::autocast;
use burn_mpi::{ParamLayout, ParamSpec};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use layers::{Layer, NamedLayer};
pub use mlp::HIDDEN;
pub use network_options::{ActivationKind, Hidden, NetworkOptions};

use crate::values::display_names;
use flop::Flop;

/// Makes the input of a network, `[batch, channels, height, width]`, on `device`. `values` are the normalised
/// samples, one after the other.
pub fn inputs(values: Vec<f32>, [channels, height, width]: [usize; 3], device: &Device) -> Tensor<4> {
    let samples = values.len() / (channels * height * width);
    Tensor::from_data(TensorData::new(values, [samples, channels, height, width]), device)
}

/// Kind of network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Two convolutions and a linear layer, for images.
    Convnet,
    /// Six convolutions and three linear layers, for images from 8 pixels a side.
    Vgg,
    /// Two linear layers and a batch norm, for features and images.
    Mlp,
}

display_names!(ModelKind);

impl ModelKind {
    /// Returns the dimensions of the network in the experiments.
    pub fn dimensions(self) -> Dimensions {
        match self {
            Self::Convnet => Dimensions { input: [1, 28, 28], classes: 10 },
            Self::Vgg => Dimensions { input: [3, 32, 32], classes: 10 },
            Self::Mlp => Dimensions { input: [1, 1, 512], classes: 20 },
        }
    }

    /// Smallest height and width of samples that the network accepts: its poolings must leave at least one
    /// pixel.
    pub fn least_side(self) -> usize {
        match self {
            Self::Convnet => 4,
            Self::Vgg => 8,
            Self::Mlp => 1,
        }
    }

    /// Returns the number of weights in the layers that an option or the data set can make arbitrarily large.
    pub fn unbounded_weights(self, options: &NetworkOptions, dimensions: Dimensions) -> u64 {
        let Dimensions { input: [channels, height, width], classes } = dimensions;
        let product =
            |sizes: &[usize]| sizes.iter().fold(1, |all: u64, &size| all.saturating_mul(size as u64));
        match self {
            Self::Convnet => {
                product(&[9, channels, 4]).saturating_add(product(&[8, height / 4, width / 4, classes]))
            }
            Self::Vgg => product(&[9, channels, 32]).saturating_add(product(&[32, classes])),
            Self::Mlp => {
                let hidden = options.hidden.map_or(HIDDEN, Hidden::get);
                product(&[channels, height, width, hidden]).saturating_add(product(&[hidden, classes]))
            }
        }
    }
}

/// Sizes of a network's input and output, which the data set determines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dimensions {
    /// Channels, height and width of a sample.
    pub input: [usize; 3],
    /// Number of classes.
    pub classes: usize,
}

/// A network of one of the kinds.
#[derive(Module, Debug)]
pub struct Network {
    /// The layers, in the order of forward.
    layers: Vec<Layer>,
    #[module(skip)]
    made: Made,
}

/// How a network was made.
#[derive(Debug, Clone)]
struct Made {
    kind: ModelKind,
    /// Sizes of the network's input and output.
    dimensions: Dimensions,
    /// Whether each convolution, with its ReLU and pooling, is one fused operator (the default) rather than
    /// separate operators of Burn.
    fused: bool,
    /// PyTorch's names of the layers.
    names: Arc<[String]>,
}

impl Network {
    /// Replaces the network by the result of `change`, which gets the only reference to the parameters, so that
    /// they can be written in place.
    pub fn change(&mut self, change: impl FnOnce(Self) -> Self) {
        let network = Self { layers: std::mem::take(&mut self.layers), made: self.made.clone() };
        *self = change(network);
    }

    /// Makes a network of this kind with the default options. See [`Network::with_options`].
    pub fn init(kind: ModelKind, dimensions: Dimensions, seed: u64, device: &Device) -> Self {
        Self::with_options(kind, &NetworkOptions::default(), dimensions, seed, device)
    }

    /// Makes a network. `seed` determines its initial weights, which have PyTorch's default distributions:
    /// uniform in ±1/sqrt(fan in). Height and width of samples must be at least [`ModelKind::least_side`].
    pub fn with_options(
        kind: ModelKind,
        options: &NetworkOptions,
        dimensions: Dimensions,
        seed: u64,
        device: &Device,
    ) -> Self {
        seeded(seed, device, || {
            let layers = match kind {
                ModelKind::Convnet => convnet::layers(options, dimensions, device),
                ModelKind::Vgg => vgg::layers(options, dimensions, device),
                ModelKind::Mlp => mlp::layers(options, dimensions, device),
            };
            let (names, layers): (Vec<String>, _) = layers.into_iter().unzip();
            let network = Self { layers, made: Made { kind, dimensions, fused: true, names: names.into() } };
            // Burn initialises a parameter at its first use. Reading all parameters here, in visit order,
            // makes the initial weights a function of the seed alone.
            ParamLayout::of_module(&network).read(&network);
            network
        })
    }

    /// Returns class scores `[batch, classes]` of samples `[batch, channels, height, width]`. Dropout has an
    /// effect only if there is a `place`, which says where in the training the batch is.
    pub fn apply(&self, samples: Tensor<4>, place: Option<&BatchPlace>) -> Tensor<2> {
        layers::apply(&self.layers(), samples, place, self.made.fused)
    }

    /// Returns class scores as in training, with activations in `dtype`. Parameters stay in f32.
    pub fn forward_in(&self, dtype: DType, samples: Tensor<4>, place: &BatchPlace) -> Tensor<2> {
        autocast(samples, dtype, |samples| self.apply(samples, Some(place)))
    }

    /// Returns class scores as in evaluation.
    pub fn forward(&self, samples: Tensor<4>) -> Tensor<2> {
        self.apply(samples, None)
    }

    /// Returns the layers with their names, in the order of forward.
    pub fn layers(&self) -> Vec<NamedLayer<'_>> {
        let named = self.made.names.iter().zip(&self.layers);
        named.map(|(name, layer)| NamedLayer { name, layer }).collect()
    }

    /// Returns PyTorch's names, the shapes and the ranges (in a flat buffer) of all parameters.
    pub fn parameters(&self) -> ParamLayout {
        let names = self.layers().into_iter().flat_map(|NamedLayer { name, layer }| {
            let layout = ParamLayout::of_module(layer);
            // Burn calls a batch norm's parameters gamma and beta.
            let torch = |spec: &ParamSpec| spec.name.replace("gamma", "weight").replace("beta", "bias");
            layout.specs().iter().map(|spec| format!("{name}.{}", torch(spec))).collect::<Vec<_>>()
        });
        ParamLayout::of_module(self).with_names(names.collect())
    }

    /// Kind of the network.
    pub fn kind(&self) -> ModelKind {
        self.made.kind
    }

    /// Sizes of the network's input and output.
    pub fn dimensions(&self) -> Dimensions {
        self.made.dimensions
    }

    /// Channels, height and width of a sample.
    pub fn input_shape(&self) -> [usize; 3] {
        self.dimensions().input
    }

    /// Counts the operations for one sample, layer by layer.
    pub fn flop(&self) -> Flop {
        Flop::of_layers(&self.input_shape(), &self.layers())
    }

    /// Sets whether each convolution, with its ReLU and pooling, is one fused operator (the default) rather
    /// than separate operators of Burn.
    #[must_use]
    pub fn fused(mut self, on: bool) -> Self {
        self.made.fused = on;
        self
    }
}

/// Calls `draw` after seeding the random generator of `device`. All threads share a device's generator, so
/// only one thread draws at a time.
pub fn seeded<T>(seed: u64, device: &Device, draw: impl FnOnce() -> T) -> T {
    static DRAWING: Mutex<()> = Mutex::new(());
    let _alone = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    device.seed(seed);
    draw()
}

#[cfg(test)]
#[path = "tests.rs"]
mod torch_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::{ModuleVisitor, Param};
    use burn::tensor::{Gradients, TensorData};
    use burn_fused::loss::cross_entropy;

    struct All {
        gradients: Gradients,
        values: Vec<Vec<f32>>,
    }

    impl ModuleVisitor for All {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Running statistics have no gradient.
            let gradient = param.val().grad_remove(&mut self.gradients);
            self.values.extend(gradient.map(|gradient| gradient.into_data().try_into_vec().expect("f32")));
        }
    }

    /// Returns the gradients of all parameters for one batch.
    fn gradients(network: &Network, images: Tensor<4>, labels: &[u16]) -> Vec<Vec<f32>> {
        let loss = cross_entropy(network.forward(images), labels).loss;
        let mut all = All { gradients: loss.backward(), values: Vec::new() };
        network.visit(&mut all);
        all.values
    }

    #[test]
    fn fused_networks_learn_the_same() {
        let device = Device::flex().autodiff();
        let plain = NetworkOptions::default();
        let gelu = NetworkOptions { activation: ActivationKind::Gelu, ..plain };
        let norm = NetworkOptions { batch_norm: true, ..plain };
        for (kind, options, input) in [
            (ModelKind::Convnet, plain, [1, 28, 28]),
            (ModelKind::Convnet, gelu, [1, 28, 28]),
            (ModelKind::Convnet, plain, [1, 4, 4]),
            (ModelKind::Convnet, plain, [3, 5, 7]),
            (ModelKind::Convnet, norm, [3, 5, 7]),
            (ModelKind::Convnet, plain, [2, 29, 31]),
            (ModelKind::Vgg, plain, [3, 32, 32]),
            (ModelKind::Vgg, plain, [3, 8, 8]),
            (ModelKind::Vgg, plain, [1, 9, 17]),
            (ModelKind::Vgg, norm, [1, 9, 17]),
            (ModelKind::Vgg, plain, [3, 33, 40]),
            (ModelKind::Vgg, norm, [1, 75, 9]),
            (ModelKind::Mlp, plain, [3, 4, 5]),
            (ModelKind::Mlp, plain, [1, 1, 7]),
        ] {
            let dimensions = Dimensions { input, classes: 10 };
            let network = Network::with_options(kind, &options, dimensions, 5, &device);
            assert_eq!(
                (network.input_shape(), network.clone().fused(false).dimensions()),
                (input, dimensions)
            );
            let [channels, height, width] = input;
            let values = (0..3 * channels * height * width).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0);
            let images = TensorData::new(values.collect::<Vec<f32>>(), [3, channels, height, width]);
            let images = Tensor::<4>::from_data(images, &device);
            let fused = gradients(&network, images.clone(), &[1, 7, 3]);
            let plain = gradients(&network.fused(false), images, &[1, 7, 3]);
            let largest = |values: &[f32]| values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
            // The gradient of a bias before a batch norm is 0 up to rounding, so the error is relative to the
            // largest gradient.
            let has_norm = options.batch_norm || kind == ModelKind::Mlp;
            let rounding = if has_norm { largest(&plain.concat()) } else { 0.0 };
            for (param, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
                let largest = largest(plain).max(rounding);
                let off = fused.iter().zip(plain).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
                assert!(
                    largest > 0.0 && off <= 1e-5 * largest,
                    "{kind} {input:?}, parameter {param}: {off} of {largest}"
                );
            }
        }
    }
}
