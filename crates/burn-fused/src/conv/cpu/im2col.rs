//! im2col + GEMM, for many channels: the 3x3 neighbourhoods of a group of pixels
//! are the columns of a matrix, which stays in the cache.

use super::gemm_epilogue::{FromProduct, ToProduct};
use super::group::Group;
use super::matmul::{Matrix, multiply};
use super::scratch::{Buffers, with_buffers};
use super::{Argmax, Forward, Gradients, Shape};
use crate::epilogue::Epilogue;
use crate::simd::{Kernel, Lanes, Level};

/// See [`super::forward`].
pub fn forward(
    level: Level,
    shape: Shape,
    epilogue: Epilogue,
    input: &[f32],
    weights: &[f32],
    bias: &[f32],
    backward: bool,
) -> (Vec<f32>, Argmax) {
    let mut output = vec![0.0; shape.output_len(epilogue)];
    let keeps = backward && epilogue == Epilogue::ReluPool;
    let mut argmax = vec![0; if keeps { output.len() } else { 0 }];
    let weights = Matrix::of(weights, shape.outputs, shape.inputs * 9);
    with_buffers(|[buffers, _]| {
        for group in Group::all(shape) {
            let pixels = group.pixels(shape);
            let columns = buffers.input.take(weights.columns() * pixels);
            level.run(Gather { shape, group, input, columns });
            let product = buffers.output.take(shape.outputs * pixels);
            multiply(level, weights, Matrix::of(columns, weights.columns(), pixels), product, false);
            level.run(FromProduct {
                shape,
                epilogue,
                group,
                product,
                bias,
                output: &mut output,
                argmax: &mut argmax,
            });
        }
    });
    (output, if keeps { Argmax::Plain(argmax) } else { Argmax::Unknown })
}

/// See [`super::backward`].
pub fn backward(
    level: Level,
    shape: Shape,
    epilogue: Epilogue,
    forward: Forward<'_>,
    gradient: &[f32],
    of_input: bool,
    between: &mut dyn FnMut(),
) -> Gradients {
    let mut gradients = Gradients {
        input: of_input.then(|| vec![0.0; shape.input_len()]),
        weights: vec![0.0; shape.weight_len()],
        bias: vec![0.0; shape.outputs],
    };
    let weights = Matrix::of(forward.weights, shape.outputs, shape.inputs * 9);
    with_buffers(|[Buffers { input, output, part, .. }, _]| {
        for group in Group::all(shape) {
            let pixels = group.pixels(shape);
            let product = output.take(shape.outputs * pixels);
            let bias = &mut gradients.bias;
            level.run(ToProduct { shape, epilogue, group, forward, gradient, product, bias });
            let product = Matrix::of(product, shape.outputs, pixels);
            let columns = input.take(weights.columns() * pixels);
            level.run(Gather { shape, group, input: forward.input, columns });
            let columns = Matrix::of(columns, weights.columns(), pixels);
            multiply(level, product, columns.transposed(), &mut gradients.weights, true);
            between();
            if let Some(of_input) = &mut gradients.input {
                let columns = part.take(weights.columns() * pixels);
                multiply(level, weights.transposed(), product, columns, false);
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
        let Self { shape, group, .. } = self;
        let (part, pixels) = (group.part(shape), group.pixels(shape));
        let shifts: [Shift; 9] = std::array::from_fn(|tap| Shift::of(shape, group.rows, tap));
        for channel in 0..shape.inputs {
            for (tap, shift) in shifts.iter().enumerate() {
                let row = &mut self.columns[(channel * 9 + tap) * pixels..][..pixels];
                for (image, row) in row.chunks_exact_mut(part).enumerate() {
                    let plane = ((group.first + image) * shape.inputs + channel) * shape.pixels();
                    let source = &self.input[plane..plane + shape.pixels()];
                    row[..shift.from].fill(0.0);
                    let count = shift.to.saturating_sub(shift.from);
                    if count > 0 {
                        row[shift.from..shift.to].copy_from_slice(&source[shift.source..][..count]);
                    }
                    row[shift.to.max(shift.from)..].fill(0.0);
                    shift.clear_edge(shape, row);
                }
            }
        }
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
        let Self { shape, group, .. } = self;
        let (part, pixels) = (group.part(shape), group.pixels(shape));
        let shifts: [Shift; 9] = std::array::from_fn(|tap| Shift::of(shape, group.rows, tap));
        for channel in 0..shape.inputs {
            for (tap, shift) in shifts.iter().enumerate() {
                let row = &mut self.columns[(channel * 9 + tap) * pixels..][..pixels];
                for (image, row) in row.chunks_exact_mut(part).enumerate() {
                    shift.clear_edge(shape, row);
                    let plane = ((group.first + image) * shape.inputs + channel) * shape.pixels();
                    let target = &mut self.of_input[plane..plane + shape.pixels()];
                    if shift.to > shift.from {
                        let target = &mut target[shift.source..][..shift.to - shift.from];
                        for (sum, value) in target.iter_mut().zip(&row[shift.from..shift.to]) {
                            *sum += value;
                        }
                    }
                }
            }
        }
    }
}
