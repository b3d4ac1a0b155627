//! Two convolutions of few channels, each with ReLU and pooling, fused: a block of
//! images stays in SIMD lanes and in the cache between them.

use super::blocks::{Sums, append_argmax, flipped, images_of, load_input, spread, store_block};
use super::correlation::{Correlation, weight_gradient};
use super::middle::fake_quantize;
use super::plane::Plane;
use super::scratch::{Buffers, Kept};
use super::{Gradients, Shape};
use crate::epilogue::Epilogue;
use crate::int8::{Extremes, Int8Error, QParams, Scheme, Step};
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes};

/// The parameters, affine, for activations of this minimum and maximum; `None` leaves them as
/// they are.
pub type Parameters<'a> = dyn FnMut(Result<[f32; 2], Int8Error>) -> Option<QParams> + 'a;

/// Whether a pair is supported: few channels, and height and width multiples of 4, so that 2x2 pooling
/// covers both images.
pub fn pair_fits(shapes: [Shape; 2]) -> bool {
    let [Shape { height, width, .. }, _] = shapes;
    shapes.iter().all(Shape::is_small) && height.is_multiple_of(4) && width.is_multiple_of(4)
}

/// Saved by forward for backward, in the layout of its SIMD level.
#[derive(Debug, Default)]
pub struct Between {
    /// Input of the second: bordered planes in lanes.
    middle: Kept,
    /// Argmax of the first, and of the second.
    argmax: [Vec<u8>; 2],
}

/// The output, and what backward reads if it follows, for any SIMD level.
pub struct PairForward<'a, 'p> {
    pub shapes: [Shape; 2],
    pub input: &'a [f32],
    /// Weights and biases of each.
    pub layers: [[&'a [f32]; 2]; 2],
    /// Of the fake quantization between the layers, if any.
    pub quantize: Option<&'a mut Parameters<'p>>,
    pub backward: bool,
    pub buffers: &'a mut [Buffers; 2],
}

impl Kernel for PairForward<'_, '_> {
    type Output = (Vec<f32>, Between);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { shapes: [first, second], layers, backward, mut quantize, .. } = self;
        let planes = [first, second].map(|shape| Plane::bordered(shape.height, shape.width));
        let correlations = [(first, 0), (second, 1)]
            .map(|(shape, n)| Correlation::forward(shape, Epilogue::ReluPool, layers[n]));
        let result = Plane::plain(second.output_size(Epilogue::ReluPool));
        let step = second.outputs * result.len;
        let blocks = first.batch.div_ceil(S::F32_LANES);
        let values = first.outputs * second.pixels();
        let planed = second.inputs * planes[1].len;
        let kept = if backward { blocks * S::F32_LANES } else { 0 };
        let mut argmax = [values, step].map(|values| Vec::with_capacity(kept * values));
        // Parameters depend on all blocks: with them, the second convolution comes when the
        // first is done with all, and otherwise block by block.
        let apart = quantize.is_some();
        let keep = backward || apart;
        let mut middle = if keep { Kept::new::<S::f32s>(blocks * planed) } else { Kept::default() };
        let (mut extremes, mut parameters) = (Extremes::new(), None);
        let mut output = Uninit::new(second.output_len(Epilogue::ReluPool));
        let [one, two] = self.buffers;
        for turn in 0..2 * blocks {
            let (block, is_second) = match apart {
                true => (turn % blocks, turn >= blocks),
                false => (turn / 2, turn % 2 == 1),
            };
            let between = match keep {
                true => &mut middle.values_mut::<S::f32s>()[block * planed..][..planed],
                false => two.input.take::<S::f32s>(planed),
            };
            if !is_second {
                let input = one.input.take::<S::f32s>(first.inputs * planes[0].len);
                load_input(simd, first, planes[0], self.input, block, input);
                let found = one.output.take::<S::f32s>(values);
                let index = one.part.take::<S::u32s>(if backward { values } else { 0 });
                correlations[0].run(simd, planes[0], input, found, index);
                append_argmax(index, &mut argmax[0]);
                add_borders(simd, second, planes[1], found, between);
                if apart {
                    extremes.include(simd, found, images_of::<S>(first.batch, block).1);
                }
                continue;
            }
            if let Some(quantize) = quantize.take() {
                parameters = quantize(extremes.range()).map(|found| Step::new(Scheme::Affine, found));
            }
            if let Some(parameters) = parameters {
                let bytes = if backward { second.pixels() * S::F32_LANES } else { 0 };
                for (channel, lanes) in between.chunks_exact_mut(planes[1].len).enumerate() {
                    let from = (block * second.inputs + channel) * bytes;
                    fake_quantize(simd, parameters, planes[1], lanes, &mut argmax[0][from..][..bytes]);
                }
            }
            let lanes = two.output.take::<S::f32s>(step);
            let index = two.part.take::<S::u32s>(if backward { step } else { 0 });
            correlations[1].run(simd, planes[1], between, lanes, index);
            append_argmax(index, &mut argmax[1]);
            store_block(simd, [second.batch, second.outputs], result, lanes, block, output.values());
        }
        // SAFETY: the second convolution came once to every block, with every channel of its
        // images, and `store_block` initialises all values of each.
        (unsafe { output.assume_init() }, Between { middle, argmax })
    }
}

/// Copies the pixels of a block from `middle`, which has no borders, into bordered
/// planes.
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

/// The gradients of both, the second's without that of its input, for any SIMD level.
pub struct PairBackward<'a> {
    pub shapes: [Shape; 2],
    pub input: &'a [f32],
    pub weights: [&'a [f32]; 2],
    /// From forward at the same level.
    pub between: &'a Between,
    /// Of the second's output.
    pub gradient: &'a [f32],
    /// Whether the input's gradient is requested.
    pub of_input: bool,
    /// Called after each block of the work.
    pub poll: &'a mut dyn FnMut(),
    pub buffers: &'a mut [Buffers; 2],
}

impl Kernel for PairBackward<'_> {
    type Output = [Gradients; 2];

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> [Gradients; 2] {
        let Self { shapes: [first, second], weights, between, poll, buffers: [one, two], .. } = self;
        let planes = [first, second].map(|shape| Plane::bordered(shape.height, shape.width));
        let flipped1 = if self.of_input { flipped(first, weights[0]) } else { Vec::new() };
        let flipped2 = flipped(second, weights[1]);
        let pooled = [first, second].map(|shape| shape.output_size(Epilogue::ReluPool));
        let given = Plane::plain(pooled[1]);
        let mut of_input = self.of_input.then(|| Uninit::new(first.input_len()));
        let sums = [Sums::new(simd, first, &mut one.sums), Sums::new(simd, second, &mut two.sums)];
        let planed = second.inputs * planes[1].len;
        for block in 0..first.batch.div_ceil(S::F32_LANES) {
            let (from, images) = images_of::<S>(second.batch, block);
            let middle = &between.middle.values::<S::f32s>()[block * planed..][..planed];
            let gradient = two.output.take::<S::f32s>(second.outputs * planes[1].len);
            let lanes = two.part.take::<S::f32s>(second.inputs * second.pixels());
            for (channel, target) in gradient.chunks_exact_mut(planes[1].len).enumerate() {
                let source = &self.gradient[(from * second.outputs + channel) * given.len..];
                given.load(simd, lanes, [images, second.outputs * given.len], source, None);
                let vector = block * second.outputs + channel;
                let argmax = &between.argmax[1][vector * given.len * S::F32_LANES..];
                let sum = spread(simd, planes[1], pooled[1], argmax, lanes, target);
                sums[1].bias[channel] = simd.add_f32s(sums[1].bias[channel], sum);
            }
            weight_gradient(
                simd,
                planes[1],
                [second.inputs, second.outputs],
                middle,
                gradient,
                sums[1].weights,
            );
            poll();
            Correlation::backward(second, &flipped2).run(simd, planes[1], gradient, lanes, &mut []);

            let input = one.input.take::<S::f32s>(first.inputs * planes[0].len);
            load_input(simd, first, planes[0], self.input, block, input);
            let gradient = one.output.take::<S::f32s>(first.outputs * planes[0].len);
            let channels = gradient.chunks_exact_mut(planes[0].len).zip(lanes.chunks_exact(second.pixels()));
            for (channel, (target, lanes)) in channels.enumerate() {
                let vector = block * first.outputs + channel;
                let argmax = &between.argmax[0][vector * second.pixels() * S::F32_LANES..];
                let sum = spread(simd, planes[0], pooled[0], argmax, lanes, target);
                sums[0].bias[channel] = simd.add_f32s(sums[0].bias[channel], sum);
            }
            weight_gradient(simd, planes[0], [first.inputs, first.outputs], input, gradient, sums[0].weights);
            poll();
            if let Some(of_input) = &mut of_input {
                let lanes = one.part.take::<S::f32s>(first.inputs * first.pixels());
                Correlation::backward(first, &flipped1).run(simd, planes[0], gradient, lanes, &mut []);
                let result = Plane::plain([first.height, first.width]);
                store_block(simd, [first.batch, first.inputs], result, lanes, block, of_input.values());
            }
        }
        // SAFETY: the loop covered every channel of every image of the batch, and
        // `store_block` initialises all pixels of each.
        let of_input = of_input.map(|of_input| unsafe { of_input.assume_init() });
        let [first, second] = sums;
        [first.gradients(simd, of_input), second.gradients(simd, None)]
    }
}
