//! Counts the floating-point operations of a training step, layer by layer, for comparison with a machine's
//! peak.

use burn_fused::nn::PaddingConfig2d;

use super::{Layer, NamedLayer};

impl Layer {
    /// Returns the shape of a sample after the layer, and the layer's number of multiply-adds for the sample.
    /// `shape` is the sample's shape before the layer. Padding counts as pixels. Norms, activations, dropout
    /// and poolings count as 0: their share of the operations is negligible.
    pub(crate) fn cost(&self, shape: &[usize]) -> (Vec<usize>, u64) {
        match self {
            Self::Conv(conv) => {
                let weights = conv.weight.dims();
                let [height, width] =
                    window(shape, conv.kernel_size, conv.stride, conv.dilation, &conv.padding);
                let cost = weights.iter().product::<usize>() * height * width;
                (vec![weights[0], height, width], cost as u64)
            }
            Self::Pool(pool) => {
                let [height, width] =
                    window(shape, pool.kernel_size, pool.stride, pool.dilation, &pool.padding);
                (vec![shape[0], height, width], 0)
            }
            Self::Linear(linear) => {
                let [inputs, outputs] = linear.weight.dims();
                let rows = shape.iter().product::<usize>() / inputs;
                (vec![outputs], (rows * inputs * outputs) as u64)
            }
            Self::AveragePool(pool) => {
                let [height, width] = pool.output_size;
                (vec![shape[0], height, width], 0)
            }
            Self::Flatten(features) => (vec![*features], 0),
            Self::Norm(_) | Self::Activation(_) | Self::Dropout(_) => (shape.to_owned(), 0),
        }
    }
}

/// Returns the height and width of a layer's output. The layer moves a window over its input, which has the
/// shape `[channels, height, width]`.
fn window(
    shape: &[usize],
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    padding: &PaddingConfig2d,
) -> [usize; 2] {
    std::array::from_fn(|axis| {
        let size = shape[1 + axis];
        let padding = match padding {
            PaddingConfig2d::Same => return size.div_ceil(stride[axis]),
            PaddingConfig2d::Valid => 0,
            PaddingConfig2d::Explicit(top, left, bottom, right) => [top + bottom, left + right][axis],
        };
        (size + padding - dilation[axis] * (kernel[axis] - 1) - 1) / stride[axis] + 1
    })
}

/// Operations of a network for one sample.
#[derive(Debug, Clone)]
pub struct Flop {
    /// Multiply-adds of each layer with weights.
    multiply_adds: Vec<u64>,
    /// Number of values in the sample, plus the number of values in the outputs of layers with weights.
    floats: u64,
}

impl Flop {
    /// Counts the operations of `layers` for a sample of `shape`.
    pub fn of_layers(shape: &[usize], layers: &[NamedLayer<'_>]) -> Self {
        let mut shape = shape.to_owned();
        let mut multiply_adds = Vec::new();
        let mut floats = shape.iter().product::<usize>() as u64;
        for NamedLayer { layer, .. } in layers {
            let (next, cost) = layer.cost(&shape);
            shape = next;
            if cost > 0 {
                multiply_adds.push(cost);
                floats += shape.iter().product::<usize>() as u64;
            }
        }
        Self { multiply_adds, floats }
    }

    /// Number of values in the sample, plus the number of values in the outputs of layers with weights.
    pub fn floats(&self) -> u64 {
        self.floats
    }

    /// Returns the floating-point operations of a training step on `batch` samples. For each multiply-add,
    /// forward takes two operations. Backward takes two for the weight's gradient and two for the input's
    /// gradient. The first layer does not compute the input's gradient.
    pub fn of_step(&self, batch: usize) -> u64 {
        let all: u64 = self.multiply_adds.iter().sum();
        let first = self.multiply_adds.first().copied().unwrap_or(0);
        (6 * all - 2 * first) * batch as u64
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;
    use burn_fused::nn::LinearConfig;
    use burn_fused::nn::conv::Conv2dConfig;

    use super::*;
    use crate::model::{Dimensions, ModelKind, Network, NetworkOptions};

    fn step(kind: ModelKind, options: &NetworkOptions, batch: usize) -> u64 {
        Network::with_options(kind, options, kind.dimensions(), 1, &Device::flex()).flop().of_step(batch)
    }

    #[test]
    fn a_step_is_three_forwards_less_the_gradient_of_the_images() {
        let plain = NetworkOptions::default();
        // Counted by hand: 9·4·784 and 9·4·8·196 multiplications for the convolutions, 392·10 for the linear
        // layer.
        let (conv1, conv2, linear) = (28_224, 56_448, 3_920);
        assert_eq!(step(ModelKind::Convnet, &plain, 1), 4 * conv1 + 6 * (conv2 + linear));
        assert_eq!(step(ModelKind::Convnet, &plain, 32), 32 * step(ModelKind::Convnet, &plain, 1));
        assert_eq!(step(ModelKind::Mlp, &plain, 1), 4 * 512 * 32 + 6 * 32 * 20);
        let wide = NetworkOptions { hidden: Some(crate::model::Hidden(64)), ..plain };
        assert_eq!(step(ModelKind::Mlp, &wide, 1), 2 * step(ModelKind::Mlp, &plain, 1));
        // Counted by hand: images with sides of 32, 16 and 8 pixels, then 4096 features.
        let convs = 1024 * 9 * 32 * 64 + 256 * 9 * (64 * 128 + 128 * 256) + 64 * 9 * 2 * 256 * 256;
        let linears = 4096 * 256 + 256 * 32 + 32 * 10;
        assert_eq!(step(ModelKind::Vgg, &plain, 1), 4 * (1024 * 9 * 3 * 32) + 6 * (convs + linears));
    }

    #[test]
    fn a_step_follows_the_sizes_of_the_samples() {
        let dimensions = Dimensions { input: [2, 29, 31], classes: 300 };
        let options = NetworkOptions::default();
        let network = Network::with_options(ModelKind::Convnet, &options, dimensions, 1, &Device::flex());
        // Counted by hand: sides 29x31, then 14x15, then 7x7 (halves are rounded down).
        let (conv1, conv2, linear) = (9 * 2 * 4 * 29 * 31, 9 * 4 * 8 * 14 * 15, 8 * 7 * 7 * 300);
        assert_eq!(network.flop().of_step(2), 2 * (4 * conv1 + 6 * (conv2 + linear)));
    }

    #[test]
    fn norms_and_dropout_multiply_too_little_to_count() {
        for kind in [ModelKind::Convnet, ModelKind::Vgg, ModelKind::Mlp] {
            let plain = NetworkOptions::default();
            let more = NetworkOptions { batch_norm: true, dropout: crate::values::Below1(0.5), ..plain };
            assert_eq!(step(kind, &plain, 2), step(kind, &more, 2), "{kind}");
        }
    }

    #[test]
    fn shapes_follow_stride_padding_and_groups() {
        let device = Device::flex();
        let conv = |padding| {
            Conv2dConfig::new([4, 6], [3, 5])
                .with_stride([2, 3])
                .with_groups(2)
                .with_padding(padding)
                .init(&device)
        };
        let cost = |padding| Layer::Conv(conv(padding)).cost(&[4, 9, 11]);
        assert_eq!(cost(PaddingConfig2d::Valid), (vec![6, 4, 3], 6 * 2 * 15 * 12));
        assert_eq!(cost(PaddingConfig2d::Explicit(1, 2, 1, 2)), (vec![6, 5, 4], 6 * 2 * 15 * 20));
        let linear = LinearConfig::new(12, 7).init(&device);
        assert_eq!(Layer::Linear(linear).cost(&[3, 4]), (vec![7], 84), "features of any shape are flattened");
    }
}
