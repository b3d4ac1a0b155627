//! Rows of scalars by some vectors, in tiles of a matrix product.

use super::lanes::{Lanes, Scalars, add_products, load, store};

/// Where the sums of a tile are: those of row `r` and vector `n` from `first + r * row_step + n * vector_step` on.
pub(crate) struct Target<'a> {
    pub values: &'a mut [f32],
    pub first: usize,
    pub row_step: usize,
    pub vector_step: usize,
    /// Columns of the tile and of those behind it: the last vectors may be beyond the matrix.
    pub columns: usize,
    /// Whether sums are added to the values.
    pub adds: bool,
}

/// The products of `rows` rows of scalars with the `N` vectors of each term, at most four. `vectors` are values and the
/// distance of two terms' vectors in them. Sums start from zero, because one long chain of additions is less exact.
///
/// # Panics
/// If there are fewer scalars or vectors than `terms` need, or the target ends before.
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
        // As many rows as there are registers for their sums, beside the vectors of a term and a scalar.
        row += match (rows - row, N, S::REGISTER_COUNT >= 32) {
            (12.., 1, _) | (12.., 2, true) => tile::<S, 12, N>(simd, terms, scalars, vectors, target),
            (6.., ..=2, _) | (6.., _, true) => tile::<S, 6, N>(simd, terms, scalars, vectors, target),
            (4.., ..=2, _) | (4.., _, true) => tile::<S, 4, N>(simd, terms, scalars, vectors, target),
            (2.., ..) => tile::<S, 2, N>(simd, terms, scalars, vectors, target),
            _ => tile::<S, 1, N>(simd, terms, scalars, vectors, target),
        };
    }
}

/// The products of `R` rows. Returns `R`.
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
                // SAFETY: the assertion above is of the last row's last vector, and steps are unsigned; all bits are
                // valid in vectors, which need no alignment here.
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
