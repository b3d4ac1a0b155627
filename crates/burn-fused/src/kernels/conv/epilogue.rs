//! Epilogues on planes in SIMD lanes: ReLU, 2x2 max pooling and fake quantization. A plane in lanes has one
//! vector for each pixel.

use super::blocks::keep_argmax;
use super::plane::Plane;
use crate::kernels::epilogue::{Epilogue, NO_MAXIMUM};
use crate::kernels::quantization::Grid;
use crate::kernels::simd::Lanes;
use crate::kernels::squares::{largest, passes};

/// ReLU. NaN stays NaN.
#[inline(always)]
pub fn relu<S: Lanes>(simd: S, x: S::f32s) -> S::f32s {
    simd.select_f32s(passes(simd, x), x, simd.splat_f32s(0.0))
}

/// Applies the epilogue to `sums`, a plane of a convolution's results. Stores the first `channels` lanes in
/// `target`; lane `i` starts at `i * step`. The lanes are channels of one image, or images of one channel.
///
/// If the epilogue pools, `scratch` needs room for half of the plane's vectors, and `argmax` receives the
/// argmax of each pooled pixel, with all lanes side by side. If `argmax` is empty, the argmax is not kept.
#[inline(always)]
pub fn finish<S: Lanes>(
    simd: S,
    epilogue: Epilogue,
    plane: Plane,
    (sums, scratch): (&mut [S::f32s], &mut [S::f32s]),
    [channels, step]: [usize; 2],
    target: &mut [f32],
    argmax: &mut [u8],
) {
    if epilogue == Epilogue::Relu {
        // This is a loop, because a closure may be compiled as a separate function, without the level's
        // instructions.
        for value in sums.iter_mut() {
            *value = relu(simd, *value);
        }
    }
    if epilogue != Epilogue::ReluPool {
        return plane.store(simd, sums, [channels, step], target);
    }
    let [height, width] = epilogue.size(plane.size);
    let (pooled, index) = scratch[..2 * height * width].split_at_mut(height * width);
    let index: &mut [S::u32s] = bytemuck::cast_slice_mut(index);
    for y in 0..height {
        let rows = &sums[plane.first + 2 * y * plane.stride..][..plane.stride + 2 * width];
        let (upper, lower) = (&rows[..2 * width], &rows[plane.stride..]);
        for x in 0..width {
            let four = [upper[2 * x], upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]];
            (pooled[y * width + x], index[y * width + x]) = largest(simd, four, true);
        }
    }
    Plane::plain([height, width]).store(simd, pooled, [channels, step], target);
    keep_argmax(index, argmax);
}

/// Fake-quantizes the pixels of a pooled plane. `argmax` is the argmax of the pooling, with a byte for each
/// pixel and lane, or is empty. If a pooled pixel is clipped, its byte becomes [`NO_MAXIMUM`]: then no pixel
/// of its 2x2 square gets a gradient.
#[inline(always)]
pub fn fake_quantize<S: Lanes>(_simd: S, grid: Grid, plane: Plane, lanes: &mut [S::f32s], argmax: &mut [u8]) {
    let [height, width] = plane.size;
    let mut kept = argmax.chunks_exact_mut(width * S::F32_LANES);
    for row in lanes[plane.first..].chunks_mut(plane.stride).take(height) {
        let row: &mut [f32] = bytemuck::cast_slice_mut(&mut row[..width]);
        let mut all = true;
        for &value in &*row {
            all &= grid.apply(value).1;
        }
        if let Some(argmax) = kept.next().filter(|_| !all) {
            for (index, &value) in argmax.iter_mut().zip(&*row) {
                *index = if grid.apply(value).1 { *index } else { NO_MAXIMUM as u8 };
            }
        }
        for value in row {
            *value = grid.apply(*value).0;
        }
    }
}
