//! 3x3 convolutions with padding 1 on the CPU: forward and backward, epilogue
//! included.
//!
//! Few channels run the direct convolution ([`direct`]), one image per SIMD lane;
//! many channels run Winograd ([`winograd`]) or im2col + GEMM ([`im2col`]), and in bf16 AMX
//! tiles where the processor has them ([`tiles`]): [`Route::of`].

mod activation;
mod blocks;
mod correlation;
mod direct;
mod gemm_epilogue;
mod group;
mod im2col;
mod matmul;
mod middle;
mod pair;
mod plane;
mod route;
mod scratch;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
pub(super) mod tiles;
mod winograd;

use pair::{PairBackward, PairForward};
use scratch::with_buffers;

pub use pair::{Between, Layer, PairGradients, PairShape, Parameters};
pub use route::Route;

use crate::epilogue::Epilogue;
use crate::simd::Level;

/// Sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Images.
    pub batch: usize,
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// Height of the images.
    pub height: usize,
    /// Width of the images.
    pub width: usize,
}

impl Shape {
    /// Height and width of the output.
    pub fn output_size(&self, epilogue: Epilogue) -> [usize; 2] {
        epilogue.size([self.height, self.width])
    }

    /// Values of the output.
    pub fn output_len(&self, epilogue: Epilogue) -> usize {
        self.batch * self.outputs * self.output_size(epilogue).iter().product::<usize>()
    }

    fn input_len(&self) -> usize {
        self.batch * self.inputs * self.pixels()
    }

    fn weight_len(&self) -> usize {
        self.outputs * self.inputs * 9
    }

    fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Whether the direct convolution is faster than im2col + GEMM.
    fn is_small(&self) -> bool {
        self.inputs * self.outputs <= 128
    }
}

/// Argmax of each 2x2 square of a pooling: 0 to 3 in reading
/// order, or [`NO_MAXIMUM`](crate::epilogue::NO_MAXIMUM).
#[derive(Debug, Clone)]
pub enum Argmax {
    /// No pooling, or no backward.
    Unknown,
    /// From the direct convolution, in the lane order of its SIMD level.
    Lanes(Vec<u8>),
    /// From Winograd and from tiles: for each pixel, channels side by side, as many as the SIMD level has
    /// lanes.
    Channels(Vec<u8>),
    /// From im2col + GEMM, in the order of the output.
    Plain(Vec<u8>),
}

/// Inputs and results of forward that backward reads.
#[derive(Debug, Clone, Copy)]
pub struct Forward<'a> {
    /// `[batch, inputs, height, width]`.
    pub input: &'a [f32],
    /// `[outputs, inputs, 3, 3]`.
    pub weights: &'a [f32],
    /// `[batch, outputs, ...]`, with the epilogue.
    pub output: &'a [f32],
    /// From forward with `backward`, at the same SIMD level, route, shape and epilogue.
    pub argmax: &'a Argmax,
}

/// The gradients of a convolution.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// Of the input, if requested.
    pub input: Option<Vec<f32>>,
    /// Of the weights.
    pub weights: Vec<f32>,
    /// Of the biases.
    pub bias: Vec<f32>,
}

/// The output of `input` `[batch, inputs, height, width]`, and the argmax of the
/// pooling if `backward` follows.
///
/// # Panics
/// If lengths do not match the shape.
pub fn forward(
    (level, route): (Level, Route),
    shape: Shape,
    epilogue: Epilogue,
    input: &[f32],
    weights: &[f32],
    bias: &[f32],
    backward: bool,
) -> (Vec<f32>, Argmax) {
    assert_eq!(
        (input.len(), weights.len(), bias.len()),
        (shape.input_len(), shape.weight_len(), shape.outputs),
        "lengths of {shape:?}"
    );
    match route {
        Route::Direct => with_buffers(|[buffers, _]| {
            level.run(direct::ForwardPass { shape, epilogue, input, weights, bias, backward, buffers })
        }),
        Route::Gemm => im2col::forward(level, shape, epilogue, input, weights, bias, backward),
        Route::Winograd => winograd::forward(level, shape, epilogue, input, weights, bias, backward),
        Route::Tiles => unreachable!("tiles multiply 16-bit images"),
    }
}

/// The gradients from that of the output. `between` is called after each block of the
/// work.
///
/// # Panics
/// If lengths do not match the shape.
pub fn backward(
    (level, route): (Level, Route),
    shape: Shape,
    epilogue: Epilogue,
    forward: Forward<'_>,
    gradient: &[f32],
    of_input: bool,
    between: &mut dyn FnMut(),
) -> Gradients {
    assert_eq!(
        [forward.input.len(), forward.weights.len(), forward.output.len(), gradient.len()],
        [shape.input_len(), shape.weight_len(), shape.output_len(epilogue), shape.output_len(epilogue)],
        "lengths of {shape:?}"
    );
    match route {
        Route::Direct => with_buffers(|[buffers, _]| {
            let back = direct::Back { shape, epilogue, forward, gradient };
            level.run(direct::BackwardPass { back, of_input, between, buffers })
        }),
        Route::Gemm => im2col::backward(level, shape, epilogue, forward, gradient, of_input, between),
        Route::Winograd => winograd::backward(level, shape, epilogue, forward, gradient, of_input, between),
        Route::Tiles => unreachable!("tiles multiply 16-bit images"),
    }
}

/// The output of two convolutions with ReLU and pooling, and what `backward` reads
/// if it follows. With `quantize`, activations between them are fake-quantized.
///
/// # Panics
/// If the shape is [not supported](PairShape::fits), or lengths do not match it.
pub fn forward_pair(
    level: Level,
    shape: PairShape,
    input: &[f32],
    layers: [Layer<'_>; 2],
    quantize: Option<&mut Parameters<'_>>,
    backward: bool,
) -> (Vec<f32>, Between) {
    let expected = [shape.first, shape.second()].map(|shape| (shape.weight_len(), shape.outputs));
    let found = layers.map(|layer| (layer.weights.len(), layer.bias.len()));
    assert!(
        shape.fits() && input.len() == shape.first.input_len() && found == expected,
        "lengths of {shape:?}"
    );
    with_buffers(|buffers| level.run(PairForward { shape, input, layers, quantize, backward, buffers }))
}

/// The gradients from that of the output. `poll` is called after each block of the work.
///
/// # Panics
/// If the shape is [not supported](PairShape::fits), or lengths do not match it.
pub fn backward_pair(
    level: Level,
    shape: PairShape,
    (input, weights, between): (&[f32], [&[f32]; 2], &Between),
    gradient: &[f32],
    of_input: bool,
    poll: &mut dyn FnMut(),
) -> PairGradients {
    let second = shape.second();
    let lengths = [input.len(), weights[0].len(), weights[1].len(), gradient.len()];
    let expected = [shape.first.input_len(), shape.first.weight_len(), second.weight_len()];
    assert!(shape.fits(), "{shape:?} is not supported");
    assert_eq!(lengths[..3], expected, "lengths of {shape:?}");
    assert_eq!(lengths[3], second.output_len(Epilogue::ReluPool), "lengths of {shape:?}");
    with_buffers(|buffers| {
        level.run(PairBackward { shape, input, weights, between, gradient, of_input, poll, buffers })
    })
}
