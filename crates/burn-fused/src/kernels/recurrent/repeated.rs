//! Rows of inputs that repeat, as those of an embedding do: equal rows have equal products, so that one of each is
//! multiplied, and the gradients of equal rows are summed before they are.

use std::collections::HashMap;

use bytemuck::cast_slice;

use crate::kernels::matrix::Matrix;
use crate::kernels::product::multiply;
use crate::kernels::rows::{add_rows, copy_rows};
use crate::kernels::simd::Level;
use crate::runtime::memory::Buffer;
use crate::runtime::poll;

/// Values at the beginning of a row by which equal ones are found.
const BEGINNING: usize = 8;
/// Values of a row that takes longer to multiply than to find.
const LEAST: usize = 16;
/// Rows that are summed before their sum is added to that of all: one long chain of additions is less exact.
const ROWS: usize = 512;

/// The different ones among rows.
#[derive(Debug, Clone)]
pub struct Repeated {
    /// The first row of each.
    firsts: Vec<usize>,
    /// For each row, which of them it is.
    numbers: Vec<usize>,
}

impl Repeated {
    /// Of rows of `width` values; none if they are short, if more than half of them differ, or if two begin alike and
    /// differ.
    pub fn find(rows: &[f32], width: usize) -> Option<Self> {
        if width < LEAST {
            return None;
        }
        // Bits, because NaN is not equal to itself, and 0 is to -0.
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

    /// One row of each.
    pub fn once(&self, rows: &[f32], width: usize) -> Buffer {
        copy_rows(&self.firsts, rows, width)
    }

    /// All rows, of one row of each.
    pub fn all(&self, once: &[f32], width: usize) -> Buffer {
        copy_rows(&self.numbers, once, width)
    }

    /// The sum of the equal rows of each, in their order, of `rows` for all.
    pub fn sums(&self, level: Level, rows: &[f32], width: usize) -> Buffer {
        let [mut sums, mut some] = [(); 2].map(|()| Buffer::zeroed(self.firsts.len() * width));
        let poll = poll::current();
        for (numbers, rows) in self.numbers.chunks(ROWS).zip(rows.chunks(ROWS * width)) {
            some.fill(0.0);
            add_rows(level, width, numbers, rows, &mut some);
            sums.iter_mut().zip(&*some).for_each(|(sum, some)| *sum += some);
            poll();
        }
        sums
    }
}

/// The gradient of weights side by side, `[terms, gates, width]`: of rows of `terms` inputs or states, and of the
/// gradient of their products, `columns` for each row.
pub fn of_weights(level: Level, terms: &[f32], gates: &[f32], columns: usize) -> Buffer {
    let rows = gates.len() / columns;
    let terms = Matrix::new(terms, [rows, terms.len() / rows]).transpose();
    let gates = Matrix::new(gates, [rows, columns]);
    let mut of_weights = Buffer::new(terms.rows * gates.columns);
    multiply(level, terms, gates, &mut of_weights, false);
    poll::current()();
    of_weights
}

/// The same of inputs, which may be `repeated`, of `width` values.
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
