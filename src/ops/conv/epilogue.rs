//! What is done to the product of two matrices before it is an output, and to an
//! output's gradient before it is a product's.

use super::group::Group;
use super::kernels::NOWHERE;
use super::lanes::Lanes;
use super::level::Kernel;
use super::{Forward, Places, Shape, Tail};

/// From a product to the output: bias, ReLU and pooling.
pub(super) struct Finish<'a> {
    pub shape: Shape,
    pub tail: Tail,
    pub group: Group,
    pub product: &'a mut [f32],
    pub bias: &'a [f32],
    pub output: &'a mut [f32],
    pub places: &'a mut [u8],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { shape, group, .. } = self;
        let (part, pixels) = (group.part(shape), group.pixels(shape));
        let [height, width] = shape.output_size(self.tail);
        for channel in 0..shape.outputs {
            let bias = self.bias[channel];
            let row = &mut self.product[channel * pixels..][..pixels];
            for (image, values) in row.chunks_exact_mut(part).enumerate() {
                let plane = ((group.first + image) * shape.outputs + channel) * height * width;
                match self.tail {
                    Tail::Nothing => {
                        let target = &mut self.output[plane + group.rows[0] * width..][..part];
                        target.iter_mut().zip(values).for_each(|(out, x)| *out = *x + bias);
                    }
                    Tail::Relu => {
                        let target = &mut self.output[plane + group.rows[0] * width..][..part];
                        target.iter_mut().zip(values).for_each(|(out, x)| *out = relu(*x + bias));
                    }
                    Tail::ReluPool => {
                        values.iter_mut().for_each(|x| *x += bias);
                        for (y, rows) in values.chunks_exact(2 * shape.width).enumerate() {
                            let to = plane + (group.rows[0] / 2 + y) * width;
                            let (upper, lower) = rows.split_at(shape.width);
                            let output = &mut self.output[to..to + width];
                            match self.places.get_mut(to..to + width) {
                                Some(places) => pool_row(upper, lower, output, places),
                                None => pool_row(upper, lower, output, &mut vec![0; width]),
                            }
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if passes(x) { x } else { 0.0 }
}

/// Whether ReLU passes `x` on.
#[inline(always)]
pub(crate) fn passes(x: f32) -> bool {
    x > 0.0 || x.is_nan()
}

/// ReLU of the largest of each square, and where that was: the first of
/// equals, and the last that is no number.
#[inline(always)]
pub(crate) fn pool_row(upper: &[f32], lower: &[f32], output: &mut [f32], places: &mut [u8]) {
    let squares = upper.chunks_exact(2).zip(lower.chunks_exact(2));
    for (((upper, lower), output), place) in squares.zip(output).zip(places) {
        let (mut largest, mut at) = (upper[0], 0);
        for (p, x) in [(1, upper[1]), (2, lower[0]), (3, lower[1])] {
            let wins = x > largest || x.is_nan();
            largest = if wins { x } else { largest };
            at = if wins { p } else { at };
        }
        *output = relu(largest);
        *place = if passes(largest) { at } else { NOWHERE as u8 };
    }
}

/// From the output's gradient to the product's, and to the bias's.
pub(super) struct Undo<'a> {
    pub shape: Shape,
    pub tail: Tail,
    pub group: Group,
    pub forward: Forward<'a>,
    pub gradient: &'a [f32],
    pub product: &'a mut [f32],
    pub bias: &'a mut [f32],
}

impl Kernel for Undo<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { shape, group, .. } = self;
        let (part, pixels) = (group.part(shape), group.pixels(shape));
        let [height, width] = shape.output_size(self.tail);
        for channel in 0..shape.outputs {
            let row = &mut self.product[channel * pixels..][..pixels];
            for (image, values) in row.chunks_exact_mut(part).enumerate() {
                let plane = ((group.first + image) * shape.outputs + channel) * height * width;
                let from = plane + group.rows[0] * width;
                match self.tail {
                    Tail::Nothing => values.copy_from_slice(&self.gradient[from..][..part]),
                    Tail::Relu => {
                        let outputs = &self.forward.output[from..][..part];
                        let gradients = self.gradient[from..][..part].iter().zip(outputs);
                        for (value, (&gradient, &output)) in values.iter_mut().zip(gradients) {
                            *value = if passes(output) { gradient } else { 0.0 };
                        }
                    }
                    Tail::ReluPool => {
                        let Places::Plain(places) = self.forward.places else {
                            unreachable!("matrix products made the output")
                        };
                        if shape.height % 2 + shape.width % 2 > 0 {
                            values.fill(0.0);
                        }
                        for (y, rows) in values.chunks_exact_mut(2 * shape.width).enumerate() {
                            let from = plane + (group.rows[0] / 2 + y) * width;
                            let (upper, lower) = rows.split_at_mut(shape.width);
                            let gradients = &self.gradient[from..from + width];
                            spread_row(gradients, &places[from..from + width], upper, lower);
                        }
                    }
                }
            }
            self.bias[channel] += sum(row);
        }
    }
}

/// Puts each gradient to the place of its maximum.
#[inline(always)]
pub(crate) fn spread_row(gradients: &[f32], places: &[u8], upper: &mut [f32], lower: &mut [f32]) {
    let squares = upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2));
    for (((upper, lower), &gradient), &place) in squares.zip(gradients).zip(places) {
        upper[0] = if place == 0 { gradient } else { 0.0 };
        upper[1] = if place == 1 { gradient } else { 0.0 };
        lower[0] = if place == 2 { gradient } else { 0.0 };
        lower[1] = if place == 3 { gradient } else { 0.0 };
    }
}

/// A sum in 16 parts: the same bits at every level, and no chain of additions.
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
