//! Matrix products of f32, in blocks that fit the caches.
//!
//! Each value of a product is a sum of terms. The second factor is packed into panels. For each term, a panel
//! has up to four vectors of neighbouring columns. The first factor is not packed. Its values are read one by
//! one, as scalars, and multiplied by the vectors of a panel. A block of its rows stays in the L2 cache while
//! it is multiplied by all panels: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication"
//! (2008).
//!
//! Packing pays only if packed values are read often. With few rows in the first factor, or few columns in
//! the second factor, the second factor may be read in place ([`FEW`], [`NEAR`]). If one factor is a single
//! row or a single column, each value of the other factor is read only once, so nothing is packed.

use std::cell::Cell;

use crate::kernels::matrix::Matrix;
use crate::kernels::simd::{
    Kernel, Lanes, Level, MAX_LANES, Scalars, Target, kernel, load, multiply_rows, prefetch, store, transpose,
};
use crate::runtime::memory::Scratch;
use crate::runtime::threads::{each, threads_for};

/// Maximum number of vectors in a panel.
const PANEL: usize = 4;
/// Maximum number of rows in a tile. A tile is a group of sums that one loop keeps in registers. The number
/// of rows in a block of rows is a multiple of this number.
const TILE: usize = 12;
/// Maximum number of terms in one chain of additions. The sum of each chain is added to the sum of the chains
/// before it. The number does not depend on the sizes of the caches, so that machines with different caches
/// compute the same bits.
const TERMS: usize = 512;
/// Maximum number of columns that are packed at a time. Their panels take two megabytes of the L3 cache.
const COLUMNS: usize = 1024;
/// Approximate maximum number of scalars in a block of rows. They take half a megabyte of the L2 cache.
const SCALARS: usize = 1 << 17;
/// Distance, in rows, from the row that is copied to the row that is prefetched.
const AHEAD: usize = 4;
/// Number of f32 values in a cache line.
const LINE: usize = 16;
/// If the first factor has at most this many rows, the second factor is read in place, because packing it
/// would take longer than it saves. A second factor that is transposed, or whose rows do not fill whole
/// panels, is packed in any case.
const FEW: usize = 12;
/// If the second factor has at most this many columns, it is read in place. Its rows are close together, so
/// the caches hold the rows of all terms. The exceptions of [`FEW`] apply.
const NEAR: usize = 128;
/// Number of multiplications in a nanosecond, for estimates of the time of a product.
const RATE: usize = 64;
/// Number of columns in an item for a thread that packs: a multiple of the columns of a panel.
const PACKED: usize = 2 * PANEL * MAX_LANES;

thread_local! {
    static PANELS: Cell<Scratch> = Cell::default();
}

/// Computes `product = a b`, or `product += a b` if `adds`. The product is stored row by row.
///
/// # Panics
/// If the sizes of the matrices, or the length of `product`, do not match.
pub(crate) fn multiply(level: Level, a: Matrix<'_>, b: Matrix<'_>, product: &mut [f32], adds: bool) {
    assert!([a, b].iter().all(|matrix| matrix.values.len() == matrix.rows * matrix.columns));
    let fits = a.columns == b.rows && product.len() == a.rows * b.columns;
    assert!(fits, "matrix product: sizes do not match");
    if product.is_empty() || a.columns == 0 {
        if !adds {
            product.fill(0.0);
        }
        return;
    }
    let time = a.rows * a.columns * b.columns / RATE;
    let parts = threads_for(time);
    if a.rows == 1 || b.columns == 1 {
        // A product of one column is computed as a product of one row, with both matrices transposed. A
        // column is stored in the same way as a row, so no value is moved.
        let (row, matrix) = if a.rows == 1 { (a, b) } else { (b, a.transpose()) };
        let part = |product: &mut [f32], values| {
            let matrix = Matrix { values, columns: product.len(), ..matrix };
            level.run(MultiplyRow { row: row.values, matrix, product, adds });
        };
        if parts == 1 || !matrix.transposed {
            part(product, matrix.values);
        } else {
            let size = product.len().div_ceil(parts);
            let values = matrix.values.chunks(size * matrix.rows);
            each(time, product.chunks_mut(size).zip(values), |(product, values)| part(product, values));
        }
        return;
    }
    // Tiles of fewer than four rows are slow.
    let rows = a.rows.div_ceil(parts).next_multiple_of(4);
    let mut scratch = PANELS.take();
    for column in (0..b.columns).step_by(COLUMNS) {
        let columns = COLUMNS.min(b.columns - column);
        for term in (0..a.columns).step_by(TERMS) {
            let terms = TERMS.min(a.columns - term);
            let time = a.rows * terms * columns / RATE;
            // `b` is read in place if its rows fill whole panels at every SIMD level, and if `a` has few rows
            // or `b` has few columns.
            let most = columns.next_power_of_two().clamp(MAX_LANES, PANEL * MAX_LANES);
            let whole = !b.transposed && columns.is_multiple_of(most);
            let direct = whole && (a.rows <= FEW || b.columns <= NEAR);
            let panels = if direct {
                &b.values[term * b.columns + column..]
            } else {
                let width = PANEL * MAX_LANES;
                let length = columns.next_multiple_of(width) * terms + MAX_LANES * width;
                let panels = scratch.take::<f32>(length);
                pack(level, b, [term, terms], [column, columns], panels);
                &*panels
            };
            let part = |number: usize, product: &mut [f32]| {
                let (a_term, a_row) = if a.transposed { (a.rows, 1) } else { (1, a.columns) };
                level.run(Multiply {
                    scalars: Scalars {
                        values: a.values,
                        first: term * a_term + number * rows * a_row,
                        term_step: a_term,
                        row_step: a_row,
                    },
                    terms,
                    panels,
                    stored: direct.then_some(b.columns),
                    columns: [column, columns],
                    product,
                    step: b.columns,
                    adds: adds || term > 0,
                });
            };
            each(time, product.chunks_mut(rows * b.columns).enumerate(), |(number, product)| {
                part(number, product);
            });
        }
    }
    PANELS.set(scratch);
}

/// Returns the number of vectors in a panel. If there are few columns, one panel holds all of them.
#[inline(always)]
fn panel<S: Lanes>(_simd: S, columns: usize) -> usize {
    match columns.div_ceil(S::F32_LANES) {
        1 => 1,
        3.. if S::REGISTER_COUNT >= 32 => PANEL,
        _ => 2,
    }
}

/// Copies a part of `matrix` into panels. `terms` and `columns` each give the first index and the number of
/// indices. Beyond the last column, the last panel is zero.
///
/// A transposed matrix is copied in squares, with one row and one column for each lane of a vector. The last
/// square may extend beyond the last term, so `panels` needs room for the terms of one more square.
fn pack(level: Level, matrix: Matrix<'_>, terms: [usize; 2], columns: [usize; 2], panels: &mut [f32]) {
    let [first, count] = columns;
    let time = terms[1] * count / 4;
    // Squares beyond the last term are in the next panel, which only one thread may write.
    let apart = !matrix.transposed || terms[1].is_multiple_of(MAX_LANES);
    if !apart || threads_for(time) == 1 {
        return pack_columns(level, matrix, terms, (columns, count), panels);
    }
    each(time, panels.chunks_mut(PACKED * terms[1]).zip((0..count).step_by(PACKED)), |(panels, from)| {
        let columns = [first + from, PACKED.min(count - from)];
        pack_columns(level, matrix, terms, (columns, count), panels);
    });
}

kernel! {
    /// Does the work of [`pack`] for some columns.
    fn pack_columns<S>(
        simd: S,
        matrix: Matrix<'_>,
        terms: [usize; 2],
        // The first column, the number of columns, and the number of columns of all panels.
        columns: ([usize; 2], usize),
        panels: &mut [f32],
    ) {
        let ([from, terms], ([first, columns], all)) = (terms, columns);
        let (lanes, width) = (S::F32_LANES, panel(simd, all) * S::F32_LANES);
        if !matrix.transposed {
            // The matrix is copied row by row, because the processor prefetches along a row.
            for term in 0..terms {
                let at = (from + term) * matrix.columns + first;
                let row = &matrix.values[at..][..columns];
                for line in (0..columns).step_by(LINE) {
                    prefetch(row.as_ptr().wrapping_add(AHEAD * matrix.columns + line));
                }
                for (panel, row) in row.chunks(width).enumerate() {
                    let target = &mut panels[(panel * terms + term) * width..][..width];
                    for (vector, target) in target.chunks_exact_mut(lanes).enumerate() {
                        let values = row.get(vector * lanes..).unwrap_or_default();
                        store(simd, target, load(simd, &values[..lanes.min(values.len())]));
                    }
                }
            }
            return;
        }
        for at in (0..columns.next_multiple_of(width)).step_by(lanes) {
            for term in (0..terms).step_by(lanes) {
                // Beyond the last column, there are no values, and `values` is empty.
                let values =
                    matrix.values.get((first + at) * matrix.rows + from + term..).unwrap_or_default();
                let size = [columns.saturating_sub(at), terms - term];
                // A square may reach beyond the last term, into the next panel. The next panel is written
                // later.
                let target = &mut panels[(at / width * terms + term) * width + at % width..];
                transpose(simd, (values, matrix.rows), size, (target, width), |column| column);
            }
        }
    }
}

/// Multiplies rows of scalars by panels.
struct Multiply<'a> {
    scalars: Scalars<'a>,
    terms: usize,
    panels: &'a [f32],
    /// The length of a row if `panels` is a matrix that is read in place. `None` if the panels are packed.
    stored: Option<usize>,
    /// The first column of the panels, and the number of their columns.
    columns: [usize; 2],
    /// The rows to compute, each with all columns of the product.
    product: &'a mut [f32],
    /// Number of values in a row of the product.
    step: usize,
    adds: bool,
}

impl Kernel for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        match panel(simd, self.columns[1]) {
            PANEL if S::REGISTER_COUNT >= 32 => self.with_panels::<S, PANEL>(simd),
            2 => self.with_panels::<S, 2>(simd),
            _ => self.with_panels::<S, 1>(simd),
        }
    }
}

impl Multiply<'_> {
    /// Runs with panels of `N` vectors.
    #[inline(always)]
    fn with_panels<S: Lanes, const N: usize>(self, simd: S) {
        let Self { scalars, terms, panels, stored, columns: [first, columns], product, step, adds } = self;
        let (rows, width) = (product.len() / step, N * S::F32_LANES);
        let blocks = (rows * terms).div_ceil(SCALARS);
        let block_rows = rows.div_ceil(blocks).next_multiple_of(TILE);
        for block in (0..rows).step_by(block_rows) {
            for column in (0..columns).step_by(width) {
                let vectors = match stored {
                    Some(row) => (&panels[column..], row),
                    None => (&panels[column * terms..], width),
                };
                let scalars = Scalars { first: scalars.first + block * scalars.row_step, ..scalars };
                let target = Target {
                    values: &mut *product,
                    first: block * step + first + column,
                    row_step: step,
                    vector_step: S::F32_LANES,
                    columns: columns - column,
                    adds,
                };
                let size = [rows.min(block + block_rows) - block, terms];
                // The last panel may have fewer vectors.
                match ((columns - column).div_ceil(S::F32_LANES), N) {
                    (1, 2..) => multiply_rows::<S, 1>(simd, size, scalars, vectors, target),
                    (2, 3..) => multiply_rows::<S, 2>(simd, size, scalars, vectors, target),
                    _ => multiply_rows::<S, N>(simd, size, scalars, vectors, target),
                }
            }
        }
    }
}

/// Multiplies a row by a matrix. Each value of the matrix is read once, in place.
struct MultiplyRow<'a> {
    row: &'a [f32],
    matrix: Matrix<'a>,
    product: &'a mut [f32],
    adds: bool,
}

/// Number of stored rows of the matrix that are read at the same time.
const STREAMS: usize = 8;

impl Kernel for MultiplyRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { row, matrix: Matrix { values, rows, columns, transposed }, product, adds } = self;
        if !adds {
            product.fill(0.0);
        }
        if transposed {
            // Each stored row gives one value of the product.
            for (product, values) in product.chunks_mut(STREAMS).zip(values.chunks(STREAMS * rows)) {
                if product.len() == STREAMS {
                    add_dots::<S, STREAMS>(simd, row, values, product);
                    continue;
                }
                for (product, values) in product.chunks_mut(1).zip(values.chunks_exact(rows)) {
                    add_dots::<S, 1>(simd, row, values, product);
                }
            }
            return;
        }
        for (scalars, values) in row.chunks(STREAMS).zip(values.chunks(STREAMS * columns)) {
            if scalars.len() == STREAMS {
                add_scaled::<S, STREAMS>(simd, scalars, values, product);
                continue;
            }
            for (scalars, values) in scalars.chunks(1).zip(values.chunks_exact(columns)) {
                add_scaled::<S, 1>(simd, scalars, values, product);
            }
        }
    }
}

/// Splits each of `R` rows into whole vectors and the remaining values.
#[inline(always)]
fn streams<S: Lanes, const R: usize>(values: &[f32], width: usize) -> [(&[S::f32s], &[f32]); R] {
    std::array::from_fn(|r| S::as_simd_f32s(&values[r * width..][..width]))
}

/// Adds to each value of `product` the dot product of `row` and one of `R` rows of `values`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn add_dots<S: Lanes, const R: usize>(simd: S, row: &[f32], values: &[f32], product: &mut [f32]) {
    let (vectors, rest) = S::as_simd_f32s(row);
    let rows = streams::<S, R>(values, row.len());
    let mut sums = [simd.splat_f32s(0.0); R];
    for (at, &vector) in vectors.iter().enumerate() {
        for r in 0..R {
            sums[r] = simd.fma(vector, rows[r].0[at], sums[r]);
        }
    }
    for r in 0..R {
        let sum = simd.fma(simd.partial_load_f32s(rest), simd.partial_load_f32s(rows[r].1), sums[r]);
        product[r] += simd.reduce_sum_f32s(sum);
    }
}

/// Adds `R` rows of `values` to `product`, each multiplied by its scalar.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn add_scaled<S: Lanes, const R: usize>(simd: S, scalars: &[f32], values: &[f32], product: &mut [f32]) {
    let rows = streams::<S, R>(values, product.len());
    let scalars: [S::f32s; R] = std::array::from_fn(|r| simd.splat_f32s(scalars[r]));
    let (vectors, rest) = S::as_mut_simd_f32s(product);
    for (at, vector) in vectors.iter_mut().enumerate() {
        let mut sum = simd.mul_f32s(scalars[0], rows[0].0[at]);
        for r in 1..R {
            sum = simd.fma(scalars[r], rows[r].0[at], sum);
        }
        *vector = simd.add_f32s(*vector, sum);
    }
    let mut sum = simd.partial_load_f32s(rest);
    for r in 0..R {
        sum = simd.fma(scalars[r], simd.partial_load_f32s(rows[r].1), sum);
    }
    simd.partial_store_f32s(rest, sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::numbers;

    /// The product, computed in f64.
    fn expected(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f64> {
        let at = |matrix: Matrix<'_>, row: usize, column: usize| {
            if matrix.transposed {
                f64::from(matrix.values[column * matrix.rows + row])
            } else {
                f64::from(matrix.values[row * matrix.columns + column])
            }
        };
        let sum = |row, column| (0..a.columns).map(|term| at(a, row, term) * at(b, term, column)).sum();
        (0..a.rows).flat_map(|row| (0..b.columns).map(move |column| sum(row, column))).collect()
    }

    #[test]
    fn products_of_any_sizes_are_exact_on_every_level_and_the_same_on_several_threads() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        // Among the cases are more terms and more columns than are packed at a time, more rows than a block
        // has, and second factors that are read in place.
        for [rows, terms, columns] in [
            [1, 1, 1],
            [1, 37, 85],
            [1, 600, 7],
            [43, 21, 1],
            [4100, 600, 1],
            [7, 3, 65],
            [13, 33, 17],
            [64, 100, 31],
            [6, 513, 64],
            [5, 40, 1030],
            [523, 520, 70],
            [12, 19, 192],
            [13, 19, 192],
            [25, 18, 32],
        ] {
            let (a, b) = (numbers(rows * terms, 1), numbers(terms * columns, 2));
            let [a, b] = [Matrix::new(&a, [rows, terms]), Matrix::new(&b, [terms, columns])];
            let by_column = |matrix: Matrix<'_>| -> Vec<f32> {
                let value = |at: usize| matrix.values[at % matrix.rows * matrix.columns + at / matrix.rows];
                (0..matrix.values.len()).map(value).collect()
            };
            let (a_columns, b_columns) = (by_column(a), by_column(b));
            let transposed = [
                Matrix::new(&a_columns, [terms, rows]).transpose(),
                Matrix::new(&b_columns, [columns, terms]).transpose(),
            ];
            let expected = expected(a, b);
            let start = numbers(rows * columns, 3);
            for (level, adds) in Level::available().flat_map(|level| [(level, false), (level, true)]) {
                let product = |a, b| {
                    let mut found = start.clone();
                    multiply(level, a, b, &mut found, adds);
                    found
                };
                let found = product(a, b);
                for ((&found, expected), start) in found.iter().zip(&expected).zip(&start) {
                    let expected = expected + f64::from(u8::from(adds)) * f64::from(*start);
                    let off = (f64::from(found) - expected).abs();
                    assert!(
                        off < 1e-6 * terms as f64 + 1e-6,
                        "{found}, not {expected}: {rows} {terms} {columns} {level}"
                    );
                }
                for (a, b) in [(transposed[0], b), (a, transposed[1]), (transposed[0], transposed[1])] {
                    let other = product(a, b);
                    // With a single row or column, the order of additions depends on how the matrix is
                    // stored.
                    let same = |(x, y): (&f32, &f32)| match rows.min(columns) {
                        1 => (x - y).abs() < 2e-6 * terms as f32,
                        _ => x == y,
                    };
                    assert!(found.iter().zip(&other).all(same), "{rows} {terms} {columns} at {level}");
                }
                let on_threads = pool.install(|| product(a, b));
                assert!(found == on_threads, "{rows} {terms} {columns} at {level} on three threads");
            }
        }
    }

    #[test]
    fn a_product_without_terms_is_zero_or_what_was_there() {
        let (a, b) = (Matrix::new(&[], [2, 0]), Matrix::new(&[], [0, 3]));
        let mut product = [1.0; 6];
        multiply(Level::current(), a, b, &mut product, true);
        assert_eq!(product, [1.0; 6]);
        multiply(Level::current(), a, b, &mut product, false);
        assert_eq!(product, [0.0; 6]);
    }
}
