//! Batch normalisation as an operator of Burn.
//!
//! On flex it has a forward and a backward of its own; other backends, and types
//! other than f32, get the operators that it stands for.

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
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::DType;

use super::super::flex_tensor::{tensor, values};
use super::{Forward, Input, Level, Moments, Shape, Tail};

/// Output, means and variances.
type Outputs<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>);

#[cfg_attr(all(feature = "ndarray", feature = "tch"), backend_extension(Flex, NdArray, LibTorch, Autodiff))]
#[cfg_attr(all(feature = "ndarray", not(feature = "tch")), backend_extension(Flex, NdArray, Autodiff))]
#[cfg_attr(all(not(feature = "ndarray"), feature = "tch"), backend_extension(Flex, LibTorch, Autodiff))]
#[cfg_attr(not(any(feature = "ndarray", feature = "tch")), backend_extension(Flex, Autodiff))]
pub(super) trait NormTail: Backend {
    fn norm_tail(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
        tail: Tail,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        composed::<Self>(x, scale, shift, epsilon, tail)
    }
}

/// The operators that the one stands for.
fn composed<B: Backend>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    epsilon: f64,
    tail: Tail,
) -> Outputs<B> {
    let found = B::batch_norm_train(x, scale, shift, epsilon);
    (tail.composed::<B>(found.output), found.mean, found.variance)
}

#[cfg(feature = "ndarray")]
impl NormTail for NdArray {}
#[cfg(feature = "ndarray")]
impl<C: CheckpointStrategy> NormTail for Autodiff<NdArray, C> {}
#[cfg(feature = "tch")]
impl NormTail for LibTorch {}
#[cfg(feature = "tch")]
impl<C: CheckpointStrategy> NormTail for Autodiff<LibTorch, C> {}

impl NormTail for Flex {
    fn norm_tail(
        x: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        epsilon: f64,
        tail: Tail,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        match Inputs::of(&x, &scale, &shift, tail) {
            Some(inputs) => {
                let (output, Forward { moments, .. }) = inputs.forward(epsilon, false);
                let [mean, variance] = statistics(&moments);
                (output, mean, variance)
            }
            None => composed::<Self>(x, scale, shift, epsilon, tail),
        }
    }
}

impl<C: CheckpointStrategy> NormTail for Autodiff<Flex, C> {
    fn norm_tail(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
        tail: Tail,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let found = Inputs::of(x.primitive(), scale.primitive(), shift.primitive(), tail);
        let Some(inputs) = found else {
            return composed::<Self>(x, scale, shift, epsilon, tail);
        };
        let nodes = [x, scale, shift].map(|tensor| tensor.into_parts().1);
        let (output, mean, variance) = match NormTailBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (output, Forward { moments, places, .. }) = inputs.forward(epsilon, true);
                let [mean, variance] = statistics(&moments);
                let state = State { inputs, moments: Arc::new(moments), places: Arc::new(places) };
                (prepared.finish(state, output), mean, variance)
            }
            OpsKind::UnTracked(prepared) => {
                let (output, Forward { moments, .. }) = inputs.forward(epsilon, false);
                let [mean, variance] = statistics(&moments);
                (prepared.finish(output), mean, variance)
            }
        };
        (output, Self::from_inner(mean), Self::from_inner(variance))
    }
}

/// What the operator is applied to, each tensor in one piece.
#[derive(Debug, Clone)]
struct Inputs {
    x: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    shape: Shape,
    tail: Tail,
    level: Level,
}

impl Inputs {
    /// The inputs, if they are f32 and something remains of them.
    fn of(x: &FlexTensor, scale: &FlexTensor, shift: &FlexTensor, tail: Tail) -> Option<Self> {
        let shape = Shape::of(&x.shape(), tail)?;
        if [x, scale, shift].iter().any(|tensor| tensor.dtype() != DType::F32) {
            return None;
        }
        let [x, scale, shift] = [x, scale, shift].map(FlexTensor::to_contiguous);
        Some(Self { x, scale, shift, shape, tail, level: Level::current() })
    }

    fn values(&self) -> Input<'_> {
        let [x, scale, shift] = [&self.x, &self.scale, &self.shift].map(values);
        Input { shape: self.shape, tail: self.tail, x, scale, shift }
    }

    /// The output as a tensor, and the rest of what forward gives.
    fn forward(&self, epsilon: f64, backward: bool) -> (FlexTensor, Forward) {
        let mut forward = super::forward(self.level, self.values(), epsilon, backward);
        let mut shape = self.x.shape().to_vec();
        if self.tail == Tail::ReluPool {
            shape[2..].copy_from_slice(&self.shape.output_size(self.tail));
        }
        (tensor(std::mem::take(&mut forward.output), &shape), forward)
    }
}

/// What forward leaves to backward.
#[derive(Debug, Clone)]
struct State {
    inputs: Inputs,
    moments: Arc<Moments>,
    places: Arc<Vec<u8>>,
}

/// The operator's backward.
#[derive(Debug)]
struct NormTailBackward;

impl Backward<Flex, 3> for NormTailBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { inputs, moments, places } = ops.state;
        let found = super::backward(inputs.level, inputs.values(), &moments, &places, values(&gradient));
        let [x, scale, shift] = ops.parents;
        let channels = [inputs.shape.channels];
        if let Some(shift) = shift {
            grads.register::<Flex>(shift.id, tensor(found.shift, &channels));
        }
        if let Some(scale) = scale {
            grads.register::<Flex>(scale.id, tensor(found.scale, &channels));
        }
        if let Some(x) = x {
            grads.register::<Flex>(x.id, tensor(found.x, &inputs.x.shape()));
        }
    }
}

fn statistics(moments: &Moments) -> [FlexTensor; 2] {
    [&moments.mean, &moments.variance].map(|values| tensor(values.clone(), &[values.len()]))
}
