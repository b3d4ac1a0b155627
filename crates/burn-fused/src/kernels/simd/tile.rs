//! The inner tile of matrix products: rows of scalars times up to four vectors.
//!
//! The sums of a tile stay in registers while the loop runs over all terms: up to 12 rows by one or two
//! vectors, or up to 6 rows by two to four vectors. For each term, the loop reads the vectors of the term,
//! and one scalar for each row.

use super::lanes::{Lanes, Scalars, add_products, load, store};

/// Where the sums of a tile are stored. The sum of row `r` and vector `n` starts at
/// `first + r * row_step + n * vector_step`.
pub(crate) struct Target<'a> {
    pub values: &'a mut [f32],
    pub first: usize,
    pub row_step: usize,
    pub vector_step: usize,
    /// Number of columns from the tile's first column to the end of the matrix. The last vectors may extend
    /// beyond the matrix; their values there are not stored.
    pub columns: usize,
    /// Whether the sums are added to `values`. If not, they replace `values`.
    pub adds: bool,
}

/// Multiplies `rows` rows of scalars by `N` vectors for each term, and stores the sums in `target`. `N` is at
/// most four. `vectors` holds the values and the distance between the vectors of two successive terms. The
/// sums start from zero even if they are added to the target, because one long chain of additions is less
/// exact.
///
/// # Panics
/// If there are too few scalars or vectors for `terms`, if `term_step` and `row_step` of `scalars` both
/// differ from 1, or if the target is too short.
#[inline(always)]
pub(crate) fn multiply_rows<S: Lanes, const N: usize>(
    simd: S,
    [rows, terms]: [usize; 2],
    scalars: Scalars<'_>,
    vectors: (&[f32], usize),
    target: Target<'_>,
) {
    let mut row = 0;
    while row < rows {
        let scalars = Scalars { first: scalars.first + row * scalars.row_step, ..scalars };
        let first = target.first + row * target.row_step;
        let target = Target { values: &mut *target.values, first, ..target };
        // The registers hold `N` sums for each row, the `N` vectors of a term, and one scalar. Unless scalars
        // of rows are side by side, each row also needs an address, and there are no registers for 12
        // addresses.
        let near = scalars.row_step == 1;
        row += match (rows - row, N, S::REGISTER_COUNT >= 32) {
            (12.., 1, _) => tile::<S, 12, N>(simd, terms, scalars, vectors, target),
            (12.., 2, true) if near => tile::<S, 12, N>(simd, terms, scalars, vectors, target),
            (6.., ..=2, _) | (6.., _, true) => tile::<S, 6, N>(simd, terms, scalars, vectors, target),
            (4.., ..=2, _) | (4.., _, true) => tile::<S, 4, N>(simd, terms, scalars, vectors, target),
            (2.., ..) => tile::<S, 2, N>(simd, terms, scalars, vectors, target),
            _ => tile::<S, 1, N>(simd, terms, scalars, vectors, target),
        };
    }
}

/// Computes `R` rows. Returns `R`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn tile<S: Lanes, const R: usize, const N: usize>(
    simd: S,
    terms: usize,
    scalars: Scalars<'_>,
    vectors: (&[f32], usize),
    target: Target<'_>,
) -> usize {
    let zeros = [[simd.splat_f32s(0.0); N]; R];
    let sums = add_products::<S, R, N>(simd, terms, scalars, vectors, zeros);
    let Target { values, first, row_step, vector_step, columns, adds } = target;
    if columns >= N * S::F32_LANES {
        assert!(values.len() >= first + (R - 1) * row_step + (N - 1) * vector_step + S::F32_LANES);
        for r in 0..R {
            for n in 0..N {
                let at = first + r * row_step + n * vector_step;
                // SAFETY: the assertion above checks the end of the last row's last vector. Steps are
                // unsigned, so all other vectors end before it. All bits are valid in vectors, and unaligned
                // reads and writes need no alignment.
                unsafe {
                    let target = values.as_mut_ptr().add(at).cast::<S::f32s>();
                    let sum =
                        if adds { simd.add_f32s(target.read_unaligned(), sums[r][n]) } else { sums[r][n] };
                    target.write_unaligned(sum);
                }
            }
        }
        return R;
    }
    for r in 0..R {
        for n in 0..columns.div_ceil(S::F32_LANES) {
            let at = first + r * row_step + n * vector_step;
            let values = &mut values[at..at + S::F32_LANES.min(columns - n * S::F32_LANES)];
            let sum = if adds { simd.add_f32s(load(simd, values), sums[r][n]) } else { sums[r][n] };
            store(simd, values, sum);
        }
    }
    R
}
