//! Arithmetic of a training step, counted from a network's layers: what a
//! machine has to do at least, to compare with what it can do.

use super::{ModelKind, NetworkOptions, mlp};

/// A layer that multiplies: the others cost a share too small to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layer {
    /// A convolution, 3x3 with padding 1, on images of `side` x `side`.
    Conv {
        /// Channels in.
        inputs: usize,
        /// Channels out.
        outputs: usize,
        /// Height and width, in and out.
        side: usize,
    },
    /// A matrix and a bias.
    Linear {
        /// Features in.
        inputs: usize,
        /// Features out.
        outputs: usize,
    },
}

impl Layer {
    /// Weights, without biases.
    pub fn weights(self) -> usize {
        match self {
            Self::Conv { inputs, outputs, .. } => 9 * inputs * outputs,
            Self::Linear { inputs, outputs } => inputs * outputs,
        }
    }

    /// Multiplications of one sample's forward, each with an addition. Padding
    /// counts as if it were image.
    pub fn multiply_adds(self) -> u64 {
        let uses = match self {
            Self::Conv { side, .. } => side * side,
            Self::Linear { .. } => 1,
        };
        (self.weights() * uses) as u64
    }
}

impl ModelKind {
    /// The layers that multiply, in the order of forward.
    pub fn layers(self, options: &NetworkOptions, classes: usize) -> Vec<Layer> {
        let conv = |inputs, outputs, side| Layer::Conv { inputs, outputs, side };
        let linear = |inputs, outputs| Layer::Linear { inputs, outputs };
        match self {
            Self::Convnet => vec![conv(1, 4, 28), conv(4, 8, 14), linear(8 * 7 * 7, classes)],
            Self::Vgg => vec![
                conv(3, 32, 32),
                conv(32, 64, 32),
                conv(64, 128, 16),
                conv(128, 256, 16),
                conv(256, 256, 8),
                conv(256, 256, 8),
                linear(256 * 4 * 4, 256),
                linear(256, 32),
                linear(32, classes),
            ],
            Self::Mlp => {
                let hidden = options.hidden.unwrap_or(mlp::HIDDEN);
                vec![linear(mlp::FEATURES, hidden), linear(hidden, classes)]
            }
        }
    }

    /// Floating-point operations of a training step on `batch` samples. Forward
    /// takes two a weight and use. Backward takes two for the weight's gradient
    /// and two for the input's, which the first layer does without.
    pub fn step_flop(self, options: &NetworkOptions, classes: usize, batch: usize) -> u64 {
        let layers = self.layers(options, classes);
        let all: u64 = layers.iter().map(|layer| layer.multiply_adds()).sum();
        let first = layers.first().map_or(0, |layer| layer.multiply_adds());
        (6 * all - 2 * first) * batch as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_mpi::ParamLayout;

    use crate::model::{Activation, Network};
    use burn::tensor::Device;

    const PLAIN: NetworkOptions =
        NetworkOptions { activation: Activation::Relu, batch_norm: false, dropout: 0.0, hidden: None };

    #[test]
    fn the_layers_are_those_of_the_network() {
        for (kind, classes) in [(ModelKind::Convnet, 10), (ModelKind::Vgg, 10), (ModelKind::Mlp, 20)] {
            let layout = ParamLayout::of(&Network::init(kind, classes, 1, &Device::flex()));
            let weights = |shape: &[usize]| (shape.len() > 1).then(|| shape.iter().product::<usize>());
            let network: Vec<_> = layout.specs().iter().filter_map(|spec| weights(&spec.shape)).collect();
            let counted: Vec<_> = kind.layers(&PLAIN, classes).into_iter().map(Layer::weights).collect();
            assert_eq!(counted, network, "{kind}");
        }
    }

    #[test]
    fn a_step_is_three_forwards_less_the_gradient_of_the_images() {
        // By hand: 9·4·784 and 9·4·8·196 multiplications for the convolutions,
        // 392·10 for the linear layer.
        let (conv1, conv2, linear) = (28_224, 56_448, 3_920);
        assert_eq!(ModelKind::Convnet.step_flop(&PLAIN, 10, 1), 4 * conv1 + 6 * (conv2 + linear));
        assert_eq!(
            ModelKind::Convnet.step_flop(&PLAIN, 10, 32),
            32 * ModelKind::Convnet.step_flop(&PLAIN, 10, 1)
        );
        assert_eq!(ModelKind::Mlp.step_flop(&PLAIN, 20, 1), 4 * 512 * 32 + 6 * 32 * 20);
        let wide = NetworkOptions { hidden: Some(64), ..PLAIN };
        assert_eq!(ModelKind::Mlp.step_flop(&wide, 20, 1), 2 * ModelKind::Mlp.step_flop(&PLAIN, 20, 1));
    }
}
