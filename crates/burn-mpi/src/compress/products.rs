//! Products of a gradient matrix with the few columns of a low-rank factor.
//!
//! A matrix of `n` rows and `width` columns is row-major. A factor of rank R is stored column by column: R
//! slices of `n` or of `width` values.
//!
//! These are plain loops in a fixed order, without fused multiply-add. A BLAS would choose kernels by
//! processor, and ranks on different processors would then reconstruct gradients with different bits.

use std::array::from_fn;

/// Number of partial sums of a dot product: four vector registers of 4 values. One chain of additions would
/// wait for the latency of each.
const LANES: usize = 16;

/// Number of dot products with the same row at a time. More of them have too many partial sums for registers.
const PAIR: usize = 2;

/// Number of columns of a factor, or rows of a matrix, that are added in one pass over a sum.
const BLOCK: usize = 4;

/// Number of values of a row in one pass. The factor's part of such a tile stays in the cache while the rows
/// of the matrix pass by.
const TILE: usize = 512;

/// Appends `M Q` to `product`, column by column. `matrix` is M, `n` rows of `width` values; `factor` is Q, R
/// columns of `width` values. The product has R columns of `n` values.
pub fn append_product(matrix: &[f32], width: usize, factor: &[f32], product: &mut Vec<f32>) {
    let (rows, start) = (matrix.len() / width, product.len());
    product.resize(start + factor.len() / width * rows, 0.0);
    let products = product[start..].chunks_mut(PAIR * rows);
    for (columns, products) in factor.chunks(PAIR * width).zip(products) {
        for (at, row) in matrix.chunks_exact(width).enumerate() {
            if columns.len() == PAIR * width {
                let (first, second) = columns.split_at(width);
                let [first, second] = dots(row, [first, second]);
                (products[at], products[rows + at]) = (first, second);
            } else {
                [products[at]] = dots(row, [columns]);
            }
        }
    }
}

/// Returns the dot products of `row` with `K` columns of the same length.
fn dots<const K: usize>(row: &[f32], columns: [&[f32]; K]) -> [f32; K] {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let others = columns.map(|column| &column.as_chunks::<LANES>().0[..chunks.len()]);
    let mut sums = [[0f32; LANES]; K];
    for (at, chunk) in chunks.iter().enumerate() {
        for k in 0..K {
            let (sum, other) = (sums[k], others[k][at]);
            sums[k] = from_fn(|lane| sum[lane] + chunk[lane] * other[lane]);
        }
    }
    let done = row.len() - rest.len();
    from_fn(|k| {
        let rest: f32 = rest.iter().zip(&columns[k][done..]).map(|(a, b)| a * b).sum();
        sums[k].iter().sum::<f32>() + rest
    })
}

/// Overwrites `product` with `Mᵀ P`, column by column. `matrix` is M, `n` rows of `width` values; `factor` is
/// P, R columns of `n` values. The product has R columns of `width` values.
pub fn transposed_product(matrix: &[f32], width: usize, factor: &[f32], product: &mut [f32]) {
    let rows = matrix.len() / width;
    product.fill(0.0);
    for start in (0..width).step_by(TILE) {
        let tile = TILE.min(width - start);
        for (block, of_block) in matrix.chunks(BLOCK * width).enumerate() {
            for (column, product) in factor.chunks_exact(rows).zip(product.chunks_exact_mut(width)) {
                let sums = &mut product[start..][..tile];
                let factors = &column[block * BLOCK..];
                add_scaled(sums, of_block.chunks_exact(width).map(|row| &row[start..][..tile]), factors, 1.0);
            }
        }
    }
}

/// Adds `sign · P Qᵀ` to `matrix`, `n` rows of `width` values. `left` is P, R columns of `n` values; `right`
/// is Q, R columns of `width` values.
pub fn add_outer_product(matrix: &mut [f32], width: usize, left: &[f32], right: &[f32], sign: f32) {
    let rows = matrix.len() / width;
    let mut factors = [0.0; BLOCK];
    for start in (0..width).step_by(TILE) {
        let tile = TILE.min(width - start);
        for (at, row) in matrix.chunks_exact_mut(width).enumerate() {
            let sums = &mut row[start..][..tile];
            for (left, right) in left.chunks(BLOCK * rows).zip(right.chunks(BLOCK * width)) {
                let column = left.chunks_exact(rows).map(|column| column[at]);
                factors.iter_mut().zip(column).for_each(|(factor, value)| *factor = value);
                let terms = right.chunks_exact(width).map(|column| &column[start..][..tile]);
                add_scaled(sums, terms, &factors, sign);
            }
        }
    }
}

/// Adds `sign · factor · term` to `sums` for each of at most [`BLOCK`] `terms`, which have the length of
/// `sums`. There may be more factors than terms.
fn add_scaled<'a>(
    sums: &mut [f32],
    mut terms: impl ExactSizeIterator<Item = &'a [f32]>,
    factors: &[f32],
    sign: f32,
) {
    if terms.len() == BLOCK {
        let [a, b, c, d]: [&[f32]; BLOCK] = from_fn(|_| terms.next().expect("a whole block of terms"));
        let [p, q, r, s]: [f32; BLOCK] = from_fn(|k| sign * factors[k]);
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum += (p * a + q * b) + (r * c + s * d);
        }
        return;
    }
    for (term, factor) in terms.zip(factors) {
        let factor = sign * factor;
        sums.iter_mut().zip(term).for_each(|(sum, value)| *sum += factor * value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole numbers, whose products and sums are exact in f32.
    fn numbers(count: usize, salt: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 7 + salt * 13) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn products_are_those_of_the_definition() {
        for (rows, width) in [(1, 1), (3, 5), (4, 8), (9, 17), (6, 1030), (1030, 3)] {
            for rank in [1, 2, 4, 5, 9] {
                let (matrix, q) = (numbers(rows * width, 1), numbers(rank * width, 2));
                let p = numbers(rank * rows, 3);
                let mut product = vec![77.0];
                append_product(&matrix, width, &q, &mut product);
                let mut back = vec![77.0; rank * width];
                transposed_product(&matrix, width, &p, &mut back);
                let mut outer = matrix.clone();
                add_outer_product(&mut outer, width, &p, &q, -1.0);
                let sum = |count: usize, term: &dyn Fn(usize) -> f32| (0..count).map(term).sum::<f32>();
                for k in 0..rank {
                    for i in 0..rows {
                        let expected = sum(width, &|j| matrix[i * width + j] * q[k * width + j]);
                        assert_eq!(product[1 + k * rows + i], expected, "{rows}x{width}, rank {rank}");
                    }
                    for j in 0..width {
                        let expected = sum(rows, &|i| matrix[i * width + j] * p[k * rows + i]);
                        assert_eq!(back[k * width + j], expected, "{rows}x{width}, rank {rank}");
                    }
                }
                for (at, found) in outer.into_iter().enumerate() {
                    let (i, j) = (at / width, at % width);
                    let expected = matrix[at] - sum(rank, &|k| p[k * rows + i] * q[k * width + j]);
                    assert_eq!(found, expected, "{rows}x{width}, rank {rank}");
                }
            }
        }
    }
}
