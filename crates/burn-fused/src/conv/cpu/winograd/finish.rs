//! From products to the output: transform, bias and epilogue.

use std::mem::MaybeUninit;

use super::super::Shape;
use super::super::activation::finish;
use super::blocks::{Block, TILE};
use super::transform::{Output, POINTS, PRODUCTS, square};
use crate::epilogue::Epilogue;
use crate::simd::{Lanes, load};

/// The last steps of a block.
pub struct Finish<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub block: Block,
    /// One for each output; none for zeros.
    pub bias: Option<&'a [f32]>,
}

impl Finish<'_> {
    /// Stores the outputs of `vectors` vectors of channels, from vector `first` on, and the argmax of each
    /// pooled pixel, with as many channels side by side as there are lanes, unless `argmax` is empty.
    /// The products of a tile are side by side, and points `step` vectors apart; `lanes`
    /// is scratch of two planes. All values of these outputs are initialised afterwards.
    #[inline(always)]
    pub fn run<S: Lanes>(
        &self,
        simd: S,
        [first, vectors]: [usize; 2],
        (products, step): (&[S::f32s], usize),
        lanes: &mut [S::f32s],
        output: &mut [MaybeUninit<f32>],
        argmax: &mut [u8],
    ) {
        let Self { shape, epilogue, block, bias } = self;
        let plane = block.plane();
        let (lanes, scratch) = lanes.split_at_mut(plane.len);
        let [height, width] = shape.output_size(*epilogue);
        let above = epilogue.size(block.pixels(0))[0] * width;
        for at in 0..vectors {
            let channel = (first + at) * S::F32_LANES;
            let channels = S::F32_LANES.min(shape.outputs - channel);
            let bias = match bias {
                Some(values) => load(simd, &values[channel..channel + channels]),
                None => simd.splat_f32s(0.0),
            };
            let mut tile = at;
            for image in block.first..block.first + block.images {
                for row in 0..block.rows() {
                    for column in 0..block.columns() {
                        let products = &products[tile..=tile + (PRODUCTS - 1) * step];
                        let mut outputs = square(simd, Output, |y, x| {
                            // SAFETY: `y` and `x` are less than 6, so that the point is at most 35,
                            // with whose vector `products` ends.
                            unsafe { *products.get_unchecked((y * POINTS + x) * step) }
                        });
                        for value in outputs.as_flattened_mut() {
                            *value = simd.add_f32s(*value, bias);
                        }
                        // Tiles may extend beyond the image; the plane has room for whole tiles.
                        let corner = (row * plane.stride + column) * TILE;
                        for (y, values) in outputs.iter().enumerate() {
                            lanes[corner + y * plane.stride..][..TILE].copy_from_slice(values);
                        }
                        tile += vectors;
                    }
                }
                let from = (image * shape.outputs + channel) * height * width + above;
                let vector = image * shape.outputs.div_ceil(S::F32_LANES) + first + at;
                let kept = (vector * height * width + above) * S::F32_LANES;
                let size = [channels, height * width];
                let argmax = argmax.get_mut(kept..).unwrap_or_default();
                finish(simd, *epilogue, plane, (lanes, scratch), size, &mut output[from..], argmax);
            }
        }
    }
}
