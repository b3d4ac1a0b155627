//! What a convolution reads: images, or the gradient of an output before its epilogue.
//! Channels become lanes.

use super::super::blocks::spread;
use super::super::plane::Plane;
use super::super::{Argmax, Forward, Shape};
use crate::epilogue::Epilogue;
use crate::simd::Lanes;

/// Values `[batch, channels, height, width]`.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    values: Values<'a>,
    /// Channels.
    pub channels: usize,
    /// Height and width, before pooling.
    size: [usize; 2],
}

#[derive(Debug, Clone, Copy)]
enum Values<'a> {
    /// As they are.
    Plain(&'a [f32]),
    /// The gradient of ReLU's output, zero where the output is.
    Relu { gradient: &'a [f32], output: &'a [f32] },
    /// The gradient of pooled values, at the maximum of each 2x2 square.
    Pool { gradient: &'a [f32], argmax: &'a [u8] },
}

impl<'a> Source<'a> {
    /// The input of a convolution.
    pub fn input(shape: Shape, values: &'a [f32]) -> Self {
        Self { values: Values::Plain(values), channels: shape.inputs, size: [shape.height, shape.width] }
    }

    /// The gradient of a convolution's result from that of its output.
    ///
    /// # Panics
    /// If the output is pooled by another algorithm.
    pub fn gradient(shape: Shape, epilogue: Epilogue, forward: Forward<'a>, gradient: &'a [f32]) -> Self {
        let values = match (epilogue, forward.argmax) {
            (Epilogue::Identity, _) => Values::Plain(gradient),
            (Epilogue::Relu, _) => Values::Relu { gradient, output: forward.output },
            (Epilogue::ReluPool, Argmax::Channels(argmax)) => Values::Pool { gradient, argmax },
            (Epilogue::ReluPool, _) => unreachable!("the output is that of the Winograd convolution"),
        };
        Self { values, channels: shape.outputs, size: [shape.height, shape.width] }
    }

    /// Vectors of all channels of a pixel.
    #[inline(always)]
    pub fn groups<S: Lanes>(&self) -> usize {
        self.channels.div_ceil(S::F32_LANES)
    }

    /// Loads `rows` of one image and as many channels as a vector has lanes into the
    /// first vectors of `lanes`, with zeros outside the plane's pixels. The vectors after the plane
    /// are overwritten; a quarter of the plane is needed there.
    #[inline(always)]
    pub fn load<S: Lanes>(
        &self,
        simd: S,
        [image, group]: [usize; 2],
        rows: [usize; 2],
        plane: Plane,
        lanes: &mut [S::f32s],
    ) {
        let [height, width] = self.size;
        let (lanes, pooled) = lanes.split_at_mut(plane.len());
        let first = image * self.channels + group * S::F32_LANES;
        let channels = S::F32_LANES.min(self.channels - group * S::F32_LANES);
        let (from, step) = (first * height * width + rows[0] * width, height * width);
        match self.values {
            Values::Plain(values) => {
                plane.clear_border(simd, lanes);
                plane.load(simd, lanes, channels, step, &values[from..]);
            }
            Values::Relu { gradient, output } => {
                plane.clear_border(simd, lanes);
                plane.load_masked(simd, lanes, channels, step, &gradient[from..], &output[from..]);
            }
            Values::Pool { gradient, argmax } => {
                let (step, above) = ((height / 2) * (width / 2), rows[0] / 2 * (width / 2));
                let size = [(rows[1] - rows[0]) / 2, width / 2];
                let gradient = &gradient[first * step + above..];
                Plane::plain(size[0], size[1]).load(simd, pooled, channels, step, gradient);
                let at = (image * self.groups::<S>() + group) * step + above;
                spread(simd, plane, size, &argmax[at * S::F32_LANES..], pooled, lanes);
            }
        }
    }
}
