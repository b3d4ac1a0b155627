//! Orthonormal columns: Gram-Schmidt in a fixed order, so that equal columns have equal results on all ranks.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::{Rng, SeedableRng};

/// If less than this part of a column's norm is left after the previous columns were removed, the rest is
/// mostly rounding errors of f32.
const NEGLIGIBLE: f64 = 1e-6;

/// Makes the columns orthonormal: each of them `length` values long, one after the other, at most `length`
/// columns. Columns keep the span of the first k of them, for each k.
///
/// Each column is projected twice, because one projection leaves a part that grows with the condition number
/// of the columns; two are enough (Giraud, Langou, Rozložník, Numerische Mathematik 2005). Dot products are
/// summed in f64, in which squares of small gradients do not underflow.
///
/// A column that depends on the previous ones is replaced by a random column, always the same one. PyTorch
/// divides such a column by an epsilon or by its rounding errors instead. It can become zero, and then stays
/// zero in all later steps, so that the rank of the approximation falls for good.
///
/// Columns with a NaN or infinite value become NaN.
pub fn orthonormalize(columns: &mut [f32], length: usize) {
    if columns.iter().any(|value| !value.is_finite()) {
        return columns.fill(f32::NAN);
    }
    for at in 0..columns.len() / length {
        let (before, rest) = columns.split_at_mut(at * length);
        let column = &mut rest[..length];
        if !normalize(before, column) {
            let mut rng = ChaCha8Rng::seed_from_u64(at as u64);
            // A random column depends on the previous ones only if they span the whole space.
            let _ = (0..TRIES).any(|_| {
                fill_random(column, &mut rng);
                normalize(before, column)
            });
        }
    }
}

/// Number of random columns that are tried in place of a dependent column.
const TRIES: usize = 3;

/// Fills `values` with uniform random numbers from -1 to 1. Their bits are the same on every processor, which
/// the bits of logarithms and cosines are not.
pub fn fill_random(values: &mut [f32], rng: &mut ChaCha8Rng) {
    let half = (1u32 << 23) as f32;
    values.fill_with(|| (rng.next_u32() >> 8) as f32 / half - 1.0);
}

/// Makes `column` orthogonal to the orthonormal columns `before`, and its norm 1. Returns `false` if it
/// depends on them.
fn normalize(before: &[f32], column: &mut [f32]) -> bool {
    let whole = dot(column, column).sqrt();
    for _ in 0..2 {
        for other in before.chunks_exact(column.len()) {
            let part = dot(other, column);
            for (value, other) in column.iter_mut().zip(other) {
                *value = (f64::from(*value) - part * f64::from(*other)) as f32;
            }
        }
    }
    let norm = dot(column, column).sqrt();
    if norm == 0.0 || norm <= NEGLIGIBLE * whole {
        return false;
    }
    column.iter_mut().for_each(|value| *value = (f64::from(*value) / norm) as f32);
    true
}

/// Returns the dot product, summed in f64 in four chains.
fn dot(left: &[f32], right: &[f32]) -> f64 {
    let mut sums = [0f64; 4];
    for (left, right) in left.chunks(4).zip(right.chunks(4)) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += f64::from(*left) * f64::from(*right);
        }
    }
    (sums[0] + sums[1]) + (sums[2] + sums[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(count: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; count];
        fill_random(&mut values, &mut ChaCha8Rng::seed_from_u64(seed));
        values
    }

    fn assert_orthonormal(columns: &[f32], length: usize) {
        for (i, a) in columns.chunks_exact(length).enumerate() {
            for (j, b) in columns.chunks_exact(length).enumerate() {
                let expected = if i == j { 1.0 } else { 0.0 };
                let found = dot(a, b);
                assert!((found - expected).abs() < 1e-5, "columns {i} and {j}: {found}");
            }
        }
    }

    #[test]
    fn columns_are_orthonormal_and_keep_their_span_however_small_or_alike_they_are() {
        for (length, rank) in [(1, 1), (7, 7), (100, 5), (1000, 33)] {
            // Columns that differ by a thousandth, and columns whose squares are no f32.
            for (common, scale) in [(0.0, 1.0), (1000.0, 1.0), (0.0, 1e-30), (0.0, 1e30)] {
                let shared = random(length, 9);
                let mut columns = random(length * rank, 3);
                for (value, shared) in columns.iter_mut().zip(shared.iter().cycle()) {
                    *value = (*value + common * shared) * scale;
                }
                let given = columns.clone();
                orthonormalize(&mut columns, length);
                assert_orthonormal(&columns, length);
                for (at, column) in given.chunks_exact(length).enumerate() {
                    let mut rest = column.to_vec();
                    for other in columns[..(at + 1) * length].chunks_exact(length) {
                        let part = dot(column, other) as f32;
                        rest.iter_mut().zip(other).for_each(|(rest, other)| *rest -= part * other);
                    }
                    let (left, whole) = (dot(&rest, &rest).sqrt(), dot(column, column).sqrt());
                    assert!(left < 1e-4 * whole, "column {at} of {length}x{rank} has lost {left} of {whole}");
                }
            }
        }
    }

    #[test]
    fn dependent_columns_are_replaced_and_columns_that_are_not_finite_are_nan() {
        let first = random(50, 1);
        let mut columns = [&first[..], &first, &[0.0; 50], &random(50, 2)].concat();
        let mut again = columns.clone();
        orthonormalize(&mut columns, 50);
        assert_orthonormal(&columns, 50);
        orthonormalize(&mut again, 50);
        assert_eq!(columns, again, "always by the same columns");
        for odd in [f32::NAN, f32::INFINITY] {
            let mut columns = random(20, 1);
            columns[13] = odd;
            orthonormalize(&mut columns, 10);
            assert!(columns.iter().all(|value| value.is_nan()));
        }
    }
}
