//! 2x2 max pooling with stride 2: one pass forward and one backward. Forward stores the position of each
//! square's maximum in a byte.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use crate::kernels::simd::Level;
use crate::kernels::squares::{pool, spread};
use crate::ops::extension::{Backward, Saved, on_flex, unsupported_tensors};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// Returns the maximum of each 2x2 square of `x` `[batch, channels, height, width]`. If height or width is
/// odd, the last row or column is left out. Of equal values in a square, the first in reading order gets the
/// gradient.
///
/// Returns `None` if `x` is not on flex, is not f32, or has no square.
pub(crate) fn max_pool(x: &Tensor<4>) -> Option<Tensor<4>> {
    let output = on_flex([x.clone().into_dispatch()], sizes_of, forward);
    output.map_err(|tensors| unsupported_tensors("max_pool2d", tensors)).ok().map(Tensor::from_dispatch)
}

/// Returns height and width if `x` is f32 and has at least one square.
fn sizes_of([x]: [&FlexTensor; 1]) -> Option<[usize; 2]> {
    let [batch, channels, height, width] = x.shape().dims();
    let any = batch * channels > 0 && height > 1 && width > 1;
    (any && x.dtype() == DType::F32).then_some([height, width])
}

/// Approximate number of pixels in an item for a thread.
const PART: usize = 1 << 14;

fn forward(
    [x]: [FlexTensor; 1],
    sizes: [usize; 2],
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved, 1>) {
    let (x, level, [height, width]) = (contiguous(x), Level::current(), sizes);
    let [batch, channels, _, _] = x.shape().dims();
    let halved = [height / 2, width / 2];
    let squares = halved[0] * halved[1];
    let mut output = Buffer::new(batch * channels * squares);
    let mut argmax = Buffer::new(output.len().div_ceil(4));
    let bytes = &mut bytemuck::cast_slice_mut(&mut argmax)[..output.len()];
    let part = |((planes, output), argmax)| pool(level, sizes, planes, output, argmax);
    let planes = PART.div_ceil(height * width);
    let [all, some] = [height * width, squares].map(|pixels| planes * pixels);
    let parts = values(&x).chunks(all).zip(output.chunks_mut(some)).zip(bytes.chunks_mut(some));
    each(squares * batch * channels, parts, part);
    let output = output.into_tensor(&[batch, channels, halved[0], halved[1]]);
    let backward = Backward::new(move |gradient, _of_x| {
        let gradient = values(&gradient);
        let argmax = &bytemuck::cast_slice(&argmax)[..gradient.len()];
        let mut of_x = Buffer::new(batch * channels * height * width);
        let parts = of_x.chunks_mut(all).zip(gradient.chunks(some)).zip(argmax.chunks(some));
        let poll = Poll::current();
        each(squares * batch * channels, parts, |((of_planes, gradient), argmax)| {
            spread(level, sizes, of_planes, gradient, argmax);
            poll.call();
        });
        [Some(of_x.into_tensor(&[batch, channels, height, width]))]
    });
    (output, backward)
}
