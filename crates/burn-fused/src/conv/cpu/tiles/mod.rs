//! Convolutions of bf16 images on AMX tiles: the definition itself, as a matrix product for each of
//! the nine taps. It has four times the products of Winograd, at more than eight times their rate,
//! and no error but the rounding of its values; the instructions take denormal ones for zero.
//!
//! The pixels of a block of images are the rows of one matrix, with a column and a row of zeros
//! between neighbours ([`Flat`]): a tap is then the same matrix from another row on, and nothing is
//! copied nine times. Products of rows of zeros are computed and ignored.
//!
//! A NaN or an infinity in the input reaches the 3x3 outputs around it, and the gradients of all
//! nine weights of its channel.

mod convolve;
mod flat;
mod pack;
mod source;
#[cfg(all(test, target_os = "linux"))]
mod tests;
mod weight_gradient;

use std::cell::RefCell;

use convolve::Convolve;
use flat::Flat;
use pack::Channels;
use source::Source;
use weight_gradient::WeightGradient;

use super::scratch::Scratch;
use super::{Argmax, Shape};
use crate::epilogue::Epilogue;
use crate::precision::amx::TILE;
use crate::simd::Level;

/// The SIMD level of all processors with tiles.
const LEVEL: Level = Level::Avx512;

/// Approximate pixels of a block, whose values stay in the cache.
const PIXELS: usize = 1024;

/// Buffers that are reused from one step to the next.
#[derive(Default)]
struct Buffers {
    /// 16 channels of an image in f32.
    wide: Scratch,
    /// 16 channels of a block, one in each lane.
    lanes: Scratch,
    /// The rows of the left matrix: channels of a pixel side by side.
    channels: Scratch,
    /// For the gradient of weights: pixels of a channel side by side, and pairs of the gradient's.
    pixels: Scratch,
    pairs: Scratch,
    /// Packed weights.
    weights: Scratch,
    /// Sums of products, and of those of the gradient of weights.
    sums: Scratch,
    weight_sums: Scratch,
}

thread_local! {
    static BUFFERS: RefCell<Buffers> = RefCell::default();
}

/// Calls `body` with this thread's buffers, which the poll callback may ask for too.
fn with_buffers<R>(body: impl FnOnce(&mut Buffers) -> R) -> R {
    let mut buffers = BUFFERS.take();
    let result = body(&mut buffers);
    BUFFERS.set(buffers);
    result
}

/// The blocks of a batch: the first image, and the shape.
fn blocks(shape: Shape) -> impl Iterator<Item = (usize, Shape)> {
    let images = (PIXELS / shape.pixels()).max(1);
    let first = (0..shape.batch).step_by(images);
    first.map(move |first| (first, Shape { batch: images.min(shape.batch - first), ..shape }))
}

/// The output of `images` `[batch, inputs, height, width]`, and the argmax of each block if `backward`
/// follows and there is one.
///
/// # Panics
/// If lengths do not match the shape, or there are no tiles.
pub fn forward(
    shape: Shape,
    epilogue: Epilogue,
    images: &[u16],
    (weights, bias): (&[f32], &[f32]),
    backward: bool,
) -> (Vec<u16>, Vec<Argmax>) {
    let expected = (shape.input_len(), shape.weight_len(), shape.outputs);
    assert_eq!((images.len(), weights.len(), bias.len()), expected, "lengths of {shape:?}");
    let mut output = Vec::with_capacity(shape.output_len(epilogue));
    let mut found = Vec::new();
    with_buffers(|buffers| {
        let Buffers { wide, lanes, channels, weights: packed, sums, .. } = buffers;
        let packed = pack::weights(shape, weights, false, packed);
        for (first, block) in blocks(shape) {
            let input = &images[first * block.inputs * block.pixels()..][..block.input_len()];
            let flat = Flat::of(block);
            let pixels = flat.channels(block.inputs, channels);
            LEVEL.run(Channels {
                flat,
                source: Source::images(block.inputs, input),
                lanes,
                wide,
                pixels,
                pairs: None,
            });
            let keeps = backward && epilogue == Epilogue::ReluPool;
            let [height, width] = block.output_size(epilogue);
            let mut argmax = vec![
                0;
                if keeps {
                    block.batch * block.outputs.next_multiple_of(TILE) * height * width
                } else {
                    0
                }
            ];
            LEVEL.run(Convolve {
                flat,
                inputs: block.inputs,
                outputs: block.outputs,
                epilogue,
                pixels,
                weights: packed,
                bias: Some(bias),
                argmax: keeps.then_some(&mut argmax[..]),
                between: &mut || (),
                sums,
                lanes,
                wide,
                results: extended(&mut output, block.output_len(epilogue)),
            });
            found.push(if keeps { Argmax::Channels(argmax) } else { Argmax::Unknown });
        }
    });
    (output, found)
}

/// What backward reads of a forward: its images and weights, its output, and the argmax of each block.
#[derive(Clone, Copy)]
pub struct Forward<'a> {
    pub images: &'a [u16],
    pub weights: &'a [f32],
    pub output: &'a [u16],
    pub argmax: &'a [Argmax],
}

/// The gradients of a convolution of bf16 images.
pub struct Gradients {
    /// Of the images, if requested.
    pub images: Option<Vec<u16>>,
    /// Of the weights.
    pub weights: Vec<f32>,
    /// Of the biases.
    pub bias: Vec<f32>,
}

/// The gradients from that of the output. `between` is called every some tens of microseconds.
///
/// # Panics
/// As [`forward`].
pub fn backward(
    shape: Shape,
    epilogue: Epilogue,
    forward: Forward<'_>,
    gradient: &[u16],
    of_images: bool,
    between: &mut dyn FnMut(),
) -> Gradients {
    let lengths = [forward.images.len(), forward.weights.len(), forward.output.len(), gradient.len()];
    let output_len = shape.output_len(epilogue);
    assert_eq!(
        lengths,
        [shape.input_len(), shape.weight_len(), output_len, output_len],
        "lengths of {shape:?}"
    );
    let mut found = of_images.then(|| Vec::with_capacity(shape.input_len()));
    let mut bias = vec![0.0; shape.outputs];
    let mut weights = vec![0.0; shape.weight_len()];
    with_buffers(|buffers| {
        let Buffers { wide, lanes, channels, pixels, pairs, weights: packed, sums, weight_sums } = buffers;
        let packed = pack::weights(shape, forward.weights, true, packed);
        let mut of_weights = WeightGradient::new(shape, weight_sums);
        for ((first, block), argmax) in blocks(shape).zip(forward.argmax) {
            let flat = Flat::of(block);
            let size = block.output_len(epilogue);
            let part = first * size / block.batch..first * size / block.batch + size;
            let output = (&forward.output[part.clone()], argmax);
            let rows = flat.channels(block.outputs, channels);
            let pairs = flat.pairs(block.outputs, pairs);
            LEVEL.run(Channels {
                flat,
                source: Source::gradient(block.outputs, epilogue, output, &gradient[part]),
                lanes,
                wide,
                pixels: rows,
                pairs: Some((pairs, &mut bias)),
            });
            let images = &forward.images[first * block.inputs * block.pixels()..][..block.input_len()];
            of_weights.add(flat, images, pairs, pixels, between);
            let Some(found) = &mut found else { continue };
            LEVEL.run(Convolve {
                flat,
                inputs: block.outputs,
                outputs: block.inputs,
                epilogue: Epilogue::Identity,
                pixels: rows,
                weights: packed,
                bias: None,
                argmax: None,
                between: &mut *between,
                sums,
                lanes,
                wide,
                results: extended(found, block.input_len()),
            });
        }
        of_weights.finish(&mut weights);
    });
    Gradients { images: found, weights, bias }
}

/// The next `len` values of a vector, whose zeros are still in the cache when they are overwritten.
fn extended(values: &mut Vec<u16>, len: usize) -> &mut [u16] {
    let start = values.len();
    values.resize(start + len, 0);
    &mut values[start..]
}
