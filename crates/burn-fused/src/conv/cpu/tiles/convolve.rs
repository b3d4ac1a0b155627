//! Products of pixels and weights, and the epilogue.

use std::mem::MaybeUninit;

use super::super::activation::finish;
use super::super::scratch::Scratch;
use super::LEVEL;
use super::flat::{Flat, padded};
use crate::epilogue::Epilogue;
use crate::precision::Half;
use crate::precision::amx::{BLOCK, Operands, TILE, WORDS, tiles};
use crate::simd::{Kernel, Lanes};

/// Steps of tiles between two polls: some tens of microseconds.
const STEPS: usize = 1024;
/// Steps of a pass over the positions at most: their weights stay in the first-level cache.
const PASS: usize = 18;

/// The convolution of a block.
pub struct Convolve<'a> {
    pub flat: Flat,
    pub inputs: usize,
    pub outputs: usize,
    pub epilogue: Epilogue,
    /// As [`super::pack::Channels`] leaves them.
    pub pixels: &'a [u16],
    /// As [`super::pack::weights`] leaves them.
    pub weights: &'a [u32],
    pub bias: Option<&'a [f32]>,
    /// Where the argmax of each pooled pixel goes, 16 channels side by side; empty if it is not kept.
    pub argmax: &'a mut [u8],
    pub between: &'a mut dyn FnMut(),
    /// Scratch.
    pub sums: &'a mut Scratch,
    pub lanes: &'a mut Scratch,
    pub wide: &'a mut Scratch,
    /// `[images, outputs, ...]`
    pub results: &'a mut [u16],
}

impl Kernel for Convolve<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        assert_eq!(S::F32_LANES, TILE, "a vector is a row of a tile");
        let Self { flat, inputs, outputs, bias, .. } = self;
        let len = flat.len();
        let channels = padded(inputs);
        let blocks = channels / BLOCK;
        let steps: Vec<usize> =
            (0..9 * blocks).map(|step| flat.tap(step / blocks) * channels + step % blocks * BLOCK).collect();
        let products = Products { steps: &steps, pixels: self.pixels, channels, len };
        let size = self.epilogue.size(flat.size());
        let mut finish = Finish {
            flat,
            outputs,
            epilogue: self.epilogue,
            argmax: self.argmax,
            results: self.results,
            wide: self.wide.take::<f32>(TILE * size[0] * size[1]),
            pooled: self.lanes.take::<S::f32s>(2 * size[0] * size[1]),
        };
        // The sums of 32 outputs at a time, which stay in the cache until they are stored.
        let sums = self.sums.take::<S::f32s>(2 * len);
        for (panel, weights) in self.weights.chunks_exact(steps.len() * 2 * WORDS).enumerate() {
            for (half, sums) in sums.chunks_exact_mut(len).enumerate() {
                let from = (panel * BLOCK + half * TILE).min(outputs);
                let bias = bias.map_or(&[][..], |bias| &bias[from..(from + TILE).min(outputs)]);
                sums.fill(simd.partial_load_f32s(bias));
            }
            products.add(weights, bytemuck::cast_slice_mut(sums), self.between);
            for (half, sums) in sums.chunks_exact_mut(len).enumerate() {
                finish.store(simd, 2 * panel + half, sums);
            }
        }
    }
}

/// The left matrix of all products.
struct Products<'a> {
    steps: &'a [usize],
    pixels: &'a [u16],
    channels: usize,
    /// Positions.
    len: usize,
}

impl Products<'_> {
    /// Adds the products of 32 outputs to `sums`: vectors of 16 outputs, `[2, positions]`.
    #[inline(always)]
    fn add(&self, weights: &[u32], sums: &mut [f32], between: &mut dyn FnMut()) {
        let &Self { steps, channels, len, .. } = self;
        let pass = steps.len().div_ceil(steps.len().div_ceil(PASS));
        let positions = (STEPS / pass).max(1) * BLOCK;
        for (steps, weights) in steps.chunks(pass).zip(weights.chunks(pass * 2 * WORDS)) {
            for first in (0..len).step_by(positions) {
                let tiles = tiles().expect("tiles are available");
                for position in (first..len.min(first + positions)).step_by(BLOCK) {
                    tiles.add_products(Operands {
                        left: &self.pixels[position * channels..],
                        left_strides: [channels, TILE * channels],
                        steps,
                        right: weights,
                        right_stride: 2 * WORDS,
                        sums: &mut sums[position * TILE..],
                        sums_strides: [TILE, TILE * TILE, len * TILE],
                    });
                }
                drop(tiles);
                between();
            }
        }
    }
}

/// From sums to results.
struct Finish<'a, S: Lanes> {
    flat: Flat,
    outputs: usize,
    epilogue: Epilogue,
    argmax: &'a mut [u8],
    results: &'a mut [u16],
    /// Scratch of 16 planes of results, and of a pooled plane in lanes with its argmax.
    wide: &'a mut [f32],
    pooled: &'a mut [S::f32s],
}

impl<S: Lanes> Finish<'_, S> {
    /// Stores the results of 16 outputs.
    #[inline(always)]
    fn store(&mut self, simd: S, group: usize, sums: &mut [S::f32s]) {
        let Self { flat, outputs, epilogue, .. } = *self;
        let pixels: usize = epilogue.size(flat.size()).iter().product();
        let first = group * TILE;
        if first >= outputs {
            return;
        }
        let channels = TILE.min(outputs - first);
        for (image, sums) in sums.chunks_exact_mut(flat.period()).take(flat.images).enumerate() {
            let wide = &mut self.wide[..channels * pixels];
            let at = (image * outputs.div_ceil(TILE) + group) * pixels * TILE;
            let argmax = self.argmax.get_mut(at..).unwrap_or_default();
            let lanes = (sums, &mut *self.pooled);
            finish(simd, epilogue, flat.plane(), lanes, [channels, pixels], uninit(wide), argmax);
            let results = &mut self.results[(image * outputs + first) * pixels..][..channels * pixels];
            Half::Bf16.narrow(LEVEL, wide, results);
        }
    }
}

/// Values that are about to be overwritten.
#[inline(always)]
fn uninit(values: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    // SAFETY: both types have the same layout, and this slice is given to `Plane::store` alone, which
    // writes initialised values.
    unsafe { &mut *(std::ptr::from_mut(values) as *mut [MaybeUninit<f32>]) }
}
