//! Two convolutions of few channels, each with ReLU and pooling, fused: a block of
//! images stays in SIMD lanes and in the cache between them.

use super::Shape;
use super::blocks::{append_argmax, flipped, images_of, load_input, spread, zeros};
use super::correlation::{Correlation, weight_gradient};
use super::plane::Plane;
use super::scratch::{Buffers, Kept};
use crate::epilogue::Epilogue;
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes};

/// Sizes of two convolutions, the second of which takes the output of the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairShape {
    /// Of the first.
    pub first: Shape,
    /// Output channels of the second.
    pub outputs: usize,
}

impl PairShape {
    /// Whether the pair is supported: few channels, and height and width multiples
    /// of 4, so that 2x2 pooling covers both images.
    pub fn fits(self) -> bool {
        let [height, width] = [self.first.height, self.first.width];
        self.first.is_small()
            && self.second().is_small()
            && height.is_multiple_of(4)
            && width.is_multiple_of(4)
    }

    /// Sizes of the second.
    pub fn second(self) -> Shape {
        let Shape { batch, outputs, height, width, .. } = self.first;
        Shape { batch, inputs: outputs, outputs: self.outputs, height: height / 2, width: width / 2 }
    }
}

/// Weights and biases of one of them.
#[derive(Debug, Clone, Copy)]
pub struct Layer<'a> {
    /// `[outputs, inputs, 3, 3]`.
    pub weights: &'a [f32],
    /// One for each output channel.
    pub bias: &'a [f32],
}

/// Saved by forward for backward, in the layout of its SIMD level.
#[derive(Debug, Default)]
pub struct Between {
    /// Input of the second: bordered planes in lanes.
    middle: Kept,
    /// Argmax of the first, and of the second.
    argmax: [Vec<u8>; 2],
}

/// Forward, for any SIMD level.
pub(super) struct PairForward<'a> {
    pub shape: PairShape,
    pub input: &'a [f32],
    pub layers: [Layer<'a>; 2],
    pub backward: bool,
    pub buffers: &'a mut [Buffers; 2],
}

impl Kernel for PairForward<'_> {
    type Output = (Vec<f32>, Between);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let [first, second] = [self.shape.first, self.shape.second()];
        let planes = [first, second].map(|shape| Plane::bordered(shape.height, shape.width));
        let [height, width] = second.output_size(Epilogue::ReluPool);
        let (result, step) = (Plane::plain(height, width), second.outputs * height * width);
        let blocks = first.batch.div_ceil(S::F32_LANES);
        let values = first.outputs * second.pixels();
        let planed = second.inputs * planes[1].len();
        let keep = if self.backward { blocks * S::F32_LANES } else { 0 };
        let mut between = Between {
            middle: if self.backward { Kept::new::<S::f32s>(blocks * planed) } else { Kept::default() },
            argmax: [Vec::with_capacity(keep * values), Vec::with_capacity(keep * step)],
        };
        let mut output = Uninit::new(second.output_len(Epilogue::ReluPool));
        let [one, two] = self.buffers;
        for block in 0..blocks {
            let input = one.input.take::<S::f32s>(first.inputs * planes[0].len());
            load_input(simd, first, planes[0], self.input, block, input);
            let middle = one.output.take::<S::f32s>(values);
            let index = one.part.take::<S::u32s>(if self.backward { values } else { 0 });
            convolve(simd, first, self.layers[0], planes[0], input, middle, index);
            append_argmax(index, &mut between.argmax[0]);
            let input = match self.backward {
                true => &mut between.middle.values_mut::<S::f32s>()[block * planed..][..planed],
                false => two.input.take::<S::f32s>(planed),
            };
            add_borders(simd, second, planes[1], middle, input);
            let lanes = two.output.take::<S::f32s>(step);
            let index = two.part.take::<S::u32s>(if self.backward { step } else { 0 });
            convolve(simd, second, self.layers[1], planes[1], input, lanes, index);
            append_argmax(index, &mut between.argmax[1]);
            let (from, images) = images_of::<S>(second, block);
            for channel in 0..second.outputs {
                let lanes = &lanes[channel * result.len()..][..result.len()];
                let target = &mut output.values()[from * step + channel * result.len()..];
                result.store(simd, lanes, images, step, target);
            }
        }
        // SAFETY: the loops covered every channel of every image of the batch, and
        // `store` initialises all `height * width` values of each.
        (unsafe { output.assume_init() }, between)
    }
}

/// Backward, for any SIMD level.
pub(super) struct PairBackward<'a> {
    pub shape: PairShape,
    pub input: &'a [f32],
    pub weights: [&'a [f32]; 2],
    pub between: &'a Between,
    pub gradient: &'a [f32],
    pub of_input: bool,
    pub poll: &'a mut dyn FnMut(),
    pub buffers: &'a mut [Buffers; 2],
}

/// The gradients of the two.
#[derive(Debug, Clone)]
pub struct PairGradients {
    /// Of the input, if requested.
    pub input: Option<Vec<f32>>,
    /// Of the weights of each.
    pub weights: [Vec<f32>; 2],
    /// Of the biases of each.
    pub bias: [Vec<f32>; 2],
}

impl Kernel for PairBackward<'_> {
    type Output = PairGradients;

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> PairGradients {
        let [first, second] = [self.shape.first, self.shape.second()];
        let planes = [first, second].map(|shape| Plane::bordered(shape.height, shape.width));
        let flipped1 = if self.of_input { flipped(first, self.weights[0]) } else { Vec::new() };
        let flipped2 = flipped(second, self.weights[1]);
        let pooled = [first, second].map(|shape| shape.output_size(Epilogue::ReluPool));
        let pixels = pooled.map(|[height, width]| height * width);
        let kept = [first.outputs * pixels[0], second.outputs * pixels[1]].map(|count| count * S::F32_LANES);
        let mut of_input = self.of_input.then(|| Uninit::new(first.input_len()));
        let [one, two] = self.buffers;
        let (weights1, bias1) = zeros(simd, first, &mut one.sums);
        let (weights2, bias2) = zeros(simd, second, &mut two.sums);
        for block in 0..first.batch.div_ceil(S::F32_LANES) {
            let argmax = [0, 1].map(|n| &self.between.argmax[n][block * kept[n]..][..kept[n]]);
            let (from, images) = images_of::<S>(second, block);
            let planed = second.inputs * planes[1].len();
            let input = &self.between.middle.values::<S::f32s>()[block * planed..][..planed];
            let gradient = two.output.take::<S::f32s>(second.outputs * planes[1].len());
            let lanes = two.part.take::<S::f32s>(second.inputs * pixels[0]);
            let (given, step) = (Plane::plain(pooled[1][0], pooled[1][1]), second.outputs * pixels[1]);
            for channel in 0..second.outputs {
                given.load(simd, lanes, images, step, &self.gradient[from * step + channel * pixels[1]..]);
                let argmax = &argmax[1][channel * pixels[1] * S::F32_LANES..];
                let target = &mut gradient[channel * planes[1].len()..][..planes[1].len()];
                let sum = spread(simd, planes[1], pooled[1], argmax, lanes, target);
                bias2[channel] = simd.add_f32s(bias2[channel], sum);
            }
            weight_gradient(simd, planes[1], [second.inputs, second.outputs], input, gradient, weights2);
            (self.poll)();
            back_through(simd, second, planes[1], &flipped2, gradient, lanes);

            let input = one.input.take::<S::f32s>(first.inputs * planes[0].len());
            load_input(simd, first, planes[0], self.input, block, input);
            let gradient = one.output.take::<S::f32s>(first.outputs * planes[0].len());
            for channel in 0..first.outputs {
                let argmax = &argmax[0][channel * pixels[0] * S::F32_LANES..];
                let target = &mut gradient[channel * planes[0].len()..][..planes[0].len()];
                let sum = spread(simd, planes[0], pooled[0], argmax, &lanes[channel * pixels[0]..], target);
                bias1[channel] = simd.add_f32s(bias1[channel], sum);
            }
            weight_gradient(simd, planes[0], [first.inputs, first.outputs], input, gradient, weights1);
            (self.poll)();
            if let Some(of_input) = &mut of_input {
                let lanes = one.part.take::<S::f32s>(first.inputs * first.pixels());
                back_through(simd, first, planes[0], &flipped1, gradient, lanes);
                let (result, step) = (Plane::plain(first.height, first.width), first.inputs * first.pixels());
                for channel in 0..first.inputs {
                    let target = &mut of_input.values()[from * step + channel * result.len()..];
                    result.store(simd, &lanes[channel * result.len()..], images, step, target);
                }
            }
        }
        let total = |sums: &[S::f32s]| sums.iter().map(|&sum| simd.reduce_sum_f32s(sum)).collect();
        PairGradients {
            // SAFETY: the loops covered every channel of every image of the batch, and
            // `store` initialises all pixels of each.
            input: of_input.map(|of_input| unsafe { of_input.assume_init() }),
            weights: [total(weights1), total(weights2)],
            bias: [total(bias1), total(bias2)],
        }
    }
}

/// Convolution, ReLU and pooling of a block; `output` and `index` have no borders.
#[inline(always)]
fn convolve<S: Lanes>(
    simd: S,
    shape: Shape,
    Layer { weights, bias }: Layer<'_>,
    plane: Plane,
    input: &[S::f32s],
    output: &mut [S::f32s],
    index: &mut [S::u32s],
) {
    let Shape { inputs, outputs, .. } = shape;
    let correlation =
        Correlation { inputs, outputs, weights, bias: Some(bias), epilogue: Epilogue::ReluPool };
    correlation.run(simd, plane, input, output, index);
}

/// The gradient of a block's input, without borders, from that of its output.
#[inline(always)]
fn back_through<S: Lanes>(
    simd: S,
    shape: Shape,
    plane: Plane,
    flipped: &[f32],
    gradient: &[S::f32s],
    input: &mut [S::f32s],
) {
    let (inputs, outputs) = (shape.outputs, shape.inputs);
    let correlation =
        Correlation { inputs, outputs, weights: flipped, bias: None, epilogue: Epilogue::Identity };
    correlation.run(simd, plane, gradient, input, &mut []);
}

/// Copies the pixels of a block from `middle`, which has no borders, into bordered
/// planes.
#[inline(always)]
fn add_borders<S: Lanes>(simd: S, shape: Shape, plane: Plane, middle: &[S::f32s], lanes: &mut [S::f32s]) {
    let mut rows = middle.chunks_exact(shape.width);
    for lanes in lanes.chunks_exact_mut(plane.len()) {
        plane.clear_border(simd, lanes);
        for (y, row) in rows.by_ref().take(shape.height).enumerate() {
            lanes[plane.first() + y * plane.stride()..][..row.len()].copy_from_slice(row);
        }
    }
}
