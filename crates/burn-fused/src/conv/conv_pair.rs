//! Two convolutions of few channels, each with ReLU and pooling, as one operator
//! of Burn: the activations between them stay in the cache.
//!
//! It exists on flex only; on other backends, and for shapes and types that it does not
//! support, two operators are applied.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::nn::conv::Conv2d;
use burn::tensor::{DType, Tensor};

use super::conv_operator::{ConvEpilogue, Inputs, parameters};
use super::conv_relu_pool::conv_relu_pool;
use super::cpu::{self, Between, Layer, PairShape};
use crate::epilogue::Epilogue;
use crate::extension::operator;
use crate::flex_tensor::{tensor, values};
use crate::poll;

/// [`conv_relu_pool`] by `first` and then by `second`:
/// `[batch, channels, height, width]` to `[batch, outputs, height / 4, width / 4]`.
///
/// It is one operator on flex if height and width are multiples of 4 and each
/// layer has at most 128 pairs of an input and an output channel; the values and
/// the gradients are the same bits as those of two operators.
///
/// ```
/// use burn::nn::PaddingConfig2d;
/// use burn::nn::conv::Conv2dConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::conv::{conv_relu_pool, conv_relu_pool_twice};
///
/// let device = Device::flex().autodiff();
/// let layer = |inputs, outputs| {
///     let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
///     Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device)
/// };
/// let (first, second) = (layer(1, 4), layer(4, 8));
/// let images = Tensor::<4>::ones([2, 1, 8, 8], &device);
/// let output = conv_relu_pool_twice(images.clone(), &first, &second);
/// assert_eq!(output.dims(), [2, 8, 2, 2]);
/// let apart = conv_relu_pool(conv_relu_pool(images, &first), &second);
/// assert_eq!(output.into_data(), apart.into_data());
/// ```
///
/// # Panics
/// If the channels of `images`, `first` and `second` do not match.
pub fn conv_relu_pool_twice(images: Tensor<4>, first: &Conv2d, second: &Conv2d) -> Tensor<4> {
    let (Some((weights1, bias1)), Some((weights2, bias2))) = (parameters(first), parameters(second)) else {
        return conv_relu_pool(conv_relu_pool(images, first), second);
    };
    let output = <Dispatch as ConvPair>::conv_pair(
        images.into_dispatch(),
        weights1.into_dispatch(),
        bias1.into_dispatch(),
        weights2.into_dispatch(),
        bias2.into_dispatch(),
    );
    Tensor::from_dispatch(output)
}

operator! {
    trait ConvPair(Backend + ConvEpilogue) {
        fn conv_pair(
            images: FloatTensor<Self>,
            weights1: FloatTensor<Self>,
            bias1: FloatTensor<Self>,
            weights2: FloatTensor<Self>,
            bias2: FloatTensor<Self>,
        ) -> FloatTensor<Self> {
            two::<Self>([images, weights1, bias1, weights2, bias2])
        }
    }
}

/// The pair by two operators.
fn two<B: ConvEpilogue>([images, weights1, bias1, weights2, bias2]: [FloatTensor<B>; 5]) -> FloatTensor<B> {
    let middle = B::conv_epilogue(images, weights1, bias1, Epilogue::ReluPool);
    B::conv_epilogue(middle, weights2, bias2, Epilogue::ReluPool)
}

impl ConvPair for Flex {
    fn conv_pair(
        images: FlexTensor,
        weights1: FlexTensor,
        bias1: FlexTensor,
        weights2: FlexTensor,
        bias2: FlexTensor,
    ) -> FlexTensor {
        match Pair::of([&images, &weights1, &bias1, &weights2, &bias2]) {
            Some(pair) => pair.forward(false).0,
            None => two::<Self>([images, weights1, bias1, weights2, bias2]),
        }
    }
}

impl<C: CheckpointStrategy> ConvPair for Autodiff<Flex, C> {
    fn conv_pair(
        images: FloatTensor<Self>,
        weights1: FloatTensor<Self>,
        bias1: FloatTensor<Self>,
        weights2: FloatTensor<Self>,
        bias2: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let all = [images, weights1, bias1, weights2, bias2];
        let Some(pair) = Pair::of(all.each_ref().map(|tensor| tensor.primitive())) else {
            return two::<Self>(all);
        };
        let nodes = all.map(|tensor| tensor.into_parts().1);
        match ConvPairBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (output, between) = pair.forward(true);
                prepared.finish(State { pair, between: Arc::new(between) }, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(pair.forward(false).0),
        }
    }
}

/// The inputs of the operator, each contiguous.
#[derive(Debug, Clone)]
struct Pair {
    first: Inputs,
    weights2: FlexTensor,
    bias2: FlexTensor,
    shape: PairShape,
}

impl Pair {
    /// The inputs, if they are f32 and of shapes that the operator supports.
    fn of([images, weights1, bias1, weights2, bias2]: [&FlexTensor; 5]) -> Option<Self> {
        let first = Inputs::of(images, weights1, bias1)?;
        let [outputs, inputs, 3, 3] = weights2.shape().dims() else { return None };
        let shape = PairShape { first: first.shape, outputs };
        let f32s = [images, weights2, bias2].iter().all(|tensor| tensor.dtype() == DType::F32);
        let fits = f32s && inputs == first.shape.outputs && outputs > 0 && shape.fits();
        let [weights2, bias2] = [weights2, bias2].map(FlexTensor::to_contiguous);
        fits.then(|| Self { first, weights2, bias2, shape })
    }

    fn forward(&self, backward: bool) -> (FlexTensor, Between) {
        let layer = |weights, bias| Layer { weights: values(weights), bias: values(bias) };
        let layers = [layer(&self.first.weights, &self.first.bias), layer(&self.weights2, &self.bias2)];
        let input = values(&self.first.images);
        let (output, between) = cpu::forward_pair(self.first.level, self.shape, input, layers, backward);
        let second = self.shape.second();
        let [height, width] = second.output_size(Epilogue::ReluPool);
        (tensor(output, &[second.batch, second.outputs, height, width]), between)
    }
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    pair: Pair,
    between: Arc<Between>,
}

/// The operator's backward.
#[derive(Debug)]
struct ConvPairBackward;

impl Backward<Flex, 5> for ConvPairBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 5>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { pair, between } = ops.state;
        let [images, weights1, bias1, weights2, bias2] = ops.parents;
        let forward =
            (values(&pair.first.images), [values(&pair.first.weights), values(&pair.weights2)], &*between);
        let of_images = images.is_some();
        let mut poll = poll::current();
        let found = cpu::backward_pair(
            pair.first.level,
            pair.shape,
            forward,
            values(&gradient),
            of_images,
            &mut poll,
        );
        let [first, second] = [pair.shape.first, pair.shape.second()];
        let [of_weights1, of_weights2] = found.weights;
        let [of_bias1, of_bias2] = found.bias;
        // The order that two operators have: the second's gradients first.
        let ours = [
            (bias2, of_bias2, vec![second.outputs]),
            (weights2, of_weights2, vec![second.outputs, second.inputs, 3, 3]),
            (bias1, of_bias1, vec![first.outputs]),
            (weights1, of_weights1, vec![first.outputs, first.inputs, 3, 3]),
        ];
        for (parent, values, sizes) in ours {
            if let Some(parent) = parent {
                grads.register::<Flex>(parent.id, tensor(values, &sizes));
            }
        }
        if let (Some(images), Some(of_images)) = (images, found.input) {
            let sizes = [first.batch, first.inputs, first.height, first.width];
            grads.register::<Flex>(images.id, tensor(of_images, &sizes));
        }
    }
}

#[cfg(test)]
#[path = "conv_pair_tests.rs"]
mod tests;
