//! The factors of Winograd's matrix products. This file transforms pixels and weights to factors, and
//! gradients of factors back to gradients of weights. The position of a factor in its 6x6 square is called a
//! point.

use super::super::Shape;
use super::super::blocks::total;
use super::super::plane::Plane;
use super::super::scratch::{Scratch, with_buffers};
use super::super::source::Source;
use super::tile_blocks::{BORDER, Block, TILE};
use super::transform::{
    HalfTile, LineTransform, POINTS, PRODUCTS, WeightGradientTransform, WeightTransform, square,
};
use crate::kernels::simd::{Kernel, Lanes, Level};
use crate::runtime::threads::{each, pieces};

/// The layout of the transformed pixels of a block. For each group of channels and each point, it has one
/// vector for each tile. A group is the channels of one vector.
#[derive(Debug, Clone, Copy)]
pub struct Pixels {
    /// Number of groups of channels.
    pub groups: usize,
    /// Number of tiles in the block. The convolution multiplies several tiles at a time, and rounds the
    /// number of tiles up to a multiple.
    pub tiles: usize,
}

/// Maximum number of tiles that the convolution multiplies at a time.
pub const ROWS: usize = 8;

impl Pixels {
    /// The layout of a block of `source` for the convolution, in vectors of `lanes` channels.
    #[inline(always)]
    pub fn of_block(source: &Source<'_>, block: &Block, lanes: usize) -> Self {
        Self { groups: source.channels.div_ceil(lanes), tiles: block.tiles().next_multiple_of(ROWS) }
    }

    /// Number of vectors from one point to the next. There is one vector more than needed, for the reason
    /// given at [`Panels::step`].
    #[inline(always)]
    pub fn step(self) -> usize {
        self.tiles + 1
    }

    /// Number of vectors from one group to the next.
    #[inline(always)]
    pub fn group_step(self) -> usize {
        PRODUCTS * self.step()
    }

    /// Number of vectors of all groups.
    pub fn len(self) -> usize {
        self.groups * self.group_step()
    }
}

/// Transforms the tiles of a group of channels. The 6x6 tiles of an input include pixels around the block.
/// The 4x4 tiles of an output's gradient do not.
pub struct TransformTiles<'a, S: Lanes, L> {
    /// The transform of a row or column.
    pub line: L,
    /// The tiles.
    pub block: &'a Block,
    /// Images, or the gradient of a convolution's output.
    pub source: &'a Source<'a>,
    /// The group of channels.
    pub group: usize,
    /// Scratch for the block's plane, and a quarter more for a pooled plane.
    pub lanes: &'a mut [S::f32s],
    /// Receives the transformed tiles.
    pub target: &'a mut [S::f32s],
    /// `[first, next, step]`: point `p` of tile `t` is vector `first + t * next + p * step` of `target`.
    pub positions: [usize; 3],
    /// If present, all pixels of the group are added to this sum.
    pub sum: Option<&'a mut S::f32s>,
}

impl<S: Lanes, L> TransformTiles<'_, S, L> {
    #[inline(always)]
    pub fn run<const I: usize>(self, simd: S)
    where
        L: LineTransform<I, POINTS>,
        HalfTile<L>: LineTransform<I, POINTS>,
    {
        let Self { line, block, source, group, lanes, target, positions: [first, next, step], mut sum } =
            self;
        let (border, plane) = if I > TILE { (BORDER, block.bordered()) } else { (0, block.plane()) };
        let (lanes, pooled) = lanes.split_at_mut(plane.len);
        for image in block.first..block.first + block.images {
            source.load(simd, source.group::<S>([image, group]), block.pixels(border), plane, pooled, lanes);
            if let Some(sum) = &mut sum {
                **sum = simd.add_f32s(**sum, total(simd, lanes));
            }
            for row in 0..block.rows() {
                for column in 0..block.columns() {
                    // If there is a border, a 6x6 tile begins one row above its 4x4 outputs.
                    let corner = (row * TILE + border.saturating_sub(1)) * plane.stride + column * TILE;
                    let tile = &lanes[corner..corner + (I - 1) * plane.stride + I];
                    // SAFETY: `y` and `x` are less than `I`, and `tile` has `I - 1` rows of `stride` vectors
                    // and `I` more vectors.
                    let pixel = |y, x| unsafe { *tile.get_unchecked(y * plane.stride + x) };
                    let (position, halves) = block.tile(image - block.first, row, column);
                    let factors = match halves {
                        [false, false] => square(simd, line, line, pixel),
                        [false, true] => square(simd, line, HalfTile(line), pixel),
                        [true, false] => square(simd, HalfTile(line), line, pixel),
                        [true, true] => square(simd, HalfTile(line), HalfTile(line), pixel),
                    };
                    let at = first + position * next;
                    let target = &mut target[at..=at + (PRODUCTS - 1) * step];
                    for (point, &factor) in factors.as_flattened().iter().enumerate() {
                        // SAFETY: `point` is at most 35, and `target` ends with the vector of point 35.
                        unsafe { *target.get_unchecked_mut(point * step) = factor };
                    }
                }
            }
        }
    }
}

/// Transforms weights `[outputs, inputs, 3, 3]` for a convolution of this shape. Writes the values of
/// [`Panels`] to `target`.
///
/// If `flipped`, the weights are `[inputs, outputs, 3, 3]`, and each 3x3 square is rotated by 180 degrees:
/// the gradient of the input is the gradient of the output convolved with the rotated weights.
pub fn transform_weights(level: Level, shape: Shape, values: &[f32], flipped: bool, target: &mut [f32]) {
    let panels = Panels::of_weights(shape, level.lanes());
    let time = panels.terms * panels.vectors * SQUARE_TIME;
    each(time, pieces(target, panels.count()).enumerate(), |(panel, target)| {
        with_buffers(|[buffers, _]| {
            let lanes = &mut buffers.part;
            level.run(TransformPanel { shape, values, flipped, panel, lanes, target });
        });
    });
}

/// Approximate time in nanoseconds to transform the 3x3 weights in the lanes of vectors, or to transform
/// their gradient.
const SQUARE_TIME: usize = 40;

/// Transforms the weights of a panel.
struct TransformPanel<'a> {
    shape: Shape,
    values: &'a [f32],
    flipped: bool,
    panel: usize,
    /// Scratch of `9 * inputs` vectors.
    lanes: &'a mut Scratch,
    target: &'a mut [f32],
}

impl Kernel for TransformPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shape, values, flipped, panel, lanes, target } = self;
        let panels = Panels::of_weights(shape, S::F32_LANES);
        let (lanes, width) = (lanes.take::<S::f32s>(9 * shape.inputs), panels.width(panel));
        let target: &mut [S::f32s] = bytemuck::cast_slice_mut(target);
        for n in 0..width {
            let first = (panel * PANEL + n) * S::F32_LANES;
            let outputs = S::F32_LANES.min(shape.outputs - first);
            if flipped {
                for (i, lanes) in lanes.chunks_exact_mut(9).enumerate() {
                    let from = (i * shape.outputs + first) * 9;
                    Plane::plain([1, 9]).load(simd, lanes, [outputs, 9], &values[from..], None);
                    lanes.reverse();
                }
            } else {
                let from = first * shape.inputs * 9;
                let plane = Plane::plain([shape.inputs, 9]);
                plane.load(simd, lanes, [outputs, shape.inputs * 9], &values[from..], None);
            }
            for (i, taps) in lanes.chunks_exact(9).enumerate() {
                let factors = square(simd, WeightTransform, WeightTransform, |y, x| taps[y * 3 + x]);
                for (point, &factor) in factors.as_flattened().iter().enumerate() {
                    target[point * panels.step() + i * width + n] = factor;
                }
            }
        }
    }
}

/// Computes the gradients of the weights `[outputs, inputs, 3, 3]` from the gradients of their factors, which
/// are those of all panels at a point, then those at the next point. Writes all of `target`.
pub fn weight_gradients(level: Level, shape: Shape, sums: &[f32], target: &mut [f32]) {
    let panels = Panels::of_weights(shape, level.lanes());
    let time = panels.terms * panels.vectors * SQUARE_TIME;
    let size = PANEL * level.lanes() * shape.inputs * 9;
    each(time, target.chunks_mut(size).enumerate(), |(panel, target)| {
        with_buffers(|[buffers, _]| {
            let lanes = &mut buffers.part;
            level.run(PanelGradients { shape, sums, panel, lanes, target });
        });
    });
}

/// Computes the gradients of the weights of a panel.
struct PanelGradients<'a> {
    shape: Shape,
    sums: &'a [f32],
    panel: usize,
    /// Scratch of `9 * inputs` vectors.
    lanes: &'a mut Scratch,
    target: &'a mut [f32],
}

impl Kernel for PanelGradients<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { shape, sums, panel, lanes, target } = self;
        let panels = Panels::of_weights(shape, S::F32_LANES);
        let (lanes, width) = (lanes.take::<S::f32s>(9 * shape.inputs), panels.width(panel));
        let sums: &[S::f32s] = bytemuck::cast_slice(sums);
        for (n, target) in target.chunks_mut(S::F32_LANES * shape.inputs * 9).enumerate() {
            for (i, taps) in lanes.chunks_exact_mut(9).enumerate() {
                let of_taps = square(simd, WeightGradientTransform, WeightGradientTransform, |y, x| {
                    sums[((y * POINTS + x) * panels.count() + panel) * panels.step() + i * width + n]
                });
                taps.copy_from_slice(of_taps.as_flattened());
            }
            let (plane, all) = (Plane::plain([shape.inputs, 9]), shape.inputs * 9);
            plane.store(simd, lanes, [target.len() / all, all], target);
        }
    }
}

/// The layout of 36 matrices, one for each point. A matrix has `terms` rows of `vectors` vectors, and is
/// stored in panels.
#[derive(Debug, Clone, Copy)]
pub struct Panels {
    /// Number of rows.
    pub terms: usize,
    /// Number of vectors in a row.
    pub vectors: usize,
}

/// Number of vectors in a row of a panel. The last panel may have one vector in a row.
pub const PANEL: usize = 2;

impl Panels {
    /// The layout of a convolution's transformed weights, for vectors of `lanes` output channels.
    #[inline(always)]
    pub fn of_weights(shape: Shape, lanes: usize) -> Self {
        Self { terms: shape.inputs, vectors: shape.outputs.div_ceil(lanes) }
    }

    /// Number of vectors in all panels.
    pub fn len(self) -> usize {
        self.count() * self.panel_len()
    }

    /// Number of vectors in a panel.
    #[inline(always)]
    pub fn panel_len(self) -> usize {
        PRODUCTS * self.step()
    }

    /// Number of panels.
    pub fn count(self) -> usize {
        self.vectors.div_ceil(PANEL)
    }

    /// Number of vectors in a row of this panel.
    #[inline(always)]
    pub fn width(self, panel: usize) -> usize {
        PANEL.min(self.vectors - panel * PANEL)
    }

    /// Index of the first vector of a panel at a point.
    #[inline(always)]
    pub fn at(self, panel: usize, point: usize) -> usize {
        panel * self.panel_len() + point * self.step()
    }

    /// Number of vectors from one point of a panel to the next. There is one vector more than needed: the
    /// points of a row are written one after the other, and the additional vector puts them in different sets
    /// of the cache.
    #[inline(always)]
    pub fn step(self) -> usize {
        self.terms * PANEL + 1
    }
}
