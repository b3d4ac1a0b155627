//! ONNX export: float networks, and static int8 models in QDQ form, with
//! QuantizeLinear and DequantizeLinear around float operators. Runtimes execute those
//! on integers.

mod float;
mod graph;
mod int8;
mod proto;
#[cfg(test)]
mod tests;

pub use float::{ExportError, float_network};
pub use graph::{IR_VERSION, OPSET};
pub use int8::int8_network;

use graph::Attribute;

/// Attributes of a convolution or a pooling; `padding` is rows above and below, columns to the left and right.
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
