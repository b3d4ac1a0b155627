//! The two inner loops of the direct convolution. The first loop computes outputs. With the gradient of the
//! output and flipped weights in place of the input and the weights, the same loop computes the gradient of
//! the input. The second loop computes the gradient of the weights.
//!
//! A block of images is stored as planes: one plane for each channel, with one vector for each pixel and one
//! image in each lane ([`Plane`]).

use super::Shape;
use super::epilogue::relu;
use super::plane::Plane;
use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::Lanes;
use crate::kernels::squares::largest;

/// The loop that computes outputs, with its weights and biases.
pub struct Correlation<'a> {
    /// Number of input channels.
    pub inputs: usize,
    /// Number of output channels.
    pub outputs: usize,
    /// Weights `[outputs, inputs, 3, 3]`.
    pub weights: &'a [f32],
    /// One bias for each output channel. `None` stands for zeros.
    pub bias: Option<&'a [f32]>,
    /// The epilogue that is applied to the convolution's result.
    pub epilogue: Epilogue,
}

impl<'a> Correlation<'a> {
    /// Makes the loop that computes a convolution's output.
    pub fn forward(shape: Shape, epilogue: Epilogue, [weights, bias]: [&'a [f32]; 2]) -> Self {
        let Shape { inputs, outputs, .. } = shape;
        Self { inputs, outputs, weights, bias: Some(bias), epilogue }
    }

    /// Makes the loop that computes the gradient of a convolution's input from the gradient of its output.
    /// `weights` are [`flipped`](super::blocks::flipped).
    pub fn backward(Shape { inputs, outputs, .. }: Shape, weights: &'a [f32]) -> Self {
        Self { inputs: outputs, outputs: inputs, weights, bias: None, epilogue: Epilogue::Identity }
    }

    /// Computes all outputs of a block of images. `input` has bordered planes in the layout of `plane`.
    /// `output` receives planes without borders. If the epilogue pools, the planes are pooled, and `index`
    /// receives the argmax of each pooled pixel unless `index` is empty. If the epilogue does not pool, the
    /// height and the width of the planes are rounded up to even numbers.
    ///
    /// # Panics
    /// If `plane` is not [bordered](Plane::bordered), or a slice is too short.
    #[inline(always)]
    pub fn run<S: Lanes>(
        &self,
        simd: S,
        plane: Plane,
        input: &[S::f32s],
        output: &mut [S::f32s],
        index: &mut [S::u32s],
    ) {
        assert!(plane.is_bordered() && input.len() >= self.inputs * plane.len);
        assert!(self.weights.len() == self.outputs * self.inputs * 9);
        let mut channel = 0;
        while channel < self.outputs {
            // The sums of as many output channels as possible stay in registers. Each channel takes four
            // registers, one for each pixel of a 2x2 tile.
            channel += match self.outputs - channel {
                4.. if S::REGISTER_COUNT >= 32 => {
                    self.channels::<S, 4>(simd, plane, channel, input, output, index)
                }
                2.. => self.channels::<S, 2>(simd, plane, channel, input, output, index),
                _ => self.channels::<S, 1>(simd, plane, channel, input, output, index),
            };
        }
    }

    /// Computes the outputs of `N` channels. Returns `N`.
    #[inline(always)]
    fn channels<S: Lanes, const N: usize>(
        &self,
        simd: S,
        plane: Plane,
        channel: usize,
        input: &[S::f32s],
        output: &mut [S::f32s],
        index: &mut [S::u32s],
    ) -> usize {
        let bias: [f32; N] = std::array::from_fn(|n| self.bias.map_or(0.0, |bias| bias[channel + n]));
        let weights: [&[f32]; N] =
            std::array::from_fn(|n| &self.weights[(channel + n) * self.inputs * 9..][..self.inputs * 9]);
        let round = |n: usize| if self.epilogue == Epilogue::ReluPool { n / 2 } else { n.div_ceil(2) };
        let [rows, columns] = plane.size.map(round);
        for y in 0..rows {
            for x in 0..columns {
                let mut sums: [[S::f32s; 4]; N] = bias.map(|bias| [simd.splat_f32s(bias); 4]);
                for i in 0..self.inputs {
                    let corner = i * plane.len + 2 * y * plane.stride + 2 * x;
                    for tap in 0..9 {
                        let at = corner + (tap / 3) * plane.stride + tap % 3;
                        // A tile has 2x2 pixels. If the image has an odd size, its last tiles include a row
                        // or column beyond the image. With its neighbours, a tile has 4x4 vectors.
                        // SAFETY: `run` checked that `plane` is bordered, so that it contains these vectors,
                        // and that `input` has `inputs` such planes.
                        let pixels = unsafe {
                            [0, 1, plane.stride, plane.stride + 1]
                                .map(|offset| *input.get_unchecked(at + offset))
                        };
                        for n in 0..N {
                            // SAFETY: each slice of weights has `inputs * 9` values, as sliced above.
                            let weight = simd.splat_f32s(unsafe { *weights[n].get_unchecked(i * 9 + tap) });
                            for p in 0..4 {
                                sums[n][p] = simd.fma(pixels[p], weight, sums[n][p]);
                            }
                        }
                    }
                }
                for (n, &sums) in sums.iter().enumerate() {
                    self.put(simd, plane.size, [channel + n, y, x], sums, output, index);
                }
            }
        }
        N
    }

    /// Stores the four outputs of a tile or, if the epilogue pools, the largest of them.
    #[inline(always)]
    fn put<S: Lanes>(
        &self,
        simd: S,
        [height, width]: [usize; 2],
        [channel, y, x]: [usize; 3],
        sums: [S::f32s; 4],
        output: &mut [S::f32s],
        index: &mut [S::u32s],
    ) {
        if self.epilogue == Epilogue::ReluPool {
            let at = (channel * (height / 2) + y) * (width / 2) + x;
            let (largest, which) = largest(simd, sums, true);
            output[at] = largest;
            if !index.is_empty() {
                index[at] = which;
            }
            return;
        }
        let width = width.next_multiple_of(2);
        let corner = (channel * height.next_multiple_of(2) + 2 * y) * width + 2 * x;
        for (p, &sum) in sums.iter().enumerate() {
            let value = if self.epilogue == Epilogue::Relu { relu(simd, sum) } else { sum };
            output[corner + (p / 2) * width + p % 2] = value;
        }
    }
}

/// Adds a block's part of the gradients of the weights to `sums`. `sums` has 9 vectors for each pair of an
/// output and an input channel. After the last block, the caller sums the lanes of each vector. `input` and
/// `gradient` have bordered planes.
///
/// # Panics
/// If `plane` is not [bordered](Plane::bordered), or a slice is too short.
#[inline(always)]
pub fn weight_gradient<S: Lanes>(
    simd: S,
    plane: Plane,
    [inputs, outputs]: [usize; 2],
    input: &[S::f32s],
    gradient: &[S::f32s],
    sums: &mut [S::f32s],
) {
    assert!(plane.is_bordered());
    assert!(input.len() >= inputs * plane.len && gradient.len() >= outputs * plane.len);
    for i in 0..inputs {
        let input = &input[i * plane.len..][..plane.len];
        let mut o = 0;
        while o < outputs {
            let (gradient, at) = (&gradient[o * plane.len..], [o * inputs + i, inputs]);
            o += match outputs - o {
                2.. if S::REGISTER_COUNT >= 32 => taps::<S, 2>(simd, plane, input, gradient, at, sums),
                _ => taps::<S, 1>(simd, plane, input, gradient, at, sums),
            };
        }
    }
}

/// Does the work of [`weight_gradient`] for one input channel and `N` output channels, and returns `N`. The
/// sums of output channel `n` are the 9 vectors that start at vector `9 * (first + n * step)`.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "the index names a register")]
fn taps<S: Lanes, const N: usize>(
    simd: S,
    plane: Plane,
    input: &[S::f32s],
    gradient: &[S::f32s],
    [first, step]: [usize; 2],
    sums: &mut [S::f32s],
) -> usize {
    let mut taps = [[simd.splat_f32s(0.0); 9]; N];
    for n in 0..N {
        taps[n].copy_from_slice(&sums[(first + n * step) * 9..][..9]);
    }
    assert!(plane.is_bordered() && input.len() >= plane.len && gradient.len() >= N * plane.len);
    let [height, width] = plane.size;
    for y in 0..height {
        for x in 0..width {
            let corner = y * plane.stride + x;
            // SAFETY: a bordered plane contains pixel (y, x) of an image and its eight neighbours. The
            // assertion above checks that the plane is bordered and that `gradient` has `N` such planes.
            let gradients: [S::f32s; N] = std::array::from_fn(|n| unsafe {
                *gradient.get_unchecked(n * plane.len + corner + plane.first)
            });
            for tap in 0..9 {
                // SAFETY: as above. The assertion also checks that `input` has one such plane.
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
    N
}
