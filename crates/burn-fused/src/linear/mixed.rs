//! The layer for 16-bit inputs: products of values in that type, summed in f32.

use burn::backend::flex::FlexTensor;

use super::kernels::Sizes;
use super::{Gradients, Inputs};
use crate::flex_tensor::values;
use crate::precision::{Half, Matrix, multiply};

/// The output in the inputs' type.
pub(super) fn forward(half: Half, inputs: &Inputs) -> FlexTensor {
    let Inputs { sizes: Sizes { batch, inputs: features, outputs }, level, .. } = *inputs;
    let weights = half.narrowed(level, values(&inputs.weights));
    let x = Matrix::new(half.bits(&inputs.x), [batch, features]);
    let mut output = multiply(level, half, x, Matrix::new(&weights, [features, outputs]));
    for row in output.chunks_exact_mut(outputs) {
        row.iter_mut().zip(values(&inputs.bias)).for_each(|(y, bias)| *y += bias);
    }
    half.tensor(half.narrowed(level, &output), &[batch, outputs])
}

/// The gradients from that of the output, which has the inputs' type.
pub(super) fn backward(half: Half, inputs: &Inputs, gradient: &FlexTensor, of_input: bool) -> Gradients {
    let Inputs { sizes: Sizes { batch, inputs: features, outputs }, level, .. } = *inputs;
    let g = Matrix::new(half.bits(gradient), [batch, outputs]);
    let x = Matrix::new(half.bits(&inputs.x), [batch, features]);
    let weights = multiply(level, half, x.transpose(), g);
    let mut wide = vec![0.0; batch * outputs];
    half.widen(level, half.bits(gradient), &mut wide);
    let mut bias = vec![0.0; outputs];
    for row in wide.chunks_exact(outputs) {
        bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
    }
    let input_gradient = || {
        let weights = half.narrowed(level, values(&inputs.weights));
        let found = multiply(level, half, g, Matrix::new(&weights, [features, outputs]).transpose());
        half.tensor(half.narrowed(level, &found), &[batch, features])
    };
    Gradients {
        x: of_input.then(input_gradient),
        weights: half.weight_gradient(level, weights),
        bias: half.weight_gradient(level, bias),
    }
}
