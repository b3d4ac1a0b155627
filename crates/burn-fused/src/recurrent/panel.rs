//! Products of a step with hidden weights, which are packed once for all steps.

use crate::memory::Buffer;
use crate::simd::{Lanes, MAX_LANES, Scalars, add_products, load};

/// Where products are stored: of a row and a vector, at `first + row * row_step + vector * vector_step`.
#[derive(Clone, Copy)]
pub struct Target {
    pub first: usize,
    pub row_step: usize,
    pub vector_step: usize,
}

/// Terms of a panel that stays in the first cache while all rows pass: of four vectors, 32 KiB.
const TERMS: usize = 128;

/// Vectors of columns that [`Columns`] multiplies at a time.
const GROUP: usize = 4;

/// Weights `[hidden, hidden]` of gates: for each vector of units and each term, one vector for each gate.
pub struct Gates<const G: usize> {
    values: Buffer,
    hidden: usize,
}

impl<const G: usize> Gates<G> {
    /// Packs weights for rows of `width` values.
    #[inline(always)]
    pub fn pack<S: Lanes>(simd: S, weights: [&[f32]; G], [hidden, width]: [usize; 2]) -> Self {
        let mut values = Buffer::new(width * hidden * G);
        let mut vectors = values.chunks_exact_mut(S::F32_LANES);
        for first in (0..width).step_by(S::F32_LANES) {
            let units = first.min(hidden)..hidden.min(first + S::F32_LANES);
            for term in 0..hidden {
                for weights in weights {
                    let vector = load(simd, &weights[term * hidden..][units.clone()]);
                    let target = vectors.next().expect("as many vectors");
                    target.copy_from_slice(bytemuck::cast_slice(&[vector]));
                }
            }
        }
        Self { values, hidden }
    }

    /// The products of the gates of [`MAX_LANES`] units from `first` on with `rows` rows of hidden states, for each
    /// row and gate.
    #[inline(always)]
    pub fn multiply<S: Lanes>(
        &self,
        simd: S,
        first: usize,
        (rows, states, width): (usize, &[f32], usize),
        products: &mut [f32],
    ) {
        let scalars = Scalars { values: states, first: 0, term_step: 1, row_step: width };
        let size = self.hidden * G * S::F32_LANES;
        for part in (0..MAX_LANES).step_by(S::F32_LANES) {
            let panel = &self.values[(first + part) / S::F32_LANES * size..][..size];
            let target = Target { first: part, row_step: G * MAX_LANES, vector_step: MAX_LANES };
            multiply::<S, G>(simd, [rows, self.hidden], scalars, panel, (products, target));
        }
    }
}

/// Weights `[hidden, hidden]` of gates, transposed: the terms are all gates of all units, and a vector is of the
/// hidden states that they are computed of.
pub struct Columns<const G: usize> {
    values: Buffer,
    width: usize,
}

impl<const G: usize> Columns<G> {
    /// Packs weights for rows of `width` values.
    #[inline(always)]
    pub fn pack<S: Lanes>(simd: S, weights: [&[f32]; G], [hidden, width]: [usize; 2]) -> Self {
        let lanes = S::F32_LANES;
        let mut values = Buffer::new(width * width * G);
        for first in (0..width).step_by(lanes) {
            let (start, group) = Self::group::<S>(first, width);
            for (gate, weights) in weights.into_iter().enumerate() {
                for column in (0..width).step_by(lanes) {
                    let columns = column.min(hidden)..hidden.min(column + lanes);
                    let mut square = [simd.splat_f32s(0.0); MAX_LANES];
                    for (vector, row) in square.iter_mut().zip(first..hidden.min(first + lanes)) {
                        *vector = load(simd, &weights[row * hidden..][columns.clone()]);
                    }
                    simd.transpose(&mut square[..lanes]);
                    for (term, vector) in square[..lanes].iter().enumerate() {
                        let term = gate * width + column + term;
                        let at = start * G * width + term * group + first - start;
                        values[at..][..lanes].copy_from_slice(bytemuck::cast_slice(&[*vector]));
                    }
                }
            }
        }
        Self { values, width }
    }

    /// The first value of the group of vectors that this is in, and the number of values of the group.
    #[inline(always)]
    fn group<S: Lanes>(at: usize, width: usize) -> (usize, usize) {
        let group = GROUP * S::F32_LANES;
        let start = at / group * group;
        if start + group <= width { (start, group) } else { (at, S::F32_LANES) }
    }

    /// The products `[rows, width]` of rows of gates.
    #[inline(always)]
    pub fn multiply<S: Lanes>(&self, simd: S, rows: usize, gates: Scalars<'_>, products: &mut [f32]) {
        let (width, mut first) = (self.width, 0);
        while first < width {
            let (_, group) = Self::group::<S>(first, width);
            let size = [rows, G * width];
            let panel = &self.values[first * G * width..][..group * G * width];
            let target = Target { first, row_step: width, vector_step: S::F32_LANES };
            if group == S::F32_LANES {
                multiply::<S, 1>(simd, size, gates, panel, (products, target));
            } else {
                multiply::<S, GROUP>(simd, size, gates, panel, (products, target));
            }
            first += group;
        }
    }
}

/// The products of rows of scalars with a panel, `N` vectors for each term.
#[inline(always)]
fn multiply<S: Lanes, const N: usize>(
    simd: S,
    [rows, terms]: [usize; 2],
    scalars: Scalars<'_>,
    panel: &[f32],
    (products, target): (&mut [f32], Target),
) {
    for from in (0..terms).step_by(TERMS) {
        let count = TERMS.min(terms - from);
        let panel = &panel[from * N * S::F32_LANES..][..count * N * S::F32_LANES];
        let mut row = 0;
        while row < rows {
            let first = scalars.first + from * scalars.term_step + row * scalars.row_step;
            let scalars = Scalars { first, ..scalars };
            let target = Target { first: target.first + row * target.row_step, ..target };
            let sums = (&mut *products, target, from > 0);
            // As many sums as there are registers for, beside the vectors and a scalar.
            row += match rows - row {
                6.. if S::F32_LANES == MAX_LANES => tile::<S, N, 6>(simd, count, scalars, panel, sums),
                4.. if S::F32_LANES == MAX_LANES => tile::<S, N, 4>(simd, count, scalars, panel, sums),
                2.. => tile::<S, N, 2>(simd, count, scalars, panel, sums),
                _ => tile::<S, N, 1>(simd, count, scalars, panel, sums),
            };
        }
    }
}

/// Products of `R` rows, which are added to the earlier ones if `adds`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn tile<S: Lanes, const N: usize, const R: usize>(
    simd: S,
    terms: usize,
    scalars: Scalars<'_>,
    panel: &[f32],
    (products, target, adds): (&mut [f32], Target, bool),
) -> usize {
    let at = |r: usize, n: usize| target.first + r * target.row_step + n * target.vector_step;
    let mut sums = [[simd.splat_f32s(0.0); N]; R];
    if adds {
        for r in 0..R {
            for n in 0..N {
                sums[r][n] = load(simd, &products[at(r, n)..][..S::F32_LANES]);
            }
        }
    }
    let sums = add_products::<S, R, N>(simd, terms, scalars, (panel, N * S::F32_LANES), sums);
    for r in 0..R {
        for n in 0..N {
            products[at(r, n)..][..S::F32_LANES].copy_from_slice(bytemuck::cast_slice(&[sums[r][n]]));
        }
    }
    R
}
