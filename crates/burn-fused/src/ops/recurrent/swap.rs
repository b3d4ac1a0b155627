//! Swaps the axes of batch and steps.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use crate::ops::extension::{Backward, Saved, on_flex};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;
use crate::runtime::threads::each;

/// Returns `[second, first, values]` for `x`, `[first, second, values]`. This operator copies whole rows, on
/// several threads. Burn's operator returns a view, which the recurrent layers would copy value by value.
pub(crate) fn swap(x: Tensor<3>) -> Tensor<3> {
    let sizes = |[x]: [&FlexTensor; 1]| (x.dtype() == DType::F32).then(|| x.shape().dims());
    match on_flex([x.into_dispatch()], sizes, forward) {
        Ok(swapped) => Tensor::from_dispatch(swapped),
        Err([x]) => Tensor::<3>::from_dispatch(x).swap_dims(0, 1),
    }
}

fn forward(
    [x]: [FlexTensor; 1],
    [first, second, width]: [usize; 3],
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved, 1>) {
    let output = swapped(&contiguous(x), [first, second, width]);
    let backward = Backward::new(move |gradient, _of_x| [Some(swapped(&gradient, [second, first, width]))]);
    (output, backward)
}

fn swapped(x: &FlexTensor, [first, second, width]: [usize; 3]) -> FlexTensor {
    let (values, mut rows) = (values(x), Buffer::new(first * second * width));
    let time = rows.len() / 8;
    each(time, rows.chunks_mut((first * width).max(1)).enumerate(), |(at, rows)| {
        let values = values[at * width..].chunks(second * width);
        for (row, values) in rows.chunks_exact_mut(width).zip(values) {
            row.copy_from_slice(&values[..width]);
        }
    });
    rows.into_tensor(&[second, first, width])
}
