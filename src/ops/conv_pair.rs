//! Two convolutions of few channels, each with ReLU and pooling, as one operator
//! of Burn: what lies between them never leaves the cache.
//!
//! It is flex's alone; other backends, and networks that it does not fit, get two
//! operators.

#![cfg_attr(
    any(feature = "ndarray", feature = "tch"),
    allow(deprecated, reason = "deprecated upstream, and asked for by users")
)]

use std::sync::Arc;

#[cfg(feature = "tch")]
use burn::backend::LibTorch;
#[cfg(feature = "ndarray")]
use burn::backend::NdArray;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata, backend_extension};
use burn::nn::conv::Conv2d;
use burn::tensor::{DType, Tensor};

use super::conv::{self, Between, Layer, PairShape};
use super::conv_operator::{ConvTail, Inputs, parameters};
use super::conv_relu_pool::conv_relu_pool;
use super::flex_tensor::{tensor, values};
use super::tail::Tail;

/// `second` of `first` of `images` `[batch, channels, height, width]`, each with
/// ReLU and the largest of each square of 2x2, as [`conv_relu_pool`] does one.
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

#[cfg_attr(all(feature = "ndarray", feature = "tch"), backend_extension(Flex, NdArray, LibTorch, Autodiff))]
#[cfg_attr(all(feature = "ndarray", not(feature = "tch")), backend_extension(Flex, NdArray, Autodiff))]
#[cfg_attr(all(not(feature = "ndarray"), feature = "tch"), backend_extension(Flex, LibTorch, Autodiff))]
#[cfg_attr(not(any(feature = "ndarray", feature = "tch")), backend_extension(Flex, Autodiff))]
trait ConvPair: Backend + ConvTail {
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

/// The two operators that the one stands for.
fn two<B: ConvTail>([images, weights1, bias1, weights2, bias2]: [FloatTensor<B>; 5]) -> FloatTensor<B> {
    let middle = B::conv_tail(images, weights1, bias1, Tail::ReluPool);
    B::conv_tail(middle, weights2, bias2, Tail::ReluPool)
}

#[cfg(feature = "ndarray")]
impl ConvPair for NdArray {}
#[cfg(feature = "ndarray")]
impl<C: CheckpointStrategy> ConvPair for Autodiff<NdArray, C> {}
#[cfg(feature = "tch")]
impl ConvPair for LibTorch {}
#[cfg(feature = "tch")]
impl<C: CheckpointStrategy> ConvPair for Autodiff<LibTorch, C> {}

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

/// What the operator is applied to, each tensor in one piece.
#[derive(Debug, Clone)]
struct Pair {
    first: Inputs,
    weights2: FlexTensor,
    bias2: FlexTensor,
    shape: PairShape,
}

impl Pair {
    /// The inputs, if they are f32 and fit one another and the operator.
    fn of([images, weights1, bias1, weights2, bias2]: [&FlexTensor; 5]) -> Option<Self> {
        let first = Inputs::of(images, weights1, bias1)?;
        let [outputs, inputs, 3, 3] = weights2.shape().dims() else { return None };
        let shape = PairShape { first: first.shape, outputs };
        let f32s = [weights2, bias2].iter().all(|tensor| tensor.dtype() == DType::F32);
        let fits = f32s && inputs == first.shape.outputs && outputs > 0 && shape.fits();
        let [weights2, bias2] = [weights2, bias2].map(FlexTensor::to_contiguous);
        fits.then(|| Self { first, weights2, bias2, shape })
    }

    fn forward(&self, backward: bool) -> (FlexTensor, Between) {
        let layer = |weights, bias| Layer { weights: values(weights), bias: values(bias) };
        let layers = [layer(&self.first.weights, &self.first.bias), layer(&self.weights2, &self.bias2)];
        let input = values(&self.first.images);
        let (output, between) = conv::forward_pair(self.first.level, self.shape, input, layers, backward);
        let second = self.shape.second();
        let [height, width] = second.output_size(Tail::ReluPool);
        (tensor(output, &[second.batch, second.outputs, height, width]), between)
    }
}

/// What forward leaves to backward.
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
        let mut poll = burn_mpi::poll;
        let found = conv::backward_pair(
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
        // As two operators would hand them over: the second's first.
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
