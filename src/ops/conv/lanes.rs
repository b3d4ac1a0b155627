//! Vectors whose lanes are images: what `pulp` has, and a transposition.
//!
//! A block of as many images as a vector has lanes is laid out pixel by pixel,
//! the images side by side. Everything that a convolution does to one image is
//! then done to all of them by vertical instructions, pooling included.

use std::mem::MaybeUninit;

#[cfg(target_arch = "x86_64")]
use bytemuck::cast;
use pulp::Simd;

/// Most lanes that a vector has.
pub const MOST: usize = 16;

/// Instructions of one level.
pub trait Lanes: Simd {
    /// `a * b + c`, rounded once where the level has an instruction for it.
    #[inline(always)]
    fn fma(self, a: Self::f32s, b: Self::f32s, c: Self::f32s) -> Self::f32s {
        self.mul_add_e_f32s(a, b, c)
    }

    /// Transposes a square of as many vectors as each has lanes.
    fn transpose(self, rows: &mut [Self::f32s]);
}

fn transpose_plainly<S: Simd>(rows: &mut [S::f32s]) {
    let values: &mut [f32] = bytemuck::cast_slice_mut(rows);
    for row in 0..S::F32_LANES {
        for column in 0..row {
            values.swap(row * S::F32_LANES + column, column * S::F32_LANES + row);
        }
    }
}

impl Lanes for pulp::Scalar128b {
    #[inline(always)]
    fn fma(self, a: Self::f32s, b: Self::f32s, c: Self::f32s) -> Self::f32s {
        // Without an instruction, rounding once is a slow function call.
        self.add_f32s(self.mul_f32s(a, b), c)
    }

    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        transpose_plainly::<Self>(rows);
    }
}

#[cfg(target_arch = "aarch64")]
impl Lanes for pulp::aarch64::Neon {
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        transpose_plainly::<Self>(rows);
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for pulp::x86::V3 {
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        let avx = self.avx;
        let row = |i: usize| cast(rows[i]);
        // Pairs of rows, then of pairs, then of halves.
        let mut pairs = [avx._mm256_setzero_ps(); 8];
        for i in 0..4 {
            pairs[2 * i] = avx._mm256_unpacklo_ps(row(2 * i), row(2 * i + 1));
            pairs[2 * i + 1] = avx._mm256_unpackhi_ps(row(2 * i), row(2 * i + 1));
        }
        let mut fours = [avx._mm256_setzero_ps(); 8];
        for half in 0..2 {
            for i in 0..2 {
                let (a, b) = (pairs[4 * half + i], pairs[4 * half + 2 + i]);
                fours[4 * half + 2 * i] = avx._mm256_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * half + 2 * i + 1] = avx._mm256_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for i in 0..4 {
            rows[i] = cast(avx._mm256_permute2f128_ps::<0x20>(fours[i], fours[4 + i]));
            rows[4 + i] = cast(avx._mm256_permute2f128_ps::<0x31>(fours[i], fours[4 + i]));
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Lanes for pulp::x86::V4 {
    #[inline(always)]
    fn transpose(self, rows: &mut [Self::f32s]) {
        let avx = self.avx512f;
        let row = |i: usize| cast(rows[i]);
        let zero = avx._mm512_setzero_ps();
        let mut pairs = [zero; 16];
        for i in 0..8 {
            pairs[2 * i] = avx._mm512_unpacklo_ps(row(2 * i), row(2 * i + 1));
            pairs[2 * i + 1] = avx._mm512_unpackhi_ps(row(2 * i), row(2 * i + 1));
        }
        // fours[4 q + c]: column c of every quarter, rows 4 q to 4 q + 3.
        let mut fours = [zero; 16];
        for q in 0..4 {
            for i in 0..2 {
                let (a, b) = (pairs[4 * q + i], pairs[4 * q + 2 + i]);
                fours[4 * q + 2 * i] = avx._mm512_shuffle_ps::<0b01_00_01_00>(a, b);
                fours[4 * q + 2 * i + 1] = avx._mm512_shuffle_ps::<0b11_10_11_10>(a, b);
            }
        }
        for c in 0..4 {
            let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
            let ab02 = avx._mm512_shuffle_f32x4::<0b10_00_10_00>(a, b);
            let ab13 = avx._mm512_shuffle_f32x4::<0b11_01_11_01>(a, b);
            let de02 = avx._mm512_shuffle_f32x4::<0b10_00_10_00>(d, e);
            let de13 = avx._mm512_shuffle_f32x4::<0b11_01_11_01>(d, e);
            rows[c] = cast(avx._mm512_shuffle_f32x4::<0b10_00_10_00>(ab02, de02));
            rows[4 + c] = cast(avx._mm512_shuffle_f32x4::<0b10_00_10_00>(ab13, de13));
            rows[8 + c] = cast(avx._mm512_shuffle_f32x4::<0b11_01_11_01>(ab02, de02));
            rows[12 + c] = cast(avx._mm512_shuffle_f32x4::<0b11_01_11_01>(ab13, de13));
        }
    }
}

/// A plane of images in lanes, with a border of zeros around it.
#[derive(Debug, Clone, Copy)]
pub struct Plane {
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Vectors of a row, border included.
    pub stride: usize,
    /// Vectors before the first pixel.
    pub first: usize,
    /// Vectors of the plane.
    pub len: usize,
}

impl Plane {
    /// A plane with a border of one pixel, and another row or column where
    /// height or width are odd: kernels work on squares of 2x2 pixels.
    pub fn bordered(height: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(2) + 2;
        let len = (height.next_multiple_of(2) + 2) * stride;
        Self { size: [height, width], stride, first: stride + 1, len }
    }

    /// A plane without a border, but with another row or column where height or
    /// width are odd.
    pub fn rounded_up(height: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(2);
        Self { size: [height, width], stride, first: 0, len: height.next_multiple_of(2) * stride }
    }

    /// A plane without a border.
    pub fn plain(height: usize, width: usize) -> Self {
        Self { size: [height, width], stride: width, first: 0, len: height * width }
    }

    /// Writes zeros wherever no pixel is.
    #[inline(always)]
    pub fn clear_border<S: Lanes>(self, simd: S, plane: &mut [S::f32s]) {
        let (zero, [height, width]) = (simd.splat_f32s(0.0), self.size);
        let mut from = 0;
        for y in 0..height {
            let row = self.first + y * self.stride;
            plane[from..row].fill(zero);
            from = row + width;
        }
        plane[from..self.len].fill(zero);
    }

    /// Brings the images into lanes: lane `i` gets the pixels from `i * step`
    /// on, and zeros where there are fewer than `images` images.
    #[inline(always)]
    pub fn load<S: Lanes>(self, simd: S, plane: &mut [S::f32s], images: usize, step: usize, source: &[f32]) {
        let pixels = self.size[0] * self.size[1];
        assert!(images <= S::F32_LANES && images > 0 && source.len() >= (images - 1) * step + pixels);
        assert!(plane.len() >= self.len);
        let mut rows = [simd.splat_f32s(0.0); MOST];
        let rows = &mut rows[..S::F32_LANES];
        let mut at = Cursor::new(self);
        for pixel in (0..pixels).step_by(S::F32_LANES) {
            let count = S::F32_LANES.min(pixels - pixel);
            for (image, row) in rows.iter_mut().enumerate() {
                *row = if image < images {
                    let from = image * step + pixel;
                    load(simd, &source[from..from + count])
                } else {
                    simd.splat_f32s(0.0)
                };
            }
            simd.transpose(rows);
            for row in &rows[..count] {
                plane[at.next()] = *row;
            }
        }
    }

    /// Writes the images out of their lanes, `step` values apart. Afterwards the
    /// first `pixels` values of each image of `target` are there.
    #[inline(always)]
    pub fn store<S: Lanes>(
        self,
        simd: S,
        plane: &[S::f32s],
        images: usize,
        step: usize,
        target: &mut [MaybeUninit<f32>],
    ) {
        let pixels = self.size[0] * self.size[1];
        assert!(images <= S::F32_LANES && images > 0 && target.len() >= (images - 1) * step + pixels);
        let mut rows = [simd.splat_f32s(0.0); MOST];
        let rows = &mut rows[..S::F32_LANES];
        let mut at = Cursor::new(self);
        for pixel in (0..pixels).step_by(S::F32_LANES) {
            let count = S::F32_LANES.min(pixels - pixel);
            for row in &mut rows[..count] {
                *row = plane[at.next()];
            }
            simd.transpose(rows);
            for (image, row) in rows[..images].iter().enumerate() {
                let from = image * step + pixel;
                store(simd, &mut target[from..from + count], *row);
            }
        }
    }
}

/// Walks over the pixels of a plane, row by row.
struct Cursor {
    plane: Plane,
    at: usize,
    left: usize,
}

impl Cursor {
    #[inline(always)]
    fn new(plane: Plane) -> Self {
        Self { plane, at: plane.first, left: plane.size[1] }
    }

    #[inline(always)]
    fn next(&mut self) -> usize {
        if self.left == 0 {
            self.at += self.plane.stride - self.plane.size[1];
            self.left = self.plane.size[1];
        }
        self.left -= 1;
        self.at += 1;
        self.at - 1
    }
}

/// A vector of values, zeros where there are too few of them.
#[inline(always)]
fn load<S: Simd>(simd: S, values: &[f32]) -> S::f32s {
    match values.len() == S::F32_LANES {
        true => bytemuck::pod_read_unaligned(bytemuck::cast_slice(values)),
        false => simd.partial_load_f32s(values),
    }
}

/// The first values of a vector, as many as there is room for.
#[inline(always)]
pub(crate) fn store<S: Simd>(simd: S, target: &mut [MaybeUninit<f32>], vector: S::f32s) {
    if target.len() >= S::F32_LANES {
        target[..S::F32_LANES].write_copy_of_slice(bytemuck::cast_slice(&[vector]));
        return;
    }
    let first = simd.mask_between_m32s(0, target.len() as u32);
    // SAFETY: the lanes that are stored are as many as `target` has places.
    unsafe { simd.mask_store_ptr_f32s(first, target.as_mut_ptr().cast(), vector) };
}
