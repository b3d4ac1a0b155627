//! The setting of the products of f32 activations.

use std::sync::atomic::{AtomicBool, Ordering};

use super::product::{Bf16Products, add_product, bf16_products};
use super::{Half, Matrix};
use crate::simd::Level;

/// How linear layers multiply activations in f32, alone and within other modules: what PyTorch's
/// `set_float32_matmul_precision` selects with `highest` and with `medium`.
///
/// ```
/// use burn_fused::precision::Precision;
///
/// assert_eq!(Precision::current(), Precision::F32);
/// Precision::Bf16.use_precision();
/// assert_eq!(Precision::current(), Precision::Bf16);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// In f32.
    F32,
    /// Both factors of each product, forward and backward, are rounded to bf16, and products are summed in f32.
    /// Activations, parameters and gradients remain in f32. It is for processors with AMX or AVX-512 BF16: where
    /// [`bf16_products`] has none of them, and in layers of at most 16 outputs, products remain in f32.
    Bf16,
}

static IS_BF16: AtomicBool = AtomicBool::new(false);

impl Precision {
    /// The precision in use: [`F32`](Self::F32), unless [`use_precision`](Self::use_precision) selected another.
    pub fn current() -> Self {
        if IS_BF16.load(Ordering::Relaxed) { Self::Bf16 } else { Self::F32 }
    }

    /// Makes later linear layers of this process use `self`; the backward of an earlier one has the precision of its
    /// forward. Processes that train together should use the same, and the same [`bf16_products`].
    pub fn use_precision(self) {
        IS_BF16.store(self == Self::Bf16, Ordering::Relaxed);
    }

    /// `product = a b`, stored row by row.
    ///
    /// # Panics
    /// If the sizes of the matrices do not match.
    pub(crate) fn multiply(self, level: Level, a: Matrix<'_>, b: Matrix<'_>, product: &mut [f32]) {
        let is_rounded = self == Self::Bf16 && bf16_products() != Bf16Products::Widened;
        if is_rounded && !product.is_empty() && a.columns > 0 {
            let [left, right] = [a, b].map(|matrix| Half::Bf16.narrowed(level, matrix.values));
            product.fill(0.0);
            if add_product(level, a.with(&left), b.with(&right), product) {
                return;
            }
        }
        crate::product::multiply(level, a, b, product, false);
    }
}
