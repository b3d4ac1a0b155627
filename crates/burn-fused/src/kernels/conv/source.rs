//! The values that a convolution loads into SIMD lanes.
//!
//! Forward loads images. Backward loads the gradient of the output. While it loads, it computes the gradient
//! of the convolution's results, which are the values before the normalisation and the epilogue.

use super::blocks::spread;
use super::norm::Normed;
use super::plane::Plane;
use super::{Back, Shape};
use crate::kernels::epilogue::Epilogue;
use crate::kernels::simd::Lanes;

/// Values `[batch, channels, height, width]`, in f32 or as bits of bf16.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a, T = f32> {
    /// The values. With [`Mask::Pool`], there is one value for each pooled pixel.
    pub values: &'a [T],
    /// Which of the values flow back through the epilogue.
    pub mask: Mask<'a, T>,
    /// Number of channels.
    pub channels: usize,
    /// Height and width of the images, before pooling.
    pub size: [usize; 2],
    /// The normalisation through which the values flow back, if there is one.
    pub normed: Option<&'a Normed<'a>>,
}

/// Which gradients flow back through the epilogue to the convolution's results.
#[derive(Debug, Clone, Copy)]
pub enum Mask<'a, T> {
    /// All gradients.
    All,
    /// Gradients are zero where this output of ReLU is zero.
    Relu(&'a [T]),
    /// The argmax of the pooling. It says which pixel of a 2x2 square gets the gradient of the pooled pixel.
    Pool(&'a [u8]),
}

/// Planes of a source that are loaded together, one into each lane. A plane is one channel of one image.
#[derive(Debug, Clone, Copy)]
pub struct Planes {
    /// Index of the plane in the first lane.
    pub first: usize,
    /// Distance from the plane of a lane to the plane of the next lane.
    pub step: usize,
    /// Number of planes. The lanes after them are zero.
    pub count: usize,
    /// Index of this group of planes in the batch. The argmax is stored in the order of these indices, with
    /// all lanes of a pixel side by side.
    pub vector: usize,
}

impl<'a, T> Source<'a, T> {
    /// Makes a source from the input of a convolution.
    pub fn input(shape: Shape, values: &'a [T]) -> Self {
        let size = [shape.height, shape.width];
        Self { values, mask: Mask::All, channels: shape.inputs, size, normed: None }
    }

    /// Makes a source from the gradient of a convolution's output. The source loads the gradient of the
    /// convolution's results, which are the values before the normalisation and the epilogue.
    pub fn gradient(shape: Shape, epilogue: Epilogue, back: Back<'a, T>) -> Self {
        let mask = match epilogue {
            Epilogue::Relu if back.normed.is_none() => Mask::Relu(back.output),
            Epilogue::Identity | Epilogue::Relu => Mask::All,
            Epilogue::ReluPool => Mask::Pool(back.argmax),
        };
        let (size, normed) = ([shape.height, shape.width], back.normed);
        Self { values: back.gradient, mask, channels: shape.outputs, size, normed }
    }

    /// Number of vectors that hold all channels of a pixel.
    #[inline(always)]
    pub fn groups<S: Lanes>(&self) -> usize {
        self.channels.div_ceil(S::F32_LANES)
    }

    /// The planes of a group of channels of one image.
    #[inline(always)]
    pub fn group<S: Lanes>(&self, [image, group]: [usize; 2]) -> Planes {
        let channel = group * S::F32_LANES;
        Planes {
            first: image * self.channels + channel,
            step: 1,
            count: S::F32_LANES.min(self.channels - channel),
            vector: image * self.groups::<S>() + group,
        }
    }
}

impl Source<'_> {
    /// Loads rows of `planes` into `lanes`, in the layout `plane`. Vectors outside the pixels become zero.
    /// `rows` is the first row and the row after the last. `pooled` is scratch with a vector for each pooled
    /// pixel.
    ///
    /// With [`Mask::Pool`] and without a normalisation, returns the sum of the loaded gradients in each lane.
    /// The loop that loads the gradients also sums them. Returns `None` in all other cases.
    #[inline(always)]
    pub fn load<S: Lanes>(
        &self,
        simd: S,
        planes: Planes,
        rows: [usize; 2],
        plane: Plane,
        pooled: &mut [S::f32s],
        lanes: &mut [S::f32s],
    ) -> Option<S::f32s> {
        let [height, width] = self.size;
        let Planes { first, step, count, vector } = planes;
        let (from, step) = ((first * height + rows[0]) * width, [count, step * height * width]);
        let sum = match self.mask {
            Mask::All => {
                plane.load(simd, lanes, step, &self.values[from..], None);
                None
            }
            Mask::Relu(output) => {
                plane.load(simd, lanes, step, &self.values[from..], Some(&output[from..]));
                None
            }
            Mask::Pool(argmax) => {
                let [height, width] = [height / 2, width / 2];
                let (above, pixels) = (rows[0] / 2 * width, height * width);
                let size = [(rows[1] - rows[0]) / 2, width];
                let gradient = &self.values[first * pixels + above..];
                Plane::plain(size).load(simd, pooled, [count, planes.step * pixels], gradient, None);
                let argmax = &argmax[(vector * pixels + above) * S::F32_LANES..];
                Some(spread(simd, plane, size, argmax, pooled, lanes))
            }
        };
        let Some(normed) = self.normed else { return sum };
        normed.apply(simd, planes, rows, plane, lanes);
        None
    }
}
