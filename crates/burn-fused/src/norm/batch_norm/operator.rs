//! Batch normalisation as an operator of Burn.
//!
//! flex runs its own forward and backward, for 16-bit values on widened ones; other
//! backends and types compose it of Burn's operators.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, Flex, TensorMetadata};

use super::{Forward, Input, Moments, Shape};
use crate::epilogue::Epilogue;
use crate::extension::{Saved, on_graph, operator};
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
    ) -> Outputs<Self> {
        match shape_of([&x, &scale, &shift], epilogue) {
            Some(shape) => {
                let (output, saved) = forward([x, scale, shift], shape, epilogue, epsilon, false);
                let [mean, variance] = saved.statistics();
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
    ) -> Outputs<Self> {
        let tensors = [x.primitive(), scale.primitive(), shift.primitive()];
        let Some(shape) = shape_of(tensors, epilogue) else {
            return composed::<Self>(x, scale, shift, epsilon, epilogue);
        };
        let mut statistics = None;
        let output = on_graph::<C, _, _>([x, scale, shift], |tensors, backward| {
            let (output, saved) = forward(tensors, shape, epilogue, epsilon, backward);
            statistics = Some(saved.statistics());
            (output, saved)
        });
        let [mean, variance] = statistics.expect("forward has run").map(Self::from_inner);
        (output, mean, variance)
    }
}

/// The sizes of the batch, if types are supported and the output is not empty.
fn shape_of([x, scale, shift]: [&FlexTensor; 3], epilogue: Epilogue) -> Option<Shape> {
    Shape::of(&x.shape(), epilogue).filter(|_| supported(x, &[scale, shift]))
}

/// The output of a batch, its scale and its shift.
fn forward(
    tensors: [FlexTensor; 3],
    shape: Shape,
    epilogue: Epilogue,
    epsilon: f64,
    backward: bool,
) -> (FlexTensor, State) {
    let [x, scale, shift] = tensors.map(contiguous);
    let inputs = Inputs { x, scale, shift, shape, epilogue, level: Level::current() };
    let Inputs { x, level, .. } = &inputs;
    let Forward { output, moments, argmax } =
        super::forward(*level, inputs.values(&wide(*level, x)), epsilon, backward);
    let mut size = x.shape().to_vec();
    if epilogue == Epilogue::ReluPool {
        size[2..].copy_from_slice(&shape.output_size(epilogue));
    }
    let output = tensor_of(x.dtype(), *level, output, &size);
    (output, State { inputs, moments: Arc::new(moments), argmax: Arc::new(argmax) })
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
    /// The inputs with `x` in f32.
    fn values<'a>(&'a self, x: &'a [f32]) -> Input<'a> {
        let [scale, shift] = [&self.scale, &self.shift].map(values);
        Input { shape: self.shape, epilogue: self.epilogue, x, scale, shift }
    }
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    inputs: Inputs,
    moments: Arc<Moments>,
    argmax: Arc<Vec<u8>>,
}

impl State {
    /// Mean and variance.
    fn statistics(&self) -> [FlexTensor; 2] {
        [&self.moments.mean, &self.moments.variance].map(|values| tensor(values.clone(), &[values.len()]))
    }
}

impl Saved<3> for State {
    fn backward(self, gradient: FlexTensor, _of_x: bool) -> [Option<FlexTensor>; 3] {
        let Self { inputs, moments, argmax } = self;
        let Inputs { level, shape: Shape { channels, .. }, .. } = inputs;
        let [x, gradient] = [&inputs.x, &gradient].map(|tensor| wide(level, tensor));
        let found = super::backward(level, inputs.values(&x), &moments, &argmax, &gradient);
        let of_x = tensor_of(inputs.x.dtype(), level, found.x, &inputs.x.shape());
        [of_x, tensor(found.scale, &[channels]), tensor(found.shift, &[channels])].map(Some)
    }
}
