//! Convolutions by Winograd F(4x4, 3x3), for many channels (Lavin and Gray 2016, "Fast Algorithms for
//! Convolutional Neural Networks", section 4).
//!
//! A 4x4 tile of the output takes 36 multiplications for each pair of an input and an output channel, instead
//! of 144. The 6x6 pixels of the input around the tile are transformed to 36 factors, and so are the 3x3
//! weights. The position of a factor is called a point. At each point, the factors of pixels are multiplied
//! by the factors of weights and summed over the input channels, which is a matrix product. The results of
//! the 36 matrix products are transformed to the outputs of the tile. The lanes of all vectors are channels.
//!
//! The last tiles of an image may have only one or two rows, or columns, of pixels, for example in images of
//! 14x14 pixels. Such a tile is a [half](transform::HalfTile) tile: it has four points in that dimension
//! instead of six.
//!
//! The largest error is 1e-6 to 3e-6 of the largest result. This is two to six times the error of im2col +
//! GEMM.
//!
//! A NaN or an infinity in the input reaches the 3x3 outputs around it, mostly as NaN. It may also reach the
//! other outputs of each tile that has this pixel among its 6x6 pixels. With im2col, the other outputs stay
//! finite. The NaN or infinity also reaches the gradients of all weights of its input channel. A NaN or an
//! infinity in the weights reaches all outputs of its output channel with both algorithms.

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

use super::source::Source;
use super::{Back, Convolution, Gradients, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;

/// See [`Convolution::forward`]. The argmax is returned only if `keeps` is set.
pub fn forward(
    conv: Convolution,
    input: &[f32],
    [weights, bias]: [&[f32]; 2],
    keeps: bool,
) -> (Buffer, Vec<u8>) {
    let Convolution { level, shape, epilogue, .. } = conv;
    let convolve = Convolve {
        level,
        shape,
        epilogue,
        source: Source::input(shape, input),
        weights,
        flipped: false,
        bias: Some(bias),
        keeps_argmax: keeps,
        sums: None,
        poll: Poll::nothing(),
    };
    convolve.run()
}

/// See [`Convolution::backward`].
pub fn backward(conv: Convolution, back: Back<'_>, poll: Poll) -> Gradients {
    let Convolution { level, shape, epilogue, .. } = conv;
    let gradient = Source::gradient(shape, epilogue, back);
    let input = Source::input(shape, back.input);
    let (weights, bias) = WeightGradient { level, shape, input, gradient, poll }.run();
    let input = back.of_input.then(|| {
        let convolve = Convolve {
            level,
            shape: Shape { inputs: shape.outputs, outputs: shape.inputs, ..shape },
            epilogue: Epilogue::Identity,
            source: gradient,
            weights: back.weights,
            flipped: true,
            bias: None,
            keeps_argmax: false,
            sums: None,
            poll,
        };
        let found = convolve.run();
        poll.call();
        found.0
    });
    Gradients { input, weights, bias }
}
