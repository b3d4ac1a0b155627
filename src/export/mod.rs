//! ONNX export: float networks, and static int8 models in QDQ form, with
//! QuantizeLinear and DequantizeLinear around float operators. Runtimes execute those
//! on integers.

mod float;
mod graph;
mod int8;
mod proto;
#[cfg(test)]
mod tests;

use burn::nn::PaddingConfig2d;

pub use float::{ExportError, float_network};
pub use graph::{IR_VERSION, OPSET};
pub use int8::int8_network;

use graph::Attribute;

/// Attributes of a convolution or a pooling; `padding` is top, left, bottom, right.
fn windows(kernel: [usize; 2], stride: [usize; 2], padding: [usize; 4]) -> Vec<(&'static str, Attribute)> {
    let ints = |values: &[usize]| Attribute::Ints(values.iter().map(|&value| value as i64).collect());
    vec![("kernel_shape", ints(&kernel)), ("strides", ints(&stride)), ("pads", ints(&padding))]
}

/// Rows and columns of padding; `None` if they depend on the input's size.
fn padding(padding: &PaddingConfig2d) -> Option<[usize; 4]> {
    match *padding {
        PaddingConfig2d::Valid => Some([0; 4]),
        PaddingConfig2d::Explicit(top, left, bottom, right) => Some([top, left, bottom, right]),
        PaddingConfig2d::Same => None,
    }
}
