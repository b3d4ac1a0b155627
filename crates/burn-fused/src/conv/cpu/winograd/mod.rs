//! Winograd F(4x4, 3x3), for many channels (Lavin and Gray 2016, "Fast Algorithms for
//! Convolutional Neural Networks", section 4): a 4x4 tile of the output takes 36
//! products for each pair of channels instead of 144.
//!
//! Each tile's 6x6 pixels of the input and each 3x3 weights are transformed to 36
//! factors; their products, summed over channels, are 36 matrix products, whose results
//! are transformed to the tile's outputs. Lanes are channels throughout.
//!
//! The largest error is 1 to 3e-6 of the largest value, two to six times that of im2col +
//! GEMM. A NaN or an infinity in the input reaches the 3x3 outputs around it, mostly as NaN, and
//! up to 16 outputs of each tile whose 6x6 pixels contain it, and the gradients of all nine
//! weights of a pair of channels; with im2col the 3x3 outputs alone. In the weights, it reaches all outputs of its channel
//! with both.

mod blocks;
mod convolve;
mod factors;
mod finish;
mod pace;
mod panels;
mod product;
#[cfg(test)]
mod reference;
mod source;
#[cfg(test)]
mod tests;
mod transform;
mod weight_gradient;

use convolve::Convolve;
use source::Source;
use weight_gradient::WeightGradient;

use super::scratch::with_buffers;
use super::{Argmax, Forward, Gradients, Shape};
use crate::epilogue::Epilogue;
use crate::simd::Level;

/// See [`super::forward`].
pub fn forward(
    level: Level,
    shape: Shape,
    epilogue: Epilogue,
    input: &[f32],
    weights: &[f32],
    bias: &[f32],
    backward: bool,
) -> (Vec<f32>, Argmax) {
    let keeps_argmax = backward && epilogue == Epilogue::ReluPool;
    let (output, argmax) = with_buffers(|[buffers, _]| {
        level.run(Convolve {
            shape,
            epilogue,
            source: Source::input(shape, input),
            weights,
            flipped: false,
            bias: Some(bias),
            keeps_argmax,
            between: &mut || (),
            buffers,
        })
    });
    (output, if keeps_argmax { Argmax::Channels(argmax) } else { Argmax::Unknown })
}

/// See [`super::backward`].
pub fn backward(
    level: Level,
    shape: Shape,
    epilogue: Epilogue,
    forward: Forward<'_>,
    gradient: &[f32],
    of_input: bool,
    between: &mut dyn FnMut(),
) -> Gradients {
    let gradient = Source::gradient(shape, epilogue, forward, gradient);
    with_buffers(|[buffers, _]| {
        let input = Source::input(shape, forward.input);
        let (weights, bias) =
            level.run(WeightGradient { shape, input, gradient, between: &mut *between, buffers });
        between();
        let input = of_input.then(|| {
            let found = level.run(Convolve {
                shape: Shape { inputs: shape.outputs, outputs: shape.inputs, ..shape },
                epilogue: Epilogue::Identity,
                source: gradient,
                weights: forward.weights,
                flipped: true,
                bias: None,
                keeps_argmax: false,
                between: &mut *between,
                buffers,
            });
            between();
            found.0
        });
        Gradients { input, weights, bias }
    })
}
