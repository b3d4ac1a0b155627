//! Export of networks as ONNX: float networks, and int8 models in QDQ form.
//!
//! In QDQ form, QuantizeLinear and DequantizeLinear surround float operators. Runtimes recognise this pattern
//! and compute on integers.

mod float;
mod graph;
mod int8;
mod metadata;
mod proto;
#[cfg(test)]
mod tests;

pub use float::float_network;
pub use graph::OnnxFile;
pub use int8::int8_network;

use burn_fused::int8::AveragePool;
use graph::{Attribute, Graph};

/// Returns the attributes of a convolution or a pooling. The last argument is the padding: rows added both
/// above and below, columns added both to the left and to the right.
fn windows(
    kernel: [usize; 2],
    stride: [usize; 2],
    [rows, columns]: [usize; 2],
) -> Vec<(&'static str, Attribute)> {
    let ints = |values: &[usize]| Attribute::Ints(values.iter().map(|&value| value as i64).collect());
    vec![
        ("kernel_shape", ints(&kernel)),
        ("strides", ints(&stride)),
        ("pads", ints(&[rows, columns, rows, columns])),
    ]
}

/// Appends average pooling from height and width `input` to `output`. Its windows may differ in size, which
/// ONNX's AveragePool does not support. So two matrix products with constants compute the means: a constant
/// on the right averages columns, and a constant on the left averages rows.
fn average(graph: &mut Graph, name: &str, input: [usize; 2], output: [usize; 2]) {
    let names = ["columns", "rows"].map(|side| format!("{name}.{side}"));
    for (side, axis) in [(0, 1), (1, 0)] {
        let (from, to) = (input[axis], output[axis]);
        let mut weights = vec![0.0; from * to];
        for at in 0..to {
            let window = AveragePool { output }.window(axis, from, at);
            let weight = 1.0 / window.len() as f32;
            for pixel in window {
                weights[if side == 0 { pixel * to + at } else { at * from + pixel }] = weight;
            }
        }
        graph.floats(&names[side], &if side == 0 { [from, to] } else { [to, from] }, &weights);
        graph.product(&format!("{name}.{}", ["by_columns", "by_rows"][side]), &names[side], side == 0);
    }
}
