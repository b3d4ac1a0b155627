//! The operator of [`super::conv_operator`] for 16-bit images: on AMX tiles, or blocks of images
//! are widened to f32 and run the same kernels.
//!
//! Winograd in f32 is faster than direct convolutions with AVX-512's bf16 instructions, so without
//! tiles the 16 bits save memory, not arithmetic. Only a block at a time exists in f32.

use burn::backend::flex::FlexTensor;

use super::conv_operator::Inputs;
use super::cpu::{self, Argmax, Forward, Shape};
#[cfg(target_arch = "x86_64")]
use super::cpu::{Route, tiles};
use crate::epilogue::Epilogue;
use crate::flex_tensor::values;
use crate::precision::Half;
use crate::simd::Level;

/// Images of a block at least: a vector of the direct convolution.
const IMAGES: usize = 16;
/// Pixels of a block, if those are more images: weights are prepared once for a block.
const PIXELS: usize = 4096;

/// The gradients of a convolution.
pub(super) struct Gradients {
    /// Of the images, in their type, if requested.
    pub images: Option<FlexTensor>,
    /// Of the weights.
    pub weights: Vec<f32>,
    /// Of the biases.
    pub bias: Vec<f32>,
}

/// Values of one image before and after a convolution.
#[derive(Clone, Copy)]
struct PerImage {
    input: usize,
    output: usize,
}

impl PerImage {
    fn of(shape: Shape, epilogue: Epilogue) -> Self {
        let [height, width] = shape.output_size(epilogue);
        Self { input: shape.inputs * shape.height * shape.width, output: shape.outputs * height * width }
    }
}

/// The shape of each block, and its first image.
fn blocks(shape: Shape) -> impl Iterator<Item = (usize, Shape)> {
    // Whole vectors here too.
    let images = (PIXELS / (shape.height * shape.width)).max(IMAGES).next_multiple_of(IMAGES);
    let first = (0..shape.batch).step_by(images);
    first.map(move |first| (first, Shape { batch: images.min(shape.batch - first), ..shape }))
}

/// A block of a tensor in f32; the buffer is reused by the next block.
struct Widened<'a> {
    half: Half,
    level: Level,
    bits: &'a [u16],
    /// Values of an image.
    size: usize,
    buffer: Vec<f32>,
}

impl<'a> Widened<'a> {
    fn new(half: Half, level: Level, tensor: &'a FlexTensor, size: usize) -> Self {
        Self { half, level, bits: half.bits(tensor), size, buffer: Vec::new() }
    }

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
    inputs: &Inputs,
    epilogue: Epilogue,
    backward: bool,
) -> (FlexTensor, Vec<Argmax>) {
    let Inputs { shape, level, route, .. } = *inputs;
    #[cfg(target_arch = "x86_64")]
    if route == Route::Tiles {
        let (images, [height, width]) = (half.bits(&inputs.images), shape.output_size(epilogue));
        let parameters = (values(&inputs.weights), values(&inputs.bias));
        let (output, argmax) = tiles::forward(shape, epilogue, images, parameters, backward);
        return (half.tensor(output, &[shape.batch, shape.outputs, height, width]), argmax);
    }
    let size = PerImage::of(shape, epilogue);
    let weights = half.rounded(level, values(&inputs.weights));
    let bias = values(&inputs.bias);
    let mut images = Widened::new(half, level, &inputs.images, size.input);
    let mut output = vec![0; shape.output_len(epilogue)];
    let mut argmax = Vec::new();
    for (first, block) in blocks(shape) {
        let input = images.block(first, block.batch);
        let (found, index) = cpu::forward((level, route), block, epilogue, input, &weights, bias, backward);
        half.narrow(level, &found, &mut output[first * size.output..][..found.len()]);
        argmax.push(index);
    }
    let [height, width] = shape.output_size(epilogue);
    (half.tensor(output, &[shape.batch, shape.outputs, height, width]), argmax)
}

/// The gradients from that of the output, which has the images' type.
pub(super) fn backward(
    half: Half,
    inputs: &Inputs,
    epilogue: Epilogue,
    (output, argmax): (&FlexTensor, &[Argmax]),
    gradient: &FlexTensor,
    of_images: bool,
    poll: &mut dyn FnMut(),
) -> Gradients {
    let Inputs { shape, level, route, .. } = *inputs;
    let sizes = [shape.batch, shape.inputs, shape.height, shape.width];
    #[cfg(target_arch = "x86_64")]
    if route == Route::Tiles {
        let [images, output, gradient] = [&inputs.images, output, gradient].map(|tensor| half.bits(tensor));
        let forward = tiles::Forward { images, weights: values(&inputs.weights), output, argmax };
        let found = tiles::backward(shape, epilogue, forward, gradient, of_images, poll);
        let images = found.images.map(|images| half.tensor(images, &sizes));
        return Gradients { images, weights: found.weights, bias: found.bias };
    }
    let size = PerImage::of(shape, epilogue);
    let weights = half.rounded(level, values(&inputs.weights));
    let mut images = Widened::new(half, level, &inputs.images, size.input);
    let mut output = Widened::new(half, level, output, size.output);
    let mut gradient = Widened::new(half, level, gradient, size.output);
    let mut of_input = vec![0; if of_images { shape.batch * size.input } else { 0 }];
    let mut sums: Option<(Vec<f32>, Vec<f32>)> = None;
    for ((first, block), argmax) in blocks(shape).zip(argmax) {
        let forward = Forward {
            input: images.block(first, block.batch),
            weights: &weights,
            output: output.block(first, block.batch),
            argmax,
        };
        let gradient = gradient.block(first, block.batch);
        let found = cpu::backward((level, route), block, epilogue, forward, gradient, of_images, poll);
        match &mut sums {
            None => sums = Some((found.weights, found.bias)),
            Some((weights, bias)) => {
                add(weights, &found.weights);
                add(bias, &found.bias);
            }
        }
        if let Some(found) = found.input {
            half.narrow(level, &found, &mut of_input[first * size.input..][..found.len()]);
        }
    }
    let (weights, bias) = sums.unwrap_or_default();
    Gradients {
        images: of_images.then(|| half.tensor(of_input, &sizes)),
        weights: half.weight_gradient(level, weights),
        bias: half.weight_gradient(level, bias),
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}
