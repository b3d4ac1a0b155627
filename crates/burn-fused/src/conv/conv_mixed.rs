//! The operator of [`super::conv_operator`] for 16-bit images: on AMX tiles, or blocks of images
//! are widened to f32 and run the same kernels.
//!
//! Winograd in f32 is faster than direct convolutions with AVX-512's bf16 instructions, so without
//! tiles the 16 bits save memory, not arithmetic. Only a block at a time exists in f32.

use super::cpu::{Back, Convolution, Gradients, Shape};
#[cfg(target_arch = "x86_64")]
use super::cpu::{Route, tiles};
use crate::precision::Half;
use crate::simd::Level;

/// Images of a block at least: a vector of the direct convolution.
const IMAGES: usize = 16;
/// Pixels of a block, if those are more images: weights are prepared once for a block.
const PIXELS: usize = 4096;

/// The blocks of a batch: the first image, and the convolution.
fn blocks(conv: Convolution) -> impl Iterator<Item = (usize, Convolution)> {
    let Shape { height, width, .. } = conv.shape;
    // Whole vectors here too.
    let images = (PIXELS / (height * width)).max(IMAGES).next_multiple_of(IMAGES);
    conv.shape.blocks(images).map(move |(first, shape)| (first, Convolution { shape, ..conv }))
}

/// A block of values in f32; the buffer is reused by the next block.
struct Widened<'a> {
    half: Half,
    level: Level,
    bits: &'a [u16],
    /// Values of an image.
    size: usize,
    buffer: Vec<f32>,
}

impl Widened<'_> {
    fn block(&mut self, first: usize, images: usize) -> &[f32] {
        self.buffer.resize(images * self.size, 0.0);
        let bits = &self.bits[first * self.size..][..images * self.size];
        self.half.widen(self.level, bits, &mut self.buffer);
        &self.buffer
    }
}

/// The output in the images' type, and the argmax of each block.
pub(super) fn forward(
    half: Half,
    conv: Convolution,
    images: &[u16],
    [weights, bias]: [&[f32]; 2],
    backward: bool,
) -> (Vec<u16>, Vec<Vec<u8>>) {
    let Convolution { level, shape, epilogue, .. } = conv;
    #[cfg(target_arch = "x86_64")]
    if conv.route == Route::Tiles {
        let (output, argmax) = tiles::forward(shape, epilogue, images, [weights, bias], backward);
        return (output, vec![argmax]);
    }
    let weights = half.rounded(level, weights);
    let size = shape.input_len() / shape.batch;
    let mut images = Widened { half, level, bits: images, size, buffer: Vec::new() };
    let mut output = vec![0; shape.output_len(epilogue)];
    let (mut rest, mut argmax) = (&mut output[..], Vec::new());
    for (first, block) in blocks(conv) {
        let (found, index) =
            block.forward(images.block(first, block.shape.batch), [&weights, bias], backward);
        half.narrow(level, &found, rest.split_off_mut(..found.len()).expect("as long as its blocks"));
        argmax.push(index);
    }
    (output, argmax)
}

/// The gradients from that of the output, which has the images' type. The argmax is that of each block.
pub(super) fn backward(
    half: Half,
    conv: Convolution,
    back: Back<'_, u16>,
    argmax: &[Vec<u8>],
    poll: &mut dyn FnMut(),
) -> Gradients<u16> {
    let Convolution { level, shape, epilogue, .. } = conv;
    #[cfg(target_arch = "x86_64")]
    if conv.route == Route::Tiles {
        return tiles::backward(shape, epilogue, Back { argmax: &argmax[0], ..back }, poll);
    }
    let weights = half.rounded(level, back.weights);
    let widened =
        |bits, len: usize| Widened { half, level, bits, size: len / shape.batch, buffer: Vec::new() };
    let mut input = widened(back.input, shape.input_len());
    let [mut output, mut gradient] =
        [back.output, back.gradient].map(|bits| widened(bits, shape.output_len(epilogue)));
    let mut of_input = vec![0; if back.of_input { shape.input_len() } else { 0 }];
    let mut rest = &mut of_input[..];
    let mut sums = [vec![0.0; shape.weight_len()], vec![0.0; shape.outputs]];
    for ((first, block), argmax) in blocks(conv).zip(argmax) {
        let images = block.shape.batch;
        let back = Back {
            input: input.block(first, images),
            weights: &weights,
            output: output.block(first, images),
            argmax,
            gradient: gradient.block(first, images),
            of_input: back.of_input,
        };
        let Gradients { input: found, weights, bias } = block.backward(back, poll);
        for (sum, value) in sums.iter_mut().flatten().zip(weights.iter().chain(&bias)) {
            *sum += value;
        }
        if let Some(found) = found {
            half.narrow(level, &found, rest.split_off_mut(..found.len()).expect("as long as its blocks"));
        }
    }
    let [weights, bias] = sums.map(|sum| half.weight_gradient(level, sum));
    Gradients { input: back.of_input.then_some(of_input), weights, bias }
}
