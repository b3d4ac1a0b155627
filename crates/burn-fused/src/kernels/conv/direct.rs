//! Direct convolution, for few channels, with one image in each SIMD lane.
//!
//! A block has one image for each lane of a vector. A pass is the forward or the backward of one layer, or of
//! two layers in a chain. In a chain, the values of a block stay in lanes and in the cache between the two
//! layers.

use std::ops::Range;

use super::blocks::{flipped, images_of, keep_argmax, load_input, spread, store_block, total};
use super::correlation::{Correlation, weight_gradient};
use super::epilogue::fake_quantize;
use super::plane::Plane;
use super::scratch::{Buffers, Kept, with_buffers, with_shared};
use super::source::{Planes, Source};
use super::{Back, Gradients, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::quantization::{Extremes, Grid, Int8Error, QParams, Scheme};
use crate::kernels::simd::{Kernel, Lanes, Level, kernel};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each, pieces};

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

/// The forward pass of `N` layers. Each layer except the last applies ReLU and pooling. Threads share the
/// blocks of images.
pub struct ForwardPass<'a, 'p, const N: usize> {
    pub level: Level,
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
}

impl<const N: usize> ForwardPass<'_, '_, N> {
    /// Returns the output, and what backward needs.
    pub fn run(self) -> (Buffer, Between) {
        let Self { level, shapes, epilogue, input, layers, backward, quantize } = self;
        let (first, last, lanes) = (shapes[0], shapes[N - 1], level.lanes());
        let blocks = first.batch.div_ceil(lanes);
        let keep = N > 1 && (backward || quantize.is_some());
        let planed = last.inputs * Plane::bordered(last.height, last.width).len * lanes;
        let mut middle = if keep { Kept::new::<f32>(blocks * planed) } else { Kept::default() };
        let mut argmax = [const { Vec::new() }; 2];
        for (layer, (argmax, shape)) in argmax.iter_mut().zip(shapes).enumerate() {
            let pools = layer < N - 1 || epilogue == Epilogue::ReluPool;
            let pooled = shape.outputs * shape.output_size(Epilogue::ReluPool).iter().product::<usize>();
            *argmax = vec![0; if backward && pools { blocks * pooled * lanes } else { 0 }];
        }
        let mut output = Buffer::new(last.output_len(epilogue));
        let mut extremes = vec![Extremes::new(); blocks];
        let mut pass = |now: Range<usize>, grid: Option<Grid>, extremes: &mut [Extremes]| {
            let [of_first, of_last] = argmax.each_mut().map(|argmax| pieces(argmax, blocks));
            let middle: &mut [f32] = middle.values_mut();
            let kept = if keep { blocks * planed } else { 0 };
            let results = pieces(&mut middle[..kept], blocks)
                .zip(chunks(&mut output, lanes * output_len(last, epilogue)));
            let all = results.zip(of_first.zip(of_last)).zip(extremes).enumerate();
            let time = shapes[now.clone()].iter().map(|shape| shape.direct_time(lanes)).sum();
            each(time, all, |(block, (((middle, output), (of_first, of_last)), extremes))| {
                with_buffers(|buffers| {
                    let (argmax, now) = ([of_first, of_last], now.clone());
                    let of_block = ForwardBlock {
                        shapes,
                        epilogue,
                        input,
                        layers,
                        now,
                        grid,
                        block,
                        middle,
                        output,
                        argmax,
                        extremes,
                        buffers,
                    };
                    level.run(of_block);
                });
            });
        };
        // Quantization parameters depend on all blocks. With fake quantization, the first layer therefore
        // computes all blocks before the second layer starts. Without it, each block passes through both
        // layers.
        match quantize {
            None => pass(0..N, None, &mut extremes),
            Some(quantize) => {
                pass(0..N - 1, None, &mut extremes);
                let range = extremes.iter().fold(Extremes::new(), |all, block| all.and(*block)).range();
                let grid = quantize(range).map(|found| Grid::new(Scheme::Affine, found));
                pass(N - 1..N, grid, &mut extremes);
            }
        }
        (output, Between { middle, argmax })
    }
}

/// Number of values in the output of an image.
fn output_len(shape: Shape, epilogue: Epilogue) -> usize {
    Shape { batch: 1, ..shape }.output_len(epilogue)
}

/// The forward pass of some layers of a block.
struct ForwardBlock<'a, const N: usize> {
    shapes: [Shape; N],
    epilogue: Epilogue,
    input: &'a [f32],
    layers: [[&'a [f32]; 2]; N],
    /// The layers to compute.
    now: Range<usize>,
    /// The fake quantization between the layers.
    grid: Option<Grid>,
    block: usize,
    /// The block's part of [`Between::middle`]; empty if it is not kept.
    middle: &'a mut [f32],
    /// The block's part of the output.
    output: &'a mut [f32],
    /// The block's part of each layer's argmax; empty if it is not kept.
    argmax: [&'a mut [u8]; 2],
    /// Receives the extremes of the first layer's outputs if the second layer is computed later.
    extremes: &'a mut Extremes,
    buffers: &'a mut [Buffers; 2],
}

impl<const N: usize> Kernel for ForwardBlock<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shapes, epilogue, layers, now, grid, block, middle, output, argmax, extremes, .. } = self;
        let (first, last) = (shapes[0], shapes[N - 1]);
        let [bordered, after] = [first, last].map(|shape| Plane::bordered(shape.height, shape.width));
        let images = images_of::<S>(first.batch, block).1;
        let [Buffers { input, output: lanes, part, .. }, two] = self.buffers;
        let between = if middle.is_empty() {
            two.input.take::<S::f32s>(if N > 1 { last.inputs * after.len } else { 0 })
        } else {
            bytemuck::cast_slice_mut(middle)
        };
        for layer in now.clone() {
            let (shape, is_last) = (shapes[layer], layer == N - 1);
            let epilogue = if is_last { epilogue } else { Epilogue::ReluPool };
            // Without pooling, kernels store 2x2 squares, which may extend beyond the image. The result's
            // plane has room for them.
            let result = match epilogue {
                Epilogue::ReluPool => Plane::plain(shape.output_size(epilogue)),
                Epilogue::Identity | Epilogue::Relu => Plane::rounded_up([shape.height, shape.width]),
            };
            let found = lanes.take::<S::f32s>(shape.outputs * result.len);
            let keeps = !argmax[layer].is_empty();
            let index = part.take::<S::u32s>(if keeps { found.len() } else { 0 });
            let (plane, input) = if layer == 0 {
                let input = input.take::<S::f32s>(first.inputs * bordered.len);
                load_input(simd, first, bordered, self.input, block, input);
                (bordered, &*input)
            } else {
                let bytes = if argmax[0].is_empty() { 0 } else { shape.pixels() * S::F32_LANES };
                for (channel, lanes) in between.chunks_exact_mut(after.len).enumerate() {
                    let Some(grid) = grid else { break };
                    fake_quantize(simd, grid, after, lanes, &mut argmax[0][channel * bytes..][..bytes]);
                }
                (after, &*between)
            };
            Correlation::forward(shape, epilogue, layers[layer]).run(simd, plane, input, found, index);
            keep_argmax(index, argmax[layer]);
            if is_last {
                store_block(simd, [images, shape.outputs], result, found, 0, output);
            } else {
                add_borders(simd, last, after, found, between);
                if now.end < N {
                    extremes.include(bytemuck::cast_slice(found), S::F32_LANES, images);
                }
            }
        }
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

/// The backward pass of `N` layers. Threads share parts of the batch, which are some blocks of images each.
pub struct BackwardPass<'a, const N: usize> {
    pub level: Level,
    pub shapes: [Shape; N],
    pub epilogue: Epilogue,
    /// The input of the first layer, and the output, argmax and output gradient of the last layer.
    pub back: Back<'a>,
    pub weights: [&'a [f32]; N],
    /// What the forward pass saved, at the same SIMD level. Required if there are two layers.
    pub between: Option<&'a Between>,
    /// The poll callback. It is called for each layer of each block of images.
    pub poll: Poll,
}

/// Maximum number of parts of a batch. Each part has sums of its own.
pub(super) const PARTS: usize = 16;

impl<const N: usize> BackwardPass<'_, N> {
    /// Returns the gradients of each layer.
    pub fn run(self) -> [Gradients; N] {
        let Self { level, shapes, epilogue, back, weights, between, poll } = self;
        let (first, lanes) = (shapes[0], level.lanes());
        let needed = |layer: usize| layer > 0 || back.of_input;
        let flipped: [Vec<f32>; N] = std::array::from_fn(|layer| {
            if needed(layer) { flipped(shapes[layer], weights[layer]) } else { Vec::new() }
        });
        let mut of_input = back.of_input.then(|| Buffer::new(first.input_len()));
        let blocks = first.batch.div_ceil(lanes);
        let of_part = blocks.div_ceil(PARTS);
        let parts = blocks.div_ceil(of_part);
        let sizes = shapes.map(|shape| (shape.weight_len() + shape.outputs) * lanes);
        with_shared(|shared| {
            let sums = shared.sums.take::<f32>(parts * sizes.iter().sum::<usize>());
            let images = of_input.as_deref_mut().unwrap_or_default();
            let images = chunks(images, of_part * lanes * first.inputs * first.pixels());
            let all = pieces(sums, parts).zip(images).enumerate();
            let time = 2 * shapes.iter().map(|shape| shape.direct_time(lanes)).sum::<usize>();
            each(time, all, |(part, (sums, of_input))| {
                let blocks = part * of_part..blocks.min((part + 1) * of_part);
                with_buffers(|buffers| {
                    let flipped = flipped.each_ref().map(|flipped| &flipped[..]);
                    level.run(BackwardPart {
                        shapes,
                        epilogue,
                        back,
                        flipped,
                        between,
                        blocks,
                        sums,
                        of_input,
                        buffers,
                        poll,
                    });
                });
            });
            poll.call();
            let (total, others) = sums.split_at_mut(sums.len() / parts);
            for sums in others.chunks_exact(total.len()) {
                total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
            }
            let mut rest = &*total;
            std::array::from_fn(|layer| {
                let sums = rest.split_off(..sizes[layer]).expect("the sums of each layer");
                let (weights, bias) = sums.split_at(shapes[layer].weight_len() * lanes);
                let [weights, bias] = [weights, bias].map(|sums| lane_sums(level, sums));
                Gradients { input: of_input.take(), weights: Buffer::copy_of(&weights), bias }
            })
        })
    }
}

/// The backward pass of some blocks of images.
struct BackwardPart<'a, const N: usize> {
    shapes: [Shape; N],
    epilogue: Epilogue,
    back: Back<'a>,
    /// Flipped weights of each layer whose input's gradient is needed.
    flipped: [&'a [f32]; N],
    between: Option<&'a Between>,
    blocks: Range<usize>,
    /// Receives the sums of each layer's weights and biases, in lanes.
    sums: &'a mut [f32],
    /// Receives the gradient of these blocks' input. Empty if it is not requested.
    of_input: &'a mut [f32],
    buffers: &'a mut [Buffers; 2],
    poll: Poll,
}

impl<const N: usize> Kernel for BackwardPart<'_, N> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shapes, epilogue, back, flipped, between, blocks, sums, of_input, buffers, poll } = self;
        let source = Source::gradient(shapes[N - 1], epilogue, back);
        let all_sums: &mut [S::f32s] = bytemuck::cast_slice_mut(sums);
        all_sums.fill(simd.splat_f32s(0.0));
        for block in blocks.clone() {
            let mut end = all_sums.len();
            for layer in (0..N).rev() {
                let shape @ Shape { batch, inputs, outputs, height, width } = shapes[layer];
                let (plane, result) = (Plane::bordered(height, width), Plane::rounded_up([height, width]));
                let (buffers, later) = buffers.split_at_mut(layer + 1);
                let Buffers { input, output, part, .. } = &mut buffers[layer];
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
                let len = shape.weight_len() + outputs;
                let (of_weights, of_bias) = all_sums[end - len..end].split_at_mut(shape.weight_len());
                end -= len;
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
                poll.call();
                if !flipped[layer].is_empty() {
                    Correlation::backward(shape, flipped[layer]).run(simd, plane, gradient, half, &mut []);
                }
                if layer == 0 && !of_input.is_empty() {
                    let from = (block - blocks.start) * S::F32_LANES * inputs * shape.pixels();
                    store_block(simd, [count, inputs], result, half, 0, &mut of_input[from..]);
                }
            }
        }
    }
}

kernel! {
    /// Returns the sum of the lanes of each vector.
    fn lane_sums<S>(simd: S, values: &[f32]) -> Vec<f32> {
        let vectors: &[S::f32s] = bytemuck::cast_slice(values);
        let mut sums = vec![0.0; vectors.len()];
        for (sum, &vector) in sums.iter_mut().zip(vectors) {
            *sum = simd.reduce_sum_f32s(vector);
        }
        sums
    }
}
