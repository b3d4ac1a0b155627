//! From products to the output: transform, bias and epilogue.

use std::mem::MaybeUninit;

use super::super::Shape;
use super::super::activation::{largest, relu};
use super::super::blocks::keep_argmax;
use super::super::plane::Plane;
use super::blocks::{Block, TILE};
use super::transform::{Output, POINTS, PRODUCTS, square};
use crate::epilogue::Epilogue;
use crate::simd::Lanes;

/// The last steps of a block.
pub struct Finish<'a> {
    pub shape: Shape,
    pub epilogue: Epilogue,
    pub block: Block,
    /// One for each output; none for zeros.
    pub bias: Option<&'a [f32]>,
}

/// Where results go.
pub struct Target<'a> {
    /// `[batch, outputs, ...]`.
    pub output: &'a mut [MaybeUninit<f32>],
    /// The argmax of each pooled pixel, with as many channels side by side as there are
    /// lanes; empty if it is not kept.
    pub argmax: &'a mut [u8],
}

impl Finish<'_> {
    /// Stores the outputs of `vectors` vectors of channels, from vector `first` on.
    /// The products of a tile are side by side, and points `step` vectors apart; `lanes`
    /// is scratch of two planes. All values of these outputs are initialised afterwards.
    #[inline(always)]
    pub fn run<S: Lanes>(
        &self,
        simd: S,
        [first, vectors]: [usize; 2],
        step: usize,
        products: &[S::f32s],
        lanes: &mut [S::f32s],
        target: Target<'_>,
    ) {
        let Self { shape, block, .. } = self;
        let plane = self.plane();
        let (lanes, index) = lanes.split_at_mut(plane.len);
        let index: &mut [S::u32s] = bytemuck::cast_slice_mut(index);
        let rows = self.epilogue.size(block.pixels(0));
        let [height, width] = shape.output_size(self.epilogue);
        for at in 0..vectors {
            let channel = (first + at) * S::F32_LANES;
            let channels = S::F32_LANES.min(shape.outputs - channel);
            let mut bias = simd.splat_f32s(0.0);
            if let Some(values) = self.bias {
                bias = crate::simd::load(simd, &values[channel..channel + channels]);
            }
            let mut tile = at;
            for image in 0..block.images {
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
                            if self.epilogue == Epilogue::Relu {
                                *value = relu(simd, *value);
                            }
                        }
                        self.put(simd, plane.stride, [row, column], outputs, lanes, index);
                        tile += vectors;
                    }
                }
                let image = block.first + image;
                let from = (image * shape.outputs + channel) * height * width + rows[0] * width;
                plane.store(simd, lanes, [channels, height * width], &mut target.output[from..]);
                if !target.argmax.is_empty() {
                    let group = image * shape.outputs.div_ceil(S::F32_LANES) + first + at;
                    let first = (group * height + rows[0]) * width * S::F32_LANES;
                    let kept = target.argmax[first..].chunks_exact_mut(width * S::F32_LANES);
                    for (index, kept) in index.chunks(plane.stride).zip(kept).take(plane.size[0]) {
                        keep_argmax(index, kept);
                    }
                }
            }
        }
    }

    /// The plane of one image's outputs.
    #[inline(always)]
    fn plane(&self) -> Plane {
        let plane = self.block.plane();
        match self.epilogue {
            Epilogue::Identity | Epilogue::Relu => plane,
            Epilogue::ReluPool => {
                Plane::part(plane.size.map(|side| side / 2), plane.stride / 2, 0, plane.len / 4)
            }
        }
    }

    /// Pools a tile if the epilogue does, and stores it. Tiles may extend beyond the image;
    /// the plane has room for whole tiles.
    #[inline(always)]
    fn put<S: Lanes>(
        &self,
        simd: S,
        stride: usize,
        [row, column]: [usize; 2],
        values: [[S::f32s; TILE]; TILE],
        lanes: &mut [S::f32s],
        index: &mut [S::u32s],
    ) {
        let side = if self.epilogue == Epilogue::ReluPool { TILE / 2 } else { TILE };
        let corner = row * side * stride + column * side;
        match self.epilogue {
            Epilogue::Identity | Epilogue::Relu => {
                for (y, values) in values.iter().enumerate() {
                    lanes[corner + y * stride..][..TILE].copy_from_slice(values);
                }
            }
            Epilogue::ReluPool => {
                for y in 0..2 {
                    for x in 0..2 {
                        let (upper, lower) = (values[2 * y], values[2 * y + 1]);
                        let four = [upper[2 * x], upper[2 * x + 1], lower[2 * x], lower[2 * x + 1]];
                        let at = corner + y * stride + x;
                        (lanes[at], index[at]) = largest(simd, four);
                    }
                }
            }
        }
    }
}
