//! The layout of planes in SIMD lanes.
//!
//! A plane has one vector for each pixel. The lanes of a vector are the same channel of several images, or
//! several channels of one image. Convolution, ReLU and pooling are then vertical instructions, which process
//! all lanes at once.

use crate::kernels::simd::{Lanes, MAX_LANES, load, store};
use crate::kernels::squares::passes;

/// The layout of a plane, with or without a border of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Height and width of the images.
    pub size: [usize; 2],
    /// Number of vectors in a row, border included.
    pub stride: usize,
    /// Number of vectors before the first pixel.
    pub first: usize,
    /// Number of vectors in the plane.
    pub len: usize,
}

impl Plane {
    /// A plane with a border of one pixel. Inside the border, height and width are rounded up to even
    /// numbers, because kernels compute squares of 2x2 pixels.
    #[inline(always)]
    pub fn bordered(height: usize, width: usize) -> Self {
        let stride = width.next_multiple_of(2) + 2;
        let len = (height.next_multiple_of(2) + 2) * stride;
        Self { size: [height, width], stride, first: stride + 1, len }
    }

    /// A plane without a border, with height and width rounded up to even numbers.
    pub fn rounded_up([height, width]: [usize; 2]) -> Self {
        let stride = width.next_multiple_of(2);
        Self { size: [height, width], stride, first: 0, len: height.next_multiple_of(2) * stride }
    }

    /// A plane without a border, of whole tiles of 4x4 pixels.
    pub fn tiled([height, width]: [usize; 2]) -> Self {
        let stride = width.next_multiple_of(4);
        Self { size: [height, width], stride, first: 0, len: height.next_multiple_of(4) * stride }
    }

    /// A plane without a border.
    pub fn plain([height, width]: [usize; 2]) -> Self {
        Self { size: [height, width], stride: width, first: 0, len: height * width }
    }

    /// A plane of `len` vectors for images of height and width `size`. The first pixel is vector `first`, and
    /// rows of pixels are `stride` vectors apart.
    ///
    /// # Panics
    /// If rows overlap, or pixels are beyond `len`.
    #[inline(always)]
    pub fn part(size: [usize; 2], stride: usize, first: usize, len: usize) -> Self {
        assert!(size[1] <= stride && first + size[0] * stride <= len + stride - size[1]);
        Self { size, stride, first, len }
    }

    /// Whether the plane has the layout of [`bordered`](Self::bordered).
    #[inline(always)]
    pub fn is_bordered(self) -> bool {
        let [height, width] = self.size;
        self == Self::bordered(height, width)
    }

    /// Returns the index of the next pixel's vector, after the pixel in vector `at`. `left` is the number of
    /// pixels from `at` to the end of the row; it is set to this number for the next pixel.
    #[inline(always)]
    fn next(self, at: usize, left: &mut usize) -> usize {
        *left -= 1;
        if *left > 0 {
            return at + 1;
        }
        *left = self.size[1];
        at + 1 + self.stride - self.size[1]
    }

    /// Returns the rows of pixels, without borders.
    #[inline(always)]
    pub fn rows<V>(self, plane: &[V]) -> impl Iterator<Item = &[V]> {
        let [height, width] = self.size;
        plane[self.first..self.len].chunks(self.stride).take(height).map(move |row| &row[..width])
    }

    /// Stores zeros in all vectors outside the pixels.
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

    /// Loads `images` images or channels into lanes. Lane `i` gets the pixels that start at `i * step` in
    /// `source`. The lanes after the last image or channel, and vectors outside the pixels, become zero.
    ///
    /// `outputs` are outputs of ReLU in the layout of `source`: a pixel becomes zero if ReLU set its output
    /// to zero. `None` keeps all pixels.
    ///
    /// # Panics
    /// If `images` is 0 or exceeds the number of lanes, or a slice is too short.
    #[inline(always)]
    pub fn load<S: Lanes>(
        self,
        simd: S,
        plane: &mut [S::f32s],
        [images, step]: [usize; 2],
        source: &[f32],
        outputs: Option<&[f32]>,
    ) {
        self.clear_border(simd, plane);
        let pixels = self.size[0] * self.size[1];
        assert!(images <= S::F32_LANES && images > 0 && source.len() >= (images - 1) * step + pixels);
        assert!(plane.len() >= self.len);
        let zero = simd.splat_f32s(0.0);
        let mut rows = [zero; MAX_LANES];
        let rows = &mut rows[..S::F32_LANES];
        let (mut at, mut left) = (self.first, self.size[1]);
        for pixel in (0..pixels).step_by(S::F32_LANES) {
            let count = S::F32_LANES.min(pixels - pixel);
            for (image, row) in rows.iter_mut().enumerate() {
                if image >= images {
                    *row = zero;
                    continue;
                }
                let from = image * step + pixel;
                *row = load(simd, &source[from..from + count]);
                if let Some(outputs) = outputs {
                    let passes = passes(simd, load(simd, &outputs[from..from + count]));
                    *row = simd.select_f32s(passes, *row, zero);
                }
            }
            simd.transpose(rows);
            for row in &rows[..count] {
                plane[at] = *row;
                at = self.next(at, &mut left);
            }
        }
    }

    /// Stores the first `images` lanes in `target`. The pixels of lane `i` start at `i * step`.
    ///
    /// # Panics
    /// If `images` is 0 or exceeds the number of lanes, or a slice is too short.
    #[inline(always)]
    pub fn store<S: Lanes>(self, simd: S, plane: &[S::f32s], [images, step]: [usize; 2], target: &mut [f32]) {
        let pixels = self.size[0] * self.size[1];
        assert!(images <= S::F32_LANES && images > 0 && target.len() >= (images - 1) * step + pixels);
        let mut rows = [simd.splat_f32s(0.0); MAX_LANES];
        let rows = &mut rows[..S::F32_LANES];
        let (mut at, mut left) = (self.first, self.size[1]);
        for pixel in (0..pixels).step_by(S::F32_LANES) {
            let count = S::F32_LANES.min(pixels - pixel);
            for row in &mut rows[..count] {
                *row = plane[at];
                at = self.next(at, &mut left);
            }
            simd.transpose(rows);
            for (image, row) in rows[..images].iter().enumerate() {
                let from = image * step + pixel;
                store(simd, &mut target[from..from + count], *row);
            }
        }
    }
}
