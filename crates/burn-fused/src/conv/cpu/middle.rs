//! Fake quantization of the activations between two convolutions, in lanes.

use super::plane::Plane;
use crate::epilogue::NO_MAXIMUM;
use crate::fake_quantize::Step;
use crate::int8::Int8Error;
use crate::simd::Lanes;

/// Minimum and maximum of blocks of images.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extremes {
    range: [f32; 2],
    finite: bool,
}

impl Extremes {
    /// Those of no values.
    pub fn new() -> Self {
        Self { range: [f32::INFINITY, f32::NEG_INFINITY], finite: true }
    }

    /// Includes the values of the first `images` lanes.
    #[inline(always)]
    pub fn include<S: Lanes>(&mut self, simd: S, lanes: &[S::f32s], images: usize) {
        // Instructions take several cycles, so that four values are compared at once.
        const GROUP: usize = 4;
        let zero = simd.splat_f32s(0.0);
        let mut min = [simd.splat_f32s(f32::INFINITY); GROUP];
        let mut max = [simd.splat_f32s(f32::NEG_INFINITY); GROUP];
        // x · 0 is NaN if x is not finite, and NaN propagates through the sum.
        let mut check = [zero; GROUP];
        let (groups, rest) = lanes.as_chunks::<GROUP>();
        for group in groups {
            for n in 0..GROUP {
                min[n] = simd.min_f32s(group[n], min[n]);
                max[n] = simd.max_f32s(group[n], max[n]);
                check[n] = simd.fma(group[n], zero, check[n]);
            }
        }
        for &value in rest {
            min[0] = simd.min_f32s(value, min[0]);
            max[0] = simd.max_f32s(value, max[0]);
            check[0] = simd.fma(value, zero, check[0]);
        }
        for n in 0..GROUP {
            let [min, max, check] = [min[n], max[n], check[n]];
            let lanes = |vector| -> &[f32] { bytemuck::cast_slice(std::slice::from_ref(vector)) };
            let ends = lanes(&min).iter().zip(lanes(&max)).zip(lanes(&check));
            for ((&min, &max), &check) in ends.take(images) {
                self.range = [self.range[0].min(min), self.range[1].max(max)];
                self.finite &= check == 0.0;
            }
        }
    }

    /// The minimum and the maximum, -0 as 0.
    ///
    /// # Errors
    /// If there are no values, or one is NaN or infinite.
    pub fn range(self) -> Result<[f32; 2], Int8Error> {
        match self {
            Self { finite: false, .. } => Err(Int8Error::NonFinite),
            Self { range: [min, max], .. } if min > max => Err(Int8Error::NoValues),
            Self { range, .. } => Ok(range.map(|end| end + 0.0)),
        }
    }
}

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
    let [height, width] = plane.size();
    let [low, high] = step.bounds().map(|bound| simd.splat_f32s(bound));
    let (zero, one) = (simd.splat_u32s(0), simd.splat_u32s(1));
    for y in 0..height {
        let row = &mut lanes[plane.first() + y * plane.stride()..][..width];
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
