//! Functions that load, store and sum planes in SIMD lanes, and the backward of pooling. A plane in lanes has
//! one vector for each pixel.
//!
//! The direct convolution computes a block of images at a time, with one image in each lane. Winograd and
//! tiles use some of these functions with channels in lanes.

use super::Shape;
use super::plane::Plane;
use crate::kernels::epilogue::NO_MAXIMUM;
use crate::kernels::simd::{Lanes, MAX_LANES};

/// Backward of pooling, for one plane. Stores the gradient of each pooled pixel in `lanes`, at the maximum of
/// its 2x2 square, and zeros everywhere else. `height` and `width` are the size of the pooled plane. Returns
/// the sum of the stored gradients in each lane.
#[inline(always)]
pub(super) fn spread<S: Lanes>(
    simd: S,
    plane: Plane,
    [height, width]: [usize; 2],
    argmax: &[u8],
    pooled: &[S::f32s],
    lanes: &mut [S::f32s],
) -> S::f32s {
    let mut sum = simd.splat_f32s(0.0);
    let zero = simd.splat_f32s(0.0);
    match plane.size {
        [rows, columns] if rows % 2 + columns % 2 == 0 => plane.clear_border(simd, lanes),
        // If height or width is odd, the last row or column is in no square and gets zeros.
        _ => lanes[..plane.len].fill(zero),
    }
    for y in 0..height {
        for x in 0..width {
            let at = y * width + x;
            let index = index_at::<S>(argmax, at);
            let somewhere = simd.less_than_u32s(index, simd.splat_u32s(NO_MAXIMUM));
            sum = simd.add_f32s(sum, simd.select_f32s(somewhere, pooled[at], zero));
            let corner = plane.first + 2 * y * plane.stride + 2 * x;
            for p in 0..NO_MAXIMUM {
                let here = simd.equal_u32s(index, simd.splat_u32s(p));
                let to = corner + (p as usize / 2) * plane.stride + p as usize % 2;
                lanes[to] = simd.select_f32s(here, pooled[at], zero);
            }
        }
    }
    sum
}

/// Copies the maximum of each 2x2 square of a plane to `maxima`. `pooled` has the gradient of each pooled
/// pixel. If the argmax of a pooled pixel is [`NO_MAXIMUM`], its gradient is set to zero, and the first pixel
/// of the square is copied instead of the maximum.
#[inline(always)]
pub(super) fn gather<S: Lanes>(
    simd: S,
    plane: Plane,
    [height, width]: [usize; 2],
    argmax: &[u8],
    lanes: &[S::f32s],
    pooled: &mut [S::f32s],
    maxima: &mut [S::f32s],
) {
    for y in 0..height {
        for x in 0..width {
            let at = y * width + x;
            let index = index_at::<S>(argmax, at);
            let corner = plane.first + 2 * y * plane.stride + 2 * x;
            let mut maximum = lanes[corner];
            for p in 1..NO_MAXIMUM {
                let here = simd.equal_u32s(index, simd.splat_u32s(p));
                let from = corner + (p as usize / 2) * plane.stride + p as usize % 2;
                maximum = simd.select_f32s(here, lanes[from], maximum);
            }
            let somewhere = simd.less_than_u32s(index, simd.splat_u32s(NO_MAXIMUM));
            pooled[at] = simd.select_f32s(somewhere, pooled[at], simd.splat_f32s(0.0));
            maxima[at] = maximum;
        }
    }
}

/// Returns the argmax of a pooled pixel in all lanes. `argmax` has a byte for each lane.
#[inline(always)]
fn index_at<S: Lanes>(argmax: &[u8], pixel: usize) -> S::u32s {
    let mut wide = [NO_MAXIMUM; MAX_LANES];
    for (wide, &index) in wide.iter_mut().zip(&argmax[pixel * S::F32_LANES..][..S::F32_LANES]) {
        *wide = u32::from(index);
    }
    bytemuck::pod_read_unaligned(bytemuck::cast_slice(&wide[..S::F32_LANES]))
}

/// Returns the sum of vectors, lane by lane. The sum is computed in eight independent parts.
#[inline(always)]
pub(super) fn total<S: Lanes>(simd: S, vectors: &[S::f32s]) -> S::f32s {
    let mut sums = [simd.splat_f32s(0.0); 8];
    let (eights, rest) = vectors.as_chunks::<8>();
    for eight in eights {
        for (sum, &vector) in sums.iter_mut().zip(eight) {
            *sum = simd.add_f32s(*sum, vector);
        }
    }
    // These are loops, because a closure may be compiled as a separate function, without the level's
    // instructions.
    let mut total = simd.splat_f32s(0.0);
    for part in [&sums[..], rest] {
        for &vector in part {
            total = simd.add_f32s(total, vector);
        }
    }
    total
}

/// Returns the index of a block's first image, and the number of images in the block.
#[inline(always)]
pub(super) fn images_of<S: Lanes>(batch: usize, block: usize) -> (usize, usize) {
    let first = block * S::F32_LANES;
    (first, S::F32_LANES.min(batch - first))
}

/// Loads a block's images into planes with borders.
#[inline(always)]
pub(super) fn load_input<S: Lanes>(
    simd: S,
    shape: Shape,
    plane: Plane,
    source: &[f32],
    block: usize,
    lanes: &mut [S::f32s],
) {
    let (first, images) = images_of::<S>(shape.batch, block);
    for channel in 0..shape.inputs {
        let lanes = &mut lanes[channel * plane.len..][..plane.len];
        let from = (first * shape.inputs + channel) * shape.pixels();
        plane.load(simd, lanes, [images, shape.inputs * shape.pixels()], &source[from..], None);
    }
}

/// Stores the planes of all channels of a block in `target`, `[batch, channels, ...]`.
#[inline(always)]
pub(super) fn store_block<S: Lanes>(
    simd: S,
    [batch, channels]: [usize; 2],
    plane: Plane,
    lanes: &[S::f32s],
    block: usize,
    target: &mut [f32],
) {
    let (first, images) = images_of::<S>(batch, block);
    let pixels = plane.size[0] * plane.size[1];
    for channel in 0..channels {
        let lanes = &lanes[channel * plane.len..][..plane.len];
        let target = &mut target[(first * channels + channel) * pixels..];
        plane.store(simd, lanes, [images, channels * pixels], target);
    }
}

/// Stores each argmax of `index` as a byte.
#[inline(always)]
pub(super) fn keep_argmax<V: bytemuck::Pod>(index: &[V], argmax: &mut [u8]) {
    let found: &[u32] = bytemuck::cast_slice(index);
    // This is a loop, because `extend` may be compiled as a separate function, without the level's
    // instructions.
    for (byte, &index) in argmax.iter_mut().zip(found) {
        *byte = index as u8;
    }
}

/// Returns flipped weights `[inputs, outputs, 3, 3]`, with each 3x3 square rotated by 180 degrees. The
/// gradient of the input is the gradient of the output convolved with the flipped weights.
pub(super) fn flipped(shape: Shape, weights: &[f32]) -> Vec<f32> {
    let mut flipped = Vec::with_capacity(weights.len());
    for input in 0..shape.inputs {
        for output in 0..shape.outputs {
            let taps = &weights[(output * shape.inputs + input) * 9..][..9];
            flipped.extend(taps.iter().rev());
        }
    }
    flipped
}
