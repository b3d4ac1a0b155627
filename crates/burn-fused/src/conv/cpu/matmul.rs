//! Matrix products at a given SIMD level, with the kernels of the `gemm` crates.

use gemm_common::Parallelism;
use gemm_common::gemm::gemm_basic_generic;

use crate::simd::Level;

/// A matrix, stored in `values` row by row, or column by column if `transposed`.
/// It is created by [`of`](Self::of) only, so `values` has `rows * columns` values.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a> Matrix<'a> {
    /// A matrix stored row by row.
    ///
    /// # Panics
    /// If there are not `rows * columns` values.
    pub fn of(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns);
        Self { values, rows, columns, transposed: false }
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The transposed matrix, of the same values.
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, transposed: !self.transposed, ..self }
    }

    /// Distances between columns and between rows.
    fn strides(&self) -> (isize, isize) {
        match self.transposed {
            false => (1, self.columns as isize),
            true => (self.rows as isize, 1),
        }
    }
}

/// Maximum terms of a sum in one call. From 512 on, the crates split sums by the
/// cache sizes; below, results are the same bits on every machine.
const TERMS: usize = 512;

/// `product = a b`, or `product += a b` if `adds`, stored row by row.
///
/// # Panics
/// If the sizes of the matrices do not match.
pub fn multiply(level: Level, a: Matrix<'_>, b: Matrix<'_>, product: &mut [f32], adds: bool) {
    assert!(a.columns == b.rows && product.len() == a.rows * b.columns, "matrix product: sizes do not match");
    if product.is_empty() || a.columns == 0 {
        if !adds {
            product.fill(0.0);
        }
        return;
    }
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let ((a_column, a_row), (b_column, b_row)) = (a.strides(), b.strides());
    for from in (0..a.columns).step_by(TERMS) {
        let terms = TERMS.min(a.columns - from);
        // The kernels expect column-major destinations: the product of the
        // transposed factors, in the other order.
        let call = Call {
            m: b.columns,
            n: a.rows,
            k: terms,
            product: product.as_mut_ptr(),
            product_columns: b.columns as isize,
            adds: adds || from > 0,
            // SAFETY: `from` is a row of `b`, which has at least one value: its first is in the
            // slice, whose length `Matrix::of` checked.
            lhs: unsafe { b.values.as_ptr().offset(from as isize * b_row) },
            lhs_strides: (b_row, b_column),
            // SAFETY: as above, of a column of `a`.
            rhs: unsafe { a.values.as_ptr().offset(from as isize * a_column) },
            rhs_strides: (a_row, a_column),
            parallelism,
        };
        // SAFETY: `Matrix::of` checked that each factor is within its slice, and the assertion
        // above that the product is; `product` is borrowed mutably, so nothing else refers to it.
        unsafe { call.run(level) };
    }
}

struct Call {
    m: usize,
    n: usize,
    k: usize,
    product: *mut f32,
    product_columns: isize,
    adds: bool,
    lhs: *const f32,
    lhs_strides: (isize, isize),
    rhs: *const f32,
    rhs_strides: (isize, isize),
    parallelism: Parallelism,
}

/// Calls the kernels of one SIMD level.
macro_rules! call {
    ($call:ident, $level:ident, $simd:expr, $lanes:expr) => {{
        use gemm_f32::microkernel::$level::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
        // SAFETY: the caller of `run` guarantees the sizes of the matrices. The kernels need the instructions
        // of their module: on x86 `$simd` is made only where they are available, NEON is part of
        // every aarch64 that Rust supports, and `scalar` needs none.
        unsafe {
            gemm_basic_generic::<_, f32, { $lanes }, { MR_DIV_N * $lanes }, NR, MR_DIV_N, H_M, H_N>(
                $simd,
                $call.m,
                $call.n,
                $call.k,
                $call.product,
                $call.product_columns,
                1,
                $call.adds,
                $call.lhs,
                $call.lhs_strides.0,
                $call.lhs_strides.1,
                $call.rhs,
                $call.rhs_strides.0,
                $call.rhs_strides.1,
                1.0,
                1.0,
                false,
                false,
                false,
                |a, b, c| a * b + c,
                &UKR,
                &H_UKR,
                false,
                $call.parallelism,
            )
        }
    }};
}

impl Call {
    /// # Safety
    /// The factors, of `m x k` and `k x n` values at these strides, may be read, and the
    /// product, of `m x n`, may be read and written; it overlaps neither.
    unsafe fn run(self, level: Level) {
        #[cfg(target_arch = "x86_64")]
        {
            use gemm_common::simd::{MixedSimd, V3, V4};
            if level == Level::Avx512
                && let Some(simd) = <V4 as MixedSimd<f32, f32, f32, f32>>::try_new()
            {
                return call!(self, avx512f, simd, 16);
            }
            if level == Level::Avx2
                && let Some(simd) = <V3 as MixedSimd<f32, f32, f32, f32>>::try_new()
            {
                return call!(self, fma, simd, 8);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if level == Level::Neon {
            return call!(self, neon, gemm_common::simd::Scalar, 4);
        }
        call!(self, scalar, gemm_common::simd::Scalar, 1)
    }
}
