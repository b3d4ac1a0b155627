//! The definition of a convolution and its gradients, computed in f64.

use std::ops::Range;

use super::super::Shape;

/// The gradients of a convolution.
pub struct Reference {
    pub input: Vec<f64>,
    pub weights: Vec<f64>,
    pub bias: Vec<f64>,
}

/// Returns the rows that a tap of the kernel connects: ranges of the same length in a plane of the output and
/// in a plane of the input.
fn rows(shape: Shape, tap: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let Shape { height, width, .. } = shape;
    let (down, right) = (tap / 3, tap % 3);
    // In a row, output `o` reads input `o + right - 1`.
    let from = 1usize.saturating_sub(right);
    let to = (width + 1).saturating_sub(right).min(width);
    (0..height).filter_map(move |y| {
        let above = (y + down).checked_sub(1).filter(|&above| above < height && from < to)?;
        let (o, i) = (y * width + from, above * width + from + right - 1);
        Some((o..o + to - from, i..i + to - from))
    })
}

/// Returns three offsets for each image and each pair of an output and an input channel: of the output's
/// plane, of the input's plane, and of the 3x3 weights.
fn pairs(shape: Shape) -> impl Iterator<Item = [usize; 3]> {
    let Shape { batch, inputs, outputs, .. } = shape;
    (0..batch).flat_map(move |image| {
        (0..outputs).flat_map(move |o| {
            (0..inputs).map(move |i| {
                [
                    (image * outputs + o) * shape.pixels(),
                    (image * inputs + i) * shape.pixels(),
                    (o * inputs + i) * 9,
                ]
            })
        })
    })
}

/// Computes the convolution, without an epilogue.
pub fn product(shape: Shape, input: &[f32], weights: &[f32], bias: &[f32]) -> Vec<f64> {
    let pixels = shape.pixels();
    let len = shape.batch * shape.outputs * pixels;
    let mut product: Vec<f64> = (0..len).map(|at| f64::from(bias[at / pixels % shape.outputs])).collect();
    for [out, plane, taps] in pairs(shape) {
        for tap in 0..9 {
            let weight = f64::from(weights[taps + tap]);
            for (o, i) in rows(shape, tap) {
                let values = &input[plane..][i];
                for (sum, &value) in product[out..][o].iter_mut().zip(values) {
                    *sum += weight * f64::from(value);
                }
            }
        }
    }
    product
}

/// Computes the gradients from the gradient of [`product`].
pub fn gradients(shape: Shape, input: &[f32], weights: &[f32], of_product: &[f64]) -> Reference {
    let mut found = Reference {
        input: vec![0.0; input.len()],
        weights: vec![0.0; weights.len()],
        bias: vec![0.0; shape.outputs],
    };
    for (plane, gradients) in of_product.chunks(shape.pixels()).enumerate() {
        found.bias[plane % shape.outputs] += gradients.iter().sum::<f64>();
    }
    for [out, plane, taps] in pairs(shape) {
        for tap in 0..9 {
            let weight = f64::from(weights[taps + tap]);
            for (o, i) in rows(shape, tap) {
                let of_input = &mut found.input[plane..][i.clone()];
                let values = &input[plane..][i];
                for ((of_input, &value), &gradient) in
                    of_input.iter_mut().zip(values).zip(&of_product[out..][o])
                {
                    *of_input += weight * gradient;
                    found.weights[taps + tap] += f64::from(value) * gradient;
                }
            }
        }
    }
    found
}
