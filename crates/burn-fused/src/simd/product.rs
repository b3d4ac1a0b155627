//! The inner loop of matrix products: rows of scalars by a panel of vectors.

use super::Lanes;

/// Where the scalars of a product are: of a term and a row, at
/// `first + term * term_step + row * row_step`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scalars<'a> {
    pub values: &'a [f32],
    pub first: usize,
    pub term_step: usize,
    pub row_step: usize,
}

/// Adds to `R` rows of `N` vectors the products of each term: its scalar of the row, and
/// its `N` vectors, which are `step` values after those of the term before.
///
/// # Panics
/// If there are fewer scalars or vectors than `terms` need.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
pub(crate) fn add_products<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    terms: usize,
    scalars: Scalars<'_>,
    (vectors, step): (&[f32], usize),
    mut sums: [[S::f32s; N]; R],
) -> [[S::f32s; N]; R] {
    let Scalars { values, first, term_step, row_step } = scalars;
    assert!(terms == 0 || vectors.len() >= (terms - 1) * step + N * S::F32_LANES);
    assert!(terms == 0 || values.len() > first + (terms - 1) * term_step + (R - 1) * row_step);
    // Two at a time: counting takes as long as a few products.
    for term in (0..terms / 2).map(|pair| 2 * pair) {
        // SAFETY: the assertions above are of the last term's last vector and row, and steps are unsigned.
        unsafe { add_term(simd, scalars, vectors, step, term, &mut sums) };
        // SAFETY: as above.
        unsafe { add_term(simd, scalars, vectors, step, term + 1, &mut sums) };
    }
    if terms % 2 == 1 {
        // SAFETY: as above.
        unsafe { add_term(simd, scalars, vectors, step, terms - 1, &mut sums) };
    }
    sums
}

/// # Safety
/// The term's scalar of each row and its vectors are in their slices.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
unsafe fn add_term<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    Scalars { values, first, term_step, row_step }: Scalars<'_>,
    vectors: &[f32],
    step: usize,
    term: usize,
    sums: &mut [[S::f32s; N]; R],
) {
    let mut panel = [simd.splat_f32s(0.0); N];
    for n in 0..N {
        // SAFETY: as of this function; all bits are valid in vectors, and the read needs no alignment.
        panel[n] = unsafe {
            vectors.as_ptr().add(term * step + n * S::F32_LANES).cast::<S::f32s>().read_unaligned()
        };
    }
    for r in 0..R {
        // SAFETY: as of this function.
        let scalar = unsafe { *values.get_unchecked(first + term * term_step + r * row_step) };
        let scalar = simd.splat_f32s(scalar);
        for n in 0..N {
            sums[r][n] = simd.fma(scalar, panel[n], sums[r][n]);
        }
    }
}
