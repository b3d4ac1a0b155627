//! The inner loop of the products: rows of scalars by a panel of vectors.

use crate::simd::Lanes;

/// Where the scalars of a product are: of a term and a row, at
/// `first + term * term_step + row * row_step`.
#[derive(Debug, Clone, Copy)]
pub struct Scalars<'a> {
    pub values: &'a [f32],
    pub first: usize,
    pub term_step: usize,
    pub row_step: usize,
}

/// Adds to `R` rows of `N` vectors the products of each term: its scalar of the row, and
/// its `N` vectors.
///
/// # Panics
/// If there are fewer scalars or vectors than `terms` need.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
pub fn add_products<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    terms: usize,
    scalars: Scalars<'_>,
    vectors: &[S::f32s],
    mut sums: [[S::f32s; N]; R],
) -> [[S::f32s; N]; R] {
    let Scalars { values, first, term_step, row_step } = scalars;
    assert!(vectors.len() >= terms * N);
    assert!(terms == 0 || values.len() > first + (terms - 1) * term_step + (R - 1) * row_step);
    for term in 0..terms {
        let mut panel = [simd.splat_f32s(0.0); N];
        for n in 0..N {
            // SAFETY: `term` is less than `terms`, and there are `terms * N` vectors.
            panel[n] = unsafe { *vectors.get_unchecked(term * N + n) };
        }
        for r in 0..R {
            // SAFETY: the assertion above is of the last term's last row; both steps are
            // unsigned, so that no other scalar is beyond it.
            let scalar = unsafe { *values.get_unchecked(first + term * term_step + r * row_step) };
            let scalar = simd.splat_f32s(scalar);
            for n in 0..N {
                sums[r][n] = simd.fma(scalar, panel[n], sums[r][n]);
            }
        }
    }
    sums
}
