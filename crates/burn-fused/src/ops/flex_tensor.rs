//! Conversion between flex's tensors and slices.

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, Tensor};
use bytemuck::Pod;

use crate::runtime::memory::Buffer;

impl Buffer {
    /// Returns a tensor of this shape that owns the buffer.
    ///
    /// # Panics
    /// If the buffer and the shape have different numbers of values.
    pub fn into_tensor(self, shape: &[usize]) -> FlexTensor {
        self.into_tensor_of(DType::F32, shape)
    }
}

impl<T: Pod + Send + Sync> Buffer<T> {
    /// Returns a tensor of this type and shape that owns the buffer.
    ///
    /// # Panics
    /// If the buffer and the shape have different numbers of values, or the type's values have another size.
    pub fn into_tensor_of(self, dtype: DType, shape: &[usize]) -> FlexTensor {
        assert_eq!(dtype.size(), size_of::<T>(), "size of {dtype:?}");
        let len = self.len();
        assert_eq!(len, shape.iter().product::<usize>(), "values of a tensor {shape:?}");
        // SAFETY: `from_controller` requires the number of initialised bytes. All memory of the buffer is
        // initialised, and the buffer has `len` values of `T`.
        let bytes = unsafe { Bytes::from_controller(Box::new(self), len * size_of::<T>()) };
        FlexTensor::new(bytes, Layout::contiguous(Shape::from(shape.iter().copied())), dtype)
    }
}

/// Returns the values of a contiguous f32 tensor.
///
/// # Panics
/// If the tensor is not contiguous or not f32.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice::<f32>().expect("the tensor is f32 and contiguous")
}

/// Returns the tensor as a contiguous one. If the tensor is contiguous already and covers its whole memory,
/// it is returned itself: `to_contiguous` would clone its handle.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    let length = layout.num_elements() * tensor.dtype().size();
    let is_whole = layout.start_offset() == 0 && tensor.bytes().len() == length;
    if is_whole && tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// Returns a tensor that shares its memory with no other handle: the tensor itself, or a copy. `tensor` must
/// be contiguous and f32.
pub(crate) fn unshared(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_unique() { tensor } else { Buffer::copy_of(values(&tensor)).into_tensor(&tensor.shape()) }
}

/// Returns the tensor to which an operator writes, and the tensor that it reads. If no other tensor shares
/// the memory of `tensor`, the operator works in place: `(tensor, None)`. Otherwise, the first is a new
/// tensor of the same shape with arbitrary values, and the second is `tensor`. `tensor` must be contiguous
/// and f32.
pub(crate) fn target_of(tensor: FlexTensor) -> (FlexTensor, Option<FlexTensor>) {
    if tensor.is_unique() {
        (tensor, None)
    } else {
        (Buffer::new(values(&tensor).len()).into_tensor(&tensor.shape()), Some(tensor))
    }
}

/// Returns an f32 tensor of this shape that owns `values`.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(Shape::from(shape.iter().copied())),
        DType::F32,
    )
}

/// Returns `x` as a contiguous tensor without its autodiff graph. Returns `None` if `x` is not f32 on flex.
pub(crate) fn f32_on_flex<const D: usize>(x: &Tensor<D>) -> Option<FlexTensor> {
    let x = x.clone().without_autodiff().try_into_primitive::<Flex>().ok()?;
    (x.dtype() == DType::F32).then(|| contiguous(x))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_of_a_buffer_has_its_values() {
        for len in [0, 3, 5000] {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut tensor = Buffer::copy_of(&values).into_tensor(&[len, 1]);
            assert_eq!(tensor.as_slice::<f32>(), Some(&values[..]));
            let copy = tensor.clone();
            tensor.storage_mut::<f32>().fill(7.0);
            assert_eq!(copy.as_slice::<f32>(), Some(&values[..]));
            assert_eq!(copy.into_data().try_into_vec_as::<f32>().ok(), Some(values));
        }
        assert!(Buffer::zeroed(5000).iter().all(|&value| value == 0.0));
    }
}
