//! The gradients of weights and biases by Winograd. They are computed with the transposed transforms of the
//! convolution. The position of a value in a transformed 6x6 tile is called a point. At each point, the input
//! is multiplied by the gradient of the output, and the products are summed over all tiles.

use super::super::scratch::{Scratch, with_buffers, with_shared};
use super::super::source::Source;
use super::super::{RATE, Shape};
use super::factors::{PANEL, Panels, Pixels, TransformTiles, weight_gradients};
use super::tile_blocks::{Block, Pace};
use super::transform::{InputTransform, OutputGradientTransform, PRODUCTS};
use crate::kernels::simd::{Kernel, Lanes, Level, Scalars, add_products};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{each, pieces, threads_for};

/// Returns the approximate number of tiles in a block. All sums are read and written once for each block.
/// With few tiles in a block, this takes as long as the products.
fn tiles(shape: Shape) -> usize {
    if shape.inputs > 64 { 128 } else { 64 }
}

/// Time of a block in nanoseconds below which two blocks for each thread are transformed at once, because
/// threads would otherwise wait for each other too often. Such blocks need little memory.
const SHORT: usize = 200_000;
/// Approximate time in nanoseconds of an item for a thread.
const ITEM: usize = 8192;

/// The gradients of weights and biases.
///
/// The sums of all points and channels are independent of each other, so threads share them: the sums of all
/// panels at a point, then those at the next point, because they read the same factors of pixels. As many
/// blocks as there are threads are transformed first, and then added to the sums in their order. These blocks
/// are from all parts of the batch ([`spread`]), so that each thread transforms images that it has computed.
pub struct WeightGradient<'a> {
    pub level: Level,
    pub shape: Shape,
    /// The input of forward.
    pub input: Source<'a>,
    /// The gradient of the convolution's results, before the normalisation and the epilogue.
    pub gradient: Source<'a>,
    /// The poll callback. It is called every few tens of microseconds.
    pub poll: Poll,
}

impl WeightGradient<'_> {
    /// Returns the gradients of weights and biases.
    pub fn run(self) -> (Buffer, Vec<f32>) {
        let Self { level, shape, ref input, ref gradient, poll } = self;
        let lanes = level.lanes();
        let panels = Panels::of_weights(shape, lanes);
        let (tiles, time) = (tiles(shape), shape.winograd_time(lanes));
        let mut bias = vec![0.0; panels.vectors * lanes];
        let mut of_weights = Buffer::new(shape.weight_len());
        with_shared(|shared| {
            let sums = shared.sums.take::<f32>(panels.len() * lanes);
            let blocks = spread(&Block::all(shape, tiles).collect::<Vec<_>>());
            let threads = threads_for(time);
            let twice = threads > 1 && time / blocks.len() < SHORT;
            let at_once = (threads * (1 + usize::from(twice))).min(blocks.len());
            // All blocks have the layout of the largest.
            let tiles = blocks.iter().map(Block::tiles).max().unwrap_or_default();
            let pixels = Pixels { groups: shape.inputs.div_ceil(lanes), tiles };
            let gradients = Panels { terms: tiles, vectors: panels.vectors };
            let panels_at_once = ITEM.div_ceil((tiles * shape.inputs * PANEL / RATE).max(1));
            for (number, blocks) in blocks.chunks(at_once).enumerate() {
                let time = time / shape.batch * blocks.iter().map(|block| block.images).sum::<usize>();
                let factors = shared.input.take(blocks.len() * pixels.len() * lanes);
                let of_gradient = shared.output.take(blocks.len() * gradients.len() * lanes);
                let mut of_bias = vec![0.0; blocks.len() * bias.len()];
                let targets = pieces(factors, blocks.len()).zip(pieces(of_gradient, blocks.len()));
                let mut of_blocks: Vec<_> =
                    blocks.iter().zip(targets).zip(of_bias.chunks_mut(bias.len())).collect();
                of_blocks.sort_by_key(|((block, _), _)| block.first);
                let transforms = of_blocks.into_iter().flat_map(|((block, (factors, of_gradient)), bias)| {
                    let groups = pieces(factors, pixels.groups).enumerate();
                    let groups = groups.map(move |(group, target)| Transform::Input {
                        pixels,
                        block,
                        source: input,
                        group,
                        target,
                    });
                    let of_panels = pieces(of_gradient, gradients.count());
                    let of_panels = of_panels.zip(bias.chunks_mut(PANEL * lanes)).enumerate();
                    let of_panels = of_panels.map(move |(panel, (target, bias))| Transform::Gradient {
                        panels: gradients,
                        block,
                        source: gradient,
                        panel,
                        target,
                        bias,
                    });
                    groups.chain(of_panels)
                });
                each(time / 4, transforms, |transform| {
                    with_buffers(|[buffers, _]| level.run((transform, &mut buffers.part)));
                    poll.call();
                });
                for of_block in of_bias.chunks(bias.len()) {
                    bias.iter_mut().zip(of_block).for_each(|(sum, value)| *sum += value);
                }
                let (factors, of_gradient) = (&*factors, &*of_gradient);
                let (step, is_first) = (panels.step() * lanes, number == 0);
                let points = pieces(sums, PRODUCTS).enumerate().flat_map(|(point, sums)| {
                    let items = sums.chunks_mut(panels_at_once * step).enumerate();
                    items.map(move |(item, sums)| (point, item * panels_at_once, sums))
                });
                each(time, points, |(point, first, sums)| {
                    let (layouts, matrices) = ((pixels, gradients, panels), [factors, of_gradient]);
                    level.run(AddProducts { layouts, blocks, point, first, matrices, is_first, sums, poll });
                });
            }
            weight_gradients(level, shape, sums, &mut of_weights);
        });
        bias.truncate(shape.outputs);
        (of_weights, bias)
    }
}

/// Returns `blocks` in an order in which any number of consecutive ones are from all parts of the batch: those
/// of the first half alternate with those of the second half, and each half is in such an order.
fn spread<T: Clone>(blocks: &[T]) -> Vec<T> {
    let (first, second) = blocks.split_at(blocks.len().div_ceil(2));
    if second.is_empty() {
        return first.to_vec();
    }
    let mut second = spread(second).into_iter();
    spread(first).into_iter().flat_map(|block| [block].into_iter().chain(second.next())).collect()
}

/// Transforms a part of a block.
enum Transform<'a> {
    /// The input's pixels of a group of channels.
    Input { pixels: Pixels, block: &'a Block, source: &'a Source<'a>, group: usize, target: &'a mut [f32] },
    /// The gradients of a panel of output channels. Their sums are written to `bias`.
    Gradient {
        panels: Panels,
        block: &'a Block,
        source: &'a Source<'a>,
        panel: usize,
        target: &'a mut [f32],
        bias: &'a mut [f32],
    },
}

impl Kernel for (Transform<'_>, &mut Scratch) {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let (transform, scratch) = self;
        match transform {
            Transform::Input { pixels, block, source, group, target } => {
                let plane = block.bordered().len;
                let transform = TransformTiles {
                    line: InputTransform,
                    block,
                    source,
                    group,
                    lanes: scratch.take::<S::f32s>(plane + plane / 4),
                    target: bytemuck::cast_slice_mut(target),
                    positions: [0, 1, pixels.step()],
                    sum: None,
                };
                transform.run(simd);
            }
            Transform::Gradient { panels, block, source, panel, target, bias } => {
                let (plane, width) = (block.bordered().len, panels.width(panel));
                let lanes = scratch.take::<S::f32s>(plane + plane / 4);
                for (n, bias) in bias.chunks_exact_mut(S::F32_LANES).enumerate() {
                    let mut sum = simd.splat_f32s(0.0);
                    let transform = TransformTiles {
                        line: OutputGradientTransform,
                        block,
                        source,
                        group: panel * PANEL + n,
                        lanes: &mut *lanes,
                        target: bytemuck::cast_slice_mut(target),
                        positions: [n, width, panels.step()],
                        sum: Some(&mut sum),
                    };
                    transform.run(simd);
                    bias.copy_from_slice(bytemuck::cast_slice(&[sum]));
                }
            }
        }
    }
}

/// Adds the products of some blocks to the sums of some panels at a point.
struct AddProducts<'a> {
    /// The layouts of the input's factors of a block, of the gradient's, and of the sums.
    layouts: (Pixels, Panels, Panels),
    blocks: &'a [Block],
    point: usize,
    /// The first panel.
    first: usize,
    /// The factors of the input and of the gradient, of all blocks.
    matrices: [&'a [f32]; 2],
    /// Whether the sums are those of the first block.
    is_first: bool,
    sums: &'a mut [f32],
    poll: Poll,
}

impl Kernel for AddProducts<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        // The `R` rows that are computed together are channels of one vector, so `R` cannot exceed the number
        // of lanes.
        if S::REGISTER_COUNT >= 32 && S::F32_LANES >= 8 {
            self.with_rows::<S, 8>(simd)
        } else {
            self.with_rows::<S, 4>(simd)
        }
    }
}

impl AddProducts<'_> {
    #[inline(always)]
    fn with_rows<S: Lanes, const R: usize>(self, simd: S) {
        let Self {
            layouts: (pixels, gradients, panels), blocks, point, matrices, is_first, sums, poll, ..
        } = self;
        let [factors, of_gradient] = matrices.map(bytemuck::cast_slice::<f32, S::f32s>);
        let (sums, mut pace) = (bytemuck::cast_slice_mut::<f32, S::f32s>(sums), Pace::new(poll));
        for (at, sums) in sums.chunks_exact_mut(panels.step()).enumerate() {
            let panel = self.first + at;
            let width = panels.width(panel);
            let sums = &mut sums[..panels.terms * width];
            for (number, block) in blocks.iter().enumerate() {
                let [first, count] = block.tiles_with(point);
                let from = number * pixels.len() + point * pixels.step() + first;
                let factors = (&factors[from..], pixels.group_step());
                let from = number * gradients.len() + gradients.at(panel, point) + first * width;
                let (rows, is_first) = (&of_gradient[from..][..count * width], is_first && number == 0);
                match width {
                    PANEL => add_rows::<S, R, PANEL>(simd, count, factors, rows, is_first, sums),
                    _ => add_rows::<S, R, 1>(simd, count, factors, rows, is_first, sums),
                }
                pace.after(count * panels.terms * width * S::F32_LANES);
            }
        }
        poll.call();
    }
}

/// Sums the products of `count` tiles of a block at one point, for each input channel and the output channels
/// of a panel. `factors` begins with the first of the tiles; the groups of channels are `step` vectors apart.
/// A block's sum starts from zero and is then added to the sum of earlier blocks: one long chain of additions
/// is up to four times less exact.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn add_rows<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    count: usize,
    (factors, step): (&[S::f32s], usize),
    gradients: &[S::f32s],
    is_first: bool,
    sums: &mut [S::f32s],
) {
    let [values, gradients]: [&[f32]; 2] = [factors, gradients].map(bytemuck::cast_slice);
    for (rows, all) in sums.chunks_mut(R * N).enumerate() {
        let channel = rows * R;
        let first = channel / S::F32_LANES * step * S::F32_LANES + channel % S::F32_LANES;
        let scalars = Scalars { values, first, term_step: S::F32_LANES, row_step: 1 };
        let zeros = [[simd.splat_f32s(0.0); N]; R];
        let found = add_products(simd, count, scalars, (gradients, N * S::F32_LANES), zeros);
        let valid = all.len() / N;
        for r in 0..R {
            // The last vector may have fewer channels than lanes.
            if r >= valid {
                break;
            }
            for n in 0..N {
                let sum = &mut all[r * N + n];
                *sum = if is_first { found[r][n] } else { simd.add_f32s(*sum, found[r][n]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_blocks_are_from_all_parts_of_the_batch() {
        assert_eq!(spread(&[0, 1, 2, 3, 4, 5, 6, 7]), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(spread(&[0, 1, 2, 3, 4]), [0, 3, 2, 4, 1]);
        assert_eq!((spread(&[0, 1]), spread(&[0]), spread::<u8>(&[])), (vec![0, 1], vec![0], vec![]));
    }
}
