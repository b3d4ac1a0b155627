//! A linear layer with few outputs, or of 16-bit inputs.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::DType;

use super::kernels::{self, Sizes};
use crate::extension::{Backward, Saved};
use crate::flex_tensor::{contiguous, tensor, values};
use crate::matrix::Matrix;
use crate::precision::{Half, multiply, supported, tensor_of};
use crate::simd::Level;

/// Maximum number of outputs of the operator for f32: two of the widest vectors.
const FEW: usize = 32;

/// Whether a layer of so many outputs, of inputs of this type, is computed here.
pub fn computes(dtype: DType, outputs: usize) -> bool {
    outputs <= FEW || Half::of(dtype).is_some()
}

/// The sizes of the operator, if types are supported and nothing is empty but the bias.
pub fn sizes_of([x, weights, bias]: [&FlexTensor; 3]) -> Option<Sizes> {
    Sizes::of(x, weights).filter(|sizes| sizes.batch > 0 && supported(x, &[weights, bias]))
}

/// The output of inputs, weights and biases.
pub fn forward(
    tensors: [FlexTensor; 3],
    sizes: Sizes,
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved, 3>) {
    let [x, weights, bias] = tensors.map(contiguous);
    let (level, parameters) = (Level::current(), [&weights, &bias].map(values));
    let Sizes { batch, inputs, outputs } = sizes;
    let output = match Half::of(x.dtype()) {
        Some(half) => {
            let weights = half.narrowed(level, parameters[0]);
            let rows = Matrix::new(half.bits(&x), [batch, inputs]);
            let mut output = multiply(level, half, rows, Matrix::new(&weights, [inputs, outputs]));
            for row in output.chunks_exact_mut(outputs) {
                row.iter_mut().zip(parameters[1]).for_each(|(y, bias)| *y += bias);
            }
            output
        }
        None => kernels::forward(level, sizes, values(&x), parameters),
    };
    let output = tensor_of(x.dtype(), level, output, &sizes.output_shape(&x));
    let backward = Backward::new(move |gradient, of_input| {
        let (weights, dtype) = (values(&weights), x.dtype());
        let (of_x, of_weights, of_bias) = match Half::of(dtype) {
            Some(half) => {
                let [rows, bits] = [&x, &gradient].map(|tensor| half.bits(tensor));
                let (rows, g) = (Matrix::new(rows, [batch, inputs]), Matrix::new(bits, [batch, outputs]));
                let mut of_weights = multiply(level, half, rows.transpose(), g);
                let mut bias = vec![0.0; outputs];
                for row in half.widened(level, bits).chunks_exact(outputs) {
                    bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
                }
                let of_input = of_input.then(|| {
                    let weights = half.narrowed(level, weights);
                    multiply(level, half, g, Matrix::new(&weights, [inputs, outputs]).transpose())
                });
                half.weight_gradient(level, &mut of_weights);
                half.weight_gradient(level, &mut bias);
                (of_input, of_weights, bias)
            }
            None => {
                let [input, gradient] = [&x, &gradient].map(values);
                kernels::backward(level, sizes, input, weights, gradient, of_input)
            }
        };
        let of_x = of_x.map(|of_x| tensor_of(dtype, level, of_x, &x.shape()));
        [of_x, Some(of_weights.into_tensor(&[inputs, outputs])), Some(tensor(of_bias, &[outputs]))]
    });
    (output, backward)
}
