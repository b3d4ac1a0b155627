//! Matrix products of an attention head, such as the scores (queries times transposed keys) and the outputs
//! (weights times values).
//!
//! A product reads its first factor one scalar at a time. It reads its second factor in whole SIMD vectors,
//! so the second factor is packed beforehand: transposed keys by [`pack_transposed`], and values by [`pack`].

use std::sync::atomic::{AtomicBool, Ordering};

use crate::kernels::simd::{
    Kernel, Lanes, Level, MAX_LANES, Scalars, Target, kernel, load, multiply_rows, transpose,
};
use crate::runtime::threads::each;

/// Number of columns in a panel. A panel is a block of columns of a transposed matrix, as wide as four of the
/// widest vectors.
pub const PANEL: usize = 64;
/// Maximum number of terms in a block. Each value of a product is a sum of terms, which is computed block by
/// block. The second factor's vectors for one block stay in the L1 cache while all rows of the first factor
/// are multiplied by them.
const TERMS: usize = 128;

/// A matrix in a slice: row `r` begins at `first + r * step`. The slice may have other values between the
/// rows.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    pub values: &'a [f32],
    pub first: usize,
    pub step: usize,
}

impl<'a> View<'a> {
    /// The matrix without its first `row` rows.
    pub fn from(self, row: usize) -> Self {
        Self { first: self.first + row * self.step, ..self }
    }

    /// The matrix as the first factor of a product.
    pub fn scalars(self) -> Scalars<'a> {
        Scalars { values: self.values, first: self.first, term_step: 1, row_step: self.step }
    }

    #[inline(always)]
    pub fn row(self, row: usize, width: usize) -> &'a [f32] {
        &self.values[self.first + row * self.step..][..width]
    }
}

kernel! {
    /// Copies `rows` rows of `width` values into panels. Each row becomes a column, multiplied by `factor`. A
    /// panel has [`PANEL`] columns, and room for `width` rows rounded up to a multiple of [`MAX_LANES`].
    /// Columns of zeros follow, until the number of columns is a multiple of [`MAX_LANES`]. The rest of the
    /// last panel is not written.
    pub fn pack_transposed<S>(
        simd: S,
        matrix: View<'_>,
        rows: usize,
        width: usize,
        factor: f32,
        panels: &mut [f32],
    ) {
        let (factor, panel) = (simd.splat_f32s(factor), width.next_multiple_of(MAX_LANES) * PANEL);
        for from in (0..rows.next_multiple_of(MAX_LANES)).step_by(S::F32_LANES) {
            let panel = &mut panels[from / PANEL * panel + from % PANEL..];
            for column in (0..width).step_by(S::F32_LANES) {
                let first = matrix.first + from * matrix.step + column;
                let values = matrix.values.get(first..).unwrap_or_default();
                let size = [rows.saturating_sub(from), width - column];
                let target = (&mut panel[column * PANEL..], PANEL);
                transpose(simd, (values, matrix.step), size, target, |column| simd.mul_f32s(factor, column));
            }
        }
    }
}

kernel! {
    /// Copies rows, and pads each with zeros to a length that is a multiple of [`MAX_LANES`].
    pub fn pack<S>(simd: S, matrix: View<'_>, rows: usize, width: usize, packed: &mut [f32]) {
        let padded = width.next_multiple_of(MAX_LANES);
        for (row, target) in packed[..rows * padded].chunks_exact_mut(padded).enumerate() {
            let row = matrix.row(row, width);
            for (column, target) in target.chunks_exact_mut(S::F32_LANES).enumerate() {
                let from = width.min(column * S::F32_LANES);
                let vector = load(simd, &row[from..width.min(from + S::F32_LANES)]);
                target.copy_from_slice(bytemuck::cast_slice(&[vector]));
            }
        }
    }
}

/// Computes `target = a b`, or `target += a b` if `adds`.
pub struct Multiply<'a> {
    /// The number of rows of `a` and of the target, and the number of terms in each sum.
    pub size: [usize; 2],
    pub a: Scalars<'a>,
    /// The second factor. It has one row for each term, and each row consists of whole vectors.
    pub b: View<'a>,
    /// Row `r` of the target begins at `r * step`.
    pub target: &'a mut [f32],
    pub step: usize,
    /// Number of columns of the target.
    pub columns: usize,
    pub adds: bool,
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(mut self, simd: S) {
        let terms = self.size[1];
        for from in (0..terms).step_by(TERMS) {
            let part = Multiply {
                size: [self.size[0], TERMS.min(terms - from)],
                a: Scalars { first: self.a.first + from * self.a.term_step, ..self.a },
                b: self.b.from(from),
                target: &mut *self.target,
                ..self
            };
            part.columns(simd);
            self.adds = true;
        }
    }
}

impl Multiply<'_> {
    #[inline(always)]
    fn columns<S: Lanes>(mut self, simd: S) {
        let mut column = 0;
        while column < self.columns {
            column += match (self.columns - column).div_ceil(S::F32_LANES) {
                4.. if S::REGISTER_COUNT >= 32 => self.rows::<S, 4>(simd, column),
                2.. => self.rows::<S, 2>(simd, column),
                _ => self.rows::<S, 1>(simd, column),
            };
        }
    }

    /// Computes the `N` vectors of columns that begin at `column`, for all rows. Returns the number of these
    /// columns.
    #[inline(always)]
    fn rows<S: Lanes, const N: usize>(&mut self, simd: S, column: usize) -> usize {
        let Self { size, a, b, step, columns, adds, .. } = *self;
        let target = Target {
            values: &mut *self.target,
            first: column,
            row_step: step,
            vector_step: S::F32_LANES,
            columns: columns - column,
            adds,
        };
        multiply_rows::<S, N>(simd, size, a, (&b.values[b.first + column..], b.step), target);
        N * S::F32_LANES
    }
}

#[inline(always)]
pub fn maximum<S: Lanes>(simd: S, row: &[f32]) -> f32 {
    let mut most = simd.splat_f32s(f32::NEG_INFINITY);
    for chunk in row.chunks_exact(S::F32_LANES) {
        most = simd.max_f32s(most, load(simd, chunk));
    }
    simd.reduce_max_f32s(most)
}

#[inline(always)]
pub fn sum<S: Lanes>(simd: S, sums: &[f32; MAX_LANES]) -> f32 {
    let mut sum = simd.splat_f32s(0.0);
    for chunk in sums.chunks_exact(S::F32_LANES) {
        sum = simd.add_f32s(sum, load(simd, chunk));
    }
    simd.reduce_sum_f32s(sum)
}

kernel! {
    /// Writes to `sums` the dot product of each row of the first matrix and the same row of the second.
    pub fn row_products<S>(simd: S, matrices: [View<'_>; 2], width: usize, sums: &mut [f32]) {
        for (row, target) in sums.iter_mut().enumerate() {
            let [a, b] = matrices.map(|matrix| matrix.row(row, width));
            let mut sums = [0.0; MAX_LANES];
            for (a, b) in a.chunks(MAX_LANES).zip(b.chunks(MAX_LANES)) {
                sums.iter_mut().zip(a).zip(b).for_each(|((sum, a), b)| *sum += a * b);
            }
            *target = sum(simd, &sums);
        }
    }
}

/// Whether all values of these slices are finite.
pub fn all_finite(level: Level, slices: &[&[f32]]) -> bool {
    let finite = AtomicBool::new(true);
    let len: usize = slices.iter().map(|values| values.len()).sum();
    each(len / 16, slices.iter().flat_map(|values| values.chunks(1 << 14)), |part| {
        if !are_finite(level, part) {
            finite.store(false, Ordering::Relaxed);
        }
    });
    finite.into_inner()
}

kernel! {
    /// Does the work of [`all_finite`] for some values.
    fn are_finite<S>(_simd: S, values: &[f32]) -> bool {
        // If the bits without the sign bit are read as an integer, finite numbers are below infinity, and NaN
        // is above infinity.
        let magnitude = |x: &f32| x.to_bits() & 0x7fff_ffff;
        values.iter().map(magnitude).fold(0, u32::max) < f32::INFINITY.to_bits()
    }
}
