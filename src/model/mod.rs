//! The networks of the experiments, and their parameters as flat memory.

mod convnet;
mod mlp;
mod parameters;
mod vgg;

use std::fmt;
use std::str::FromStr;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

pub use convnet::ConvNet;
pub use mlp::Mlp;
pub use parameters::{ParamLayout, ParamSpec, sha256};
pub use vgg::Vgg;

/// Which network to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Channels, height and width of the images that the network takes.
    pub fn input_shape(self) -> [usize; 3] {
        match self {
            Self::Convnet => [1, 28, 28],
            Self::Vgg => [3, 32, 32],
            Self::Mlp => [1, 1, mlp::FEATURES],
        }
    }
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Convnet => "convnet",
            Self::Vgg => "vgg",
            Self::Mlp => "mlp",
        })
    }
}

impl FromStr for ModelKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "convnet" => Ok(Self::Convnet),
            "vgg" => Ok(Self::Vgg),
            "mlp" => Ok(Self::Mlp),
            _ => Err(format!("unknown model {text}: choose convnet, vgg or mlp")),
        }
    }
}

/// A network of one of the kinds.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub enum Network {
    /// See [`ConvNet`].
    Convnet(ConvNet),
    /// See [`Vgg`].
    Vgg(Vgg),
    /// See [`Mlp`].
    Mlp(Mlp),
}

impl Network {
    /// A network with the initial weights that `seed` draws: PyTorch's default
    /// distributions, uniform in ±1/sqrt(fan in).
    pub fn init(kind: ModelKind, classes: usize, seed: u64, device: &Device) -> Self {
        device.seed(seed);
        let network = match kind {
            ModelKind::Convnet => Self::Convnet(ConvNet::init(classes, device)),
            ModelKind::Vgg => Self::Vgg(Vgg::init(classes, device)),
            ModelKind::Mlp => Self::Mlp(Mlp::init(classes, device)),
        };
        // Burn draws a parameter when it is first used. Using them all now, in
        // visit order, makes the drawing a function of the seed alone.
        ParamLayout::of(&network).read(&network);
        network
    }

    /// Class scores `[batch, classes]` of a batch `[batch, channels, height, width]`.
    pub fn forward(&self, batch: Tensor<4>) -> Tensor<2> {
        match self {
            Self::Convnet(network) => network.forward(batch),
            Self::Vgg(network) => network.forward(batch),
            Self::Mlp(network) => network.forward(batch),
        }
    }
}
