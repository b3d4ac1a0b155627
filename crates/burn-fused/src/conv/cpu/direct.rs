//! Direct convolution, for few channels, over blocks of images, one image per SIMD
//! lane.

use super::blocks::{append_argmax, flipped, images_of, load_input, spread, total, zeros};
use super::correlation::{Correlation, weight_gradient};
use super::plane::Plane;
use super::scratch::Buffers;
use super::{Argmax, Forward, Gradients, Shape};
use crate::epilogue::Epilogue;
use crate::memory::uninit::Uninit;
use crate::simd::{Kernel, Lanes};

/// Forward, for any SIMD level.
pub struct ForwardPass<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub input: &'a [f32],
    pub weights: &'a [f32],
    pub bias: &'a [f32],
    pub backward: bool,
    pub buffers: &'a mut Buffers,
}

impl Kernel for ForwardPass<'_> {
    type Output = (Vec<f32>, Argmax);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { shape, epilogue, .. } = self;
        let plane = Plane::bordered(shape.height, shape.width);
        let [height, width] = shape.output_size(epilogue);
        let mut output = Uninit::new(shape.output_len(epilogue));
        let blocks = shape.batch.div_ceil(S::F32_LANES);
        let keeps = self.backward && epilogue == Epilogue::ReluPool;
        let argmax_len = if keeps { shape.outputs * height * width } else { 0 };
        let mut argmax = Vec::with_capacity(blocks * argmax_len * S::F32_LANES);
        let correlation = Correlation {
            inputs: shape.inputs,
            outputs: shape.outputs,
            weights: self.weights,
            bias: Some(self.bias),
            epilogue,
        };
        // Without pooling, kernels store 2x2 squares, which may extend beyond the image.
        let result = match epilogue {
            Epilogue::ReluPool => Plane::plain(height, width),
            Epilogue::Identity | Epilogue::Relu => Plane::rounded_up(height, width),
        };
        let buffers = self.buffers;
        let lanes = buffers.output.take::<S::f32s>(shape.outputs * result.len());
        let index = buffers.part.take::<S::u32s>(argmax_len);
        for block in 0..blocks {
            let input = buffers.input.take::<S::f32s>(shape.inputs * plane.len());
            load_input(simd, shape, plane, self.input, block, input);
            correlation.run(simd, plane, input, lanes, index);
            append_argmax(index, &mut argmax);
            let (first, images) = images_of::<S>(shape, block);
            for channel in 0..shape.outputs {
                let from = (first * shape.outputs + channel) * height * width;
                let step = shape.outputs * height * width;
                let lanes = &lanes[channel * result.len()..][..result.len()];
                result.store(simd, lanes, images, step, &mut output.values()[from..]);
            }
        }
        // SAFETY: the loops covered every channel of every image of the batch, and
        // `store` initialises all `height * width` values of each.
        let output = unsafe { output.assume_init() };
        (output, if keeps { Argmax::Lanes(argmax) } else { Argmax::Unknown })
    }
}

/// Backward, for any SIMD level.
pub struct BackwardPass<'a> {
    pub back: Back<'a>,
    pub of_input: bool,
    pub between: &'a mut dyn FnMut(),
    pub buffers: &'a mut Buffers,
}

/// Inputs and results of forward.
#[derive(Clone, Copy)]
pub struct Back<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub forward: Forward<'a>,
    pub gradient: &'a [f32],
}

impl Kernel for BackwardPass<'_> {
    type Output = Gradients;

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Gradients {
        let back = self.back;
        let Back { shape, forward, .. } = back;
        let plane = Plane::bordered(shape.height, shape.width);
        let result = Plane::rounded_up(shape.height, shape.width);
        let flipped = if self.of_input { flipped(shape, forward.weights) } else { Vec::new() };
        let correlation = Correlation {
            inputs: shape.outputs,
            outputs: shape.inputs,
            weights: &flipped,
            bias: None,
            epilogue: Epilogue::Identity,
        };
        let mut of_input = self.of_input.then(|| Uninit::new(shape.input_len()));
        let mut gradients =
            Gradients { input: None, weights: vec![0.0; shape.weight_len()], bias: vec![0.0; shape.outputs] };
        let Buffers { input, output, part, sums } = self.buffers;
        let (weight_sums, bias_sums) = zeros(simd, shape, sums);
        for block in 0..shape.batch.div_ceil(S::F32_LANES) {
            let input = input.take::<S::f32s>(shape.inputs * plane.len());
            load_input(simd, shape, plane, forward.input, block, input);
            let gradient = output.take::<S::f32s>(shape.outputs * plane.len());
            let half = part.take::<S::f32s>(result.len().max(shape.inputs * result.len()));
            for (channel, bias) in bias_sums.iter_mut().enumerate() {
                let lanes = &mut gradient[channel * plane.len()..][..plane.len()];
                let sum = back.load_gradient(simd, plane, block, channel, half, lanes);
                *bias = simd.add_f32s(*bias, sum);
            }
            weight_gradient(simd, plane, [shape.inputs, shape.outputs], input, gradient, weight_sums);
            (self.between)();
            if let Some(of_input) = &mut of_input {
                correlation.run(simd, plane, gradient, half, &mut []);
                let (first, images) = images_of::<S>(shape, block);
                for channel in 0..shape.inputs {
                    let from = (first * shape.inputs + channel) * shape.pixels();
                    let step = shape.inputs * shape.pixels();
                    let lanes = &half[channel * result.len()..][..result.len()];
                    result.store(simd, lanes, images, step, &mut of_input.values()[from..]);
                }
            }
        }
        // SAFETY: the loops covered every channel of every image of the batch, and
        // `store` initialises all pixels of each.
        gradients.input = of_input.map(|of_input| unsafe { of_input.assume_init() });
        let all = gradients.weights.iter_mut().chain(&mut gradients.bias);
        for (value, &sum) in all.zip(weight_sums.iter().chain(&*bias_sums)) {
            *value = simd.reduce_sum_f32s(sum);
        }
        gradients
    }
}

impl Back<'_> {
    /// The gradient before pooling and ReLU, of one channel of a block, and its sum.
    #[inline(always)]
    fn load_gradient<S: Lanes>(
        &self,
        simd: S,
        plane: Plane,
        block: usize,
        channel: usize,
        half: &mut [S::f32s],
        lanes: &mut [S::f32s],
    ) -> S::f32s {
        let Self { shape, epilogue, .. } = *self;
        let [height, width] = shape.output_size(epilogue);
        let (first, images) = images_of::<S>(shape, block);
        let from = (first * shape.outputs + channel) * height * width;
        let step = shape.outputs * height * width;
        match epilogue {
            Epilogue::Identity => {
                plane.clear_border(simd, lanes);
                plane.load(simd, lanes, images, step, &self.gradient[from..]);
                total(simd, lanes)
            }
            Epilogue::Relu => {
                plane.clear_border(simd, lanes);
                let [gradient, outputs] = [self.gradient, self.forward.output].map(|values| &values[from..]);
                plane.load_masked(simd, lanes, images, step, gradient, outputs);
                total(simd, lanes)
            }
            Epilogue::ReluPool => {
                let Argmax::Lanes(argmax) = self.forward.argmax else {
                    unreachable!("the output is that of the direct convolution")
                };
                Plane::plain(height, width).load(simd, half, images, step, &self.gradient[from..]);
                let count = height * width * S::F32_LANES;
                let argmax = &argmax[(block * shape.outputs + channel) * count..][..count];
                spread(simd, plane, [height, width], argmax, half, lanes)
            }
        }
    }
}
