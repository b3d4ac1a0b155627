//! Convolutions of bf16 images on AMX tiles, the matrix registers of some Intel processors.
//!
//! A convolution is computed by its definition: one matrix product for each of the nine taps of the 3x3
//! kernel. This takes four times the multiplications of Winograd, at more than eight times the rate. The only
//! error is the rounding of values. The instructions treat denormal values as zero.
//!
//! The pixels of a block of images are the rows of one matrix, and channels are its columns. A zero pixel
//! follows each row of an image, and a row of zero pixels follows each image ([`Flat`]). The matrix of each
//! tap is then a part of this matrix that begins at another pixel, so pixels are not copied nine times.
//! Results are computed for zero pixels too, and ignored.
//!
//! A NaN or an infinity in the input reaches the 3x3 outputs around it, and the gradients of all nine weights
//! between its channel and each output channel.

mod convolve;
mod pack;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod weight_gradient;

use convolve::Convolve;
use pack::Channels;
use weight_gradient::{Factors, WeightGradient};

use super::plane::Plane;
use super::scratch::{Buffers, Scratch, with_buffers, with_shared};
use super::source::Source;
use super::{Back, Gradients, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::half::amx::{BLOCK, TILE};
use crate::kernels::simd::Level;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each, pieces, threads_for};

/// The SIMD level of all processors with tiles.
const LEVEL: Level = Level::Avx512;

/// Approximate number of pixels in a block. The values of a block stay in the cache.
const PIXELS: usize = 1024;

/// Number of multiplications in a nanosecond, for estimates of the time of a convolution.
const RATE: usize = 512;

/// Returns the number of images in a block.
fn images_of_block(shape: Shape) -> usize {
    (PIXELS / shape.pixels()).clamp(1, shape.batch)
}

/// Approximate time of a convolution on one thread in nanoseconds.
fn time(shape: Shape) -> usize {
    shape.batch * shape.pixels() * shape.weight_len() / RATE
}

/// Computes the output of `images`, `[batch, inputs, height, width]`. Also returns the argmax of the pooling,
/// with 16 channels side by side. The argmax is empty unless `backward` is set and the epilogue pools.
///
/// # Panics
/// If AMX is not usable.
pub fn forward(
    shape: Shape,
    epilogue: Epilogue,
    images: &[u16],
    [weights, bias]: [&[f32]; 2],
    backward: bool,
) -> (Buffer<u16>, Vec<u8>) {
    let mut output = Buffer::of_type(shape.output_len(epilogue));
    let [height, width] = shape.output_size(epilogue);
    let keeps = backward && epilogue == Epilogue::ReluPool;
    let kept = if keeps { shape.outputs.next_multiple_of(TILE) * height * width } else { 0 };
    let mut argmax = vec![0; shape.batch * kept];
    // Outputs do not depend on the blocks, so there may be a block for each thread.
    let of_block = images_of_block(shape).min(shape.batch.div_ceil(threads_for(time(shape))));
    let results = chunks(&mut output, of_block * shape.output_len(epilogue) / shape.batch)
        .zip(chunks(&mut argmax, of_block * kept));
    with_shared(|Buffers { part: packed, .. }| {
        let packed = pack::weights(shape, weights, false, packed);
        each(time(shape), shape.blocks(of_block).zip(results), |((first, block), (results, argmax))| {
            // The buffers: `wide` has 16 channels of an image in f32. `lanes` has 16 channels of each pixel
            // in the lanes of a vector. `channels` has all channels of each pixel side by side.
            with_buffers(|[Buffers { input: wide, output: lanes, part: channels, sums }, _]| {
                let flat = Flat::for_block(block);
                let pixels = flat.channels(block.inputs, channels);
                let source = Source::input(shape, images);
                LEVEL.run(Channels { flat, first, source, lanes, wide, pixels, pairs: None });
                LEVEL.run(Convolve {
                    flat,
                    inputs: block.inputs,
                    outputs: block.outputs,
                    epilogue,
                    pixels,
                    weights: packed,
                    bias: Some(bias),
                    argmax,
                    poll: Poll::nothing(),
                    sums,
                    lanes,
                    wide,
                    results,
                });
            });
        });
    });
    (output, argmax)
}

/// Computes the gradients from the gradient of the output. `poll` is called every few tens of
/// microseconds.
///
/// Threads share the blocks of images, and then the sums of the weights' gradient. They do so for as many
/// blocks at a time as there are threads, so that buffers do not grow with the batch.
///
/// # Panics
/// If AMX is not usable.
pub fn backward(shape: Shape, epilogue: Epilogue, back: Back<'_, u16>, poll: Poll) -> Gradients<Buffer<u16>> {
    let mut found = back.of_input.then(|| Buffer::of_type(shape.input_len()));
    let mut bias = vec![0.0; shape.outputs];
    let mut weights = Buffer::new(shape.weight_len());
    let of_block = images_of_block(shape);
    let blocks: Vec<(usize, Shape)> = shape.blocks(of_block).collect();
    let largest = Flat::for_block(blocks[0].1);
    let of_image = shape.input_len() / shape.batch;
    with_shared(|Buffers { input: pixels, output: pairs, part: packed, sums }| {
        let packed = pack::weights(shape, back.weights, true, packed);
        let mut of_weights = WeightGradient::new(shape, sums);
        let at_once = threads_for(2 * time(shape)).min(blocks.len());
        // For the gradient of the weights, `pixels` has the pixels of the input, with all pixels of a channel
        // side by side. `pairs` has pairs of neighbouring pixels of the output's gradient.
        let pixels = pixels.take::<u16>(at_once * largest.all() * padded(shape.inputs));
        let pairs = pairs.take::<u32>(at_once * largest.len() / 2 * padded(shape.outputs));
        let mut of_images = chunks(found.as_deref_mut().unwrap_or_default(), of_block * of_image);
        for blocks in blocks.chunks(at_once) {
            let time = time(Shape { batch: blocks.iter().map(|(_, block)| block.batch).sum(), ..shape });
            let mut biases = vec![0.0; blocks.len() * shape.outputs];
            let factors = pieces(pixels, at_once).zip(pieces(pairs, at_once));
            let results = biases.chunks_exact_mut(shape.outputs).zip(of_images.by_ref());
            let items = blocks.iter().zip(factors.zip(results));
            each(time, items, |(&(first, block), ((pixels, pairs), (bias, of_images)))| {
                with_buffers(|[Buffers { input: wide, output: lanes, part: channels, sums }, _]| {
                    let flat = Flat::for_block(block);
                    let rows = flat.channels(block.outputs, channels);
                    let source = Source::gradient(shape, epilogue, back);
                    let pairs = &mut pairs[..flat.len() / 2 * padded(block.outputs)];
                    let of_pairs = Some((pairs, bias));
                    LEVEL.run(Channels { flat, first, source, lanes, wide, pixels: rows, pairs: of_pairs });
                    let images = &back.input[first * of_image..][..block.input_len()];
                    weight_gradient::load(flat, block.inputs, images, pixels);
                    if !back.of_input {
                        return;
                    }
                    LEVEL.run(Convolve {
                        flat,
                        inputs: block.outputs,
                        outputs: block.inputs,
                        epilogue: Epilogue::Identity,
                        pixels: rows,
                        weights: packed,
                        bias: None,
                        argmax: &mut [],
                        poll,
                        sums,
                        lanes,
                        wide,
                        results: of_images,
                    });
                });
            });
            for biases in biases.chunks_exact(shape.outputs) {
                bias.iter_mut().zip(biases).for_each(|(total, sum)| *total += sum);
            }
            let factors = pixels.chunks(pixels.len() / at_once).zip(pairs.chunks(pairs.len() / at_once));
            let factors = blocks.iter().zip(factors).map(|(&(_, block), (pixels, pairs))| Factors {
                flat: Flat::for_block(block),
                pixels,
                pairs,
            });
            of_weights.add(&factors.collect::<Vec<_>>(), time, poll);
        }
        of_weights.finish(&mut weights);
    });
    Gradients { input: found, weights, bias }
}

/// The layout of a block's pixels: row by row and image by image, with one zero after each row and a row of
/// zeros after each image. A neighbour, such as the pixel above, is at the same distance from every pixel,
/// and neighbours outside the image are zeros. A position is the index of a pixel or zero in this layout.
#[derive(Debug, Clone, Copy)]
pub struct Flat {
    /// Height and width of the images.
    size: [usize; 2],
    /// Number of images.
    pub images: usize,
}

impl Flat {
    /// Makes the layout of a block's images.
    pub fn for_block(block: Shape) -> Self {
        Self { size: [block.height, block.width], images: block.batch }
    }

    /// Number of positions from an image to the next.
    #[inline(always)]
    pub fn period(self) -> usize {
        (self.size[0] + 1) * (self.size[1] + 1)
    }

    /// Number of positions of all images, rounded up to a multiple of [`BLOCK`]. The additional positions are
    /// zeros.
    #[inline(always)]
    pub fn len(self) -> usize {
        (self.images * self.period()).next_multiple_of(BLOCK)
    }

    /// Number of zeros before the first pixel: its neighbours above and to the left.
    #[inline(always)]
    pub fn front(self) -> usize {
        self.size[1] + 2
    }

    /// Number of all positions, including the zeros before the first pixel and after the last pixel.
    #[inline(always)]
    pub fn all(self) -> usize {
        self.len() + 2 * self.front()
    }

    /// Returns the position at which the matrix of a tap begins, counted from the first of [all](Self::all)
    /// positions. Row `q` of this matrix is `q` positions later.
    #[inline(always)]
    pub fn tap(self, tap: usize) -> usize {
        tap / 3 * (self.size[1] + 1) + tap % 3
    }

    /// The layout of one image's pixels within its [`period`](Self::period).
    #[inline(always)]
    pub fn plane(self) -> Plane {
        Plane::part(self.size, self.size[1] + 1, 0, self.period())
    }

    /// Height and width of the images.
    #[inline(always)]
    pub fn size(self) -> [usize; 2] {
        self.size
    }

    /// Takes a buffer for `channels` channels of all positions, with the channels of a position side by side.
    pub fn channels(self, channels: usize, buffer: &mut Scratch) -> &mut [u16] {
        buffer.take(self.all() * padded(channels))
    }
}

/// Rounds a number of channels up to a multiple of [`BLOCK`].
#[inline(always)]
pub fn padded(channels: usize) -> usize {
    channels.next_multiple_of(BLOCK)
}
