//! The setting that selects how f32 activations are multiplied.

use std::sync::atomic::{AtomicBool, Ordering};

use super::product::{Bf16Products, add_product, bf16_products};
use super::{Half, Matrix};
use crate::kernels::simd::Level;

/// How linear layers multiply f32 activations, including linear layers inside other modules. In PyTorch,
/// `set_float32_matmul_precision` makes the same choice: `highest` is [`F32`](Self::F32), and `medium` is
/// [`Bf16`](Self::Bf16).
///
/// ```
/// use burn_fused::precision::MatmulPrecision;
///
/// assert_eq!(MatmulPrecision::current(), MatmulPrecision::F32);
/// MatmulPrecision::Bf16.use_precision();
/// assert_eq!(MatmulPrecision::current(), MatmulPrecision::Bf16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MatmulPrecision {
    /// In f32.
    F32,
    /// In forward and backward, both factors of each product are rounded to bf16, and products are summed in
    /// f32. Denormal values count as zero. Activations, parameters and gradients remain in f32.
    ///
    /// A layer nevertheless multiplies in f32 if [`bf16_products`] returns [`Bf16Products::Widened`], or if
    /// the layer has fewer than 64 inputs, outputs or rows. With so few, rounding would take longer than it
    /// saves.
    Bf16,
}

/// Minimum number of rows, of columns and of terms in a product that is computed in bf16. In smaller
/// products, a rounded value is used too rarely to pay for its rounding.
const LEAST: usize = 64;

static IS_BF16: AtomicBool = AtomicBool::new(false);

impl MatmulPrecision {
    /// The precision in use: [`F32`](Self::F32), unless [`use_precision`](Self::use_precision) selected
    /// another.
    pub fn current() -> Self {
        if IS_BF16.load(Ordering::Relaxed) { Self::Bf16 } else { Self::F32 }
    }

    /// Makes later linear layers of this process use `self`. The backward of a layer uses the precision of
    /// its forward. Processes that train together should use the same precision, and the same
    /// [`bf16_products`].
    pub fn use_precision(self) {
        IS_BF16.store(self == Self::Bf16, Ordering::Relaxed);
    }

    /// Computes `product = a b`, stored row by row.
    ///
    /// # Panics
    /// If the sizes of the matrices, or the length of `product`, do not match.
    pub(crate) fn multiply(self, level: Level, a: Matrix<'_>, b: Matrix<'_>, product: &mut [f32]) {
        let is_large = a.rows.min(a.columns).min(b.columns) >= LEAST;
        if self == Self::Bf16 && is_large && bf16_products() != Bf16Products::Widened {
            let [left, right] = [a, b].map(|matrix| Half::Bf16.narrowed(level, matrix.values));
            product.fill(0.0);
            if add_product(level, a.with(&left), b.with(&right), product) {
                return;
            }
        }
        crate::kernels::product::multiply(level, a, b, product, false);
    }
}
