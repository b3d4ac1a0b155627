//! Finds equal rows among inputs, so that each distinct row is multiplied only once.
//!
//! The output of an embedding has many equal rows. Equal rows have equal products, so forward multiplies one
//! of them and copies the product. Backward first sums the gradients of equal rows, and then multiplies the
//! sum.

use std::collections::HashMap;

use bytemuck::cast_slice;

use crate::kernels::matrix::Matrix;
use crate::kernels::product::multiply;
use crate::kernels::rows::{add_rows, copy_rows};
use crate::kernels::simd::Level;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// Number of values in a key. Rows are looked up by their first values.
const BEGINNING: usize = 8;
/// Minimum length of rows that are searched. A shorter row takes less time to multiply than to look up.
const LEAST: usize = 16;
/// Number of rows in a block. Each block is summed separately, and its sum is added to the total: one long
/// chain of additions is less exact.
const ROWS: usize = 512;

/// Approximate number of values in an item for a thread.
const ITEM: usize = 1 << 13;

/// The distinct rows of a matrix.
#[derive(Debug, Clone)]
pub struct Repeated {
    /// For each distinct row, the index of the first row that equals it.
    firsts: Vec<usize>,
    /// For each row, the index of its distinct row in `firsts`.
    numbers: Vec<usize>,
}

impl Repeated {
    /// Finds the distinct rows among `rows`, which have `width` values each. Returns `None` if `width` is
    /// below [`LEAST`], if more than half of the rows are distinct, or if two different rows begin with the
    /// same [`BEGINNING`] values.
    pub fn find(rows: &[f32], width: usize) -> Option<Self> {
        if width < LEAST {
            return None;
        }
        // Rows are compared by their bits: as a number, NaN is not equal to itself, and 0 equals -0.
        let rows = rows.chunks_exact(width).map(cast_slice::<f32, u32>);
        let count = rows.len();
        let (mut found, mut firsts) = (HashMap::new(), Vec::new());
        let mut numbers = Vec::with_capacity(count);
        for (at, row) in rows.enumerate() {
            let (number, first) = *found.entry(&row[..BEGINNING]).or_insert((firsts.len(), row));
            if number == firsts.len() {
                firsts.push(at);
            }
            if 2 * firsts.len() > count || row != first {
                return None;
            }
            numbers.push(number);
        }
        Some(Self { firsts, numbers })
    }

    /// Copies each distinct row once.
    pub fn once(&self, rows: &[f32], width: usize) -> Buffer {
        copy_rows(&self.firsts, rows, width)
    }

    /// Expands `once`, which has one row for each distinct row, to all rows.
    pub fn all(&self, once: &[f32], width: usize) -> Buffer {
        copy_rows(&self.numbers, once, width)
    }

    /// Returns one sum for each distinct row of the matrix. Row `i` of `rows`, for example the gradient of
    /// row `i` of the matrix, is added to the sum of the distinct row that equals row `i` of the matrix.
    pub fn sums(&self, level: Level, rows: &[f32], width: usize) -> Buffer {
        let mut sums = Buffer::zeroed(self.firsts.len() * width);
        let (some, poll) = ((ITEM / width).max(1), Poll::current());
        each(rows.len() / 8, sums.chunks_mut(some * width).enumerate(), |(item, sums)| {
            let mut of_block = vec![0.0; sums.len()];
            for (numbers, rows) in self.numbers.chunks(ROWS).zip(rows.chunks(ROWS * width)) {
                of_block.fill(0.0);
                add_rows(level, width, (numbers, item * some), rows, &mut of_block);
                sums.iter_mut().zip(&of_block).for_each(|(sum, value)| *sum += value);
            }
            poll.call();
        });
        sums
    }
}

/// Returns the gradient of the weights of all gates: `columns` values for each input or hidden unit. `terms`
/// has the inputs or the hidden states, row by row. `gates` has the gradients of their products with the
/// weights, `columns` values in each row.
pub fn of_weights(level: Level, terms: &[f32], gates: &[f32], columns: usize) -> Buffer {
    let rows = gates.len() / columns;
    let terms = Matrix::new(terms, [rows, terms.len() / rows]).transpose();
    let gates = Matrix::new(gates, [rows, columns]);
    let mut of_weights = Buffer::new(terms.rows * gates.columns);
    multiply(level, terms, gates, &mut of_weights, false);
    Poll::current().call();
    of_weights
}

/// Does the same as [`of_weights`] for rows of `width` inputs. If `repeated` is present, the gradients of
/// equal rows are summed first.
pub fn of_input_weights(
    level: Level,
    (x, width): (&[f32], usize),
    repeated: Option<&Repeated>,
    gates: &[f32],
    columns: usize,
) -> Buffer {
    match repeated {
        Some(repeated) => {
            let sums = repeated.sums(level, gates, columns);
            of_weights(level, &repeated.once(x, width), &sums, columns)
        }
        None => of_weights(level, x, gates, columns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_equal_by_their_bits_and_half_of_them_at_most_may_differ() {
        let row = |first| {
            let mut row = [f32::NAN; LEAST];
            row[0] = first;
            row
        };
        let rows = [1.0, 0.0, 1.0, 0.0, 1.0].map(row);
        let found = Repeated::find(rows.as_flattened(), LEAST).unwrap();
        assert_eq!((&found.firsts[..], &found.numbers[..]), (&[0, 1][..], &[0, 1, 0, 1, 0][..]));
        assert_eq!(found.sums(Level::current(), &[1.0, 2.0, 3.0, 4.0, 5.0], 1)[..], [9.0, 6.0]);
        assert_eq!(found.all(&found.once(&[7.0, 8.0, 7.0, 8.0, 7.0], 1), 1)[..], [7.0, 8.0, 7.0, 8.0, 7.0]);
        for rows in [[0.0, -0.0], [1.0, 2.0]].map(|firsts| firsts.map(row)) {
            assert!(Repeated::find(rows.as_flattened(), LEAST).is_none());
        }
        assert!(Repeated::find(&[1.0; 2 * (LEAST - 1)], LEAST - 1).is_none(), "short rows are not searched");
    }

    #[test]
    fn rows_that_begin_alike_are_not_taken_for_equal() {
        let mut rows = [[0.5; LEAST]; 4];
        assert!(Repeated::find(rows.as_flattened(), LEAST).is_some());
        rows[3][BEGINNING] = 1.0;
        assert!(Repeated::find(rows.as_flattened(), LEAST).is_none());
    }

    #[test]
    fn sums_of_many_equal_rows_are_exact() {
        let found = Repeated::find(&[1.0; 100_000 * LEAST], LEAST).unwrap();
        let [sum] = found.sums(Level::current(), &[0.1; 100_000], 1)[..] else { panic!("one row") };
        assert!((sum - 10_000.0).abs() < 0.05, "{sum}");
    }
}
