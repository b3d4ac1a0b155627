//! The convolution of a block of images: products of pixels and weights on AMX tiles, and then the epilogue.

use super::super::epilogue::finish;
use super::super::scratch::Scratch;
use super::{Flat, LEVEL, padded};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::half::Half;
use crate::kernels::half::amx::{BLOCK, Operands, TILE, WORDS, tiles};
use crate::kernels::simd::{Kernel, Lanes};
use crate::runtime::poll::Poll;

/// Maximum number of steps between two calls of [`Convolve::poll`]. A step multiplies 32 input channels of
/// 32 pixels by the weights of one of the nine taps of the 3x3 kernel ([`Operands::steps`]). 1024 steps take
/// some tens of microseconds.
const STEPS: usize = 1024;
/// Maximum number of steps in a pass over the pixels. The weights of these steps stay in the L1 cache.
const PASS: usize = 18;

/// The convolution of a block of images.
pub struct Convolve<'a> {
    pub flat: Flat,
    pub inputs: usize,
    pub outputs: usize,
    pub epilogue: Epilogue,
    /// The pixels as [`super::pack::Channels`] packs them.
    pub pixels: &'a [u16],
    /// The weights as [`super::pack::weights`] packs them.
    pub weights: &'a [u32],
    /// One bias for each output channel. `None` stands for zeros.
    pub bias: Option<&'a [f32]>,
    /// Receives the argmax of each pooled pixel, with 16 channels side by side. Empty if the argmax is not
    /// kept.
    pub argmax: &'a mut [u8],
    /// The poll callback. It is called every few tens of microseconds.
    pub poll: Poll,
    /// Scratch buffers: `sums`, `lanes` and `wide`.
    pub sums: &'a mut Scratch,
    pub lanes: &'a mut Scratch,
    pub wide: &'a mut Scratch,
    /// Receives the output `[images, outputs, ...]`, as bits of bf16.
    pub results: &'a mut [u16],
}

impl Kernel for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        assert_eq!(S::F32_LANES, TILE, "a vector is a row of a tile");
        let Self { flat, inputs, outputs, epilogue, pixels, bias, .. } = self;
        let (len, channels) = (flat.len(), padded(inputs));
        let blocks = channels / BLOCK;
        let steps: Vec<usize> =
            (0..9 * blocks).map(|step| flat.tap(step / blocks) * channels + step % blocks * BLOCK).collect();
        let pass = steps.len().div_ceil(steps.len().div_ceil(PASS));
        let positions = (STEPS / pass).max(1) * BLOCK;
        let size: usize = epilogue.size(flat.size()).iter().product();
        // `wide` has room for the results of 16 channels. `pooled` has room for a pooled plane of 16
        // channels, with one vector for each pixel, and for the argmax of each of its pixels.
        let (wide, pooled) = (self.wide.take::<f32>(TILE * size), self.lanes.take::<S::f32s>(2 * size));
        // `sums` has room for the sums of 32 output channels. They stay in the cache until they are stored.
        let sums = self.sums.take::<S::f32s>(2 * len);
        for (panel, weights) in self.weights.chunks_exact(steps.len() * 2 * WORDS).enumerate() {
            for (half, sums) in sums.chunks_exact_mut(len).enumerate() {
                let from = (panel * BLOCK + half * TILE).min(outputs);
                let bias = bias.map_or(&[][..], |bias| &bias[from..(from + TILE).min(outputs)]);
                sums.fill(simd.partial_load_f32s(bias));
            }
            // The sums as numbers, `[2, len, 16]`: each half of the 32 output channels has 16 sums for each
            // of the `len` positions.
            let values: &mut [f32] = bytemuck::cast_slice_mut(sums);
            for (steps, weights) in steps.chunks(pass).zip(weights.chunks(pass * 2 * WORDS)) {
                for first in (0..len).step_by(positions) {
                    let tiles = tiles().expect("tiles are available");
                    for position in (first..len.min(first + positions)).step_by(BLOCK) {
                        tiles.add_products(Operands {
                            left: &pixels[position * channels..],
                            left_strides: [channels, TILE * channels],
                            steps,
                            right: weights,
                            right_stride: 2 * WORDS,
                            sums: &mut values[position * TILE..],
                            sums_strides: [TILE, TILE * TILE, len * TILE],
                        });
                    }
                    drop(tiles);
                    self.poll.call();
                }
            }
            for (half, sums) in sums.chunks_exact_mut(len).enumerate() {
                let first = panel * BLOCK + half * TILE;
                let images = if first < outputs { flat.images } else { 0 };
                for (image, sums) in sums.chunks_exact_mut(flat.period()).take(images).enumerate() {
                    let channels = TILE.min(outputs - first);
                    let wide = &mut wide[..channels * size];
                    let at = (image * outputs.next_multiple_of(TILE) + first) * size;
                    let argmax = self.argmax.get_mut(at..).unwrap_or_default();
                    let plane = flat.plane();
                    finish(simd, epilogue, plane, (sums, pooled), [channels, size], wide, argmax);
                    let at = (image * outputs + first) * size;
                    Half::Bf16.narrow(LEVEL, wide, &mut self.results[at..][..channels * size]);
                }
            }
        }
    }
}
