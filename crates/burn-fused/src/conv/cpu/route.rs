//! Which algorithm computes which shape.

use super::Shape;
use crate::conv::Algorithm;
use crate::precision::{Bf16Products, bf16_products};

/// The algorithm of one convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// [`super::direct`].
    Direct,
    /// [`super::im2col`].
    Gemm,
    /// [`super::winograd`].
    Winograd,
    /// On AMX tiles, bf16 images only.
    Tiles,
}

impl Route {
    /// The fastest of those that `algorithm` allows.
    pub fn of(shape: Shape, algorithm: Algorithm) -> Self {
        if shape.is_small() {
            return Self::Direct;
        }
        match algorithm {
            Algorithm::Winograd if suits_winograd(shape) => Self::Winograd,
            Algorithm::Winograd | Algorithm::Gemm => Self::Gemm,
        }
    }

    /// The fastest for bf16 images, where `self` is that for f32: tiles, whichever algorithm is
    /// set, where products of bf16 run on them.
    pub fn in_bf16(self, shape: Shape) -> Self {
        // A tile's step takes 32 input channels, and its sums are 32 output channels.
        let suits = self != Self::Direct && shape.inputs >= 16 && shape.outputs >= 16;
        if suits && bf16_products() == Bf16Products::Amx { Self::Tiles } else { self }
    }
}

/// Whether Winograd is faster than im2col + GEMM. Measured over 10 pairs of 16 to 128
/// input and 4 to 128 output channels, 13 sizes of images up to 28x28, and batches of 1, 4
/// and 32, forward and backward together:
///
/// - Transforming the weights takes as long as some tens of pixels: it is faster from
///   64 pixels in a batch on, up to twice slower below.
/// - A tile takes as long for one pixel as for its 16. It is faster from 4 pixels
///   on; an image of one pixel is slower.
/// - With fewer than 16 input channels, most lanes of a wide vector would be empty.
fn suits_winograd(shape: Shape) -> bool {
    let tiles = shape.height.div_ceil(4) * shape.width.div_ceil(4);
    shape.inputs >= 16 && shape.batch * shape.pixels() >= 64 && shape.pixels() >= 4 * tiles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shape_and_the_setting_select_the_algorithm() {
        let of = |[batch, inputs, outputs, height, width]: [usize; 5], algorithm| {
            Route::of(Shape { batch, inputs, outputs, height, width }, algorithm)
        };
        for (sizes, expected) in [
            ([32, 3, 32, 32, 32], Route::Direct),
            ([32, 12, 32, 32, 32], Route::Gemm),
            ([32, 32, 64, 32, 32], Route::Winograd),
            ([1, 16, 9, 8, 8], Route::Winograd),
            ([1, 256, 256, 7, 7], Route::Gemm),
            ([64, 256, 256, 1, 1], Route::Gemm),
            ([32, 16, 8, 28, 28], Route::Direct),
        ] {
            assert_eq!(of(sizes, Algorithm::Winograd), expected, "{sizes:?}");
            let other = if expected == Route::Direct { Route::Direct } else { Route::Gemm };
            assert_eq!(of(sizes, Algorithm::Gemm), other, "{sizes:?}");
        }
    }
}
