//! Batch normalisation as an operator of Burn.
//!
//! flex runs its own forward and backward; other backends, and types other than f32,
//! compose it of Burn's operators.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata};
use burn::tensor::DType;

use super::{Forward, Input, Moments, Shape};
use crate::epilogue::Epilogue;
use crate::extension::operator;
use crate::flex_tensor::{tensor, values};
use crate::simd::Level;

/// Output, means and variances.
type Outputs<B> = (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>);

operator! {
    pub(super) trait NormEpilogue(Backend) {
        fn norm_epilogue(
            x: FloatTensor<Self>,
            scale: FloatTensor<Self>,
            shift: FloatTensor<Self>,
            epsilon: f64,
            epilogue: Epilogue,
        ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
            composed::<Self>(x, scale, shift, epsilon, epilogue)
        }
    }
}

/// The operator, composed of Burn's operators.
fn composed<B: Backend>(
    x: FloatTensor<B>,
    scale: FloatTensor<B>,
    shift: FloatTensor<B>,
    epsilon: f64,
    epilogue: Epilogue,
) -> Outputs<B> {
    let found = B::batch_norm_train(x, scale, shift, epsilon);
    (epilogue.composed::<B>(found.output), found.mean, found.variance)
}

impl NormEpilogue for Flex {
    fn norm_epilogue(
        x: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        epsilon: f64,
        epilogue: Epilogue,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        match Inputs::of(&x, &scale, &shift, epilogue) {
            Some(inputs) => {
                let (output, Forward { moments, .. }) = inputs.forward(epsilon, false);
                let [mean, variance] = statistics(&moments);
                (output, mean, variance)
            }
            None => composed::<Self>(x, scale, shift, epsilon, epilogue),
        }
    }
}

impl<C: CheckpointStrategy> NormEpilogue for Autodiff<Flex, C> {
    fn norm_epilogue(
        x: FloatTensor<Self>,
        scale: FloatTensor<Self>,
        shift: FloatTensor<Self>,
        epsilon: f64,
        epilogue: Epilogue,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        let found = Inputs::of(x.primitive(), scale.primitive(), shift.primitive(), epilogue);
        let Some(inputs) = found else {
            return composed::<Self>(x, scale, shift, epsilon, epilogue);
        };
        let nodes = [x, scale, shift].map(|tensor| tensor.into_parts().1);
        let (output, mean, variance) =
            match NormEpilogueBackward.prepare::<C>(nodes).compute_bound().stateful() {
                OpsKind::Tracked(prepared) => {
                    let (output, Forward { moments, argmax, .. }) = inputs.forward(epsilon, true);
                    let [mean, variance] = statistics(&moments);
                    let state = State { inputs, moments: Arc::new(moments), argmax: Arc::new(argmax) };
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

/// The inputs of the operator, each contiguous.
#[derive(Debug, Clone)]
struct Inputs {
    x: FlexTensor,
    scale: FlexTensor,
    shift: FlexTensor,
    shape: Shape,
    epilogue: Epilogue,
    level: Level,
}

impl Inputs {
    /// The inputs, if they are f32 and the output is not empty.
    fn of(x: &FlexTensor, scale: &FlexTensor, shift: &FlexTensor, epilogue: Epilogue) -> Option<Self> {
        let shape = Shape::of(&x.shape(), epilogue)?;
        if [x, scale, shift].iter().any(|tensor| tensor.dtype() != DType::F32) {
            return None;
        }
        let [x, scale, shift] = [x, scale, shift].map(FlexTensor::to_contiguous);
        Some(Self { x, scale, shift, shape, epilogue, level: Level::current() })
    }

    fn values(&self) -> Input<'_> {
        let [x, scale, shift] = [&self.x, &self.scale, &self.shift].map(values);
        Input { shape: self.shape, epilogue: self.epilogue, x, scale, shift }
    }

    /// The output as a tensor, and the other results of forward.
    fn forward(&self, epsilon: f64, backward: bool) -> (FlexTensor, Forward) {
        let mut forward = super::forward(self.level, self.values(), epsilon, backward);
        let mut shape = self.x.shape().to_vec();
        if self.epilogue == Epilogue::ReluPool {
            shape[2..].copy_from_slice(&self.shape.output_size(self.epilogue));
        }
        (tensor(std::mem::take(&mut forward.output), &shape), forward)
    }
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    inputs: Inputs,
    moments: Arc<Moments>,
    argmax: Arc<Vec<u8>>,
}

/// The operator's backward.
#[derive(Debug)]
struct NormEpilogueBackward;

impl Backward<Flex, 3> for NormEpilogueBackward {
    type State = State;

    fn backward(self, ops: Ops<State, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let State { inputs, moments, argmax } = ops.state;
        let found = super::backward(inputs.level, inputs.values(), &moments, &argmax, values(&gradient));
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
