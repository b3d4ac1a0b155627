//! Matrix products at a given SIMD level, with the kernels of the `gemm` crates.

use gemm_common::Parallelism;
use gemm_common::gemm::gemm_basic_generic;
use gemm_common::simd::Scalar;
#[cfg(target_arch = "x86_64")]
use gemm_common::simd::{MixedSimd, V3, V4};

use crate::matrix::Matrix;
use crate::simd::Level;

/// Maximum terms of a sum in one call. From 512 on, the crates split sums by the
/// cache sizes; below, results are the same bits on every machine.
const TERMS: usize = 512;

/// `product = a b`, or `product += a b` if `adds`, stored row by row.
///
/// # Panics
/// If the sizes of the matrices do not match.
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
    let threads = rayon::current_num_threads();
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    // Distances between columns and between rows.
    let strides = |matrix: Matrix<'_>| match matrix.transposed {
        false => (1, matrix.columns as isize),
        true => (matrix.rows as isize, 1),
    };
    let ((a_column, a_row), (b_column, b_row)) = (strides(a), strides(b));
    for from in (0..a.columns).step_by(TERMS) {
        let k = TERMS.min(a.columns - from);
        // The kernels expect column-major destinations: the product of the
        // transposed factors, in the other order.
        let (m, n, product) = (b.columns, a.rows, product.as_mut_ptr());
        let adds = adds || from > 0;
        // SAFETY: `from` is a row of `b`, which has at least one value: its first is in the
        // slice, whose length was checked.
        let lhs = unsafe { b.values.as_ptr().offset(from as isize * b_row) };
        // SAFETY: as above, of a column of `a`.
        let rhs = unsafe { a.values.as_ptr().offset(from as isize * a_column) };
        /// Calls the kernels of one SIMD level.
        macro_rules! call {
            ($level:ident, $simd:expr, $lanes:expr) => {{
                use gemm_f32::microkernel::$level::f32::{H_M, H_N, H_UKR, MR_DIV_N, NR, UKR};
                // The kernels need the instructions of their module: on x86 `$simd` is made only where they are
                // available, NEON is part of every aarch64 that Rust supports, and `scalar` needs none.
                // SAFETY: as said, the instructions are available; each factor and the product are within their
                // slices by the assertions above, and nothing else refers to `product`.
                unsafe {
                    gemm_basic_generic::<_, f32, { $lanes }, { MR_DIV_N * $lanes }, NR, MR_DIV_N, H_M, H_N>(
                        $simd,
                        m,
                        n,
                        k,
                        product,
                        m as isize,
                        1,
                        adds,
                        lhs,
                        b_row,
                        b_column,
                        rhs,
                        a_row,
                        a_column,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        |a, b, c| a * b + c,
                        &UKR,
                        &H_UKR,
                        false,
                        parallelism,
                    )
                }
            }};
        }
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if let Some(simd) = available::<V4>() => call!(avx512f, simd, 16),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 if let Some(simd) = available::<V3>() => call!(fma, simd, 8),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => call!(neon, Scalar, 4),
            _ => call!(scalar, Scalar, 1),
        }
    }
}

/// The instructions, where the processor has them.
#[cfg(target_arch = "x86_64")]
fn available<S: MixedSimd<f32, f32, f32, f32>>() -> Option<S> {
    S::try_new()
}
