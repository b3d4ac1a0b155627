//! The gradients of weights and biases by Winograd. They are computed with the transposed transforms of the
//! convolution. The position of a value in a transformed 6x6 tile is called a point. At each point, the input
//! is multiplied by the gradient of the output, and the products are summed over all tiles.

use super::super::Shape;
use super::super::scratch::Buffers;
use super::super::source::Source;
use super::factors::{PANEL, Panels, Pixels, TransformTiles, weight_gradients};
use super::tile_blocks::{Block, Pace};
use super::transform::{InputTransform, OutputGradientTransform, PRODUCTS};
use crate::kernels::simd::{Kernel, Lanes, Scalars, add_products};
use crate::runtime::memory::Buffer;

/// Returns the approximate number of tiles in a block. All sums are read and written once for each block.
/// With few tiles in a block, this takes as long as the products.
fn tiles(shape: Shape) -> usize {
    if shape.inputs > 64 { 128 } else { 64 }
}

/// The gradients of weights and biases, for any SIMD level.
pub struct WeightGradient<'a> {
    pub shape: Shape,
    /// The input of forward.
    pub input: Source<'a>,
    /// The gradient of the convolution's results, before the normalisation and the epilogue.
    pub gradient: Source<'a>,
    /// Callback that lets communication progress. It is called every few tens of microseconds.
    pub between: &'a mut dyn FnMut(),
    pub buffers: &'a mut Buffers,
}

impl Kernel for WeightGradient<'_> {
    type Output = (Buffer, Vec<f32>);

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) -> Self::Output {
        // The `R` rows that are computed together are channels of one vector, so `R` cannot exceed the number
        // of lanes.
        if S::REGISTER_COUNT >= 32 && S::F32_LANES >= 8 {
            self.with_rows::<S, 8>(simd)
        } else {
            self.with_rows::<S, 4>(simd)
        }
    }
}

impl WeightGradient<'_> {
    #[inline(always)]
    fn with_rows<S: Lanes, const R: usize>(self, simd: S) -> (Buffer, Vec<f32>) {
        let Self { shape, input: source, gradient, .. } = self;
        let Buffers { input, output, part, sums } = self.buffers;
        let vectors = gradient.groups::<S>();
        let panels = Panels { terms: shape.inputs, vectors };
        let (sums, bias) = sums.take::<S::f32s>(panels.len() + vectors).split_at_mut(panels.len());
        bias.fill(simd.splat_f32s(0.0));
        let mut pace = Pace::new(self.between);
        for (number, block) in Block::all(shape, tiles(shape)).enumerate() {
            let pixels = Pixels { groups: source.groups::<S>(), tiles: block.tiles() };
            let factors = input.take::<S::f32s>(pixels.len());
            let plane = block.bordered().len;
            let lanes = part.take::<S::f32s>(plane + plane / 4);
            for group in 0..pixels.groups {
                let transform = TransformTiles {
                    line: InputTransform,
                    block: &block,
                    source: &source,
                    group,
                    lanes: &mut *lanes,
                    target: &mut *factors,
                    positions: [group * pixels.tiles, 1, pixels.step()],
                    sum: None,
                };
                transform.run(simd);
            }
            let products = Panels { terms: pixels.tiles, vectors };
            let gradients = output.take::<S::f32s>(products.len());
            for (vector, bias) in bias.iter_mut().enumerate() {
                let (panel, n) = (vector / PANEL, vector % PANEL);
                let transform = TransformTiles {
                    line: OutputGradientTransform,
                    block: &block,
                    source: &gradient,
                    group: vector,
                    lanes: &mut *lanes,
                    target: &mut *gradients,
                    positions: [products.at(panel, 0) + n, products.width(panel), products.step()],
                    sum: Some(bias),
                };
                transform.run(simd);
            }
            for point in 0..PRODUCTS {
                let factors = &factors[point * pixels.step()..][..pixels.groups * pixels.tiles];
                let [first, count] = block.tiles_with(point);
                let tiles = (pixels.tiles, [first, count]);
                for panel in 0..panels.count() {
                    let width = panels.width(panel);
                    let gradients = &gradients[products.at(panel, point) + first * width..][..count * width];
                    let sums = &mut sums[panels.at(panel, point)..][..shape.inputs * width];
                    match width {
                        PANEL => add_rows::<S, R, PANEL>(simd, tiles, factors, gradients, number == 0, sums),
                        _ => add_rows::<S, R, 1>(simd, tiles, factors, gradients, number == 0, sums),
                    }
                    pace.after(count * shape.inputs * width * S::F32_LANES);
                }
            }
        }
        let mut of_weights = Buffer::new(shape.weight_len());
        weight_gradients(simd, shape, sums, part.take(shape.inputs * 9), &mut of_weights);
        let of_bias: &[f32] = bytemuck::cast_slice(bias);
        (of_weights, of_bias[..shape.outputs].to_vec())
    }
}

/// Sums the products of a block's tiles at one point, for each input channel and the output channels of a
/// panel. Uses `count` of the `tiles` tiles, beginning with tile `start`. A block's sum starts from zero and
/// is then added to the sum of earlier blocks: one long chain of additions is up to four times less exact.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn add_rows<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    (tiles, [start, count]): (usize, [usize; 2]),
    factors: &[S::f32s],
    gradients: &[S::f32s],
    is_first: bool,
    sums: &mut [S::f32s],
) {
    let [values, gradients]: [&[f32]; 2] = [factors, gradients].map(bytemuck::cast_slice);
    for (rows, all) in sums.chunks_mut(R * N).enumerate() {
        let channel = rows * R;
        let first = (channel / S::F32_LANES * tiles + start) * S::F32_LANES + channel % S::F32_LANES;
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
