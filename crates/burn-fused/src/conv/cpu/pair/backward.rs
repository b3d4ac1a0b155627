//! Backward of the pair.

use super::{Between, PairShape};
use crate::conv::cpu::Shape;
use crate::conv::cpu::blocks::{flipped, images_of, load_input, spread, zeros};
use crate::conv::cpu::correlation::{Correlation, weight_gradient};
use crate::conv::cpu::plane::Plane;
use crate::conv::cpu::scratch::Buffers;
use crate::epilogue::Epilogue;
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes};

/// Backward, for any SIMD level.
pub struct PairBackward<'a> {
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
