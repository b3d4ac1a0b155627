//! The layer for 16-bit inputs: products of values in that type, summed in f32.

use super::kernels::Sizes;
use crate::matrix::Matrix;
use crate::precision::{Half, multiply};
use crate::simd::Level;

/// The output, before it is rounded.
pub(super) fn forward(
    half: Half,
    level: Level,
    Sizes { batch, inputs, outputs }: Sizes,
    x: &[u16],
    [weights, bias]: [&[f32]; 2],
) -> Vec<f32> {
    let weights = half.narrowed(level, weights);
    let x = Matrix::new(x, [batch, inputs]);
    let mut output = multiply(level, half, x, Matrix::new(&weights, [inputs, outputs]));
    for row in output.chunks_exact_mut(outputs) {
        row.iter_mut().zip(bias).for_each(|(y, bias)| *y += bias);
    }
    output
}

/// The gradients of inputs, before they are rounded, weights and biases.
pub(super) fn backward(
    half: Half,
    level: Level,
    Sizes { batch, inputs, outputs }: Sizes,
    x: &[u16],
    weights: &[f32],
    gradient: &[u16],
    of_input: bool,
) -> (Option<Vec<f32>>, Vec<f32>, Vec<f32>) {
    let g = Matrix::new(gradient, [batch, outputs]);
    let x = Matrix::new(x, [batch, inputs]);
    let of_weights = multiply(level, half, x.transpose(), g);
    let mut bias = vec![0.0; outputs];
    for row in half.widened(level, gradient).chunks_exact(outputs) {
        bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += g);
    }
    let of_input = of_input.then(|| {
        let weights = half.narrowed(level, weights);
        multiply(level, half, g, Matrix::new(&weights, [inputs, outputs]).transpose())
    });
    let [of_weights, bias] = [of_weights, bias].map(|gradient| half.weight_gradient(level, gradient));
    (of_input, of_weights, bias)
}
