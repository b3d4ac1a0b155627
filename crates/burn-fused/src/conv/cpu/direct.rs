//! Direct convolution, for few channels, over blocks of images, one image per SIMD
//! lane.

use super::blocks::{Sums, append_argmax, flipped, images_of, load_input, store_block, total};
use super::correlation::{Correlation, weight_gradient};
use super::plane::Plane;
use super::scratch::Buffers;
use super::source::{Planes, Source};
use super::{Back, Gradients, Shape};
use crate::epilogue::Epilogue;
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes};

/// Forward, for any SIMD level.
pub struct ForwardPass<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub input: &'a [f32],
    pub parameters: [&'a [f32]; 2],
    /// Whether the argmax of a pooling is kept.
    pub keeps: bool,
    pub buffers: &'a mut Buffers,
}

impl Kernel for ForwardPass<'_> {
    type Output = (Vec<f32>, Vec<u8>);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { shape, epilogue, .. } = self;
        let plane = Plane::bordered(shape.height, shape.width);
        // Without pooling, kernels store 2x2 squares, which may extend beyond the image.
        let size = shape.output_size(epilogue);
        let result = match epilogue {
            Epilogue::ReluPool => Plane::plain(size),
            Epilogue::Identity | Epilogue::Relu => Plane::rounded_up(size),
        };
        let mut output = Uninit::new(shape.output_len(epilogue));
        let blocks = shape.batch.div_ceil(S::F32_LANES);
        let kept = if self.keeps { shape.outputs * result.len } else { 0 };
        let mut argmax = Vec::with_capacity(blocks * kept * S::F32_LANES);
        let correlation = Correlation::forward(shape, epilogue, self.parameters);
        let Buffers { input, output: lanes, part, .. } = self.buffers;
        let lanes = lanes.take::<S::f32s>(shape.outputs * result.len);
        let index = part.take::<S::u32s>(kept);
        let input = input.take::<S::f32s>(shape.inputs * plane.len);
        for block in 0..blocks {
            load_input(simd, shape, plane, self.input, block, input);
            correlation.run(simd, plane, input, lanes, index);
            append_argmax(index, &mut argmax);
            store_block(simd, [shape.batch, shape.outputs], result, lanes, block, output.values());
        }
        // SAFETY: the loop covered every channel of every image of the batch, and
        // `store_block` initialises all values of each.
        (unsafe { output.assume_init() }, argmax)
    }
}

/// Backward, for any SIMD level.
pub struct BackwardPass<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub back: Back<'a>,
    pub between: &'a mut dyn FnMut(),
    pub buffers: &'a mut Buffers,
}

impl Kernel for BackwardPass<'_> {
    type Output = Gradients;

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Gradients {
        let Self { shape, epilogue, back, between, buffers } = self;
        let Shape { batch, inputs, outputs, height, width } = shape;
        let plane = Plane::bordered(height, width);
        let result = Plane::rounded_up([height, width]);
        let source = Source::gradient(shape, epilogue, back);
        let flipped = if back.of_input { flipped(shape, back.weights) } else { Vec::new() };
        let mut of_input = back.of_input.then(|| Uninit::new(shape.input_len()));
        let Buffers { input, output, part, sums } = buffers;
        let sums = Sums::new(simd, shape, sums);
        let input = input.take::<S::f32s>(inputs * plane.len);
        let gradient = output.take::<S::f32s>(outputs * plane.len);
        let half = part.take::<S::f32s>(inputs * result.len);
        for block in 0..batch.div_ceil(S::F32_LANES) {
            load_input(simd, shape, plane, back.input, block, input);
            let (first, count) = images_of::<S>(batch, block);
            let channels = gradient.chunks_exact_mut(plane.len).zip(sums.bias.iter_mut());
            for (channel, (lanes, bias)) in channels.enumerate() {
                let first = first * outputs + channel;
                let planes = Planes { first, step: outputs, count, vector: block * outputs + channel };
                let sum = match source.load(simd, planes, [0, height], plane, half, lanes) {
                    Some(sum) => sum,
                    None => total(simd, lanes),
                };
                *bias = simd.add_f32s(*bias, sum);
            }
            weight_gradient(simd, plane, [inputs, outputs], input, gradient, sums.weights);
            between();
            if let Some(of_input) = &mut of_input {
                Correlation::backward(shape, &flipped).run(simd, plane, gradient, half, &mut []);
                store_block(simd, [batch, inputs], result, half, block, of_input.values());
            }
        }
        // SAFETY: the loop covered every channel of every image of the batch, and
        // `store_block` initialises all pixels of each.
        sums.gradients(simd, of_input.map(|of_input| unsafe { of_input.assume_init() }))
    }
}
