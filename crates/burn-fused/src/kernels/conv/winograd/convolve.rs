//! The Winograd convolution. Forward uses it to compute the output. Backward uses it to compute the gradient
//! of the input, which is the output's gradient convolved with the flipped weights.
//!
//! Pixels and weights are transformed to factors, 6x6 for each tile of 4x4 outputs. The position of a factor
//! is called a point. At each point, the factors of pixels are multiplied by the factors of weights.

use std::ops::Range;

use super::super::Shape;
use super::super::epilogue::finish;
use super::super::plane::Plane;
use super::super::scratch::{Buffers, Scratch, with_buffers, with_shared};
use super::super::source::Source;
use super::factors::{PANEL, Panels, Pixels, ROWS, TransformTiles, transform_weights};
use super::tile_blocks::{Block, Pace, TILE};
use super::transform::{HalfTile, InputTransform, OutputTransform, POINTS, PRODUCTS, square};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::{Kernel, Lanes, Level, Scalars, add_products, load};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::{chunks, each, evenness, pieces, threads_for};

/// Approximate number of tiles in a block. With 256 channels, the factors of these tiles take 2.4 MB. The
/// factors of the weights, which take 9.4 MB with 256 inputs and outputs, are read once for each block.
const TILES: usize = 64;
/// Maximum number of input channels in one chain of additions. The sums of the chains are then added, because
/// one chain of 256 additions is three times less exact. The number is a multiple of the lanes of every SIMD
/// level.
const CHAIN: usize = 64;
/// Number of vectors of output channels in a chunk. The products of a chunk are computed and transformed
/// before the next chunk starts.
const CHUNK: usize = 2 * PANEL;

/// A convolution.
///
/// Threads share the images if there are enough of them. Otherwise they share the channels of each block:
/// first those of the input, which are transformed, and then those of the output.
pub struct Convolve<'a> {
    pub level: Level,
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub source: Source<'a>,
    /// The weights in the layout that [`transform_weights`] reads, flipped or not.
    pub weights: &'a [f32],
    pub flipped: bool,
    /// One bias for each output channel. `None` stands for zeros.
    pub bias: Option<&'a [f32]>,
    /// Whether the argmax of a pooling is kept.
    pub keeps_argmax: bool,
    /// If present, receives the results before the epilogue, in lanes: a [plane of whole tiles](Plane::tiled)
    /// for each image and vector of channels. The returned output is then empty.
    pub sums: Option<&'a mut [f32]>,
    /// The poll callback. It is called every few tens of microseconds.
    pub poll: Poll,
}

impl Convolve<'_> {
    /// Returns the output and the argmax.
    pub fn run(self) -> (Buffer, Vec<u8>) {
        let Self { level, shape, epilogue, source, bias, poll, .. } = self;
        let lanes = level.lanes();
        let panels = Panels::of_weights(shape, lanes);
        let [height, width] = shape.output_size(epilogue);
        let mut output = Buffer::new(if self.sums.is_some() { 0 } else { shape.output_len(epilogue) });
        let argmax_len = shape.batch * panels.vectors * height * width * lanes;
        let mut argmax = vec![0; if self.keeps_argmax { argmax_len } else { 0 }];
        let results =
            Results { output: &mut output, argmax: &mut argmax, sums: self.sums.unwrap_or_default() };

        let images = Block::images(shape, TILES);
        let count = shape.batch.div_ceil(images);
        let units = shape.blocks(images).zip(results.split(count, images, shape.batch));
        let time = shape.winograd_time(lanes);
        let (threads, chunks) = (threads_for(time), panels.vectors.div_ceil(CHUNK));
        with_shared(|shared| {
            let weights = shared.sums.take(panels.len() * lanes);
            transform_weights(level, shape, self.weights, self.flipped, weights);
            let products = Products { level, shape, epilogue, source: &source, bias, weights, poll };
            if evenness(count, threads) >= evenness(chunks, threads) {
                each(time, units, |(unit, results)| products.all_channels(unit, results));
            } else {
                units.for_each(|(unit, results)| products.by_channel(unit, results, &mut shared.input));
            }
        });
        (output, argmax)
    }
}

/// What all products of a convolution need.
#[derive(Clone, Copy)]
struct Products<'a> {
    level: Level,
    shape: Shape,
    epilogue: Epilogue,
    source: &'a Source<'a>,
    bias: Option<&'a [f32]>,
    /// The transformed weights.
    weights: &'a [f32],
    poll: Poll,
}

impl Products<'_> {
    /// Computes the images of `unit`, from image `first` on, on this thread.
    fn all_channels(self, (first, unit): (usize, Shape), results: Results<'_>) {
        let Self { level, source, .. } = self;
        let mut results: Vec<_> = results.split(unit.batch, 1, unit.batch).collect();
        with_buffers(|[Buffers { input, output, part, .. }, _]| {
            for block in Block::of_images(unit, first, TILES) {
                let pixels = Pixels::of_block(source, &block, level.lanes());
                let factors = input.take(pixels.len() * level.lanes());
                level.run(Transform { block, source, groups: 0..pixels.groups, factors, lanes: part });
                let vectors = 0..self.shape.outputs.div_ceil(level.lanes());
                let (results, buffers) = (&mut results[..], [&mut *output, &mut *part]);
                level.run(Chunk { products: self, block, factors, vectors, results, buffers });
            }
        });
    }

    /// Computes the images of `unit`, from image `first` on. The threads share the channels of each block.
    /// `shared` is scratch for the factors of a block.
    fn by_channel(self, (first, unit): (usize, Shape), results: Results<'_>, shared: &mut Scratch) {
        let Self { level, shape, source, .. } = self;
        let (lanes, all) = (level.lanes(), shape.outputs.div_ceil(level.lanes()));
        let mut results: Vec<_> = results.split(unit.batch, 1, unit.batch).collect();
        for block in Block::of_images(unit, first, TILES) {
            let pixels = Pixels::of_block(source, &block, lanes);
            let factors = shared.take(pixels.len() * lanes);
            let time = Shape { batch: block.images, ..shape }.winograd_time(lanes);
            each(time / 4, pieces(factors, pixels.groups).enumerate(), |(group, factors)| {
                with_buffers(|[buffers, _]| {
                    let (groups, lanes) = (group..group + 1, &mut buffers.part);
                    level.run(Transform { block, source, groups, factors, lanes });
                });
            });
            let mut chunks: Vec<Vec<Results>> = (0..all.div_ceil(CHUNK)).map(|_| Vec::new()).collect();
            for image in &mut results {
                let parts = image.split_channels([all, CHUNK], [shape.outputs, CHUNK * lanes]);
                chunks.iter_mut().zip(parts).for_each(|(chunk, part)| chunk.push(part));
            }
            let factors = &*factors;
            each(time, chunks.into_iter().enumerate(), |(chunk, mut results)| {
                with_buffers(|[buffers, _]| {
                    let vectors = chunk * CHUNK..all.min((chunk + 1) * CHUNK);
                    let buffers = [&mut buffers.output, &mut buffers.part];
                    let results = &mut results[..];
                    level.run(Chunk { products: self, block, factors, vectors, results, buffers });
                });
            });
        }
    }
}

/// Transforms the pixels of a block, of some groups of channels.
struct Transform<'a> {
    block: Block,
    source: &'a Source<'a>,
    groups: Range<usize>,
    /// Receives the factors of these groups.
    factors: &'a mut [f32],
    /// Scratch.
    lanes: &'a mut Scratch,
}

impl Kernel for Transform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { block, source, groups, factors, lanes } = self;
        let (pixels, plane) = (Pixels::of_block(source, &block, S::F32_LANES), block.bordered().len);
        let lanes = lanes.take(plane + plane / 4);
        let factors: &mut [S::f32s] = bytemuck::cast_slice_mut(factors);
        for (group, factors) in groups.zip(factors.chunks_exact_mut(pixels.group_step())) {
            let transform = TransformTiles {
                line: InputTransform,
                block: &block,
                source,
                group,
                lanes: &mut *lanes,
                target: factors,
                positions: [0, 1, pixels.step()],
                sum: None,
            };
            transform.run(simd);
        }
    }
}

/// Computes some vectors of output channels of a block.
struct Chunk<'a, 'r> {
    products: Products<'a>,
    block: Block,
    /// The transformed pixels of the block.
    factors: &'a [f32],
    vectors: Range<usize>,
    /// Receives the results of these channels, for each image of the block.
    results: &'a mut [Results<'r>],
    /// Scratch.
    buffers: [&'a mut Scratch; 2],
}

impl Kernel for Chunk<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        // The registers have to hold the sums of the rows, the vectors of a panel and a scalar.
        if S::REGISTER_COUNT >= 32 { self.with_rows::<S, 8>(simd) } else { self.with_rows::<S, 4>(simd) }
    }
}

impl Chunk<'_, '_> {
    #[inline(always)]
    fn with_rows<S: Lanes, const R: usize>(self, simd: S) {
        let Self { products: all, block, factors, vectors, results, buffers: [output, part] } = self;
        let Products { shape, epilogue, bias, weights, poll, .. } = all;
        let panels = Panels::of_weights(shape, S::F32_LANES);
        let factors: &[S::f32s] = bytemuck::cast_slice(factors);
        let weights: &[S::f32s] = bytemuck::cast_slice(weights);
        let tiles = block.tiles().next_multiple_of(ROWS);
        let pixels = Pixels { groups: shape.inputs.div_ceil(S::F32_LANES), tiles };
        let mut pace = Pace::new(poll);
        for first in vectors.clone().step_by(CHUNK) {
            let count = CHUNK.min(vectors.end - first);
            let step = tiles * count + 1;
            let products = output.take::<S::f32s>(PRODUCTS * step);
            for point in 0..PRODUCTS {
                // The number of tiles is rounded up to whole groups of `R` tiles. There is room for the
                // results of the additional tiles, which are not used.
                let [from, some] = block.tiles_with(point);
                let some = some.next_multiple_of(R);
                let from = from.min(tiles - some);
                let factors = &factors[point * pixels.step() + from..];
                let products = &mut products[point * step + from * count..][..some * count];
                for at in (0..count).step_by(PANEL) {
                    let panel = (first + at) / PANEL;
                    let width = panels.width(panel);
                    let weights = &weights[panels.at(panel, point)..][..shape.inputs * width];
                    let (factors, place) = ((factors, pixels.group_step()), (at, count));
                    match width {
                        PANEL => rows::<S, R, PANEL>(simd, some, factors, weights, place, products),
                        _ => rows::<S, R, 1>(simd, some, factors, weights, place, products),
                    }
                }
                pace.after(some * shape.inputs * count * S::F32_LANES);
            }
            let finish = Finish { shape, epilogue, block, bias };
            let lanes = part.take(2 * block.bordered().len);
            finish.run(simd, [first, count], first - vectors.start, (products, step), lanes, results);
        }
    }
}

/// The results of some images and some channels. Each of the slices is empty if its results are not needed.
pub(super) struct Results<'a> {
    output: &'a mut [f32],
    argmax: &'a mut [u8],
    sums: &'a mut [f32],
}

impl<'a> Results<'a> {
    /// Splits the results of `batch` images into `count` parts, of `images` images each. The last part may
    /// have fewer.
    fn split(self, count: usize, images: usize, batch: usize) -> impl Iterator<Item = Results<'a>> + Send {
        let Self { mut output, mut argmax, mut sums } = self;
        let sizes = [output.len(), argmax.len(), sums.len()].map(|len| len / batch.max(1));
        (0..count).map(move |part| {
            let images = images.min(batch - part * images);
            let [of_output, of_argmax, of_sums] = sizes.map(|size| size * images);
            Results {
                output: output.split_off_mut(..of_output).expect("its images"),
                argmax: argmax.split_off_mut(..of_argmax).expect("its images"),
                sums: sums.split_off_mut(..of_sums).expect("its images"),
            }
        })
    }

    /// Splits the results of one image into parts of `each` of its `vectors` vectors, which have `channel` of
    /// its `channels` channels.
    fn split_channels(
        &mut self,
        [vectors, each]: [usize; 2],
        [channels, channel]: [usize; 2],
    ) -> impl Iterator<Item = Results<'_>> {
        let [output, argmax, sums] =
            [self.output.len() / channels, self.argmax.len() / vectors, self.sums.len() / vectors];
        let output = chunks(self.output, output * channel);
        let others = chunks(self.argmax, argmax * each).zip(chunks(self.sums, sums * each));
        output.zip(others).map(|(output, (argmax, sums))| Results { output, argmax, sums })
    }
}

/// Multiplies `count` tiles of a block by the weights of a panel, at one point, `R` tiles at a time.
/// `factors` begins with the first tile; the groups of channels are `step` vectors apart. `weights` has `N`
/// vectors for each input channel. `products` has `vectors` vectors for each tile. The results of a tile are
/// stored from its vector `at` on.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn rows<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    count: usize,
    (factors, step): (&[S::f32s], usize),
    weights: &[S::f32s],
    (at, vectors): (usize, usize),
    products: &mut [S::f32s],
) {
    let values: &[f32] = bytemuck::cast_slice(factors);
    for tile in (0..count).step_by(R) {
        for (part, weights) in weights.chunks(CHAIN * N).enumerate() {
            let mut sums = [[simd.splat_f32s(0.0); N]; R];
            for (group, weights) in weights.chunks(S::F32_LANES * N).enumerate() {
                let first = ((part * CHAIN / S::F32_LANES + group) * step + tile) * S::F32_LANES;
                let scalars = Scalars { values, first, term_step: 1, row_step: S::F32_LANES };
                let vectors = (bytemuck::cast_slice(weights), N * S::F32_LANES);
                sums = add_products(simd, weights.len() / N, scalars, vectors, sums);
            }
            for r in 0..R {
                for n in 0..N {
                    let product = &mut products[(tile + r) * vectors + at + n];
                    *product = if part == 0 { sums[r][n] } else { simd.add_f32s(*product, sums[r][n]) };
                }
            }
        }
    }
}

/// The last steps of a block: the transform of the products, the bias and the epilogue.
struct Finish<'a> {
    shape: Shape,
    epilogue: Epilogue,
    block: Block,
    /// One bias for each output channel. `None` stands for zeros.
    bias: Option<&'a [f32]>,
}

impl Finish<'_> {
    /// Stores all outputs of `vectors` vectors of channels, beginning with vector `first`. In `results`, they
    /// begin at vector `place`. If an argmax is kept, it has the channels of a vector side by side.
    ///
    /// In `products`, the vectors of a tile are side by side, and points are `step` vectors apart. `lanes` is
    /// scratch of two planes. If the results before the epilogue are kept, nothing else is stored.
    #[inline(always)]
    fn run<S: Lanes>(
        &self,
        simd: S,
        [first, vectors]: [usize; 2],
        place: usize,
        (products, step): (&[S::f32s], usize),
        lanes: &mut [S::f32s],
        results: &mut [Results<'_>],
    ) {
        let Self { shape, epilogue, block, bias } = self;
        let plane = block.plane();
        let (lanes, scratch) = lanes.split_at_mut(plane.len);
        let [height, width] = shape.output_size(*epilogue);
        let above = epilogue.size(block.pixels(0))[0] * width;
        let whole = Plane::tiled([shape.height, shape.width]);
        for at in 0..vectors {
            let channel = (first + at) * S::F32_LANES;
            let channels = S::F32_LANES.min(shape.outputs - channel);
            let bias = match bias {
                Some(values) => load(simd, &values[channel..channel + channels]),
                None => simd.splat_f32s(0.0),
            };
            for (image, results) in results.iter_mut().enumerate() {
                let (vector, is_kept) = (place + at, !results.sums.is_empty());
                let lanes = if is_kept {
                    let kept: &mut [S::f32s] = bytemuck::cast_slice_mut(results.sums);
                    &mut kept[vector * whole.len + block.pixels(0)[0] * whole.stride..][..plane.len]
                } else {
                    &mut *lanes
                };
                for row in 0..block.rows() {
                    for column in 0..block.columns() {
                        let (position, halves) = block.tile(image, row, column);
                        let tile = position * vectors + at;
                        let products = &products[tile..=tile + (PRODUCTS - 1) * step];
                        // SAFETY: `y` and `x` are less than 6, so the point is at most 35, and `products`
                        // ends with the vector of point 35.
                        let product = |y, x| unsafe { *products.get_unchecked((y * POINTS + x) * step) };
                        let mut outputs = match halves {
                            [false, false] => square(simd, OutputTransform, OutputTransform, product),
                            [false, true] => {
                                square(simd, OutputTransform, HalfTile(OutputTransform), product)
                            }
                            [true, false] => {
                                square(simd, HalfTile(OutputTransform), OutputTransform, product)
                            }
                            [true, true] => {
                                square(simd, HalfTile(OutputTransform), HalfTile(OutputTransform), product)
                            }
                        };
                        for value in outputs.as_flattened_mut() {
                            *value = simd.add_f32s(*value, bias);
                        }
                        // Tiles may extend beyond the image; the plane has room for whole tiles.
                        let corner = (row * plane.stride + column) * TILE;
                        for (y, values) in outputs.iter().enumerate() {
                            lanes[corner + y * plane.stride..][..TILE].copy_from_slice(values);
                        }
                    }
                }
                if is_kept {
                    continue;
                }
                let from = vector * S::F32_LANES * height * width + above;
                let kept = (vector * height * width + above) * S::F32_LANES;
                let size = [channels, height * width];
                let argmax = results.argmax.get_mut(kept..).unwrap_or_default();
                finish(simd, *epilogue, plane, (lanes, scratch), size, &mut results.output[from..], argmax);
            }
        }
    }
}
