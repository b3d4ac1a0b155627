//! Convolutions of 16-bit images.
//!
//! With AMX, convolutions of bf16 images with many channels run on AMX tiles. All other convolutions widen
//! one block of images at a time to f32, and run the kernels for f32 images. Without AMX, 16-bit images
//! therefore save memory but no time. There is no direct convolution with AVX-512's bf16 instructions,
//! because it would be slower than Winograd in f32.

use super::{Back, Convolution, Gradients, Shape};
#[cfg(target_arch = "x86_64")]
use super::{Route, tiles};
use crate::kernels::half::Half;
use crate::kernels::simd::Level;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;

/// Minimum number of images in a block: the number of lanes of the widest vector. The direct convolution has
/// one image in each lane.
const IMAGES: usize = 16;
/// Approximate number of pixels in a block, unless the images are so large that a block has the minimum
/// number of images. Large blocks pay because the weights are prepared once for each block.
const PIXELS: usize = 4096;

/// Splits a batch into blocks. Returns for each block the index of its first image, and its convolution.
fn blocks(conv: Convolution) -> impl Iterator<Item = (usize, Convolution)> {
    let Shape { height, width, .. } = conv.shape;
    // The number of images is a multiple of the lanes of the widest vector, so that only the last block of a
    // batch may leave lanes empty.
    let images = (PIXELS / (height * width)).max(IMAGES).next_multiple_of(IMAGES);
    conv.shape.blocks(images).map(move |(first, shape)| (first, Convolution { shape, ..conv }))
}

/// Widens a block of images, with `size` values each, to f32. The next block reuses `buffer`.
fn widened<'a>(
    (half, level): (Half, Level),
    bits: &[u16],
    size: usize,
    [first, images]: [usize; 2],
    buffer: &'a mut Vec<f32>,
) -> &'a [f32] {
    buffer.resize(images * size, 0.0);
    half.widen(level, &bits[first * size..][..images * size], buffer);
    buffer
}

/// Returns the output, in the type of the images, and the argmax of each block.
pub(crate) fn forward(
    half: Half,
    conv: Convolution,
    images: &[u16],
    [weights, bias]: [&[f32]; 2],
    backward: bool,
) -> (Buffer<u16>, Vec<Vec<u8>>) {
    let Convolution { level, shape, epilogue, .. } = conv;
    #[cfg(target_arch = "x86_64")]
    if conv.route == Route::Tiles {
        let (output, argmax) = tiles::forward(shape, epilogue, images, [weights, bias], backward);
        return (output, vec![argmax]);
    }
    let weights = half.rounded(level, weights);
    let size = shape.input_len() / shape.batch;
    let mut buffer = Vec::new();
    let mut output = Buffer::of_type(shape.output_len(epilogue));
    let (mut rest, mut argmax) = (&mut output[..], Vec::new());
    for (first, block) in blocks(conv) {
        let images = widened((half, level), images, size, [first, block.shape.batch], &mut buffer);
        let (found, index) = block.forward(images, [&weights, bias], backward);
        half.narrow(level, &found, rest.split_off_mut(..found.len()).expect("as long as its blocks"));
        argmax.push(index);
    }
    (output, argmax)
}

/// Computes the gradients from the gradient of the output, which has the type of the images. `argmax` has one
/// element for each block.
pub(crate) fn backward(
    half: Half,
    conv: Convolution,
    back: Back<'_, u16>,
    argmax: &[Vec<u8>],
    poll: Poll,
) -> Gradients<Buffer<u16>> {
    let Convolution { level, shape, epilogue, .. } = conv;
    #[cfg(target_arch = "x86_64")]
    if conv.route == Route::Tiles {
        return tiles::backward(shape, epilogue, Back { argmax: &argmax[0], ..back }, poll);
    }
    let weights = half.rounded(level, back.weights);
    let sizes = [shape.input_len(), shape.output_len(epilogue)].map(|len| len / shape.batch);
    let mut buffers = [const { Vec::new() }; 3];
    let mut of_input = Buffer::of_type(if back.of_input { shape.input_len() } else { 0 });
    let mut rest = &mut of_input[..];
    let mut of_weights = Buffer::zeroed(shape.weight_len());
    let mut of_bias = vec![0.0; shape.outputs];
    for ((first, block), argmax) in blocks(conv).zip(argmax) {
        let [input, output, gradient] = &mut buffers;
        let widen =
            |bits, size, buffer| widened((half, level), bits, size, [first, block.shape.batch], buffer);
        let back = Back {
            input: widen(back.input, sizes[0], input),
            weights: &weights,
            output: widen(back.output, sizes[1], output),
            argmax,
            gradient: widen(back.gradient, sizes[1], gradient),
            normed: None,
            of_input: back.of_input,
        };
        let Gradients { input: found, weights, bias } = block.backward(back, poll);
        for (sum, value) in of_weights.iter_mut().chain(&mut of_bias).zip(weights.iter().chain(&bias)) {
            *sum += value;
        }
        if let Some(found) = found {
            half.narrow(level, &found, rest.split_off_mut(..found.len()).expect("as long as its blocks"));
        }
    }
    half.weight_gradient(level, &mut of_weights);
    half.weight_gradient(level, &mut of_bias);
    Gradients { input: back.of_input.then_some(of_input), weights: of_weights, bias: of_bias }
}
