//! Matrix products of a chosen level, by the kernels of the `gemm` crates.

use gemm_common::Parallelism;
use gemm_common::gemm::gemm_basic_generic;

use super::Level;

/// A matrix that lies in `values` row by row, or column by column if turned.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    pub values: &'a [f32],
    pub rows: usize,
    pub columns: usize,
    pub turned: bool,
}

impl<'a> Matrix<'a> {
    /// A matrix whose rows lie one after the other.
    pub fn of(values: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns);
        Self { values, rows, columns, turned: false }
    }

    /// The same values with rows for columns.
    pub fn transposed(self) -> Self {
        Self { rows: self.columns, columns: self.rows, turned: !self.turned, ..self }
    }

    /// Distances between columns and between rows.
    fn strides(&self) -> (isize, isize) {
        match self.turned {
            false => (1, self.columns as isize),
            true => (self.rows as isize, 1),
        }
    }
}

/// Terms of a sum that are added up in one go. The crates choose the number by
/// the size of caches from 512 on; below, it is the same on every machine, and
/// so are the sums.
const TERMS: usize = 512;

/// `product = a b`, or `product += a b` if `adds`, row by row.
pub fn multiply(level: Level, a: Matrix<'_>, b: Matrix<'_>, product: &mut [f32], adds: bool) {
    assert!(a.columns == b.rows && product.len() == a.rows * b.columns);
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let ((a_column, a_row), (b_column, b_row)) = (a.strides(), b.strides());
    for from in (0..a.columns).step_by(TERMS) {
        let terms = TERMS.min(a.columns - from);
        // Column-major destinations are what the kernels want: the product is
        // that of the transposed factors, in the other order.
        let call = Call {
            m: b.columns,
            n: a.rows,
            k: terms,
            product: product.as_mut_ptr(),
            product_columns: b.columns as isize,
            adds: adds || from > 0,
            // SAFETY: `from` is a row of `b` and a column of `a`, which lie in their slices.
            lhs: unsafe { b.values.as_ptr().offset(from as isize * b_row) },
            lhs_strides: (b_row, b_column),
            // SAFETY: as above.
            rhs: unsafe { a.values.as_ptr().offset(from as isize * a_column) },
            rhs_strides: (a_row, a_column),
            parallelism,
        };
        // SAFETY: the lengths above say that each matrix lies in its slice.
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

/// Calls the kernels of one level.
macro_rules! call {
    ($call:ident, $level:ident, $simd:expr, $lanes:expr) => {{
        use gemm_f32::microkernel::$level::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
        // SAFETY: the caller's; and `$simd` shows that the machine has the instructions.
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
    /// Pointers, sizes and strides describe three matrices that may be read, and
    /// the product written.
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
