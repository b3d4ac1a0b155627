//! The Winograd convolution. Forward uses it to compute the output. Backward uses it to compute the gradient
//! of the input, which is the output's gradient convolved with the flipped weights.
//!
//! Pixels and weights are transformed to factors, 6x6 for each tile of 4x4 outputs. The position of a factor
//! is called a point. At each point, the factors of pixels are multiplied by the factors of weights.

use super::super::Shape;
use super::super::epilogue::finish;
use super::super::plane::Plane;
use super::super::scratch::Buffers;
use super::super::source::Source;
use super::factors::{PANEL, Panels, Pixels, TransformTiles, transform_weights};
use super::tile_blocks::{Block, Pace, TILE};
use super::transform::{HalfTile, InputTransform, OutputTransform, POINTS, PRODUCTS, square};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::{Kernel, Lanes, Scalars, add_products, load};
use crate::runtime::memory::Buffer;

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

/// A convolution, for any SIMD level.
pub struct Convolve<'a> {
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
    /// Callback that lets communication progress. It is called every few tens of microseconds.
    pub between: &'a mut dyn FnMut(),
    pub buffers: &'a mut Buffers,
}

impl Kernel for Convolve<'_> {
    type Output = (Buffer, Vec<u8>);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        // The registers have to hold the sums of the rows, the vectors of a panel and a scalar.
        if S::REGISTER_COUNT >= 32 { self.with_rows::<S, 8>(simd) } else { self.with_rows::<S, 4>(simd) }
    }
}

impl Convolve<'_> {
    #[inline(always)]
    fn with_rows<S: Lanes, const R: usize>(self, simd: S) -> (Buffer, Vec<u8>) {
        let Self { shape, epilogue, source, .. } = self;
        let Buffers { input, output, part, sums } = self.buffers;
        let panels = Panels { terms: shape.inputs, vectors: shape.outputs.div_ceil(S::F32_LANES) };
        let weights = sums.take::<S::f32s>(panels.len());
        transform_weights(simd, shape, self.weights, self.flipped, part.take(shape.inputs * 9), weights);

        let mut pace = Pace::new(self.between);
        let mut kept = self.sums.map(bytemuck::cast_slice_mut);
        let mut result = Buffer::new(if kept.is_some() { 0 } else { shape.output_len(epilogue) });
        let [height, width] = shape.output_size(epilogue);
        let argmax_len = shape.batch * panels.vectors * height * width * S::F32_LANES;
        let mut argmax = vec![0; if self.keeps_argmax { argmax_len } else { 0 }];
        for block in Block::all(shape, TILES) {
            let tiles = block.tiles().next_multiple_of(R);
            let pixels = Pixels { groups: source.groups::<S>(), tiles };
            let factors = input.take::<S::f32s>(pixels.len());
            let plane = block.bordered().len;
            let lanes = part.take(plane + plane / 4);
            for group in 0..pixels.groups {
                let transform = TransformTiles {
                    line: InputTransform,
                    block: &block,
                    source: &source,
                    group,
                    lanes: &mut *lanes,
                    target: &mut *factors,
                    positions: [group * tiles, 1, pixels.step()],
                    sum: None,
                };
                transform.run(simd);
            }
            for first in (0..panels.vectors).step_by(CHUNK) {
                let vectors = CHUNK.min(panels.vectors - first);
                let step = tiles * vectors + 1;
                let products = output.take::<S::f32s>(PRODUCTS * step);
                for point in 0..PRODUCTS {
                    // The number of tiles is rounded up to whole groups of `R` tiles. There is room for the
                    // results of the additional tiles, which are not used.
                    let [from, count] = block.tiles_with(point);
                    let count = count.next_multiple_of(R);
                    let some = (tiles, [from.min(tiles - count), count]);
                    let factors = &factors[point * pixels.step()..][..pixels.groups * tiles];
                    let products = &mut products[point * step..][..tiles * vectors];
                    for at in (0..vectors).step_by(PANEL) {
                        let panel = (first + at) / PANEL;
                        let width = panels.width(panel);
                        let weights = &weights[panels.at(panel, point)..][..shape.inputs * width];
                        match width {
                            PANEL => {
                                rows::<S, R, PANEL>(simd, some, factors, weights, (at, vectors), products)
                            }
                            _ => rows::<S, R, 1>(simd, some, factors, weights, (at, vectors), products),
                        }
                    }
                    pace.after(count * shape.inputs * vectors * S::F32_LANES);
                }
                let finish = Finish { shape, epilogue, block, bias: self.bias };
                let lanes = part.take(2 * plane);
                let kept = kept.as_deref_mut();
                finish.run(simd, [first, vectors], (products, step), (lanes, kept), &mut result, &mut argmax);
            }
        }
        (result, argmax)
    }
}

/// Multiplies the block's tiles by the weights of a panel, at one point, `R` tiles at a time. Computes
/// `count` of the `tiles` tiles, beginning with tile `first`. `weights` has `N` vectors for each input
/// channel. `products` has `vectors` vectors for each tile. The results of a tile are stored from its vector
/// `at` on.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn rows<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    (tiles, [first, count]): (usize, [usize; 2]),
    factors: &[S::f32s],
    weights: &[S::f32s],
    (at, vectors): (usize, usize),
    products: &mut [S::f32s],
) {
    let values: &[f32] = bytemuck::cast_slice(factors);
    for tile in (first..first + count).step_by(R) {
        for (part, weights) in weights.chunks(CHAIN * N).enumerate() {
            let mut sums = [[simd.splat_f32s(0.0); N]; R];
            for (group, weights) in weights.chunks(S::F32_LANES * N).enumerate() {
                let first = ((part * CHAIN / S::F32_LANES + group) * tiles + tile) * S::F32_LANES;
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
    /// Stores all outputs of `vectors` vectors of channels, beginning with vector `first`. If `argmax` is not
    /// empty, it receives the argmax of each pooled pixel, with the channels of a vector side by side.
    ///
    /// In `products`, the vectors of a tile are side by side, and points are `step` vectors apart. `lanes` is
    /// scratch of two planes. If `kept` is present, it receives the results before the epilogue, and `output`
    /// and `argmax` stay unchanged.
    #[inline(always)]
    fn run<S: Lanes>(
        &self,
        simd: S,
        [first, vectors]: [usize; 2],
        (products, step): (&[S::f32s], usize),
        (lanes, mut kept): (&mut [S::f32s], Option<&mut [S::f32s]>),
        output: &mut [f32],
        argmax: &mut [u8],
    ) {
        let Self { shape, epilogue, block, bias } = self;
        let plane = block.plane();
        let (lanes, scratch) = lanes.split_at_mut(plane.len);
        let [height, width] = shape.output_size(*epilogue);
        let above = epilogue.size(block.pixels(0))[0] * width;
        let (whole, is_kept) = (Plane::tiled([shape.height, shape.width]), kept.is_some());
        for at in 0..vectors {
            let channel = (first + at) * S::F32_LANES;
            let channels = S::F32_LANES.min(shape.outputs - channel);
            let bias = match bias {
                Some(values) => load(simd, &values[channel..channel + channels]),
                None => simd.splat_f32s(0.0),
            };
            for image in block.first..block.first + block.images {
                let vector = image * shape.outputs.div_ceil(S::F32_LANES) + first + at;
                let lanes = match &mut kept {
                    Some(kept) => {
                        &mut kept[vector * whole.len + block.pixels(0)[0] * whole.stride..][..plane.len]
                    }
                    None => &mut *lanes,
                };
                for row in 0..block.rows() {
                    for column in 0..block.columns() {
                        let (position, halves) = block.tile(image - block.first, row, column);
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
                let from = (image * shape.outputs + channel) * height * width + above;
                let kept = (vector * height * width + above) * S::F32_LANES;
                let size = [channels, height * width];
                let argmax = argmax.get_mut(kept..).unwrap_or_default();
                finish(simd, *epilogue, plane, (lanes, scratch), size, &mut output[from..], argmax);
            }
        }
    }
}
