//! The factors of Winograd's matrix products. This file transforms pixels and weights to factors, and
//! gradients of factors back to gradients of weights. The position of a factor in its 6x6 square is called a
//! point.

use super::super::Shape;
use super::super::blocks::total;
use super::super::plane::Plane;
use super::super::source::Source;
use super::tile_blocks::{BORDER, Block, TILE};
use super::transform::{
    HalfTile, LineTransform, POINTS, PRODUCTS, WeightGradientTransform, WeightTransform, square,
};
use crate::kernels::simd::Lanes;

/// The layout of the transformed pixels of a block. For each point and each group of channels, it has one
/// vector for each tile. A group is the channels of one vector.
#[derive(Debug, Clone, Copy)]
pub struct Pixels {
    /// Number of groups of channels.
    pub groups: usize,
    /// Number of tiles in the block. The convolution multiplies several tiles at a time, and rounds the
    /// number of tiles up to a multiple.
    pub tiles: usize,
}

impl Pixels {
    /// Number of vectors from one point to the next. There is one vector more than needed, for the reason
    /// given at [`Panels::step`].
    #[inline(always)]
    pub fn step(self) -> usize {
        self.groups * self.tiles + 1
    }

    /// Number of vectors of all points.
    pub fn len(self) -> usize {
        PRODUCTS * self.step()
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

/// Transforms weights `[outputs, inputs, 3, 3]` for a convolution of this shape. `lanes` is scratch of
/// `9 * inputs` vectors.
///
/// If `flipped`, the weights are `[inputs, outputs, 3, 3]`, and each 3x3 square is rotated by 180 degrees:
/// the gradient of the input is the gradient of the output convolved with the rotated weights.
#[inline(always)]
pub fn transform_weights<S: Lanes>(
    simd: S,
    shape: Shape,
    values: &[f32],
    flipped: bool,
    lanes: &mut [S::f32s],
    target: &mut [S::f32s],
) {
    let panels = Panels { terms: shape.inputs, vectors: shape.outputs.div_ceil(S::F32_LANES) };
    assert!(target.len() >= panels.len());
    for vector in 0..panels.vectors {
        let first = vector * S::F32_LANES;
        let outputs = S::F32_LANES.min(shape.outputs - first);
        if flipped {
            for (i, lanes) in lanes.chunks_exact_mut(9).take(shape.inputs).enumerate() {
                let from = (i * shape.outputs + first) * 9;
                Plane::plain([1, 9]).load(simd, lanes, [outputs, 9], &values[from..], None);
                lanes.reverse();
            }
        } else {
            let from = first * shape.inputs * 9;
            let plane = Plane::plain([shape.inputs, 9]);
            plane.load(simd, lanes, [outputs, shape.inputs * 9], &values[from..], None);
        }
        let (panel, n) = (vector / PANEL, vector % PANEL);
        for (i, taps) in lanes.chunks_exact(9).take(shape.inputs).enumerate() {
            let factors = square(simd, WeightTransform, WeightTransform, |y, x| taps[y * 3 + x]);
            for (point, &factor) in factors.as_flattened().iter().enumerate() {
                target[panels.at(panel, point) + i * panels.width(panel) + n] = factor;
            }
        }
    }
}

/// Computes the gradients of the weights `[outputs, inputs, 3, 3]` from the gradients of their factors.
/// `lanes` is scratch of `9 * inputs` vectors. Writes all of `target`.
#[inline(always)]
pub fn weight_gradients<S: Lanes>(
    simd: S,
    shape: Shape,
    sums: &[S::f32s],
    lanes: &mut [S::f32s],
    target: &mut [f32],
) {
    let panels = Panels { terms: shape.inputs, vectors: shape.outputs.div_ceil(S::F32_LANES) };
    assert!(sums.len() >= panels.len());
    for vector in 0..panels.vectors {
        let (panel, n) = (vector / PANEL, vector % PANEL);
        for (i, taps) in lanes.chunks_exact_mut(9).take(shape.inputs).enumerate() {
            let of_taps = square(simd, WeightGradientTransform, WeightGradientTransform, |y, x| {
                sums[panels.at(panel, y * POINTS + x) + i * panels.width(panel) + n]
            });
            taps.copy_from_slice(of_taps.as_flattened());
        }
        let first = vector * S::F32_LANES;
        let outputs = S::F32_LANES.min(shape.outputs - first);
        let from = first * shape.inputs * 9;
        let plane = Plane::plain([shape.inputs, 9]);
        plane.store(simd, lanes, [outputs, shape.inputs * 9], &mut target[from..]);
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
    /// Number of vectors in all panels.
    pub fn len(self) -> usize {
        self.count() * PRODUCTS * self.step()
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
        (panel * PRODUCTS + point) * self.step()
    }

    /// Number of vectors from one point of a panel to the next. There is one vector more than needed: the
    /// points of a row are written one after the other, and the additional vector puts them in different sets
    /// of the cache.
    #[inline(always)]
    pub fn step(self) -> usize {
        self.terms * PANEL + 1
    }
}
