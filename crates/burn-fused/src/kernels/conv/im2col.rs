//! im2col + GEMM, for many channels.
//!
//! The 3x3 neighbourhoods of a group of pixels are copied to the columns of a matrix. The convolution is then
//! the product of the weights and this matrix. The groups are small, so that the matrix stays in the cache.

use std::ops::Range;

use super::direct::PARTS;
use super::scratch::{Buffers, with_buffers, with_shared};
use super::{Back, Convolution, Gradients, Shape};
use crate::kernels::epilogue::{Epilogue, passes, relu};
use crate::kernels::matrix::Matrix;
use crate::kernels::product::multiply;
use crate::kernels::simd::kernel;
use crate::kernels::squares::Squares;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each, pieces};

/// See [`Convolution::forward`]. The argmax is returned only if `keeps` is set.
pub fn forward(
    conv: Convolution,
    input: &[f32],
    [weights, bias]: [&[f32]; 2],
    keeps: bool,
) -> (Buffer, Vec<u8>) {
    let Convolution { level, shape, epilogue, .. } = conv;
    let mut output = Buffer::new(shape.output_len(epilogue));
    let mut argmax = vec![0; if keeps { output.len() } else { 0 }];
    let weights = Matrix::new(weights, [shape.outputs, shape.inputs * 9]);
    let images = images_of_part(shape);
    let sizes = [shape.input_len(), output.len(), argmax.len()].map(|len| len / shape.batch * images);
    let results = chunks(&mut output, sizes[1]).zip(chunks(&mut argmax, sizes[2]));
    let parts = shape.blocks(images).zip(input.chunks(sizes[0])).zip(results);
    each(time(shape, level.lanes()), parts, |(((_, shape), input), (output, argmax))| {
        let conv = Convolution { shape, ..conv };
        with_buffers(|[buffers, _]| {
            for group in Group::all(shape) {
                let pixels = group.pixels(shape);
                let columns = buffers.input.take(weights.columns * pixels);
                copy_columns(level, shape, group, columns, Images::Gather(input));
                let product = buffers.output.take(shape.outputs * pixels);
                multiply(level, weights, Matrix::new(columns, [weights.columns, pixels]), product, false);
                from_product(level, conv, group, product, bias, output, argmax);
            }
        });
    });
    (output, argmax)
}

/// See [`Convolution::backward`].
pub fn backward(conv: Convolution, back: Back<'_>, poll: Poll) -> Gradients {
    let Convolution { level, shape, epilogue, .. } = conv;
    let images = images_of_part(shape);
    let count = shape.batch.div_ceil(images);
    let mut of_input = back.of_input.then(|| Buffer::zeroed(shape.input_len()));
    let mut of_weights = Buffer::zeroed(shape.weight_len());
    let mut of_bias = vec![0.0; shape.outputs];
    let weights = Matrix::new(back.weights, [shape.outputs, shape.inputs * 9]);
    let [of_image, of_output] = [shape.input_len(), shape.output_len(epilogue)].map(|len| len / shape.batch);
    with_shared(|shared| {
        // The first part adds to the gradients, and each other part to sums of its own.
        let sums = shared.sums.take::<f32>((count - 1) * (shape.weight_len() + shape.outputs));
        sums.fill(0.0);
        let (weight_sums, bias_sums) = sums.split_at_mut((count - 1) * shape.weight_len());
        let of_parts = std::iter::once((&mut of_weights[..], &mut of_bias[..]))
            .chain(pieces(weight_sums, count - 1).zip(pieces(bias_sums, count - 1)));
        let parts =
            shape.blocks(images).zip(chunks(of_input.as_deref_mut().unwrap_or_default(), images * of_image));
        each(
            2 * time(shape, level.lanes()),
            parts.zip(of_parts),
            |(((first, shape), of_input), (of_weights, of_bias))| {
                let back = Back {
                    input: &back.input[first * of_image..],
                    output: back.output.get(first * of_output..).unwrap_or_default(),
                    argmax: back.argmax.get(first * of_output..).unwrap_or_default(),
                    gradient: &back.gradient[first * of_output..],
                    ..back
                };
                let conv = Convolution { shape, ..conv };
                with_buffers(|[Buffers { input, output, part, .. }, _]| {
                    for group in Group::all(shape) {
                        let pixels = group.pixels(shape);
                        let product = output.take(shape.outputs * pixels);
                        to_product(level, conv, group, back, product, of_bias);
                        let product = Matrix::new(product, [shape.outputs, pixels]);
                        let columns = input.take(weights.columns * pixels);
                        copy_columns(level, shape, group, columns, Images::Gather(back.input));
                        let columns = Matrix::new(columns, [weights.columns, pixels]);
                        multiply(level, product, columns.transpose(), of_weights, true);
                        poll.call();
                        if back.of_input {
                            let columns = part.take(weights.columns * pixels);
                            multiply(level, weights.transpose(), product, columns, false);
                            copy_columns(level, shape, group, columns, Images::Scatter(of_input));
                            poll.call();
                        }
                    }
                });
            },
        );
        poll.call();
        let (weight_sums, bias_sums) = sums.split_at((count - 1) * shape.weight_len());
        for sums in weight_sums.chunks_exact(shape.weight_len()) {
            of_weights.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        for sums in bias_sums.chunks_exact(shape.outputs) {
            of_bias.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
    });
    Gradients { input: of_input, weights: of_weights, bias: of_bias }
}

/// Approximate time on one thread in nanoseconds.
fn time(shape: Shape, lanes: usize) -> usize {
    shape.batch * shape.pixels() * shape.weight_len() / (super::RATE * lanes)
}

/// Returns the number of images in a part of the batch for a thread. In backward, each part has sums of its
/// own. With many weights, these would take more memory and time than they save, so there is one part, and
/// threads share the matrix products.
fn images_of_part(shape: Shape) -> usize {
    if shape.weight_len() > FEW_WEIGHTS {
        return shape.batch;
    }
    (4 * GROUP).div_ceil(shape.pixels()).max(shape.batch.div_ceil(PARTS))
}

/// Maximum number of weights if threads share the images.
const FEW_WEIGHTS: usize = 1 << 16;

/// Approximate number of pixels in a group. The columns of a group stay in the cache.
const GROUP: usize = 256;

/// Pixels whose columns form one matrix: whole images, or some rows of one image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    /// First image.
    pub first: usize,
    /// Number of images.
    pub images: usize,
    /// First row, and the row after the last.
    pub rows: [usize; 2],
}

impl Group {
    /// All groups of a batch, in order.
    pub fn all(shape: Shape) -> impl Iterator<Item = Self> {
        // Pooling reads pairs of rows, so each group begins with an even row.
        Self::split(shape, GROUP, 2)
    }

    /// Splits a batch into groups of about `most` pixels, in order. The index of each group's first row is a
    /// multiple of `multiple`.
    pub fn split(shape: Shape, most: usize, multiple: usize) -> impl Iterator<Item = Self> {
        let images = (most / shape.pixels()).clamp(1, shape.batch.max(1));
        let rows = (most / shape.width).max(1).next_multiple_of(multiple);
        let rows = if images > 1 || shape.pixels() <= most { shape.height } else { rows.min(shape.height) };
        (0..shape.batch).step_by(images).flat_map(move |first| {
            (0..shape.height).step_by(rows).map(move |row| Self {
                first,
                images: images.min(shape.batch - first),
                rows: [row, (row + rows).min(shape.height)],
            })
        })
    }

    /// Number of the group's pixels in one image.
    pub fn part(&self, shape: Shape) -> usize {
        (self.rows[1] - self.rows[0]) * shape.width
    }

    /// Number of the group's pixels in all images.
    pub fn pixels(&self, shape: Shape) -> usize {
        self.images * self.part(shape)
    }

    /// Returns the 2x2 squares of the group's pixels in one image. There are none if `epilogue` does not
    /// pool.
    fn squares(&self, shape: Shape, epilogue: Epilogue) -> Squares {
        let rows = if epilogue == Epilogue::ReluPool { self.rows[1] - self.rows[0] } else { 0 };
        Squares::new([rows, shape.width])
    }
}

/// What one tap reads for a part of a plane. A tap is a position of the 3x3 kernel. It reads one neighbour of
/// each pixel, such as the pixel above. A plane is one channel of one image, and a part is the group's pixels
/// in one plane. The fields say which pixels of the part have this neighbour in the plane, and where the
/// neighbours are.
struct Shift {
    /// First pixel of the part that has the neighbour.
    from: usize,
    /// One past the last pixel that has the neighbour.
    to: usize,
    /// Where the neighbour of pixel `from` is in the plane.
    source: usize,
    /// Column at the left or right edge. Its pixels lack the neighbour even if they are between `from` and
    /// `to`. `None` for a tap that reads the pixel's own column.
    edge: Option<usize>,
}

impl Shift {
    #[inline(always)]
    fn for_tap(shape: Shape, rows: [usize; 2], tap: usize) -> Self {
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

    /// Sets the pixels of the edge column to zero, because their neighbour would be in another row.
    #[inline(always)]
    fn clear_edge(&self, shape: Shape, part: &mut [f32]) {
        if let Some(edge) = self.edge {
            part.iter_mut().skip(edge).step_by(shape.width).for_each(|value| *value = 0.0);
        }
    }
}

/// Calls `each` for each channel, tap and image. `each` receives three arguments: the image's part of row
/// `9 * channel + tap` of `columns`, the index in the images at which the channel's plane begins, and the
/// tap's shift.
#[inline(always)]
fn rows(shape: Shape, group: Group, columns: &mut [f32], mut each: impl FnMut(&mut [f32], usize, &Shift)) {
    let (part, pixels) = (group.part(shape), group.pixels(shape));
    let shifts: [Shift; 9] = std::array::from_fn(|tap| Shift::for_tap(shape, group.rows, tap));
    for channel in 0..shape.inputs {
        for (tap, shift) in shifts.iter().enumerate() {
            let row = &mut columns[(channel * 9 + tap) * pixels..][..pixels];
            for (image, row) in row.chunks_exact_mut(part).enumerate() {
                each(row, ((group.first + image) * shape.inputs + channel) * shape.pixels(), shift);
            }
        }
    }
}

enum Images<'a> {
    Gather(&'a [f32]),
    Scatter(&'a mut [f32]),
}

kernel! {
    /// With [`Images::Gather`], copies images to columns (im2col): row `9 * input + tap` has, for each pixel,
    /// the neighbour that the tap reads. With [`Images::Scatter`], adds gradients of columns to images
    /// (col2im): each pixel accumulates the gradients of the columns that it was copied to.
    fn copy_columns<S>(_simd: S, shape: Shape, group: Group, columns: &mut [f32], images: Images<'_>) {
        match images {
            Images::Gather(input) => rows(shape, group, columns, |row, plane, shift| {
                let to = shift.to.max(shift.from);
                row[..shift.from].fill(0.0);
                if to > shift.from {
                    let source = &input[plane..plane + shape.pixels()][shift.source..];
                    row[shift.from..to].copy_from_slice(&source[..to - shift.from]);
                }
                row[to..].fill(0.0);
                shift.clear_edge(shape, row);
            }),
            Images::Scatter(of_input) => rows(shape, group, columns, |row, plane, shift| {
                shift.clear_edge(shape, row);
                if shift.to > shift.from {
                    let target = &mut of_input[plane..plane + shape.pixels()][shift.source..];
                    for (sum, value) in target.iter_mut().zip(&row[shift.from..shift.to]) {
                        *sum += value;
                    }
                }
            }),
        }
    }
}

/// Splits a product into one part for each channel and image. Returns three values for each part: its range
/// in the product, its channel, and its position in the output.
#[inline(always)]
fn planes(
    shape: Shape,
    epilogue: Epilogue,
    group: Group,
) -> impl Iterator<Item = (Range<usize>, usize, usize)> {
    let (part, images) = (group.part(shape), group.pixels(shape) / group.part(shape));
    let [height, width] = shape.output_size(epilogue);
    let above = epilogue.size([group.rows[0], 0])[0] * width;
    (0..shape.outputs * images).map(move |at| {
        let (channel, image) = (at / images, at % images);
        let plane = ((group.first + image) * shape.outputs + channel) * height * width;
        (at * part..(at + 1) * part, channel, plane + above)
    })
}

kernel! {
    /// Turns a product into the output: adds the bias, and applies ReLU and pooling.
    fn from_product<S>(
        simd: S,
        conv: Convolution,
        group: Group,
        product: &mut [f32],
        bias: &[f32],
        output: &mut [f32],
        argmax: &mut [u8],
    ) {
        let Convolution { shape, epilogue, .. } = conv;
        let mut squares = group.squares(shape, epilogue);
        for (at, channel, to) in planes(shape, epilogue, group) {
            let values = &mut product[at];
            values.iter_mut().for_each(|x| *x += bias[channel]);
            let target = &mut output[to..];
            match epilogue {
                Epilogue::Identity => target[..values.len()].copy_from_slice(values),
                Epilogue::Relu => target.iter_mut().zip(values).for_each(|(out, x)| *out = relu(*x)),
                Epilogue::ReluPool => {
                    let size = squares.len();
                    let argmax = if argmax.is_empty() { &mut [] } else { &mut argmax[to..][..size] };
                    squares.pool(simd, true, values, &mut target[..size], argmax);
                }
            }
        }
    }
}

kernel! {
    /// Turns the gradient of the output into the gradient of the product. For each channel, adds the sum of
    /// the product's gradient to `bias`, the gradient of the biases.
    fn to_product<S>(
        simd: S,
        conv: Convolution,
        group: Group,
        back: Back<'_>,
        product: &mut [f32],
        bias: &mut [f32],
    ) {
        let Convolution { shape, epilogue, .. } = conv;
        let mut squares = group.squares(shape, epilogue);
        for (at, _, from) in planes(shape, epilogue, group) {
            let values = &mut product[at];
            let gradient = &back.gradient[from..];
            match epilogue {
                Epilogue::Identity => values.copy_from_slice(&gradient[..values.len()]),
                Epilogue::Relu => {
                    let gradients = gradient.iter().zip(&back.output[from..]);
                    for (value, (&gradient, &output)) in values.iter_mut().zip(gradients) {
                        *value = if passes(output) { gradient } else { 0.0 };
                    }
                }
                Epilogue::ReluPool => {
                    let argmax = &back.argmax[from..][..squares.len()];
                    squares.spread(simd, &gradient[..squares.len()], argmax, values);
                }
            }
        }
        for (bias, row) in bias.iter_mut().zip(product.chunks_exact(group.pixels(shape))) {
            *bias += sum(row);
        }
    }
}

/// Returns the sum of `values`. It is computed in 16 independent parts, with the same bits at every SIMD
/// level.
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
