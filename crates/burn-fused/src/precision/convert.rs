//! Conversions between f32 and 16-bit types: the same bits on every machine.

use burn::tensor::f16;
use half::slice::HalfFloatSliceExt;

use crate::simd::{Kernel, Lanes};

/// bf16 to f32: the upper half of its bits.
pub(super) struct WidenBf16<'a> {
    pub bits: &'a [u16],
    pub values: &'a mut [f32],
}

impl Kernel for WidenBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        for (value, &bits) in self.values.iter_mut().zip(self.bits) {
            *value = f32::from_bits(u32::from(bits) << 16);
        }
    }
}

/// f32 to bf16.
pub(super) struct NarrowBf16<'a> {
    pub values: &'a [f32],
    pub bits: &'a mut [u16],
}

impl Kernel for NarrowBf16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, _simd: S) {
        for (bits, &value) in self.bits.iter_mut().zip(self.values) {
            let all = value.to_bits();
            // Half of the last place is added, less one where the result would be odd.
            let rounded = all.wrapping_add(0x7fff + ((all >> 16) & 1)) >> 16;
            // A NaN whose lower half was all of it must not become infinity.
            let quiet = (all >> 16) | 0x40;
            *bits = (if value.is_nan() { quiet } else { rounded }) as u16;
        }
    }
}

/// f16 to f32.
pub(super) fn widen_f16(bits: &[u16], values: &mut [f32]) {
    let halves: &[f16] = bytemuck::cast_slice(bits);
    halves.convert_to_f32_slice(values);
}

/// f32 to f16.
pub(super) fn narrow_f16(values: &[f32], bits: &mut [u16]) {
    let halves: &mut [f16] = bytemuck::cast_slice_mut(bits);
    halves.convert_from_f32_slice(values);
}
