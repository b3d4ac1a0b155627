//! Conversion between flex's tensors and slices.

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType};

/// The values of a contiguous f32 tensor.
///
/// # Panics
/// If it is not contiguous or not f32.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    match tensor.as_slice::<f32>() {
        Some(values) => values,
        None => unreachable!("the tensor is f32 and contiguous"),
    }
}

/// A tensor of `values` in this shape.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(values), Layout::contiguous(shape.to_vec().into()), DType::F32)
}
