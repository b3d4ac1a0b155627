//! The epilogue of im2col + GEMM: from the matrix product to the output, and from
//! the output's gradient to that of the product.

use super::group::Group;
use super::{Back, Shape};
use crate::epilogue::{Epilogue, passes, pool_row, relu, spread_row};
use crate::simd::{Kernel, Lanes};

/// From a product to the output: bias, ReLU and pooling.
pub(super) struct FromProduct<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub group: Group,
    pub product: &'a mut [f32],
    pub bias: &'a [f32],
    pub output: &'a mut [f32],
    pub argmax: &'a mut [u8],
}

impl Kernel for FromProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { shape, group, .. } = self;
        let (part, pixels) = (group.part(shape), group.pixels(shape));
        let [height, width] = shape.output_size(self.epilogue);
        for channel in 0..shape.outputs {
            let bias = self.bias[channel];
            let row = &mut self.product[channel * pixels..][..pixels];
            for (image, values) in row.chunks_exact_mut(part).enumerate() {
                let plane = ((group.first + image) * shape.outputs + channel) * height * width;
                match self.epilogue {
                    Epilogue::Identity => {
                        let target = &mut self.output[plane + group.rows[0] * width..][..part];
                        target.iter_mut().zip(values).for_each(|(out, x)| *out = *x + bias);
                    }
                    Epilogue::Relu => {
                        let target = &mut self.output[plane + group.rows[0] * width..][..part];
                        target.iter_mut().zip(values).for_each(|(out, x)| *out = relu(*x + bias));
                    }
                    Epilogue::ReluPool => {
                        values.iter_mut().for_each(|x| *x += bias);
                        for (y, rows) in values.chunks_exact(2 * shape.width).enumerate() {
                            let to = plane + (group.rows[0] / 2 + y) * width;
                            let (upper, lower) = rows.split_at(shape.width);
                            let output = &mut self.output[to..to + width];
                            match self.argmax.get_mut(to..to + width) {
                                Some(argmax) => pool_row(upper, lower, output, argmax),
                                None => pool_row(upper, lower, output, &mut vec![0; width]),
                            }
                        }
                    }
                }
            }
        }
    }
}

/// From the output's gradient to those of the product and the biases.
pub(super) struct ToProduct<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub group: Group,
    pub back: Back<'a>,
    pub product: &'a mut [f32],
    pub bias: &'a mut [f32],
}

impl Kernel for ToProduct<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { shape, group, .. } = self;
        let (part, pixels) = (group.part(shape), group.pixels(shape));
        let [height, width] = shape.output_size(self.epilogue);
        for channel in 0..shape.outputs {
            let row = &mut self.product[channel * pixels..][..pixels];
            for (image, values) in row.chunks_exact_mut(part).enumerate() {
                let plane = ((group.first + image) * shape.outputs + channel) * height * width;
                let from = plane + group.rows[0] * width;
                match self.epilogue {
                    Epilogue::Identity => values.copy_from_slice(&self.back.gradient[from..][..part]),
                    Epilogue::Relu => {
                        let outputs = &self.back.output[from..][..part];
                        let gradients = self.back.gradient[from..][..part].iter().zip(outputs);
                        for (value, (&gradient, &output)) in values.iter_mut().zip(gradients) {
                            *value = if passes(output) { gradient } else { 0.0 };
                        }
                    }
                    Epilogue::ReluPool => {
                        if shape.height % 2 + shape.width % 2 > 0 {
                            values.fill(0.0);
                        }
                        for (y, rows) in values.chunks_exact_mut(2 * shape.width).enumerate() {
                            let from = plane + (group.rows[0] / 2 + y) * width;
                            let (upper, lower) = rows.split_at_mut(shape.width);
                            let gradients = &self.back.gradient[from..from + width];
                            spread_row(gradients, &self.back.argmax[from..from + width], upper, lower);
                        }
                    }
                }
            }
            self.bias[channel] += sum(row);
        }
    }
}

/// A sum in 16 independent parts: the same bits at every SIMD level.
#[inline(always)]
fn sum(values: &[f32]) -> f32 {
    let mut parts = [0.0f32; 16];
    let chunks = values.chunks_exact(16);
    let rest: f32 = chunks.remainder().iter().sum();
    for chunk in chunks {
        parts.iter_mut().zip(chunk).for_each(|(part, value)| *part += value);
    }
    parts.iter().sum::<f32>() + rest
}
