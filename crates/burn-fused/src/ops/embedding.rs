//! Embedding: looks up rows of a matrix by their indices.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Int, Tensor};

use crate::kernels::rows::{copy_rows, sum_rows};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;

/// Returns the rows of `weights` `[rows, width]` at `indices` `[batch, sequence]`, as
/// `[batch, sequence, width]`.
///
/// # Panics
/// If an index is negative or not below `rows`.
pub(crate) fn embedding(weights: Tensor<2>, indices: Tensor<2, Int>) -> Tensor<3> {
    let supported = |[weights]: [&FlexTensor; 1]| (weights.dtype() == DType::F32).then_some(());
    let forward = |[weights]: [FlexTensor; 1], (), _backward| forward(contiguous(weights), indices.clone());
    on_flex_or("embedding", [weights.into_dispatch()], supported, forward, |[weights]| {
        burn::tensor::module::embedding(Tensor::from_dispatch(weights), indices.clone())
    })
}

fn forward(weights: FlexTensor, indices: Tensor<2, Int>) -> (FlexTensor, Backward<impl Saved, 1>) {
    let [count, width] = weights.shape().dims();
    let [batch, sequence] = indices.dims();
    let row = |index: i64| match usize::try_from(index) {
        Ok(row) if row < count => row,
        // flex panics with the same message.
        _ => panic!("index {index} out of bounds for dimension of size {count}"),
    };
    let rows: Vec<usize> = indices.into_data().iter::<i64>().map(row).collect();
    let output = copy_rows(&rows, values(&weights), width);
    let backward = Backward::new(move |gradient, _of_weights| {
        let mut of_weights = Buffer::new(count * width);
        sum_rows(Level::current(), width, &rows, values(&gradient), &mut of_weights, Poll::current());
        [Some(of_weights.into_tensor(&[count, width]))]
    });
    (output.into_tensor(&[batch, sequence, width]), backward)
}
