//! What a convolution reads: images, or the gradient of an output before its epilogue.

use super::super::blocks::spread;
use super::super::plane::Plane;
use super::flat::Flat;
use super::{Argmax, LEVEL};
use crate::epilogue::Epilogue;
use crate::precision::Half;
use crate::precision::amx::TILE;
use crate::simd::Lanes;

/// Values `[batch, channels, height, width]` of a block in bf16.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    values: &'a [u16],
    mask: Mask<'a>,
    /// Channels.
    pub channels: usize,
}

#[derive(Clone, Copy)]
enum Mask<'a> {
    /// All values as they are.
    None,
    /// Zero where this output of ReLU is.
    Relu(&'a [u16]),
    /// Gradients of pooled values, at the maximum of each 2x2 square.
    Pool(&'a [u8]),
}

impl<'a> Source<'a> {
    /// The images of a convolution.
    pub fn images(channels: usize, values: &'a [u16]) -> Self {
        Self { values, mask: Mask::None, channels }
    }

    /// The gradient of a convolution's sums from that of its output.
    ///
    /// # Panics
    /// If the output is pooled by another algorithm.
    pub fn gradient(
        channels: usize,
        epilogue: Epilogue,
        (output, argmax): (&'a [u16], &'a Argmax),
        values: &'a [u16],
    ) -> Self {
        let mask = match (epilogue, argmax) {
            (Epilogue::Identity, _) => Mask::None,
            (Epilogue::Relu, _) => Mask::Relu(output),
            (Epilogue::ReluPool, Argmax::Channels(argmax)) => Mask::Pool(argmax),
            (Epilogue::ReluPool, _) => unreachable!("the output is that of tiles"),
        };
        Self { values, mask, channels }
    }

    /// Loads 16 channels of one image into its period, with zeros between rows and after them. `wide`
    /// is scratch.
    #[inline(always)]
    pub fn load<S: Lanes>(
        &self,
        simd: S,
        flat: Flat,
        [image, group]: [usize; 2],
        wide: &mut Wide<'_, S>,
        lanes: &mut [S::f32s],
    ) {
        let [height, width] = flat.size();
        let pooled = [height / 2, width / 2];
        let pixels = if let Mask::Pool(_) = self.mask { pooled[0] * pooled[1] } else { height * width };
        let channels = TILE.min(self.channels - group * TILE);
        let start = (image * self.channels + group * TILE) * pixels;
        let widened = |bits: &[u16], wide: &mut [f32]| {
            Half::Bf16.widen(LEVEL, &bits[start..][..channels * pixels], &mut wide[..channels * pixels]);
        };
        widened(self.values, wide.values);
        let plane = flat.plane();
        match self.mask {
            Mask::None => {
                plane.clear_border(simd, lanes);
                plane.load(simd, lanes, channels, pixels, wide.values);
            }
            Mask::Relu(output) => {
                widened(output, wide.outputs);
                plane.clear_border(simd, lanes);
                let [values, outputs] =
                    [&*wide.values, &*wide.outputs].map(|wide| &wide[..channels * pixels]);
                plane.load_masked(simd, lanes, channels, pixels, values, outputs);
            }
            Mask::Pool(argmax) => {
                Plane::plain(pooled[0], pooled[1]).load(simd, wide.pooled, channels, pixels, wide.values);
                let at = (image * self.channels.div_ceil(TILE) + group) * pixels;
                spread(simd, plane, pooled, &argmax[at * TILE..], wide.pooled, lanes);
            }
        }
    }
}

/// Scratch for 16 channels of an image.
pub struct Wide<'a, S: Lanes> {
    /// Values in f32, and those of the output.
    pub values: &'a mut [f32],
    pub outputs: &'a mut [f32],
    /// Pooled values, a channel in each lane.
    pub pooled: &'a mut [S::f32s],
}
