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
    _simd: S,
    step: Step,
    plane: Plane,
    lanes: &mut [S::f32s],
    argmax: &mut [u8],
) {
    let [height, width] = plane.size;
    let mut kept = argmax.chunks_exact_mut(width * S::F32_LANES);
    for row in lanes[plane.first..].chunks_mut(plane.stride).take(height) {
        let row: &mut [f32] = bytemuck::cast_slice_mut(&mut row[..width]);
        let mut all = true;
        for &value in &*row {
            all &= step.apply(value).1;
        }
        if let Some(argmax) = kept.next().filter(|_| !all) {
            for (index, &value) in argmax.iter_mut().zip(&*row) {
                *index = if step.apply(value).1 { *index } else { NO_MAXIMUM as u8 };
            }
        }
        for value in row {
            *value = step.apply(*value).0;
        }
    }
}
