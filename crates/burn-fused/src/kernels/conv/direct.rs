//! Direct convolution, for few channels, with one image in each SIMD lane.
//!
//! A block has one image for each lane of a vector. A pass is the forward or the backward of one layer, or of
//! two layers in a chain. In a chain, the values of a block stay in lanes and in the cache between the two
//! layers.

use super::blocks::{append_argmax, flipped, images_of, lane_sums, load_input, spread, store_block, total};
use super::correlation::{Correlation, weight_gradient};
use super::epilogue::fake_quantize;
use super::plane::Plane;
use super::scratch::{Buffers, Kept};
use super::source::{Planes, Source};
use super::{Back, Gradients, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::quantization::{Extremes, Grid, Int8Error, QParams, Scheme};
use crate::kernels::simd::{Kernel, Lanes};
use crate::runtime::memory::Buffer;

/// A function that chooses the fake quantization of activations. Its argument is the minimum and maximum of
/// the activations, or the error if these cannot be computed. It returns affine quantization parameters, or
/// `None` to leave the activations as they are.
pub type Parameters<'a> = dyn FnMut(Result<[f32; 2], Int8Error>) -> Option<QParams> + 'a;

/// Whether a chain of two layers with ReLU and pooling is supported. Both layers must have few channels.
/// Height and width must be multiples of 4, so that 2x2 pooling covers the images of both layers.
pub fn pair_fits(shapes: [Shape; 2]) -> bool {
    let [Shape { height, width, .. }, _] = shapes;
    shapes.iter().all(Shape::is_small) && height.is_multiple_of(4) && width.is_multiple_of(4)
}

/// What the forward pass saves for the backward pass. The layout depends on the SIMD level.
#[derive(Debug, Default)]
pub struct Between {
    /// Input of the second layer: bordered planes in lanes.
    middle: Kept,
    /// Argmax of each layer.
    pub argmax: [Vec<u8>; 2],
}

/// The forward pass of `N` layers. It returns the output, and what it saves for the backward pass. Each layer
/// except the last applies ReLU and pooling.
pub struct ForwardPass<'a, 'p, const N: usize> {
    pub shapes: [Shape; N],
    /// Epilogue of the last layer.
    pub epilogue: Epilogue,
    pub input: &'a [f32],
    /// Weights and biases of each layer.
    pub layers: [[&'a [f32]; 2]; N],
    /// The function that chooses the fake quantization between the layers. `None` if nothing is quantized.
    pub quantize: Option<&'a mut Parameters<'p>>,
    /// Whether a backward pass follows. If not, no argmax is kept.
    pub backward: bool,
    pub buffers: &'a mut [Buffers; 2],
}

impl<const N: usize> Kernel for ForwardPass<'_, '_, N> {
    type Output = (Buffer, Between);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { shapes, epilogue, layers, backward, mut quantize, .. } = self;
        let (first, last) = (shapes[0], shapes[N - 1]);
        let [bordered, after] = [first, last].map(|shape| Plane::bordered(shape.height, shape.width));
        let blocks = first.batch.div_ceil(S::F32_LANES);
        let planed = last.inputs * after.len;
        let mut argmax = [const { Vec::new() }; 2];
        // Quantization parameters depend on all blocks. With fake quantization, the first layer therefore
        // computes all blocks before the second layer starts. Without it, each block passes through both
        // layers before the next block.
        let apart = quantize.is_some();
        let keep = N > 1 && (backward || apart);
        let mut middle = if keep { Kept::new::<S::f32s>(blocks * planed) } else { Kept::default() };
        let (mut extremes, mut parameters) = (Extremes::new(), None);
        let mut output = Buffer::new(last.output_len(epilogue));
        let [Buffers { input, output: lanes, part, .. }, two] = self.buffers;
        for turn in 0..N * blocks {
            let (block, layer) = if apart { (turn % blocks, turn / blocks) } else { (turn / N, turn % N) };
            let (shape, is_last) = (shapes[layer], layer == N - 1);
            let epilogue = if is_last { epilogue } else { Epilogue::ReluPool };
            // Without pooling, kernels store 2x2 squares, which may extend beyond the image. The result's
            // plane has room for them.
            let result = match epilogue {
                Epilogue::ReluPool => Plane::plain(shape.output_size(epilogue)),
                Epilogue::Identity | Epilogue::Relu => Plane::rounded_up([shape.height, shape.width]),
            };
            let found = lanes.take::<S::f32s>(shape.outputs * result.len);
            let keeps = backward && epilogue == Epilogue::ReluPool;
            let index = part.take::<S::u32s>(if keeps { found.len() } else { 0 });
            let between = if keep {
                &mut middle.values_mut::<S::f32s>()[block * planed..][..planed]
            } else {
                two.input.take::<S::f32s>(if N > 1 { planed } else { 0 })
            };
            let (plane, input) = match layer {
                0 => {
                    let input = input.take::<S::f32s>(first.inputs * bordered.len);
                    load_input(simd, first, bordered, self.input, block, input);
                    (bordered, &*input)
                }
                _ => {
                    if let Some(quantize) = quantize.take() {
                        parameters = quantize(extremes.range()).map(|found| Grid::new(Scheme::Affine, found));
                    }
                    let bytes = if backward { shape.pixels() * S::F32_LANES } else { 0 };
                    for (channel, lanes) in between.chunks_exact_mut(after.len).enumerate() {
                        let Some(parameters) = parameters else { break };
                        let from = (block * shape.inputs + channel) * bytes;
                        fake_quantize(simd, parameters, after, lanes, &mut argmax[0][from..][..bytes]);
                    }
                    (after, &*between)
                }
            };
            Correlation::forward(shape, epilogue, layers[layer]).run(simd, plane, input, found, index);
            append_argmax(index, blocks, &mut argmax[layer]);
            if is_last {
                store_block(simd, [shape.batch, shape.outputs], result, found, block, &mut output);
            } else {
                add_borders(simd, last, after, found, between);
                if apart {
                    let images = images_of::<S>(first.batch, block).1;
                    extremes.include(bytemuck::cast_slice(found), S::F32_LANES, images);
                }
            }
        }
        (output, Between { middle, argmax })
    }
}

/// Copies the pixels of a block from `middle`, which has no borders, into bordered planes.
#[inline(always)]
fn add_borders<S: Lanes>(simd: S, shape: Shape, plane: Plane, middle: &[S::f32s], lanes: &mut [S::f32s]) {
    let mut rows = middle.chunks_exact(shape.width);
    for lanes in lanes.chunks_exact_mut(plane.len) {
        plane.clear_border(simd, lanes);
        for (y, row) in rows.by_ref().take(shape.height).enumerate() {
            lanes[plane.first + y * plane.stride..][..row.len()].copy_from_slice(row);
        }
    }
}

/// The backward pass of `N` layers. It returns the gradients of each layer.
pub struct BackwardPass<'a, const N: usize> {
    pub shapes: [Shape; N],
    pub epilogue: Epilogue,
    /// The input of the first layer, and the output, argmax and output gradient of the last layer.
    pub back: Back<'a>,
    pub weights: [&'a [f32]; N],
    /// What the forward pass saved, at the same SIMD level. Required if there are two layers.
    pub between: Option<&'a Between>,
    /// Callback that lets communication progress. It is called for each layer of each block of images.
    pub poll: &'a mut dyn FnMut(),
    pub buffers: &'a mut [Buffers; 2],
}

impl<const N: usize> Kernel for BackwardPass<'_, N> {
    type Output = [Gradients; N];

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> [Gradients; N] {
        let Self { shapes, epilogue, back, weights, between, poll, buffers } = self;
        let last = shapes[N - 1];
        let needed = |layer: usize| layer > 0 || back.of_input;
        let flipped: [Vec<f32>; N] = std::array::from_fn(|layer| {
            if needed(layer) { flipped(shapes[layer], weights[layer]) } else { Vec::new() }
        });
        let source = Source::gradient(last, epilogue, back);
        let mut of_input = back.of_input.then(|| Buffer::new(shapes[0].input_len()));
        for (shape, buffers) in shapes.iter().zip(&mut *buffers) {
            buffers.sums.take(shape.weight_len() + shape.outputs).fill(simd.splat_f32s(0.0));
        }
        for block in 0..last.batch.div_ceil(S::F32_LANES) {
            for layer in (0..N).rev() {
                let shape @ Shape { batch, inputs, outputs, height, width } = shapes[layer];
                let (plane, result) = (Plane::bordered(height, width), Plane::rounded_up([height, width]));
                let (buffers, later) = buffers.split_at_mut(layer + 1);
                let Buffers { input, output, part, sums } = &mut buffers[layer];
                let planed = inputs * plane.len;
                let input = match between.filter(|_| layer > 0) {
                    Some(between) => &between.middle.values::<S::f32s>()[block * planed..][..planed],
                    None => {
                        let input = input.take::<S::f32s>(planed);
                        load_input(simd, shape, plane, back.input, block, input);
                        input
                    }
                };
                let gradient = output.take::<S::f32s>(outputs * plane.len);
                let half = part.take::<S::f32s>(inputs * result.len);
                let sums = sums.take::<S::f32s>(shape.weight_len() + outputs);
                let (of_weights, of_bias) = sums.split_at_mut(shape.weight_len());
                let (first, count) = images_of::<S>(batch, block);
                let channels = gradient.chunks_exact_mut(plane.len).zip(of_bias);
                for (channel, (lanes, bias)) in channels.enumerate() {
                    let vector = block * outputs + channel;
                    let sum = if layer == N - 1 {
                        let planes =
                            Planes { first: first * outputs + channel, step: outputs, count, vector };
                        source.load(simd, planes, [0, height], plane, half, lanes)
                    } else {
                        // The gradient of this layer's pooled output, which the next layer has stored as the
                        // gradient of its input.
                        let size = shape.output_size(Epilogue::ReluPool);
                        let pixels = size[0] * size[1];
                        let pooled = later[0].part.take::<S::f32s>(outputs * pixels);
                        let argmax = between.map_or(&[][..], |between| &between.argmax[layer]);
                        let argmax = &argmax[vector * pixels * S::F32_LANES..];
                        Some(spread(simd, plane, size, argmax, &pooled[channel * pixels..], lanes))
                    };
                    let sum = match sum {
                        Some(sum) => sum,
                        None => total(simd, lanes),
                    };
                    *bias = simd.add_f32s(*bias, sum);
                }
                weight_gradient(simd, plane, [inputs, outputs], input, gradient, of_weights);
                poll();
                if needed(layer) {
                    Correlation::backward(shape, &flipped[layer]).run(simd, plane, gradient, half, &mut []);
                }
                if let (0, Some(of_input)) = (layer, &mut of_input) {
                    store_block(simd, [batch, inputs], result, half, block, of_input);
                }
            }
        }
        std::array::from_fn(|layer| {
            let shape = shapes[layer];
            let sums = buffers[layer].sums.take::<S::f32s>(shape.weight_len() + shape.outputs);
            let (weights, bias) = sums.split_at(shape.weight_len());
            let [weights, bias] = [weights, bias].map(|sums| lane_sums(simd, sums));
            Gradients { input: of_input.take(), weights: Buffer::copy_of(&weights), bias }
        })
    }
}
