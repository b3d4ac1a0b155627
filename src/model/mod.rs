//! Networks of the experiments. To add one, write a file with an
//! `Architecture` and its lines below.

mod batch_norm;
mod convnet;
mod dropout;
pub mod flop;
mod layers;
mod mlp;
mod options;
#[cfg(test)]
mod parameters_tests;
#[cfg(test)]
mod spans_tests;
mod vgg;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_mpi::ParamLayout;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use batch_norm::{BatchNorm, EPSILON, RunningAffine};
pub use convnet::ConvNet;
pub use dropout::{BatchPlace, Dropout};
pub use layers::{Layer, NamedLayer};
pub use mlp::{HIDDEN, Mlp};
pub use options::{Activation, NetworkOptions};
pub use vgg::Vgg;

use crate::values;
use flop::Flop;

/// Which network to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ModelKind {
    /// Two convolutions and a linear layer for 28x28 grey images.
    Convnet,
    /// Six convolutions and three linear layers for 32x32 colour images.
    Vgg,
    /// Two linear layers and a batch norm for 512 features.
    Mlp,
}

impl ModelKind {
    /// Channels, height and width of the samples that the network takes.
    pub fn input_shape(self) -> [usize; 3] {
        match self {
            Self::Convnet => [1, 28, 28],
            Self::Vgg => [3, 32, 32],
            Self::Mlp => [1, 1, mlp::FEATURES],
        }
    }

    /// Default number of classes of the network.
    pub fn classes(self) -> usize {
        match self {
            Self::Convnet | Self::Vgg => 10,
            Self::Mlp => 20,
        }
    }
}

/// A network of one of the kinds.
///
/// An enum instead of a trait object, because Burn's `Module` is not
/// dyn-compatible: it clones and is visited generically.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub enum Network {
    /// [`ModelKind::Convnet`].
    Convnet(ConvNet),
    /// [`ModelKind::Vgg`].
    Vgg(Vgg),
    /// [`ModelKind::Mlp`].
    Mlp(Mlp),
}

/// What a network is made of.
trait Architecture {
    /// The layers, in the order of forward.
    fn layers(&self) -> Vec<NamedLayer<'_>>;

    /// Whether convolution, ReLU and pooling are one fused operator each
    /// (the default) or separate Burn operators.
    fn is_fused(&self) -> bool;
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&values::name(self))
    }
}

impl Network {
    /// The experiments' default network of that kind, see
    /// [`Network::with_options`].
    pub fn init(kind: ModelKind, classes: usize, seed: u64, device: &Device) -> Self {
        Self::with_options(kind, &NetworkOptions::default(), classes, seed, device)
    }

    /// A network with the initial weights that `seed` draws: PyTorch's default
    /// distributions, uniform in ±1/sqrt(fan in).
    pub fn with_options(
        kind: ModelKind,
        options: &NetworkOptions,
        classes: usize,
        seed: u64,
        device: &Device,
    ) -> Self {
        seeded(seed, device, || {
            let network = match kind {
                ModelKind::Convnet => Self::Convnet(ConvNet::init(options, classes, device)),
                ModelKind::Vgg => Self::Vgg(Vgg::init(options, classes, device)),
                ModelKind::Mlp => Self::Mlp(Mlp::init(options, classes, device)),
            };
            // Burn initialises a parameter at its first use. Using all of them now,
            // in visit order, makes initialisation a function of the seed alone.
            ParamLayout::of(&network).read(&network);
            network
        })
    }

    /// Class scores `[batch, classes]` of samples `[batch, channels, height, width]`. With a `place`, the batch
    /// is one of a training, where dropout has an effect; without, it is for evaluation.
    pub fn apply(&self, samples: Tensor<4>, place: Option<&BatchPlace>) -> Tensor<2> {
        layers::apply(&self.layers(), samples, place, self.architecture().is_fused())
    }

    /// Class scores in evaluation.
    pub fn forward(&self, samples: Tensor<4>) -> Tensor<2> {
        self.apply(samples, None)
    }

    fn architecture(&self) -> &dyn Architecture {
        match self {
            Self::Convnet(network) => network,
            Self::Vgg(network) => network,
            Self::Mlp(network) => network,
        }
    }

    /// The layers, in the order of forward.
    pub fn layers(&self) -> Vec<NamedLayer<'_>> {
        self.architecture().layers()
    }

    /// Which one it is.
    pub fn kind(&self) -> ModelKind {
        match self {
            Self::Convnet(_) => ModelKind::Convnet,
            Self::Vgg(_) => ModelKind::Vgg,
            Self::Mlp(_) => ModelKind::Mlp,
        }
    }

    /// Channels, height and width of a sample.
    pub fn input_shape(&self) -> [usize; 3] {
        self.kind().input_shape()
    }

    /// Operations of a sample, counted layer by layer.
    pub fn flop(&self) -> Flop {
        Flop::of_layers(&self.input_shape(), &self.layers())
    }

    /// The same network, with convolution, ReLU and pooling as one fused
    /// operator each (the default) or as separate Burn operators.
    #[must_use]
    pub fn fused(mut self, on: bool) -> Self {
        match &mut self {
            Self::Convnet(network) => network.fused = on,
            Self::Vgg(network) => network.fused = on,
            Self::Mlp(network) => network.fused = on,
        }
        self
    }
}

/// What `draw` makes of the random numbers that follow from `seed` on `device`. All threads share
/// a device's generator, so one draws at a time.
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
            let gradient = param.val().grad_remove(&mut self.gradients).expect("a gradient");
            self.values.push(gradient.into_data().try_into_vec().expect("f32"));
        }
    }

    /// All gradients of one batch.
    fn gradients(network: &Network, images: Tensor<4>, labels: &[u16]) -> Vec<Vec<f32>> {
        let loss = cross_entropy(network.forward(images), labels).loss;
        let mut all = All { gradients: loss.backward(), values: Vec::new() };
        network.visit(&mut all);
        all.values
    }

    #[test]
    fn fused_networks_learn_the_same() {
        let device = Device::flex().autodiff();
        let gelu = NetworkOptions { activation: Activation::Gelu, ..NetworkOptions::default() };
        for (kind, options) in [
            (ModelKind::Convnet, NetworkOptions::default()),
            (ModelKind::Convnet, gelu),
            (ModelKind::Vgg, NetworkOptions::default()),
        ] {
            let network = Network::with_options(kind, &options, 10, 5, &device);
            let [channels, height, width] = kind.input_shape();
            let values = (0..3 * channels * height * width).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0);
            let images = TensorData::new(values.collect::<Vec<f32>>(), [3, channels, height, width]);
            let images = Tensor::<4>::from_data(images, &device);
            let fused = gradients(&network, images.clone(), &[1, 7, 3]);
            let plain = gradients(&network.fused(false), images, &[1, 7, 3]);
            for (param, (fused, plain)) in fused.iter().zip(&plain).enumerate() {
                let largest = plain.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                let off = fused.iter().zip(plain).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
                assert!(
                    largest > 0.0 && off <= 1e-5 * largest,
                    "{kind}, parameter {param}: {off} of {largest}"
                );
            }
        }
    }
}
