//! A linear layer and its bias as one operator: with few outputs, or 16-bit inputs.
//!
//! GEMM is tuned for large matrices: with ten columns, most of a vector is unused.
//! flex runs its own forward and backward here; other backends, and layers with many
//! outputs of f32 inputs, run Burn's.

mod kernels;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::nn::Linear;
use burn::tensor::Tensor;

use self::kernels::Sizes;
use crate::extension::{Saved, on_flex};
use crate::flex_tensor::{contiguous, tensor, values};
use crate::matrix::Matrix;
use crate::precision::{Half, cast, in_f32, multiply, supported, tensor_of};
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
    let own = outputs > 0 && (outputs <= FEW || Half::of(x.dtype()).is_some());
    let Some(bias) = layer.bias.as_ref().filter(|_| own) else {
        return in_f32(x, |x| layer.forward(x));
    };
    let tensors = [x.into_dispatch(), weights.into_dispatch(), bias.val().into_dispatch()];
    match on_flex(tensors, sizes_of, forward) {
        Ok(output) => Tensor::from_dispatch(output),
        Err([x, weights, bias]) => {
            let (x, weights): (Tensor<2>, Tensor<2>) =
                (Tensor::from_dispatch(x), Tensor::from_dispatch(weights));
            let dtype = x.dtype();
            x.matmul(cast(weights, dtype)) + cast(Tensor::<1>::from_dispatch(bias), dtype).unsqueeze()
        }
    }
}

/// The sizes of the operator, if types are supported and shapes match and are not empty.
fn sizes_of([x, weights, bias]: [&FlexTensor; 3]) -> Option<Sizes> {
    let ([batch, inputs], [rows, outputs]) = (x.shape().dims(), weights.shape().dims());
    let fits = supported(x, &[weights, bias]) && inputs == rows && bias.shape().num_elements() == outputs;
    (fits && ![batch, inputs, outputs].contains(&0)).then_some(Sizes { batch, inputs, outputs })
}

/// The output of inputs, weights and biases.
fn forward(tensors: [FlexTensor; 3], sizes: Sizes, _backward: bool) -> (FlexTensor, State) {
    let [x, weights, bias] = tensors.map(contiguous);
    let (level, parameters) = (Level::current(), [&weights, &bias].map(values));
    let Sizes { batch, inputs, outputs } = sizes;
    let output = match Half::of(x.dtype()) {
        Some(half) => {
            let weights = half.narrowed(level, parameters[0]);
            let x = Matrix::new(half.bits(&x), [batch, inputs]);
            let mut output = multiply(level, half, x, Matrix::new(&weights, [inputs, outputs]));
            for row in output.chunks_exact_mut(outputs) {
                row.iter_mut().zip(parameters[1]).for_each(|(y, bias)| *y += bias);
            }
            output
        }
        None => level.run(kernels::Forward { sizes, input: values(&x), parameters }),
    };
    let output = tensor_of(x.dtype(), level, output, &[batch, outputs]);
    (output, State { x, weights, sizes, level })
}

/// Saved by forward for backward.
#[derive(Debug, Clone)]
struct State {
    x: FlexTensor,
    weights: FlexTensor,
    sizes: Sizes,
    level: Level,
}

impl Saved<3> for State {
    fn backward(self, gradient: FlexTensor, of_input: bool) -> [Option<FlexTensor>; 3] {
        let Self { sizes, level, .. } = self;
        let Sizes { batch, inputs, outputs } = sizes;
        let (weights, dtype) = (values(&self.weights), self.x.dtype());
        let (of_x, of_weights, of_bias) = match Half::of(dtype) {
            Some(half) => {
                let [x, bits] = [&self.x, &gradient].map(|tensor| half.bits(tensor));
                let (x, g) = (Matrix::new(x, [batch, inputs]), Matrix::new(bits, [batch, outputs]));
                let of_weights = multiply(level, half, x.transpose(), g);
                let mut bias = vec![0.0; outputs];
                for row in half.widened(level, bits).chunks_exact(outputs) {
                    bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
                }
                let of_input = of_input.then(|| {
                    let weights = half.narrowed(level, weights);
                    multiply(level, half, g, Matrix::new(&weights, [inputs, outputs]).transpose())
                });
                let [of_weights, bias] =
                    [of_weights, bias].map(|gradient| half.weight_gradient(level, gradient));
                (of_input, of_weights, bias)
            }
            None => {
                let [input, gradient] = [&self.x, &gradient].map(values);
                level.run(kernels::Backward { sizes, input, weights, gradient, of_input })
            }
        };
        let of_x = of_x.map(|of_x| tensor_of(dtype, level, of_x, &[batch, inputs]));
        [of_x, Some(tensor(of_weights, &[inputs, outputs])), Some(tensor(of_bias, &[outputs]))]
    }
}

#[cfg(test)]
mod tests;
