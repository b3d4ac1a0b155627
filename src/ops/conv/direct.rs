//! The direct way, for few channels: blocks of as many images as vectors have
//! lanes.

use super::blocks::{images_of, keep_places, load_input, spread, total, turned, zeros};
use super::kernels::{Correlation, passes, weight_gradient};
use super::lanes::{Lanes, Plane};
use super::level::Kernel;
use super::scratch::{Buffers, Unwritten};
use super::{Forward, Gradients, Places, Shape, Tail};

/// Forward, for any level.
pub struct ForwardPass<'a> {
    pub shape: Shape,
    pub tail: Tail,
    pub input: &'a [f32],
    pub weights: &'a [f32],
    pub bias: &'a [f32],
    pub backward: bool,
    pub buffers: &'a mut Buffers,
}

impl Kernel for ForwardPass<'_> {
    type Output = (Vec<f32>, Places);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        let Self { shape, tail, .. } = self;
        let plane = Plane::bordered(shape.height, shape.width);
        let [height, width] = shape.output_size(tail);
        let mut output = Unwritten::new(shape.output_len(tail));
        let blocks = shape.batch.div_ceil(S::F32_LANES);
        let keeps = self.backward && tail == Tail::ReluPool;
        let places_len = if keeps { shape.outputs * height * width } else { 0 };
        let mut places = Vec::with_capacity(blocks * places_len * S::F32_LANES);
        let correlation = Correlation {
            inputs: shape.inputs,
            outputs: shape.outputs,
            weights: self.weights,
            bias: Some(self.bias),
            tail,
        };
        // Without pooling, kernels write squares of 2x2, in part beyond the image.
        let result = match tail {
            Tail::ReluPool => Plane::plain(height, width),
            Tail::Nothing | Tail::Relu => Plane::rounded_up(height, width),
        };
        let buffers = self.buffers;
        let lanes = buffers.output.take::<S::f32s>(shape.outputs * result.len);
        // Vectors may be read from memory that is aligned for them alone.
        let index = buffers.part.take::<S::u32s>(places_len);
        for block in 0..blocks {
            let input = buffers.input.take::<S::f32s>(shape.inputs * plane.len);
            load_input(simd, shape, plane, self.input, block, input);
            correlation.run(simd, plane, input, lanes, index);
            keep_places(index, &mut places);
            let (first, images) = images_of::<S>(shape, block);
            for channel in 0..shape.outputs {
                let from = (first * shape.outputs + channel) * height * width;
                let step = shape.outputs * height * width;
                let lanes = &lanes[channel * result.len..][..result.len];
                result.store(simd, lanes, images, step, &mut output.values()[from..]);
            }
        }
        // SAFETY: the blocks have all images, and of each of them every channel's
        // `height * width` values were stored.
        let output = unsafe { output.written() };
        (output, if keeps { Places::Lanes(places) } else { Places::Unknown })
    }
}

/// Backward, for any level.
pub struct BackwardPass<'a> {
    pub back: Back<'a>,
    pub of_input: bool,
    pub between: &'a mut dyn FnMut(),
    pub buffers: &'a mut Buffers,
}

/// What backward reads.
#[derive(Clone, Copy)]
pub struct Back<'a> {
    pub shape: Shape,
    pub tail: Tail,
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
        let turned = if self.of_input { turned(shape, forward.weights) } else { Vec::new() };
        let correlation = Correlation {
            inputs: shape.outputs,
            outputs: shape.inputs,
            weights: &turned,
            bias: None,
            tail: Tail::Nothing,
        };
        let mut of_input = self.of_input.then(|| Unwritten::new(shape.input_len()));
        let mut gradients =
            Gradients { input: None, weights: vec![0.0; shape.weight_len()], bias: vec![0.0; shape.outputs] };
        let Buffers { input, output, part, sums } = self.buffers;
        let (weight_sums, bias_sums) = zeros(simd, shape, sums);
        for block in 0..shape.batch.div_ceil(S::F32_LANES) {
            let input = input.take::<S::f32s>(shape.inputs * plane.len);
            load_input(simd, shape, plane, forward.input, block, input);
            let gradient = output.take::<S::f32s>(shape.outputs * plane.len);
            let half = part.take::<S::f32s>(result.len.max(shape.inputs * result.len));
            for (channel, bias) in bias_sums.iter_mut().enumerate() {
                let lanes = &mut gradient[channel * plane.len..][..plane.len];
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
                    let lanes = &half[channel * result.len..][..result.len];
                    result.store(simd, lanes, images, step, &mut of_input.values()[from..]);
                }
            }
        }
        // SAFETY: the blocks have all images, and of each of them every channel's
        // pixels were stored.
        gradients.input = of_input.map(|of_input| unsafe { of_input.written() });
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
        let Self { shape, tail, .. } = *self;
        let [height, width] = shape.output_size(tail);
        let (first, images) = images_of::<S>(shape, block);
        let from = (first * shape.outputs + channel) * height * width;
        let step = shape.outputs * height * width;
        match tail {
            Tail::Nothing => {
                plane.clear_border(simd, lanes);
                plane.load(simd, lanes, images, step, &self.gradient[from..]);
                total(simd, lanes)
            }
            Tail::Relu => {
                plane.clear_border(simd, lanes);
                let outputs = Plane::plain(height, width);
                outputs.load(simd, half, images, step, &self.forward.output[from..]);
                plane.load(simd, lanes, images, step, &self.gradient[from..]);
                for y in 0..height {
                    let row = &mut lanes[plane.first + y * plane.stride..][..width];
                    for (gradient, &output) in row.iter_mut().zip(&half[y * width..]) {
                        let zero = simd.splat_f32s(0.0);
                        *gradient = simd.select_f32s(passes(simd, output), *gradient, zero);
                    }
                }
                total(simd, lanes)
            }
            Tail::ReluPool => {
                let Places::Lanes(places) = self.forward.places else {
                    unreachable!("the direct way made the output")
                };
                Plane::plain(height, width).load(simd, half, images, step, &self.gradient[from..]);
                let count = height * width * S::F32_LANES;
                let places = &places[(block * shape.outputs + channel) * count..][..count];
                spread(simd, plane, [height, width], places, half, lanes)
            }
        }
    }
}
