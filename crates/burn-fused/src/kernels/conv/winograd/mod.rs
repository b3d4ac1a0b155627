//! Winograd F(4x4, 3x3), for many channels (Lavin and Gray 2016, "Fast Algorithms for
//! Convolutional Neural Networks", section 4): a 4x4 tile of the output takes 36
//! products for each pair of channels instead of 144.
//!
//! Each tile's 6x6 pixels of the input and each 3x3 weights are transformed to 36
//! factors; their products, summed over channels, are 36 matrix products, whose results
//! are transformed to the tile's outputs. Lanes are channels throughout.
//!
//! Where two rows or columns of pixels at most are left for the last tiles, as of 14 pixels, these are
//! [half](transform::HalfTile) ones of four points.
//!
//! The largest error is 1 to 3e-6 of the largest value, two to six times that of im2col +
//! GEMM. A NaN or an infinity in the input reaches the 3x3 outputs around it, mostly as NaN, and
//! up to 16 outputs of each tile whose 6x6 pixels contain it, and the gradients of all nine
//! weights of a pair of channels; with im2col the 3x3 outputs alone. In the weights, it reaches all outputs of its channel
//! with both.

mod convolve;
mod factors;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tile_blocks;
mod transform;
mod weight_gradient;

pub use convolve::Convolve;
use weight_gradient::WeightGradient;

use super::scratch::with_buffers;
use super::source::Source;
use super::{Back, Convolution, Gradients, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::runtime::memory::Buffer;

/// See [`Convolution::forward`]; the argmax is kept if `keeps`.
pub fn forward(
    conv: Convolution,
    input: &[f32],
    [weights, bias]: [&[f32]; 2],
    keeps: bool,
) -> (Buffer, Vec<u8>) {
    let Convolution { level, shape, epilogue, .. } = conv;
    with_buffers(|[buffers, _]| {
        level.run(Convolve {
            shape,
            epilogue,
            source: Source::input(shape, input),
            weights,
            flipped: false,
            bias: Some(bias),
            keeps_argmax: keeps,
            sums: None,
            between: &mut || (),
            buffers,
        })
    })
}

/// See [`Convolution::backward`].
pub fn backward(conv: Convolution, back: Back<'_>, between: &mut dyn FnMut()) -> Gradients {
    let Convolution { level, shape, epilogue, .. } = conv;
    let gradient = Source::gradient(shape, epilogue, back);
    with_buffers(|[buffers, _]| {
        let input = Source::input(shape, back.input);
        let (weights, bias) =
            level.run(WeightGradient { shape, input, gradient, between: &mut *between, buffers });
        between();
        let input = back.of_input.then(|| {
            let found = level.run(Convolve {
                shape: Shape { inputs: shape.outputs, outputs: shape.inputs, ..shape },
                epilogue: Epilogue::Identity,
                source: gradient,
                weights: back.weights,
                flipped: true,
                bias: None,
                keeps_argmax: false,
                sums: None,
                between: &mut *between,
                buffers,
            });
            between();
            found.0
        });
        Gradients { input, weights, bias }
    })
}
