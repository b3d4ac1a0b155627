//! 16-bit floating-point values: conversions, and matrix products of bf16.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod product;
mod setting;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::kernels::matrix::Matrix;
use crate::kernels::simd::{Level, kernel};
use crate::runtime::memory::Buffer;
use crate::runtime::threads::each;

pub use product::{Bf16Products, bf16_products, limit_bf16_products};
pub(crate) use product::{Bits, add_product};
pub use setting::MatmulPrecision;

/// Number of values that a thread rounds at a time.
const PART: usize = 1 << 14;

/// A 16-bit floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// bf16: the range of f32, and 8 bits of precision.
    Bf16,
    /// f16: values up to 65504, and 11 bits of precision.
    F16,
}

impl Half {
    /// Converts `bits` to f32, exactly.
    ///
    /// # Panics
    /// If `bits` and `values` have different lengths.
    pub(crate) fn widen(self, level: Level, bits: &[u16], values: &mut [f32]) {
        assert_eq!(bits.len(), values.len());
        match self {
            Self::Bf16 => widen_bf16(level, bits, values),
            Self::F16 => bytemuck::cast_slice::<_, f16>(bits).convert_to_f32_slice(values),
        }
    }

    /// Returns the values of `bits` in f32.
    pub(crate) fn widened(self, level: Level, bits: &[u16]) -> Vec<f32> {
        let mut values = vec![0.0; bits.len()];
        self.widen(level, bits, &mut values);
        values
    }

    /// Rounds `values` to nearest, ties to even. NaN stays NaN, and infinity stays infinity. In f16, a
    /// magnitude of 65520 or more becomes infinity.
    ///
    /// # Panics
    /// If `values` and `bits` have different lengths.
    pub(crate) fn narrow(self, level: Level, values: &[f32], bits: &mut [u16]) {
        assert_eq!(bits.len(), values.len());
        match self {
            Self::Bf16 => narrow_bf16(level, values, bits),
            Self::F16 => bytemuck::cast_slice_mut::<_, f16>(bits).convert_from_f32_slice(values),
        }
    }

    /// Returns the bits of the rounded values.
    pub(crate) fn narrowed(self, level: Level, values: &[f32]) -> Buffer<u16> {
        let mut bits = Buffer::of_type(values.len());
        let parts = bits.chunks_mut(PART).zip(values.chunks(PART));
        each(values.len() / 8, parts, |(bits, values)| self.narrow(level, values, bits));
        bits
    }

    /// Returns the rounded values in f32.
    pub(crate) fn rounded(self, level: Level, values: &[f32]) -> Vec<f32> {
        self.widened(level, &self.narrowed(level, values))
    }

    /// Rounds the gradient of f32 weights to f16 if `self` is f16, and leaves it in f32 if `self` is bf16.
    /// PyTorch's autocast computes with an f16 copy of the weights, and the copy's gradient is in f16. The
    /// rounded gradient therefore overflows in the same cases as PyTorch's.
    pub(crate) fn weight_gradient(self, level: Level, gradient: &mut [f32]) {
        if self == Self::F16 {
            gradient.copy_from_slice(&self.rounded(level, gradient));
        }
    }
}

kernel! {
    /// Converts bf16 to f32: the bits of bf16 are the upper half of the bits of f32.
    fn widen_bf16<S>(_simd: S, bits: &[u16], values: &mut [f32]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            *value = f32::from_bits(u32::from(bits) << 16);
        }
    }
}

kernel! {
    /// Converts f32 to bf16, rounding to nearest, ties to even.
    fn narrow_bf16<S>(_simd: S, values: &[f32], bits: &mut [u16]) {
        for (bits, &value) in bits.iter_mut().zip(values) {
            let all = value.to_bits();
            // Adding 0x8000 if the upper half is odd, and 0x7fff if it is even, rounds to nearest. At a tie,
            // the lower half is 0x8000, so only an odd upper half is rounded up.
            let rounded = all.wrapping_add(0x7fff + ((all >> 16) & 1)) >> 16;
            // If all set bits of a NaN's payload are in the lower half, the upper half alone would be
            // infinity. The quiet bit keeps it NaN.
            let quiet = (all >> 16) | 0x40;
            *bits = (if value.is_nan() { quiet } else { rounded }) as u16;
        }
    }
}
