//! The layout of the sums of a convolution that a batch normalisation follows.

use super::plane::Plane;
use super::source::Planes;
use super::{Convolution, Route, Shape};
use crate::kernels::simd::Lanes;

/// The layout of sums: planes, one after the other. A plane has one vector for each pixel. With the direct
/// convolution, lanes are images, and a block of images has one plane for each output channel. With Winograd,
/// lanes are channels, and an image has one plane for each vector of output channels.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    pub shape: Shape,
    /// Whether lanes are images. If not, lanes are channels.
    pub by_image: bool,
    pub plane: Plane,
}

impl Layout {
    pub fn for_convolution(Convolution { route, shape, .. }: Convolution) -> Self {
        let (by_image, size) = (route == Route::Direct, [shape.height, shape.width]);
        let plane = if by_image { Plane::rounded_up(size) } else { Plane::tiled(size) };
        Self { shape, by_image, plane }
    }

    /// Number of planes in a block of images if lanes are images, or in an image if lanes are channels.
    #[inline(always)]
    pub fn groups(self, lanes: usize) -> usize {
        if self.by_image { self.shape.outputs } else { self.shape.outputs.div_ceil(lanes) }
    }

    /// Number of planes in the batch.
    #[inline(always)]
    pub fn planes_of_batch(self, lanes: usize) -> usize {
        let images = if self.by_image { lanes } else { 1 };
        self.shape.batch.div_ceil(images) * self.groups(lanes)
    }

    /// Returns which channels of which images are in the lanes of plane `vector`.
    #[inline(always)]
    pub fn planes<S: Lanes>(self, vector: usize) -> Planes {
        let (Shape { batch, outputs, .. }, lanes) = (self.shape, S::F32_LANES);
        let (block, group) = (vector / self.groups(lanes), vector % self.groups(lanes));
        if self.by_image {
            let count = lanes.min(batch - block * lanes);
            return Planes { first: block * lanes * outputs + group, step: outputs, count, vector };
        }
        let channel = group * lanes;
        Planes { first: block * outputs + channel, step: 1, count: lanes.min(outputs - channel), vector }
    }

    /// Returns the sum of `value` over the planes and lanes of a channel. `value` is called with the index
    /// `plane * lanes + lane`.
    pub fn total(self, lanes: usize, channel: usize, mut value: impl FnMut(usize) -> f64) -> f64 {
        let groups = self.groups(lanes);
        let place = |image: usize| {
            if self.by_image {
                (image / lanes * groups + channel, image % lanes)
            } else {
                (image * groups + channel / lanes, channel % lanes)
            }
        };
        (0..self.shape.batch).map(place).map(|(vector, lane)| value(vector * lanes + lane)).sum()
    }

    /// Arranges numbers, one for each channel, in the lanes of vectors. There is one vector for each of the
    /// planes that [`groups`](Self::groups) counts.
    pub fn in_lanes(self, lanes: usize, value: impl Fn(usize) -> f32) -> Vec<f32> {
        let channel = |at: usize| if self.by_image { at / lanes } else { at };
        let number = |at: usize| if channel(at) < self.shape.outputs { value(channel(at)) } else { 0.0 };
        (0..self.groups(lanes) * lanes).map(number).collect()
    }
}
