//! Matrix products of 16-bit values, summed in f32.
//!
//! AVX-512 BF16 multiplies pairs of bf16 values and adds both products to an f32 in one
//! instruction, at twice the rate of f32. Elsewhere, and for f16, values are widened
//! and Burn's f32 product runs.

#[cfg(target_arch = "x86_64")]
mod avx512bf16;

use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::Flex;
use burn::backend::ops::FloatTensorOps;

use super::Half;
use crate::flex_tensor::{tensor, values};
use crate::simd::Level;

/// A matrix of 16-bit values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    /// The values by row, or by column if `transposed`.
    pub bits: &'a [u16],
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Whether the values are stored by column.
    pub transposed: bool,
}

impl<'a> Matrix<'a> {
    /// A matrix stored by row.
    pub(crate) fn new(bits: &'a [u16], [rows, columns]: [usize; 2]) -> Self {
        assert_eq!(bits.len(), rows * columns, "values of a {rows} x {columns} matrix");
        Self { bits, rows, columns, transposed: false }
    }

    /// The transposed matrix, without a copy.
    pub(crate) fn transpose(self) -> Self {
        let Self { bits, rows, columns, transposed } = self;
        Self { bits, rows: columns, columns: rows, transposed: !transposed }
    }
}

static DISABLED: AtomicBool = AtomicBool::new(false);

/// Whether products of bf16 activations run on the processor's bf16 instructions: at
/// [`Level::Avx512`], if it has AVX-512 BF16, unless [`use_bf16_products`] has disabled
/// them.
pub fn has_bf16_products() -> bool {
    Level::current() == Level::Avx512 && !DISABLED.load(Ordering::Relaxed) && supports_bf16_products()
}

/// Makes all later operators of this process use bf16 instructions if it has them, or
/// products in f32 of rounded values. The two differ in rounding, so processes that
/// train together should use the same.
///
/// ```
/// use burn_fused::precision::{has_bf16_products, use_bf16_products};
///
/// use_bf16_products(false);
/// assert!(!has_bf16_products());
/// ```
pub fn use_bf16_products(on: bool) {
    DISABLED.store(!on, Ordering::Relaxed);
}

#[cfg(target_arch = "x86_64")]
fn supports_bf16_products() -> bool {
    avx512bf16::is_available()
}

#[cfg(not(target_arch = "x86_64"))]
fn supports_bf16_products() -> bool {
    false
}

/// `a` times `b`, by row, in f32.
///
/// # Panics
/// If `b` does not have as many rows as `a` has columns, or a matrix is empty.
pub(crate) fn multiply(level: Level, half: Half, a: Matrix<'_>, b: Matrix<'_>) -> Vec<f32> {
    assert_eq!(a.columns, b.rows, "{} columns and {} rows", a.columns, b.rows);
    assert!(![a.rows, a.columns, b.columns].contains(&0), "an empty matrix");
    #[cfg(target_arch = "x86_64")]
    if half == Half::Bf16
        && level == Level::Avx512
        && has_bf16_products()
        && let Some(product) = avx512bf16::multiply(a, b)
    {
        return product;
    }
    let [a, b] = [a, b].map(|matrix| {
        let mut wide = vec![0.0; matrix.bits.len()];
        half.widen(level, matrix.bits, &mut wide);
        match matrix.transposed {
            true => tensor(wide, &[matrix.columns, matrix.rows]).transpose(0, 1),
            false => tensor(wide, &[matrix.rows, matrix.columns]),
        }
    });
    values(&Flex::float_matmul(a, b).to_contiguous()).to_vec()
}
