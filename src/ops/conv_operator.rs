//! Convolution, ReLU and pooling as one operator of Burn.
//!
//! On flex it has a forward and a backward of its own ([`super::conv`]), on
//! libtorch libtorch's; ndarray, and types other than f32 on flex, get the
//! operators that it stands for.

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
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{DType, Tensor};

use super::conv::{self, Forward, Level, Places, Shape};
use super::flex_tensor::{tensor, values};
use super::tail::Tail;

/// `tail` of `conv` of `images`, in one operator where `conv` is of the kind that
/// it is made for: 3x3, a border of one pixel, biases, nothing skipped.
pub(super) fn apply(images: Tensor<4>, conv: &Conv2d, tail: Tail) -> Option<Tensor<4>> {
    let (weights, bias) = parameters(conv)?;
    let output = <Dispatch as ConvTail>::conv_tail(
        images.into_dispatch(),
        weights.into_dispatch(),
        bias.into_dispatch(),
        tail,
    );
    Some(Tensor::from_dispatch(output))
}

/// Weights and biases of a convolution that the operators are made for.
pub(super) fn parameters(conv: &Conv2d) -> Option<(Tensor<4>, Tensor<1>)> {
    let ones = [conv.stride, conv.dilation] == [[1, 1]; 2] && conv.groups == 1;
    let bordered = matches!(conv.padding, PaddingConfig2d::Explicit(1, 1, 1, 1));
    let bias = conv.bias.as_ref()?;
    (ones && bordered && conv.kernel_size == [3, 3]).then(|| (conv.weight.val(), bias.val()))
}

#[cfg_attr(all(feature = "ndarray", feature = "tch"), backend_extension(Flex, NdArray, LibTorch, Autodiff))]
#[cfg_attr(all(feature = "ndarray", not(feature = "tch")), backend_extension(Flex, NdArray, Autodiff))]
#[cfg_attr(all(not(feature = "ndarray"), feature = "tch"), backend_extension(Flex, LibTorch, Autodiff))]
#[cfg_attr(not(any(feature = "ndarray", feature = "tch")), backend_extension(Flex, Autodiff))]
pub(super) trait ConvTail: Backend {
    fn conv_tail(
        images: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        tail: Tail,
    ) -> FloatTensor<Self> {
        composed::<Self>(images, weights, bias, tail)
    }
}

/// The operators that the one stands for.
fn composed<B: Backend>(
    images: FloatTensor<B>,
    weights: FloatTensor<B>,
    bias: FloatTensor<B>,
    tail: Tail,
) -> FloatTensor<B> {
    let options = ConvOptions::new([1, 1], [1, 1], [1, 1], 1);
    tail.composed::<B>(B::conv2d(images, weights, Some(bias), options))
}

#[cfg(feature = "ndarray")]
impl ConvTail for NdArray {}
#[cfg(feature = "ndarray")]
impl<C: CheckpointStrategy> ConvTail for Autodiff<NdArray, C> {}
#[cfg(feature = "tch")]
impl ConvTail for LibTorch {}
#[cfg(feature = "tch")]
impl<C: CheckpointStrategy> ConvTail for Autodiff<LibTorch, C> {
    fn conv_tail(
        images: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        tail: Tail,
    ) -> FloatTensor<Self> {
        super::conv_tch::conv_tail::<C>(images, weights, bias, tail)
    }
}

impl ConvTail for Flex {
    fn conv_tail(images: FlexTensor, weights: FlexTensor, bias: FlexTensor, tail: Tail) -> FlexTensor {
        match Inputs::of(&images, &weights, &bias) {
            Some(inputs) => inputs.forward(tail, false).0,
            None => composed::<Self>(images, weights, bias, tail),
        }
    }
}

impl<C: CheckpointStrategy> ConvTail for Autodiff<Flex, C> {
    fn conv_tail(
        images: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        tail: Tail,
    ) -> FloatTensor<Self> {
        let found = Inputs::of(images.primitive(), weights.primitive(), bias.primitive());
        let Some(inputs) = found else {
            return composed::<Self>(images, weights, bias, tail);
        };
        let nodes = [images, weights, bias].map(|tensor| tensor.into_parts().1);
        match ConvTailBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (output, places) = inputs.forward(tail, true);
                let state = State { inputs, tail, output: output.clone(), places: Arc::new(places) };
                prepared.finish(state, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(inputs.forward(tail, false).0),
        }
    }
}

/// What the operator is applied to, each tensor in one piece.
#[derive(Debug, Clone)]
pub(super) struct Inputs {
    pub images: FlexTensor,
    pub weights: FlexTensor,
    pub bias: FlexTensor,
    pub shape: Shape,
    pub level: Level,
}

impl Inputs {
    /// The inputs, if they are f32 and fit one another.
    pub fn of(images: &FlexTensor, weights: &FlexTensor, bias: &FlexTensor) -> Option<Self> {
        let [batch, inputs, height, width] = images.shape().dims();
        let [outputs, weight_inputs, 3, 3] = weights.shape().dims() else { return None };
        let f32s = [images, weights, bias].iter().all(|tensor| tensor.dtype() == DType::F32);
        let shape = Shape { batch, inputs, outputs, height, width };
        if !f32s || inputs != weight_inputs || [batch, inputs, outputs, height, width].contains(&0) {
            return None;
        }
        let [images, weights, bias] = [images, weights, bias].map(FlexTensor::to_contiguous);
        Some(Self { images, weights, bias, shape, level: Level::current() })
    }

    fn forward(&self, tail: Tail, backward: bool) -> (FlexTensor, Places) {
        let Self { shape, level, .. } = *self;
        let [images, weights, bias] = [&self.images, &self.weights, &self.bias].map(values);
        let (output, places) = conv::forward(level, shape, tail, images, weights, bias, backward);
        let [height, width] = shape.output_size(tail);
        (tensor(output, &[shape.batch, shape.outputs, height, width]), places)
    }
}

/// What forward leaves to backward.
#[derive(Debug, Clone)]
struct State {
    inputs: Inputs,
    tail: Tail,
    output: FlexTensor,
    places: Arc<Places>,
}

/// The operator's backward.
#[derive(Debug)]
struct ConvTailBackward;

impl Backward<Flex, 3> for ConvTailBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { inputs, tail, output, places } = ops.state;
        let shape = inputs.shape;
        let [images, weights, bias] = ops.parents;
        let forward = Forward {
            input: values(&inputs.images),
            weights: values(&inputs.weights),
            output: values(&output),
            places: &places,
        };
        let gradient = values(&gradient);
        let of_images = images.is_some();
        let mut poll = burn_mpi::poll;
        let found = conv::backward(inputs.level, shape, tail, forward, gradient, of_images, &mut poll);
        let Shape { batch, inputs, outputs, height, width } = shape;
        if let Some(bias) = bias {
            grads.register::<Flex>(bias.id, tensor(found.bias, &[outputs]));
        }
        if let Some(weights) = weights {
            grads.register::<Flex>(weights.id, tensor(found.weights, &[outputs, inputs, 3, 3]));
        }
        if let (Some(images), Some(of_images)) = (images, found.input) {
            grads.register::<Flex>(images.id, tensor(of_images, &[batch, inputs, height, width]));
        }
    }
}
