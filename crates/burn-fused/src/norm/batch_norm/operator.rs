//! Batch normalisation as an operator of Burn.
//!
//! flex runs its own forward and backward, for 16-bit values on widened ones; other
//! backends and types compose it of Burn's operators.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata};

use super::{Forward, Input, Moments, Shape};
use crate::epilogue::Epilogue;
use crate::extension::operator;
use crate::flex_tensor::{contiguous, tensor, values};
use crate::precision::{cast, supported, tensor_of, wide};
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
    // Statistics have the parameters' type, the output that of `x`.
    let (activations, parameters) = (x.dtype(), scale.dtype());
    let found = B::batch_norm_train(cast::<B>(x, parameters), scale, shift, epsilon);
    let output = cast::<B>(epilogue.composed::<B>(found.output), activations);
    (output, found.mean, found.variance)
}

impl NormEpilogue for Flex {
    fn norm_epilogue(
        x: FlexTensor,
        scale: FlexTensor,
        shift: FlexTensor,
        epsilon: f64,
        epilogue: Epilogue,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        match shape_of(&x, &scale, &shift, epilogue) {
            Some(shape) => {
                let inputs = Inputs::new([x, scale, shift], shape, epilogue);
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
        let Some(shape) = shape_of(x.primitive(), scale.primitive(), shift.primitive(), epilogue) else {
            return composed::<Self>(x, scale, shift, epsilon, epilogue);
        };
        let [(x, of_x), (scale, of_scale), (shift, of_shift)] =
            [x, scale, shift].map(|tensor| tensor.into_parts());
        let (inputs, nodes) = (Inputs::new([x, scale, shift], shape, epilogue), [of_x, of_scale, of_shift]);
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

/// The sizes of the batch, if types are supported and the output is not empty.
fn shape_of(x: &FlexTensor, scale: &FlexTensor, shift: &FlexTensor, epilogue: Epilogue) -> Option<Shape> {
    Shape::of(&x.shape(), epilogue).filter(|_| supported(x, &[scale, shift]))
}

impl Inputs {
    /// The batch, which has this shape, with scale and shift.
    fn new(tensors: [FlexTensor; 3], shape: Shape, epilogue: Epilogue) -> Self {
        let [x, scale, shift] = tensors.map(contiguous);
        Self { x, scale, shift, shape, epilogue, level: Level::current() }
    }

    /// The inputs with `x` in f32.
    fn values<'a>(&'a self, x: &'a [f32]) -> Input<'a> {
        let [scale, shift] = [&self.scale, &self.shift].map(values);
        Input { shape: self.shape, epilogue: self.epilogue, x, scale, shift }
    }

    /// The output as a tensor, and the other results of forward.
    fn forward(&self, epsilon: f64, backward: bool) -> (FlexTensor, Forward) {
        let x = wide(self.level, &self.x);
        let mut forward = super::forward(self.level, self.values(&x), epsilon, backward);
        let mut shape = self.x.shape().to_vec();
        if self.epilogue == Epilogue::ReluPool {
            shape[2..].copy_from_slice(&self.shape.output_size(self.epilogue));
        }
        let output = std::mem::take(&mut forward.output);
        (tensor_of(self.x.dtype(), self.level, output, &shape), forward)
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
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let State { inputs, moments, argmax } = ops.state;
        let level = inputs.level;
        let [values, gradient] = [&inputs.x, &gradient].map(|tensor| wide(level, tensor));
        let found = super::backward(level, inputs.values(&values), &moments, &argmax, &gradient);
        let [x, scale, shift] = ops.parents;
        let channels = [inputs.shape.channels];
        if let Some(shift) = shift {
            grads.register::<Flex>(shift.id, tensor(found.shift, &channels));
        }
        if let Some(scale) = scale {
            grads.register::<Flex>(scale.id, tensor(found.scale, &channels));
        }
        if let Some(x) = x {
            let dtype = inputs.x.dtype();
            grads.register::<Flex>(x.id, tensor_of(dtype, level, found.x, &inputs.x.shape()));
        }
    }
}

fn statistics(moments: &Moments) -> [FlexTensor; 2] {
    [&moments.mean, &moments.variance].map(|values| tensor(values.clone(), &[values.len()]))
}
