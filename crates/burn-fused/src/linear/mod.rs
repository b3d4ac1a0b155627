//! A linear layer and its bias as one operator: with few outputs, or 16-bit inputs.
//!
//! GEMM is tuned for large matrices: with ten columns, most of a vector is unused.
//! flex runs its own forward and backward here; other backends, and layers with many
//! outputs of f32 inputs, run Burn's.

mod kernels;
mod mixed;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::nn::Linear;
use burn::tensor::{Shape, Tensor};

use self::kernels::Sizes;
use crate::extension::operator;
use crate::flex_tensor::{contiguous, tensor, values};
use crate::precision::{Half, cast, in_f32, supported};
use crate::shapes::expect;
use crate::simd::Level;

/// Maximum number of outputs of the operator for f32: two of the widest vectors.
const FEW: usize = 32;

/// `layer` of `x` `[batch, inputs]`: `[batch, outputs]`.
///
/// It is one operator on flex with a bias, for `x` in f32 with at most 32 outputs, and in
/// bf16 or f16 with any number, where the output has the type of `x`
/// ([mixed precision](crate::precision)). Otherwise Burn's layer runs.
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::linear::linear;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(64, 10).init(&device);
/// let scores = linear(Tensor::ones([2, 64], &device), &layer);
/// assert_eq!(scores.dims(), [2, 10]);
/// let gradients = scores.sum().backward();
/// assert!(layer.weight.val().grad(&gradients).is_some());
/// ```
///
/// # Panics
/// If `x` does not have the layer's number of inputs, or a bias not one value for each output.
#[track_caller]
pub fn linear(x: Tensor<2>, layer: &Linear) -> Tensor<2> {
    let weights = layer.weight.val();
    let [inputs, outputs] = weights.dims();
    let rule = "Number of columns of input tensor and inputs of the layer must be equal.";
    expect("linear", rule, x.dims()[1], inputs);
    if let Some(bias) = &layer.bias {
        let rule = "Number of values of the bias and outputs of the layer must be equal.";
        expect("linear", rule, bias.dims(), [outputs]);
    }
    let own = outputs <= FEW || Half::of(x.dtype()).is_some();
    let Some(bias) = layer.bias.as_ref().filter(|_| own) else {
        return in_f32(x, |x| layer.forward(x));
    };
    let [x, weights] = [x, weights].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as LinearBias>::linear_bias(x, weights, bias.val().into_dispatch()))
}

operator! {
    trait LinearBias(Backend) {
        fn linear_bias(
            x: FloatTensor<Self>,
            weights: FloatTensor<Self>,
            bias: FloatTensor<Self>,
        ) -> FloatTensor<Self> {
            composed::<Self>(x, weights, bias)
        }
    }
}

/// The operator, composed of Burn's operators.
fn composed<B: Backend>(x: FloatTensor<B>, weights: FloatTensor<B>, bias: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = x.dtype();
    let [weights, bias] = [weights, bias].map(|tensor| cast::<B>(tensor, dtype));
    let outputs = bias.shape().num_elements();
    B::float_add(B::float_matmul(x, weights), B::float_reshape(bias, Shape::from([1, outputs])))
}

impl LinearBias for Flex {
    fn linear_bias(x: FlexTensor, weights: FlexTensor, bias: FlexTensor) -> FlexTensor {
        match sizes(&x, &weights, &bias) {
            Some(sizes) => Inputs::new([x, weights, bias], sizes).forward(),
            None => composed::<Self>(x, weights, bias),
        }
    }
}

impl<C: CheckpointStrategy> LinearBias for Autodiff<Flex, C> {
    fn linear_bias(
        x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let Some(sizes) = sizes(x.primitive(), weights.primitive(), bias.primitive()) else {
            return composed::<Self>(x, weights, bias);
        };
        let [(x, of_x), (weights, of_weights), (bias, of_bias)] =
            [x, weights, bias].map(|tensor| tensor.into_parts());
        let (inputs, nodes) = (Inputs::new([x, weights, bias], sizes), [of_x, of_weights, of_bias]);
        match LinearBiasBackward.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let output = inputs.forward();
                prepared.finish(inputs, output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(inputs.forward()),
        }
    }
}

/// The inputs of the operator, each contiguous.
#[derive(Debug, Clone)]
struct Inputs {
    x: FlexTensor,
    weights: FlexTensor,
    bias: FlexTensor,
    sizes: Sizes,
    level: Level,
}

/// The sizes of the operator, if types are supported and shapes match and are not empty.
fn sizes(x: &FlexTensor, weights: &FlexTensor, bias: &FlexTensor) -> Option<Sizes> {
    let ([batch, inputs], [rows, outputs]) = (x.shape().dims(), weights.shape().dims());
    let fits = supported(x, &[weights, bias]) && inputs == rows && bias.shape().num_elements() == outputs;
    (fits && ![batch, inputs, outputs].contains(&0)).then_some(Sizes { batch, inputs, outputs })
}

impl Inputs {
    /// Input, weights and bias, which have these sizes.
    fn new(tensors: [FlexTensor; 3], sizes: Sizes) -> Self {
        let [x, weights, bias] = tensors.map(contiguous);
        Self { x, weights, bias, sizes, level: Level::current() }
    }

    fn forward(&self) -> FlexTensor {
        if let Some(half) = Half::of(self.x.dtype()) {
            return mixed::forward(half, self);
        }
        let [input, weights, bias] = [&self.x, &self.weights, &self.bias].map(values);
        let output = self.level.run(kernels::Forward { sizes: self.sizes, input, weights, bias });
        tensor(output, &[self.sizes.batch, self.sizes.outputs])
    }

    /// The gradients from that of the output.
    fn backward(&self, gradient: &FlexTensor, of_input: bool) -> Gradients {
        if let Some(half) = Half::of(self.x.dtype()) {
            return mixed::backward(half, self, gradient, of_input);
        }
        let Self { sizes, level, .. } = *self;
        let [input, weights, gradient] = [&self.x, &self.weights, gradient].map(values);
        let (x, weights, bias) = level.run(kernels::Backward { sizes, input, weights, gradient, of_input });
        Gradients { x: x.map(|x| tensor(x, &[sizes.batch, sizes.inputs])), weights, bias }
    }
}

/// The gradients of a layer.
struct Gradients {
    /// Of the inputs, in their type, if requested.
    x: Option<FlexTensor>,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// The operator's backward.
#[derive(Debug)]
struct LinearBiasBackward;

impl Backward<Flex, 3> for LinearBiasBackward {
    type State = Inputs;

    fn backward(self, ops: Ops<Inputs, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = contiguous(grads.consume::<Flex>(&ops.node));
        let [x, weights, bias] = ops.parents;
        let found = ops.state.backward(&gradient, x.is_some());
        let Sizes { inputs, outputs, .. } = ops.state.sizes;
        if let Some(bias) = bias {
            grads.register::<Flex>(bias.id, tensor(found.bias, &[outputs]));
        }
        if let Some(weights) = weights {
            grads.register::<Flex>(weights.id, tensor(found.weights, &[inputs, outputs]));
        }
        if let (Some(x), Some(gradient)) = (x, found.x) {
            grads.register::<Flex>(x.id, gradient);
        }
    }
}

#[cfg(test)]
mod tests;
