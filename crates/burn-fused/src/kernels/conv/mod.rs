//! 3x3 convolutions with padding 1, forward and backward, followed by an [`Epilogue`]: ReLU, or ReLU and
//! pooling.
//!
//! [`Route::for_shape`] selects the algorithm by the shape and by the setting [`Algorithm`]. Convolutions
//! with few channels are computed directly ([`direct`]), with one image in each SIMD lane. Convolutions with
//! many channels are computed by Winograd ([`winograd`]), or by a matrix product of copied pixels
//! ([`im2col`]). Convolutions of bf16 images with many channels run on AMX tiles ([`tiles`]) if the processor
//! has AMX.

mod algorithm;
mod blocks;
mod correlation;
mod direct;
mod epilogue;
mod im2col;
mod layout;
pub(crate) mod mixed;
mod norm;
mod patches;
mod plane;
mod scratch;
mod source;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod winograd;

pub use algorithm::Algorithm;
pub use direct::{BackwardPass, Between, ForwardPass, Parameters, pair_fits};
pub use norm::{NormBackward, NormForward, Normed};

use crate::kernels::epilogue::Epilogue;
use crate::kernels::half::{Bf16Products, bf16_products};
use crate::kernels::simd::Level;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;

/// Sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of images.
    pub batch: usize,
    /// Number of input channels.
    pub inputs: usize,
    /// Number of output channels.
    pub outputs: usize,
    /// Height of the images, in pixels.
    pub height: usize,
    /// Width of the images, in pixels.
    pub width: usize,
}

impl Shape {
    /// Height and width of the output.
    pub fn output_size(&self, epilogue: Epilogue) -> [usize; 2] {
        epilogue.size([self.height, self.width])
    }

    /// Number of values in the output.
    pub fn output_len(&self, epilogue: Epilogue) -> usize {
        self.batch * self.outputs * self.output_size(epilogue).iter().product::<usize>()
    }

    /// Number of values in the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.inputs * self.pixels()
    }

    /// Number of weights.
    pub fn weight_len(&self) -> usize {
        self.outputs * self.inputs * 9
    }

    fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Splits the batch into blocks of at most `images` images. Returns for each block the index of its first
    /// image, and its shape.
    pub fn blocks(self, images: usize) -> impl Iterator<Item = (usize, Self)> {
        let first = (0..self.batch).step_by(images);
        first.map(move |first| (first, Self { batch: images.min(self.batch - first), ..self }))
    }

    /// Approximate time of the direct convolution on one thread, in nanoseconds, with `lanes` lanes in a
    /// vector.
    fn direct_time(&self, lanes: usize) -> usize {
        self.batch.next_multiple_of(lanes) * self.pixels() * self.weight_len() / (RATE * lanes)
    }

    /// The same for Winograd.
    fn winograd_time(&self, lanes: usize) -> usize {
        let tiles = self.batch * self.height.div_ceil(4) * self.width.div_ceil(4);
        36 * tiles * self.inputs * self.outputs.next_multiple_of(lanes) / (RATE * lanes)
    }

    /// Whether the direct convolution is faster than im2col + GEMM.
    fn is_small(&self) -> bool {
        self.inputs * self.outputs <= 128
    }
}

/// Number of vectors that a convolution multiplies in a nanosecond, for estimates of its time.
const RATE: usize = 4;

/// A convolution, and how it is computed.
#[derive(Debug, Clone, Copy)]
pub struct Convolution {
    /// The SIMD level that the loops run on.
    pub level: Level,
    /// The algorithm.
    pub route: Route,
    /// The sizes.
    pub shape: Shape,
    /// The epilogue that is applied to the output.
    pub epilogue: Epilogue,
}

/// What backward reads: inputs and results of forward, and the gradient of the output. Images and their
/// gradients are f32, or the bits of 16-bit values.
#[derive(Debug, Clone, Copy)]
pub struct Back<'a, T = f32> {
    /// The images, `[batch, inputs, height, width]`.
    pub input: &'a [T],
    /// The weights, `[outputs, inputs, 3, 3]`.
    pub weights: &'a [f32],
    /// The output after the epilogue, `[batch, outputs, ...]`.
    pub output: &'a [T],
    /// Argmax of the pooling, from forward of the same [`Convolution`].
    pub argmax: &'a [u8],
    /// Gradient of the output.
    pub gradient: &'a [T],
    /// The batch normalisation that follows the convolution, or `None`. If there is one, `output` is not
    /// read.
    pub normed: Option<&'a Normed<'a>>,
    /// Whether the gradient of the input is requested.
    pub of_input: bool,
}

/// The gradients of a convolution.
#[derive(Debug, Clone)]
pub struct Gradients<T = Buffer> {
    /// Gradient of the input, if requested.
    pub input: Option<T>,
    /// Gradient of the weights.
    pub weights: Buffer,
    /// Gradient of the biases.
    pub bias: Vec<f32>,
}

impl Convolution {
    /// Computes the output from `input`, `[batch, inputs, height, width]`, and `parameters`, the weights and
    /// biases. Also returns the argmax of the pooling. The argmax is empty unless `backward` is set and the
    /// epilogue pools.
    ///
    /// The argmax of a 2x2 square is 0 to 3 in reading order, or
    /// [`NO_MAXIMUM`](crate::kernels::epilogue::NO_MAXIMUM). The layout of the argmax depends on the route
    /// and the level. With im2col, it is the layout of the output. With the direct convolution, images are in
    /// lanes. With Winograd, channels are in lanes.
    pub fn forward(self, input: &[f32], parameters: [&[f32]; 2], backward: bool) -> (Buffer, Vec<u8>) {
        let Self { level, route, shape, epilogue } = self;
        let keeps = backward && epilogue == Epilogue::ReluPool;
        match route {
            Route::Direct => {
                let (shapes, layers, quantize) = ([shape], [parameters], None);
                let pass = ForwardPass { level, shapes, epilogue, input, layers, quantize, backward };
                let (output, Between { argmax: [argmax, _], .. }) = pass.run();
                (output, argmax)
            }
            Route::Gemm => im2col::forward(self, input, parameters, keeps),
            Route::Winograd => winograd::forward(self, input, parameters, keeps),
            Route::Tiles => unreachable!("tiles multiply 16-bit images"),
        }
    }

    /// Computes the gradients from the gradient of the output. `poll` is called at short intervals, so that
    /// communication can progress.
    pub fn backward(self, back: Back<'_>, poll: Poll) -> Gradients {
        let Self { level, route, shape, epilogue } = self;
        match route {
            Route::Direct => {
                let (shapes, weights, between) = ([shape], [back.weights], None);
                let pass = BackwardPass { level, shapes, epilogue, back, weights, between, poll };
                let [found] = pass.run();
                found
            }
            Route::Gemm => im2col::backward(self, back, poll),
            Route::Winograd => winograd::backward(self, back, poll),
            Route::Tiles => unreachable!("tiles multiply 16-bit images"),
        }
    }
}

/// The algorithm of one convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// Direct convolution: [`direct`].
    Direct,
    /// im2col + GEMM: [`im2col`].
    Gemm,
    /// Winograd: [`winograd`].
    Winograd,
    /// AMX tiles, for bf16 images only.
    Tiles,
}

impl Route {
    /// Returns the fastest route for `shape` that `algorithm` allows.
    pub fn for_shape(shape: Shape, algorithm: Algorithm) -> Self {
        if shape.is_small() {
            return Self::Direct;
        }
        match algorithm {
            Algorithm::Winograd if suits_winograd(shape) => Self::Winograd,
            Algorithm::Winograd | Algorithm::Gemm => Self::Gemm,
        }
    }

    /// Returns the fastest route for bf16 images of this shape. `self` is the route for f32 images of this
    /// shape.
    ///
    /// [`Direct`](Self::Direct) stays as it is. Any other route becomes [`Tiles`](Self::Tiles) if products of
    /// bf16 run on AMX and there are at least 16 input and 16 output channels, whichever algorithm is set.
    pub fn in_bf16(self, shape: Shape) -> Self {
        // Tiles compute 32 output channels from 32 input channels at a time. With fewer than 16 channels,
        // more than half of the 32 would be padding.
        let suits = self != Self::Direct && shape.inputs >= 16 && shape.outputs >= 16;
        if suits && bf16_products() == Bf16Products::Amx { Self::Tiles } else { self }
    }
}

/// Whether Winograd is faster than im2col + GEMM. The rules were measured on forward and backward together,
/// with 10 pairs of a number of input channels (16 to 128) and a number of output channels (4 to 128), 13
/// image sizes up to 28x28, and batches of 1, 4 and 32 images:
///
/// - Transforming the weights takes as long as computing some tens of pixels. Winograd is faster with 64 or
///   more pixels in a batch. With fewer, it takes up to twice as long.
/// - Winograd computes tiles of 4x4 outputs. A tile takes the same time whether 1 or all 16 of its pixels are
///   in the image. Winograd is faster if tiles have 4 or more pixels in the image on average. It is slower
///   for images of one pixel.
/// - With fewer than 16 input channels, some lanes of the widest vector would be empty.
fn suits_winograd(shape: Shape) -> bool {
    let tiles = shape.height.div_ceil(4) * shape.width.div_ceil(4);
    shape.inputs >= 16 && shape.batch * shape.pixels() >= 64 && shape.pixels() >= 4 * tiles
}
