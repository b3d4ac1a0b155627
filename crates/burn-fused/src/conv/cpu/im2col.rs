//! im2col + GEMM, for many channels: the 3x3 neighbourhoods of a group of pixels
//! are the columns of a matrix, which stays in the cache.

use super::group::Group;
use super::matmul::multiply;
use super::scratch::{Buffers, with_buffers};
use super::{Back, Convolution, Gradients, Shape};
use crate::epilogue::{Epilogue, passes, pool_row, relu, spread_row};
use crate::matrix::Matrix;
use crate::simd::{Kernel, Lanes};

/// See [`Convolution::forward`]; the argmax is kept if `keeps`.
pub fn forward(
    conv: Convolution,
    input: &[f32],
    [weights, bias]: [&[f32]; 2],
    keeps: bool,
) -> (Vec<f32>, Vec<u8>) {
    let Convolution { level, shape, epilogue, .. } = conv;
    let mut output = vec![0.0; shape.output_len(epilogue)];
    let mut argmax = vec![0; if keeps { output.len() } else { 0 }];
    let weights = Matrix::new(weights, [shape.outputs, shape.inputs * 9]);
    with_buffers(|[buffers, _]| {
        for group in Group::all(shape) {
            let pixels = group.pixels(shape);
            let columns = buffers.input.take(weights.columns * pixels);
            level.run(Gather { shape, group, input, columns });
            let product = buffers.output.take(shape.outputs * pixels);
            multiply(level, weights, Matrix::new(columns, [weights.columns, pixels]), product, false);
            let (output, argmax) = (&mut output[..], &mut argmax[..]);
            level.run(FromProduct { shape, epilogue, group, product, bias, output, argmax });
        }
    });
    (output, argmax)
}

/// See [`Convolution::backward`].
pub fn backward(conv: Convolution, back: Back<'_>, between: &mut dyn FnMut()) -> Gradients {
    let Convolution { level, shape, epilogue, .. } = conv;
    let mut gradients = Gradients {
        input: back.of_input.then(|| vec![0.0; shape.input_len()]),
        weights: vec![0.0; shape.weight_len()],
        bias: vec![0.0; shape.outputs],
    };
    let weights = Matrix::new(back.weights, [shape.outputs, shape.inputs * 9]);
    with_buffers(|[Buffers { input, output, part, .. }, _]| {
        for group in Group::all(shape) {
            let pixels = group.pixels(shape);
            let product = output.take(shape.outputs * pixels);
            level.run(ToProduct { shape, epilogue, group, back, product, bias: &mut gradients.bias });
            let product = Matrix::new(product, [shape.outputs, pixels]);
            let columns = input.take(weights.columns * pixels);
            level.run(Gather { shape, group, input: back.input, columns });
            let columns = Matrix::new(columns, [weights.columns, pixels]);
            multiply(level, product, columns.transpose(), &mut gradients.weights, true);
            between();
            if let Some(of_input) = &mut gradients.input {
                let columns = part.take(weights.columns * pixels);
                multiply(level, weights.transpose(), product, columns, false);
                level.run(Scatter { shape, group, columns, of_input });
                between();
            }
        }
    });
    gradients
}

/// One tap of the kernel over a part of a plane: where the neighbours begin in the
/// plane, and which pixels of the part have that neighbour, apart from those at the
/// left or right edge.
struct Shift {
    /// First pixel of the part that has the neighbour.
    from: usize,
    /// One past the last pixel that has it.
    to: usize,
    /// The neighbour of pixel `from`.
    source: usize,
    /// Column whose pixels do not have it.
    edge: Option<usize>,
}

impl Shift {
    #[inline(always)]
    fn of(shape: Shape, rows: [usize; 2], tap: usize) -> Self {
        let (width, height) = (shape.width as isize, shape.height as isize);
        let [down, right] = [tap as isize / 3 - 1, tap as isize % 3 - 1];
        let [first, end] = rows.map(|row| row as isize * width);
        let offset = down * width + right;
        let source = (first + offset).max(0);
        let stop = (end + offset).min(width * height);
        Self {
            from: (source - first - offset).min(end - first) as usize,
            to: (stop - first - offset).max(0) as usize,
            source: source as usize,
            edge: match right {
                -1 => Some(0),
                1 => Some(shape.width - 1),
                _ => None,
            },
        }
    }

    /// Zeros where the neighbour would be in another row.
    #[inline(always)]
    fn clear_edge(&self, shape: Shape, part: &mut [f32]) {
        if let Some(edge) = self.edge {
            part.iter_mut().skip(edge).step_by(shape.width).for_each(|value| *value = 0.0);
        }
    }
}

/// Calls `each` with the row `9 channel + tap` of `columns` of each image, the image's plane and the
/// tap's shift.
#[inline(always)]
fn rows(shape: Shape, group: Group, columns: &mut [f32], mut each: impl FnMut(&mut [f32], usize, &Shift)) {
    let (part, pixels) = (group.part(shape), group.pixels(shape));
    let shifts: [Shift; 9] = std::array::from_fn(|tap| Shift::of(shape, group.rows, tap));
    for channel in 0..shape.inputs {
        for (tap, shift) in shifts.iter().enumerate() {
            let row = &mut columns[(channel * 9 + tap) * pixels..][..pixels];
            for (image, row) in row.chunks_exact_mut(part).enumerate() {
                each(row, ((group.first + image) * shape.inputs + channel) * shape.pixels(), shift);
            }
        }
    }
}

/// Images to columns (im2col): row `9 input + tap` has that neighbour of each pixel.
struct Gather<'a> {
    shape: Shape,
    group: Group,
    input: &'a [f32],
    columns: &'a mut [f32],
}

impl Kernel for Gather<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { shape, group, input, columns } = self;
        rows(shape, group, columns, |row, plane, shift| {
            let to = shift.to.max(shift.from);
            row[..shift.from].fill(0.0);
            if to > shift.from {
                let source = &input[plane..plane + shape.pixels()][shift.source..];
                row[shift.from..to].copy_from_slice(&source[..to - shift.from]);
            }
            row[to..].fill(0.0);
            shift.clear_edge(shape, row);
        });
    }
}

/// Gradients of columns to images (col2im): each pixel accumulates the gradients of
/// the pixels that it was a neighbour of.
struct Scatter<'a> {
    shape: Shape,
    group: Group,
    columns: &'a mut [f32],
    of_input: &'a mut [f32],
}

impl Kernel for Scatter<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        let Self { shape, group, columns, of_input } = self;
        rows(shape, group, columns, |row, plane, shift| {
            shift.clear_edge(shape, row);
            if shift.to > shift.from {
                let target = &mut of_input[plane..plane + shape.pixels()][shift.source..];
                for (sum, value) in target.iter_mut().zip(&row[shift.from..shift.to]) {
                    *sum += value;
                }
            }
        });
    }
}

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
