//! 2x2 max pooling with stride 2, forward and backward. A plane is one channel of one image, and a square is
//! 2x2 pixels of a plane. The argmax of a square is the index of its largest pixel.
//!
//! Each lane of a SIMD vector computes one square. First, the pixels of even columns are copied to one
//! buffer, and the pixels of odd columns to another. The four pixels of a square then have the same index in
//! four rows: two rows of each buffer.

use crate::kernels::epilogue::NO_MAXIMUM;
use crate::kernels::simd::{Lanes, kernel, load};

/// Pools planes of one size. The buffers are kept from one plane to the next.
pub(crate) struct Squares {
    width: usize,
    /// Height and width of the output.
    size: [usize; 2],
    evens: Vec<f32>,
    odds: Vec<f32>,
    index: Vec<u32>,
}

impl Squares {
    /// Allocates the buffers for planes `[height, width]`. If height or width is odd, the last row or column
    /// belongs to no square.
    pub fn new([height, width]: [usize; 2]) -> Self {
        let size = [height / 2, width / 2];
        let squares = size[0] * size[1];
        let [evens, odds] = [(); 2].map(|()| vec![0.0; 2 * squares]);
        Self { width, size, evens, odds, index: vec![0; squares] }
    }

    /// The number of squares in a plane.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Writes the maximum of each square of `plane` to `output`. If `argmax` is not empty, it receives the
    /// index of each maximum in its square, 0 to 3 in reading order.
    ///
    /// With `relu`, the output is ReLU of the maximum, and the index is [`NO_MAXIMUM`] if ReLU sets the
    /// maximum to zero.
    #[inline(always)]
    pub fn pool<S: Lanes>(
        &mut self,
        simd: S,
        relu: bool,
        plane: &[f32],
        output: &mut [f32],
        argmax: &mut [u8],
    ) {
        let run = self.run();
        let Self { size: [_, half], ref mut evens, ref mut odds, ref mut index, .. } = *self;
        if index.is_empty() {
            return;
        }
        let targets = evens.chunks_exact_mut(run / 2).zip(odds.chunks_exact_mut(run / 2));
        for (row, (evens, odds)) in plane.chunks_exact(run).zip(targets) {
            for (pair, (even, odd)) in row.as_chunks::<2>().0.iter().zip(evens.iter_mut().zip(odds)) {
                [*even, *odd] = *pair;
            }
        }
        let rows = evens.chunks_exact(2 * half).zip(odds.chunks_exact(2 * half));
        let targets = output.chunks_exact_mut(half).zip(index.chunks_exact_mut(half));
        for ((evens, odds), (output, index)) in rows.zip(targets) {
            let ((even, even_below), (odd, odd_below)) = (evens.split_at(half), odds.split_at(half));
            for at in (0..half).step_by(S::F32_LANES) {
                let part = at..half.min(at + S::F32_LANES);
                let four = [even, odd, even_below, odd_below].map(|row| load(simd, &row[part.clone()]));
                let (largest, which) = largest(simd, four, relu);
                simd.partial_store_f32s(&mut output[part.clone()], largest);
                simd.partial_store_u32s(&mut index[part], which);
            }
        }
        for (byte, &index) in argmax.iter_mut().zip(&*index) {
            *byte = index as u8;
        }
    }

    /// Backward of [`pool`](Self::pool): writes the gradient of each square to the pixel of `plane` that
    /// `argmax` names, and zeros to all other pixels.
    #[inline(always)]
    pub fn spread<S: Lanes>(&mut self, simd: S, gradient: &[f32], argmax: &[u8], plane: &mut [f32]) {
        let run = self.run();
        let Self { width, size: [height, half], ref mut evens, ref mut odds, ref mut index } = *self;
        if index.is_empty() {
            return plane.fill(0.0);
        }
        for (index, &byte) in index.iter_mut().zip(argmax) {
            *index = u32::from(byte);
        }
        let rows = evens.chunks_exact_mut(2 * half).zip(odds.chunks_exact_mut(2 * half));
        let sources = gradient.chunks_exact(half).zip(index.chunks_exact(half));
        for ((evens, odds), (gradient, index)) in rows.zip(sources) {
            let ((even, even_below), (odd, odd_below)) = (evens.split_at_mut(half), odds.split_at_mut(half));
            for at in (0..half).step_by(S::F32_LANES) {
                let part = at..half.min(at + S::F32_LANES);
                let gradient = load(simd, &gradient[part.clone()]);
                let index = simd.partial_load_u32s(&index[part.clone()]);
                let rows = [&mut *even, &mut *odd, &mut *even_below, &mut *odd_below];
                for (p, row) in rows.into_iter().enumerate() {
                    let here = simd.equal_u32s(index, simd.splat_u32s(p as u32));
                    let value = simd.select_f32s(here, gradient, simd.splat_f32s(0.0));
                    simd.partial_store_f32s(&mut row[part.clone()], value);
                }
            }
        }
        let sources = evens.chunks_exact(run / 2).zip(odds.chunks_exact(run / 2));
        let (squares, below) = plane.split_at_mut(2 * height * width);
        for (row, (evens, odds)) in squares.chunks_exact_mut(run).zip(sources) {
            let (pairs, last) = row.as_chunks_mut::<2>();
            for (pair, (&even, &odd)) in pairs.iter_mut().zip(evens.iter().zip(odds)) {
                *pair = [even, odd];
            }
            last.fill(0.0);
        }
        below.fill(0.0);
    }

    /// Returns the number of pixels that one loop splits into even and odd columns. If the width is even, no
    /// pair of pixels spans two rows, so one loop splits all rows. If the width is odd, each row is split by
    /// a separate loop.
    #[inline(always)]
    fn run(&self) -> usize {
        if self.width.is_multiple_of(2) { 4 * self.index.len() } else { self.width }
    }
}

kernel! {
    /// Pools planes of height and width `sizes`, without ReLU.
    pub(crate) fn pool<S>(simd: S, sizes: [usize; 2], planes: &[f32], output: &mut [f32], argmax: &mut [u8]) {
        let mut squares = Squares::new(sizes);
        let targets = output.chunks_exact_mut(squares.len()).zip(argmax.chunks_exact_mut(squares.len()));
        for (plane, (output, argmax)) in planes.chunks_exact(sizes[0] * sizes[1]).zip(targets) {
            squares.pool(simd, false, plane, output, argmax);
        }
    }
}

kernel! {
    /// Backward of [`pool`]: writes the gradients of planes of height and width `sizes`.
    pub(crate) fn spread<S>(simd: S, sizes: [usize; 2], of_planes: &mut [f32], gradient: &[f32], argmax: &[u8]) {
        let mut squares = Squares::new(sizes);
        let sources = gradient.chunks_exact(squares.len()).zip(argmax.chunks_exact(squares.len()));
        for (plane, (gradient, argmax)) in of_planes.chunks_exact_mut(sizes[0] * sizes[1]).zip(sources) {
            squares.spread(simd, gradient, argmax, plane);
        }
    }
}

/// Returns the maximum of four values in each lane, and its index. The first of equal values wins, and the
/// last NaN wins over all values. With `relu`, the result is ReLU of the maximum, and the index is
/// [`NO_MAXIMUM`] if ReLU sets the maximum to zero.
#[inline(always)]
pub(crate) fn largest<S: Lanes>(simd: S, values: [S::f32s; 4], relu: bool) -> (S::f32s, S::u32s) {
    let mut largest = values[0];
    let mut which = simd.splat_u32s(0);
    for (p, &value) in values.iter().enumerate().skip(1) {
        let wins = simd.or_m32s(simd.greater_than_f32s(value, largest), is_nan(simd, value));
        largest = simd.select_f32s(wins, value, largest);
        which = simd.select_u32s(wins, simd.splat_u32s(p as u32), which);
    }
    if !relu {
        return (largest, which);
    }
    let passes = passes(simd, largest);
    (
        simd.select_f32s(passes, largest, simd.splat_f32s(0.0)),
        simd.select_u32s(passes, which, simd.splat_u32s(NO_MAXIMUM)),
    )
}

/// Returns the mask of lanes in which ReLU passes `x` and its gradient: positive numbers and NaN.
#[inline(always)]
pub(crate) fn passes<S: Lanes>(simd: S, x: S::f32s) -> S::m32s {
    simd.or_m32s(simd.greater_than_f32s(x, simd.splat_f32s(0.0)), is_nan(simd, x))
}

#[inline(always)]
fn is_nan<S: Lanes>(simd: S, x: S::f32s) -> S::m32s {
    simd.not_m32s(simd.equal_f32s(x, x))
}
