//! Convolutions of 3x3 with a border of one pixel, on the CPU: forward and
//! backward, with what follows them in one pass.
//!
//! Few channels take the direct way ([`direct`]), with images in the lanes of
//! vectors; many take matrix products ([`columns`]).

mod blocks;
mod columns;
mod direct;
mod epilogue;
mod group;
mod kernels;
mod lanes;
mod level;
mod matmul;
mod pair;
mod scratch;
#[cfg(test)]
mod tests;

use pair::{PairBackward, PairForward};
use scratch::with_buffers;

pub(crate) use epilogue::{passes, pool_row, relu, spread_row};
pub(crate) use lanes::{Lanes, store};
pub(crate) use level::Kernel;
pub use level::Level;
pub use pair::{Between, Layer, PairGradients, PairShape};
pub(crate) use scratch::Unwritten;

use super::tail::Tail;

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
    pub fn output_size(&self, tail: Tail) -> [usize; 2] {
        tail.size([self.height, self.width])
    }

    /// Values of the output.
    pub fn output_len(&self, tail: Tail) -> usize {
        self.batch * self.outputs * self.output_size(tail).iter().product::<usize>()
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

    /// Whether the direct way is the faster one.
    fn is_small(&self) -> bool {
        self.inputs * self.outputs <= 128
    }
}

/// Where the maxima of a pooling were, in the layout of the way that made them.
#[derive(Debug, Clone)]
pub enum Places {
    /// Without pooling, or without backward.
    Unknown,
    /// In lanes.
    Lanes(Vec<u8>),
    /// In the order of the output.
    Plain(Vec<u8>),
}

/// What backward starts from.
#[derive(Debug, Clone, Copy)]
pub struct Forward<'a> {
    /// `[batch, inputs, height, width]`.
    pub input: &'a [f32],
    /// `[outputs, inputs, 3, 3]`.
    pub weights: &'a [f32],
    /// What forward gave.
    pub output: &'a [f32],
    /// What forward gave besides.
    pub places: &'a Places,
}

/// The gradients of a convolution.
#[derive(Debug, Clone)]
pub struct Gradients {
    /// Of the input, if wanted.
    pub input: Option<Vec<f32>>,
    /// Of the weights.
    pub weights: Vec<f32>,
    /// Of the biases.
    pub bias: Vec<f32>,
}

/// The output of `input` `[batch, inputs, height, width]`, and where the maxima
/// of a pooling were if `backward` is to follow.
///
/// # Panics
/// Where lengths do not fit the shape.
pub fn forward(
    level: Level,
    shape: Shape,
    tail: Tail,
    input: &[f32],
    weights: &[f32],
    bias: &[f32],
    backward: bool,
) -> (Vec<f32>, Places) {
    assert_eq!(
        (input.len(), weights.len(), bias.len()),
        (shape.input_len(), shape.weight_len(), shape.outputs),
        "lengths of {shape:?}"
    );
    match shape.is_small() {
        true => with_buffers(|[buffers, _]| {
            level.run(direct::ForwardPass { shape, tail, input, weights, bias, backward, buffers })
        }),
        false => columns::forward(level, shape, tail, input, weights, bias, backward),
    }
}

/// The gradients that follow from the output's. `between` is called every now
/// and then, for work that cannot wait.
///
/// # Panics
/// Where lengths do not fit the shape.
pub fn backward(
    level: Level,
    shape: Shape,
    tail: Tail,
    forward: Forward<'_>,
    gradient: &[f32],
    of_input: bool,
    between: &mut dyn FnMut(),
) -> Gradients {
    assert_eq!(
        (forward.input.len(), forward.weights.len(), gradient.len()),
        (shape.input_len(), shape.weight_len(), shape.output_len(tail)),
        "lengths of {shape:?}"
    );
    match shape.is_small() {
        true => with_buffers(|[buffers, _]| {
            let back = direct::Back { shape, tail, forward, gradient };
            level.run(direct::BackwardPass { back, of_input, between, buffers })
        }),
        false => columns::backward(level, shape, tail, forward, gradient, of_input, between),
    }
}

/// The output of two convolutions with ReLU and pooling, and what `backward`
/// needs if it is to follow. The shape [fits](PairShape::fits).
///
/// # Panics
/// Where lengths do not fit the shape.
pub fn forward_pair(
    level: Level,
    shape: PairShape,
    input: &[f32],
    layers: [Layer<'_>; 2],
    backward: bool,
) -> (Vec<f32>, Between) {
    let expected = [shape.first, shape.second()].map(|shape| (shape.weight_len(), shape.outputs));
    let found = layers.map(|layer| (layer.weights.len(), layer.bias.len()));
    assert!(
        shape.fits() && input.len() == shape.first.input_len() && found == expected,
        "lengths of {shape:?}"
    );
    with_buffers(|buffers| level.run(PairForward { shape, input, layers, backward, buffers }))
}

/// The gradients that follow from the output's. `poll` is called every now and
/// then, for work that cannot wait.
///
/// # Panics
/// Where lengths do not fit the shape.
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
    assert_eq!(lengths[..3], expected, "lengths of {shape:?}");
    assert_eq!(lengths[3], second.output_len(Tail::ReluPool), "lengths of {shape:?}");
    with_buffers(|buffers| {
        level.run(PairBackward { shape, input, weights, between, gradient, of_input, poll, buffers })
    })
}
