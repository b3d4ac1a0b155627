//! Fake quantization of the activations between two convolutions, in lanes.

use super::plane::Plane;
use crate::epilogue::NO_MAXIMUM;
use crate::int8::Step;
use crate::simd::Lanes;

/// Fake-quantizes the pixels of a plane. Where a value is clipped, `argmax`, a byte for each
/// pixel and lane, becomes [`NO_MAXIMUM`]: no pixel in front of the pooling gets a gradient.
/// It may be empty.
#[inline(always)]
pub(super) fn fake_quantize<S: Lanes>(
    simd: S,
    step: Step,
    plane: Plane,
    lanes: &mut [S::f32s],
    argmax: &mut [u8],
) {
    let [height, width] = plane.size;
    let [low, high] = [step.low, step.high].map(|bound| simd.splat_f32s(bound));
    let (zero, one) = (simd.splat_u32s(0), simd.splat_u32s(1));
    for y in 0..height {
        let row = &mut lanes[plane.first + y * plane.stride..][..width];
        let mut clipped = zero;
        for value in row.iter() {
            let rounded = step.round(simd, *value);
            let inside = simd.and_m32s(
                simd.greater_than_or_equal_f32s(rounded, low),
                simd.less_than_or_equal_f32s(rounded, high),
            );
            clipped = simd.or_u32s(clipped, simd.select_u32s(inside, zero, one));
        }
        let clipped: &[u32] = bytemuck::cast_slice(std::slice::from_ref(&clipped));
        if !argmax.is_empty() && clipped.iter().any(|&any| any != 0) {
            let values: &[f32] = bytemuck::cast_slice(row);
            let argmax = &mut argmax[y * width * S::F32_LANES..][..values.len()];
            for (index, &value) in argmax.iter_mut().zip(values) {
                if !step.apply(value).1 {
                    *index = NO_MAXIMUM as u8;
                }
            }
        }
        for value in row {
            *value = step.quantized(simd, *value);
        }
    }
}
