//! The two inner loops of the direct convolution: an output from an input, and
//! a weight's gradient. The input's gradient is the first of them with the
//! weights turned round.

use super::Tail;
use super::lanes::{Lanes, Plane};

/// Place of the largest value of a square that ReLU makes zero: it passes no
/// gradient on.
pub const NOWHERE: u32 = 4;

/// Weights and biases of a convolution over planes in lanes.
pub struct Correlation<'a> {
    /// Input channels.
    pub inputs: usize,
    /// Output channels.
    pub outputs: usize,
    /// 3x3 for every output and input.
    pub weights: &'a [f32],
    /// One for every output; none for zeros.
    pub bias: Option<&'a [f32]>,
    /// What follows.
    pub tail: Tail,
}

impl Correlation<'_> {
    /// All outputs of a block of images: `input` has bordered planes; `output`
    /// has planes without borders, rounded up to even sizes; `index` has the
    /// place of each maximum, where pooling follows and somebody asks for it.
    #[inline(always)]
    pub fn run<S: Lanes>(
        &self,
        simd: S,
        plane: Plane,
        input: &[S::f32s],
        output: &mut [S::f32s],
        index: &mut [S::u32s],
    ) {
        assert!(input.len() >= self.inputs * plane.len);
        assert!(self.weights.len() == self.outputs * self.inputs * 9);
        let mut output = Target { simd, tail: self.tail, plane, output, index };
        let mut channel = 0;
        // A register each for four pixels of every output, and some to spare.
        if S::REGISTER_COUNT >= 32 {
            while channel + 4 <= self.outputs {
                self.channels::<S, 4>(plane, channel, input, &mut output);
                channel += 4;
            }
        }
        while channel + 2 <= self.outputs {
            self.channels::<S, 2>(plane, channel, input, &mut output);
            channel += 2;
        }
        if channel < self.outputs {
            self.channels::<S, 1>(plane, channel, input, &mut output);
        }
    }

    #[inline(always)]
    fn channels<S: Lanes, const N: usize>(
        &self,
        plane: Plane,
        channel: usize,
        input: &[S::f32s],
        target: &mut Target<'_, S>,
    ) {
        let simd = target.simd;
        let bias: [f32; N] = std::array::from_fn(|n| self.bias.map_or(0.0, |bias| bias[channel + n]));
        let weights: [&[f32]; N] =
            std::array::from_fn(|n| &self.weights[(channel + n) * self.inputs * 9..][..self.inputs * 9]);
        for tile in target.tiles() {
            let mut sums: [[S::f32s; 4]; N] = bias.map(|bias| [simd.splat_f32s(bias); 4]);
            for i in 0..self.inputs {
                let corner = i * plane.len + 2 * tile[0] * plane.stride + 2 * tile[1];
                for tap in 0..9 {
                    let at = corner + (tap / 3) * plane.stride + tap % 3;
                    // SAFETY: a tile's square of 4x4 pixels lies within its bordered plane of
                    // `plane.len` vectors, and `run` checked that `input` has `inputs` of them.
                    let pixels = unsafe {
                        [0, 1, plane.stride, plane.stride + 1].map(|offset| *input.get_unchecked(at + offset))
                    };
                    for n in 0..N {
                        // SAFETY: each slice of weights has `inputs * 9`.
                        let weight = simd.splat_f32s(unsafe { *weights[n].get_unchecked(i * 9 + tap) });
                        for p in 0..4 {
                            sums[n][p] = simd.fma(pixels[p], weight, sums[n][p]);
                        }
                    }
                }
            }
            for (n, &sums) in sums.iter().enumerate() {
                target.put(channel + n, tile, sums);
            }
        }
    }
}

/// Where outputs go.
struct Target<'a, S: Lanes> {
    simd: S,
    tail: Tail,
    plane: Plane,
    output: &'a mut [S::f32s],
    index: &'a mut [S::u32s],
}

impl<S: Lanes> Target<'_, S> {
    #[inline(always)]
    fn tiles(&self) -> Tiles {
        let [height, width] = self.plane.size;
        let round = |n: usize| if self.tail == Tail::ReluPool { n / 2 } else { n.div_ceil(2) };
        Tiles { columns: round(width), left: round(height) * round(width), next: [0, 0] }
    }

    /// Stores the four outputs of a tile, or the largest of them.
    #[inline(always)]
    fn put(&mut self, channel: usize, tile: [usize; 2], sums: [S::f32s; 4]) {
        let [height, width] = self.plane.size;
        match self.tail {
            Tail::Nothing | Tail::Relu => {
                let width = width.next_multiple_of(2);
                let corner = (channel * height.next_multiple_of(2) + 2 * tile[0]) * width + 2 * tile[1];
                for (p, &sum) in sums.iter().enumerate() {
                    let value = if self.tail == Tail::Relu { relu(self.simd, sum) } else { sum };
                    self.output[corner + (p / 2) * width + p % 2] = value;
                }
            }
            Tail::ReluPool => {
                let at = (channel * (height / 2) + tile[0]) * (width / 2) + tile[1];
                let (largest, place) = largest(self.simd, sums);
                self.output[at] = largest;
                if !self.index.is_empty() {
                    self.index[at] = place;
                }
            }
        }
    }
}

struct Tiles {
    columns: usize,
    left: usize,
    next: [usize; 2],
}

impl Iterator for Tiles {
    type Item = [usize; 2];

    #[inline(always)]
    fn next(&mut self) -> Option<[usize; 2]> {
        let tile = self.next;
        self.left = self.left.checked_sub(1)?;
        self.next[1] += 1;
        if self.next[1] == self.columns {
            self.next = [tile[0] + 1, 0];
        }
        Some(tile)
    }
}

/// Zero where not above zero, and what is no number as it is.
#[inline(always)]
fn relu<S: Lanes>(simd: S, x: S::f32s) -> S::f32s {
    simd.select_f32s(passes(simd, x), x, simd.splat_f32s(0.0))
}

/// Where ReLU passes `x` on.
#[inline(always)]
pub fn passes<S: Lanes>(simd: S, x: S::f32s) -> S::m32s {
    simd.or_m32s(simd.greater_than_f32s(x, simd.splat_f32s(0.0)), is_nan(simd, x))
}

#[inline(always)]
fn is_nan<S: Lanes>(simd: S, x: S::f32s) -> S::m32s {
    simd.not_m32s(simd.equal_f32s(x, x))
}

/// ReLU of the largest of four, and which it was: the first of equals, and the
/// last that is no number.
#[inline(always)]
fn largest<S: Lanes>(simd: S, values: [S::f32s; 4]) -> (S::f32s, S::u32s) {
    let mut largest = values[0];
    let mut place = simd.splat_u32s(0);
    for (p, &value) in values.iter().enumerate().skip(1) {
        let wins = simd.or_m32s(simd.greater_than_f32s(value, largest), is_nan(simd, value));
        largest = simd.select_f32s(wins, value, largest);
        place = simd.select_u32s(wins, simd.splat_u32s(p as u32), place);
    }
    let passes = passes(simd, largest);
    (
        simd.select_f32s(passes, largest, simd.splat_f32s(0.0)),
        simd.select_u32s(passes, place, simd.splat_u32s(NOWHERE)),
    )
}

/// Adds a block's part to the gradients of the weights, `sums`, 9 vectors for
/// every output and input, whose lanes are added up when all blocks are done.
/// Both `input` and `gradient` have bordered planes.
#[inline(always)]
pub fn weight_gradient<S: Lanes>(
    simd: S,
    plane: Plane,
    [inputs, outputs]: [usize; 2],
    input: &[S::f32s],
    gradient: &[S::f32s],
    sums: &mut [S::f32s],
) {
    assert!(input.len() >= inputs * plane.len && gradient.len() >= outputs * plane.len);
    for i in 0..inputs {
        let input = &input[i * plane.len..][..plane.len];
        let mut o = 0;
        if S::REGISTER_COUNT >= 32 {
            while o + 2 <= outputs {
                taps::<S, 2>(simd, plane, input, &gradient[o * plane.len..], [o * inputs + i, inputs], sums);
                o += 2;
            }
        }
        while o < outputs {
            taps::<S, 1>(simd, plane, input, &gradient[o * plane.len..], [o * inputs + i, inputs], sums);
            o += 1;
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers, of which a number says which")]
fn taps<S: Lanes, const N: usize>(
    simd: S,
    plane: Plane,
    input: &[S::f32s],
    gradient: &[S::f32s],
    [first, step]: [usize; 2],
    sums: &mut [S::f32s],
) {
    let mut taps = [[simd.splat_f32s(0.0); 9]; N];
    for n in 0..N {
        taps[n].copy_from_slice(&sums[(first + n * step) * 9..][..9]);
    }
    assert!(input.len() >= plane.len && gradient.len() >= N * plane.len);
    let [height, width] = plane.size;
    for y in 0..height {
        for x in 0..width {
            let corner = y * plane.stride + x;
            // SAFETY: pixel (y, x) and its eight neighbours lie within the bordered plane,
            // whose length was checked, for the input and for each of the `N` gradients.
            let gradients: [S::f32s; N] = std::array::from_fn(|n| unsafe {
                *gradient.get_unchecked(n * plane.len + corner + plane.first)
            });
            for tap in 0..9 {
                // SAFETY: as above.
                let pixel = unsafe { *input.get_unchecked(corner + (tap / 3) * plane.stride + tap % 3) };
                for n in 0..N {
                    taps[n][tap] = simd.fma(gradients[n], pixel, taps[n][tap]);
                }
            }
        }
    }
    for n in 0..N {
        sums[(first + n * step) * 9..][..9].copy_from_slice(&taps[n]);
    }
}
