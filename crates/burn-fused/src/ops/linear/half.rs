//! A linear layer for 16-bit inputs.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;

use super::Sizes;
use crate::kernels::half::Half;
use crate::kernels::matrix::Matrix;
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved};
use crate::ops::flex_tensor::{contiguous, tensor, values};
use crate::ops::precision::{multiply, supported, tensor_of};

/// Returns the sizes and the 16-bit type of the operator. Returns `None` if a type is not supported, or if
/// inputs or weights are empty.
pub fn sizes_of([x, weights, bias]: [&FlexTensor; 3]) -> Option<(Sizes, Half)> {
    let sizes =
        Sizes::from_tensors(x, weights).filter(|sizes| sizes.batch > 0 && supported(x, &[weights, bias]))?;
    Some((sizes, Half::from_dtype(x.dtype())?))
}

/// Returns the output, and its backward. The tensors are inputs, weights and biases.
pub fn forward(
    tensors: [FlexTensor; 3],
    (sizes, half): (Sizes, Half),
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved, 3>) {
    let [x, weights, bias] = tensors.map(contiguous);
    let level = Level::current();
    let Sizes { batch, inputs, outputs } = sizes;
    let rows = Matrix::new(half.bits(&x), [batch, inputs]);
    let narrowed = half.narrowed(level, values(&weights));
    let mut output = multiply(level, half, rows, Matrix::new(&narrowed, [inputs, outputs]));
    for row in output.chunks_exact_mut(outputs) {
        row.iter_mut().zip(values(&bias)).for_each(|(y, bias)| *y += bias);
    }
    let output = tensor_of(x.dtype(), level, output, &sizes.output_shape(&x));
    let backward = Backward::new(move |gradient, of_input| {
        let [rows, bits] = [&x, &gradient].map(|tensor| half.bits(tensor));
        let (rows, g) = (Matrix::new(rows, [batch, inputs]), Matrix::new(bits, [batch, outputs]));
        let mut of_weights = multiply(level, half, rows.transpose(), g);
        let mut of_bias = vec![0.0; outputs];
        for row in half.widened(level, bits).chunks_exact(outputs) {
            of_bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
        }
        let of_x = of_input.then(|| {
            let weights = half.narrowed(level, values(&weights));
            let of_x = multiply(level, half, g, Matrix::new(&weights, [inputs, outputs]).transpose());
            tensor_of(x.dtype(), level, of_x, &x.shape())
        });
        half.weight_gradient(level, &mut of_weights);
        half.weight_gradient(level, &mut of_bias);
        [of_x, Some(of_weights.into_tensor(&[inputs, outputs])), Some(tensor(of_bias, &[outputs]))]
    });
    (output, backward)
}
