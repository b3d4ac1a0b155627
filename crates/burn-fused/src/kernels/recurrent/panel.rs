//! Products of hidden states, or of gates' gradients, with the weights of the hidden state. All time steps
//! use the same weights, so the weights are packed once, in the order in which products read them.

use crate::kernels::simd::{
    Lanes, Level, MAX_LANES, Scalars, Target, kernel, load, multiply_rows, transpose,
};
use crate::runtime::memory::Buffer;
use crate::runtime::threads::each;

/// Maximum number of terms in a block of a panel. With four vectors, a block takes 32 KiB; it stays in the L1
/// cache while all rows are multiplied by it.
const TERMS: usize = 128;

/// Number of vectors that [`Columns`] multiplies at a time.
const GROUP: usize = 4;

/// The weights of forward, packed from one matrix `[hidden, hidden]` for each gate. For each vector of units
/// and each term, the vectors of all gates are next to each other.
pub struct Gates<const G: usize> {
    values: Buffer,
    hidden: usize,
}

impl<const G: usize> Gates<G> {
    /// Packs weights for rows of `width` values.
    pub fn pack(level: Level, weights: [&[f32]; G], [hidden, width]: [usize; 2]) -> Self {
        let mut values = Buffer::new(width * hidden * G);
        let panels = values.chunks_exact_mut(level.lanes() * hidden * G).enumerate();
        each(width * hidden * G / 4, panels, |(panel, target)| {
            pack_units(level, weights, (hidden, panel), target);
        });
        Self { values, hidden }
    }

    /// Multiplies `rows` rows of hidden states by the weights of [`MAX_LANES`] units, from unit `first` on.
    /// Writes products `[rows, gates, MAX_LANES]`.
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
            let steps = [G * MAX_LANES, MAX_LANES];
            multiply::<S, G>(simd, [rows, self.hidden], scalars, panel, &mut products[part..], steps);
        }
    }
}

/// The weights of backward, packed from the transposed matrix `[hidden, hidden]` of each gate. A product sums
/// over all gates of all units. The lanes of a vector are the hidden states that these gates depend on.
pub struct Columns<const G: usize> {
    values: Buffer,
    width: usize,
}

impl<const G: usize> Columns<G> {
    /// Packs weights for rows of `width` values.
    pub fn pack(level: Level, weights: [&[f32]; G], [hidden, width]: [usize; 2]) -> Self {
        let mut values = Buffer::new(width * width * G);
        let (lanes, mut rest, mut first) = (level.lanes(), &mut values[..], 0);
        let groups = std::iter::from_fn(|| {
            let (start, group) = (first, group(first, width, lanes));
            first += group;
            let target = rest.split_off_mut(..group * G * width)?;
            (start < width).then_some((start, group, target))
        });
        each(width * width * G / 4, groups, |(start, group, target)| {
            pack_columns(level, weights, [hidden, width], [start, group], target);
        });
        Self { values, width }
    }

    /// Multiplies rows of the gates' gradients by the weights. Writes products `[rows, width]`.
    #[inline(always)]
    pub fn multiply<S: Lanes>(&self, simd: S, rows: usize, gates: Scalars<'_>, products: &mut [f32]) {
        let (width, mut first) = (self.width, 0);
        while first < width {
            let group = group(first, width, S::F32_LANES);
            let size = [rows, G * width];
            let panel = &self.values[first * G * width..][..group * G * width];
            let (products, steps) = (&mut products[first..], [width, S::F32_LANES]);
            if group == S::F32_LANES {
                multiply::<S, 1>(simd, size, gates, panel, products, steps);
            } else {
                multiply::<S, GROUP>(simd, size, gates, panel, products, steps);
            }
            first += group;
        }
    }
}

/// Returns the number of values in the group of vectors that begins with value `first`. Vectors that do not
/// fill a group of [`GROUP`] are groups of one.
#[inline(always)]
fn group(first: usize, width: usize, lanes: usize) -> usize {
    if first + GROUP * lanes <= width { GROUP * lanes } else { lanes }
}

kernel! {
    /// Packs the weights of a vector of units for [`Gates`]. The first of them is unit `panel * lanes`.
    fn pack_units<S, const G: usize>(
        simd: S,
        weights: [&[f32]; G],
        hidden_and_panel: (usize, usize),
        target: &mut [f32],
    ) {
        let (hidden, panel) = hidden_and_panel;
        let first = panel * S::F32_LANES;
        let units = first.min(hidden)..hidden.min(first + S::F32_LANES);
        let mut vectors = target.chunks_exact_mut(S::F32_LANES);
        for term in 0..hidden {
            for weights in weights {
                let vector = load(simd, &weights[term * hidden..][units.clone()]);
                let target = vectors.next().expect("as many vectors");
                target.copy_from_slice(bytemuck::cast_slice(&[vector]));
            }
        }
    }
}

kernel! {
    /// Packs the weights of a group of vectors for [`Columns`].
    fn pack_columns<S, const G: usize>(
        simd: S,
        weights: [&[f32]; G],
        sizes: [usize; 2],
        start_and_group: [usize; 2],
        target: &mut [f32],
    ) {
        let ([hidden, width], [start, group]) = (sizes, start_and_group);
        for first in (start..start + group).step_by(S::F32_LANES) {
            for (gate, weights) in weights.into_iter().enumerate() {
                for column in (0..width).step_by(S::F32_LANES) {
                    let rows = weights.get(first * hidden + column..).unwrap_or_default();
                    let size = [first, column].map(|at| hidden.saturating_sub(at));
                    let at = (gate * width + column) * group + first - start;
                    transpose(simd, (rows, hidden), size, (&mut target[at..], group), |column| column);
                }
            }
        }
    }
}

/// Multiplies rows of scalars by a panel, which has `N` vectors for each term. The product of row `r` and
/// vector `n` is stored at `r * row_step + n * vector_step`.
#[inline(always)]
fn multiply<S: Lanes, const N: usize>(
    simd: S,
    [rows, terms]: [usize; 2],
    scalars: Scalars<'_>,
    panel: &[f32],
    products: &mut [f32],
    [row_step, vector_step]: [usize; 2],
) {
    let width = N * S::F32_LANES;
    for from in (0..terms).step_by(TERMS) {
        let count = TERMS.min(terms - from);
        let vectors = (&panel[from * width..][..count * width], width);
        let scalars = Scalars { first: scalars.first + from * scalars.term_step, ..scalars };
        let target = Target {
            values: &mut *products,
            first: 0,
            row_step,
            vector_step,
            columns: width,
            adds: from > 0,
        };
        multiply_rows::<S, N>(simd, [rows, count], scalars, vectors, target);
    }
}
