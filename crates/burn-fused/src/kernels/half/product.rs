//! Matrix products of 16-bit values, summed in f32.
//!
//! AVX-512 BF16 multiplies pairs of bf16 values and adds both products to an f32 in one instruction, at twice
//! the rate of f32. AMX multiplies whole tiles, of 16 x 32 and 32 x 16 values, in one instruction. On other
//! processors, and for f16, the caller widens the values and multiplies in f32.

use std::sync::atomic::{AtomicU8, Ordering};

use super::Matrix;
#[cfg(target_arch = "x86_64")]
use super::{amx, avx512bf16};
use crate::kernels::simd::Level;

/// A matrix of the bits of 16-bit values.
pub(crate) type Bits<'a> = Matrix<'a, u16>;

/// How products of bf16 activations are computed. The three kinds round differently. `Avx512` and `Amx` treat
/// denormal values as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Bf16Products {
    /// In f32, on widened values.
    Widened,
    /// With the instructions of AVX-512 BF16.
    Avx512,
    /// With AMX tiles.
    Amx,
}

impl Bf16Products {
    /// All kinds, slowest first.
    pub const ALL: [Self; 3] = [Self::Widened, Self::Avx512, Self::Amx];

    /// The name of the kind: `f32`, `avx512` or `amx`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Widened => "f32",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
        }
    }
}

/// The fastest kind that [`limit_bf16_products`] allows.
static LIMIT: AtomicU8 = AtomicU8::new(Bf16Products::Amx as u8);

/// Returns how this process computes products of bf16 activations. At [`Level::Avx512`], this is the fastest
/// kind that the processor supports and [`limit_bf16_products`] allows. At other levels, it is
/// [`Bf16Products::Widened`].
pub fn bf16_products() -> Bf16Products {
    let limit = Bf16Products::ALL[usize::from(LIMIT.load(Ordering::Relaxed))];
    match Level::current() {
        Level::Avx512 => fastest().min(limit),
        _ => Bf16Products::Widened,
    }
}

/// Limits all later operators of this process to `limit` and slower kinds of products. Processes that train
/// together should use the same limit: the slowest of their [`bf16_products`].
///
/// ```
/// use burn_fused::precision::{Bf16Products, bf16_products, limit_bf16_products};
///
/// limit_bf16_products(Bf16Products::Widened);
/// assert_eq!(bf16_products(), Bf16Products::Widened);
/// ```
pub fn limit_bf16_products(limit: Bf16Products) {
    LIMIT.store(limit as u8, Ordering::Relaxed);
}

fn fastest() -> Bf16Products {
    #[cfg(target_arch = "x86_64")]
    match (amx::is_available(), avx512bf16::is_available()) {
        (true, _) => return Bf16Products::Amx,
        (false, true) => return Bf16Products::Avx512,
        (false, false) => (),
    }
    Bf16Products::Widened
}

/// Adds the product of two bf16 matrices to `sums`, row by row, and returns true. Returns false and adds
/// nothing if `level` is not [`Level::Avx512`], or if [`bf16_products`] is
/// [`Widened`](Bf16Products::Widened).
///
/// # Panics
/// If the number of rows of `b` is not the number of columns of `a`, if a matrix is empty, or if `sums` does
/// not have the size of the product.
pub(crate) fn add_product(level: Level, a: Bits<'_>, b: Bits<'_>, sums: &mut [f32]) -> bool {
    assert_eq!(a.columns, b.rows, "a has {} columns, but b has {} rows", a.columns, b.rows);
    assert!(![a.rows, a.columns, b.columns].contains(&0), "a matrix is empty");
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 {
        return match bf16_products() {
            Bf16Products::Amx => amx::multiply(a, b, sums),
            Bf16Products::Avx512 => avx512bf16::multiply(a, b, sums),
            Bf16Products::Widened => false,
        };
    }
    false
}
