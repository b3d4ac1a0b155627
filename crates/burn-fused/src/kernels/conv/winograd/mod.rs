//! Convolutions by Winograd F(4x4, 3x3), for many channels (Lavin and Gray 2016, "Fast Algorithms for
//! Convolutional Neural Networks", section 4).
//!
//! A 4x4 tile of the output takes 36 products for each pair of channels instead of 144. The 6x6 pixels of the
//! input around a tile, and each 3x3 weights, are transformed to 36 factors, one for each of 36 points. The
//! products of these factors, summed over channels, are 36 matrix products. Their results are transformed to
//! the tile's outputs. Lanes are channels throughout.
//!
//! If at most two rows or columns of pixels are left for the last tiles, as in images of 14 pixels, these
//! tiles are [half](transform::HalfTile) tiles, which have four points in that dimension instead of six.
//!
//! The largest error is 1 to 3e-6 of the largest value, which is two to six times the error of im2col + GEMM.
//! A NaN or an infinity in the input reaches the 3x3 outputs around it, mostly as NaN. It also reaches up to
//! 16 outputs of each tile with this pixel among its 6x6 pixels, and the gradients of all nine weights of a
//! pair of channels. With im2col it reaches the 3x3 outputs alone. A NaN or an infinity in the weights
//! reaches all outputs of its channel with both algorithms.

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

/// See [`Convolution::forward`]. The argmax is returned only if `keeps`.
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
