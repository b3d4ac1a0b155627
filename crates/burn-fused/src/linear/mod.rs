//! A linear layer with few outputs and its bias as one operator.
//!
//! GEMM is tuned for large matrices: with ten columns, most of a vector is unused.
//! flex runs its own forward and backward here; other backends, and layers with many
//! outputs, run Burn's.

mod kernels;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::nn::Linear;
use burn::tensor::{DType, Shape, Tensor};

use self::kernels::Sizes;
use crate::extension::operator;
use crate::flex_tensor::{tensor, values};
use crate::simd::Level;

/// Maximum number of outputs of the operator: two of the widest vectors.
const FEW: usize = 32;

/// `layer` of `x` `[batch, inputs]`: `[batch, outputs]`.
///
/// It is one operator on flex for f32, with a bias and at most 32 outputs; otherwise
/// Burn's layer runs.
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
/// If `x` does not have the layer's number of inputs.
pub fn linear(x: Tensor<2>, layer: &Linear) -> Tensor<2> {
    let weights = layer.weight.val();
    let Some(bias) = layer.bias.as_ref().filter(|_| weights.dims()[1] <= FEW) else {
        return layer.forward(x);
    };
    let [x, weights] = [x, weights].map(Tensor::into_dispatch);
    Tensor::from_dispatch(<Dispatch as FewOutputs>::few_outputs(x, weights, bias.val().into_dispatch()))
}

operator! {
    trait FewOutputs(Backend) {
        fn few_outputs(
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
    let outputs = bias.shape().num_elements();
    B::float_add(B::float_matmul(x, weights), B::float_reshape(bias, Shape::from([1, outputs])))
}

impl FewOutputs for Flex {
    fn few_outputs(x: FlexTensor, weights: FlexTensor, bias: FlexTensor) -> FlexTensor {
        match Inputs::of(&x, &weights, &bias) {
            Some(inputs) => inputs.forward(),
            None => composed::<Self>(x, weights, bias),
        }
    }
}

impl<C: CheckpointStrategy> FewOutputs for Autodiff<Flex, C> {
    fn few_outputs(
        x: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let Some(inputs) = Inputs::of(x.primitive(), weights.primitive(), bias.primitive()) else {
            return composed::<Self>(x, weights, bias);
        };
        let nodes = [x, weights, bias].map(|tensor| tensor.into_parts().1);
        match FewOutputsBackward.prepare::<C>(nodes).compute_bound().stateful() {
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

impl Inputs {
    /// The inputs, if they are f32 and of matching, non-empty shapes.
    fn of(x: &FlexTensor, weights: &FlexTensor, bias: &FlexTensor) -> Option<Self> {
        let ([batch, inputs], [rows, outputs]) = (x.shape().dims(), weights.shape().dims());
        let f32s = [x, weights, bias].iter().all(|tensor| tensor.dtype() == DType::F32);
        let fits = f32s && inputs == rows && bias.shape().num_elements() == outputs;
        if !fits || [batch, inputs, outputs].contains(&0) {
            return None;
        }
        let [x, weights, bias] = [x, weights, bias].map(FlexTensor::to_contiguous);
        Some(Self { x, weights, bias, sizes: Sizes { batch, inputs, outputs }, level: Level::current() })
    }

    fn forward(&self) -> FlexTensor {
        let [input, weights, bias] = [&self.x, &self.weights, &self.bias].map(values);
        let output = self.level.run(kernels::Forward { sizes: self.sizes, input, weights, bias });
        tensor(output, &[self.sizes.batch, self.sizes.outputs])
    }
}

/// The operator's backward.
#[derive(Debug)]
struct FewOutputsBackward;

impl Backward<Flex, 3> for FewOutputsBackward {
    type State = Inputs;

    fn backward(self, ops: Ops<Inputs, 3>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let gradient = grads.consume::<Flex>(&ops.node).to_contiguous();
        let Inputs { x, weights, sizes, level, .. } = ops.state;
        let [of_x, of_weights, of_bias] = ops.parents;
        let (input_gradient, weight_gradient, bias_gradient) = level.run(kernels::Backward {
            sizes,
            input: values(&x),
            weights: values(&weights),
            gradient: values(&gradient),
            of_input: of_x.is_some(),
        });
        let Sizes { batch, inputs, outputs } = sizes;
        if let Some(bias) = of_bias {
            grads.register::<Flex>(bias.id, tensor(bias_gradient, &[outputs]));
        }
        if let Some(weights) = of_weights {
            grads.register::<Flex>(weights.id, tensor(weight_gradient, &[inputs, outputs]));
        }
        if let (Some(x), Some(gradient)) = (of_x, input_gradient) {
            grads.register::<Flex>(x.id, tensor(gradient, &[batch, inputs]));
        }
    }
}

#[cfg(test)]
mod tests;
