//! Conversion between flex's tensors and slices.

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{Bytes, DType, Shape, Tensor};

use crate::runtime::memory::Buffer;

impl Buffer {
    /// A tensor of these values in this shape.
    ///
    /// # Panics
    /// If there are not as many values.
    pub fn into_tensor(self, shape: &[usize]) -> FlexTensor {
        let len = self.len();
        assert_eq!(len, shape.iter().product::<usize>(), "values of a tensor {shape:?}");
        // SAFETY: all of the buffer's memory is initialised, and it has this many values.
        let bytes = unsafe { Bytes::from_controller(Box::new(self), len * size_of::<f32>()) };
        FlexTensor::new(bytes, Layout::contiguous(Shape::from(shape.iter().copied())), DType::F32)
    }
}

/// The values of a contiguous f32 tensor.
///
/// # Panics
/// If it is not contiguous or not f32.
pub(crate) fn values(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice::<f32>().expect("the tensor is f32 and contiguous")
}

/// As `to_contiguous`, without another handle for a tensor that is contiguous already.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    let layout = tensor.layout();
    let length = layout.num_elements() * tensor.dtype().size();
    let is_whole = layout.start_offset() == 0 && tensor.bytes().len() == length;
    if is_whole && tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// A contiguous f32 tensor whose memory nothing else refers to: itself, or a copy.
pub(crate) fn unshared(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_unique() { tensor } else { Buffer::copy_of(values(&tensor)).into_tensor(&tensor.shape()) }
}

/// A tensor to write, of the shape of a contiguous f32 tensor: itself if nothing else refers to its memory, or a
/// new one, and the tensor.
pub(crate) fn target_of(tensor: FlexTensor) -> (FlexTensor, Option<FlexTensor>) {
    if tensor.is_unique() {
        (tensor, None)
    } else {
        (Buffer::new(values(&tensor).len()).into_tensor(&tensor.shape()), Some(tensor))
    }
}

/// A tensor of `values` in this shape.
pub(crate) fn tensor(values: Vec<f32>, shape: &[usize]) -> FlexTensor {
    FlexTensor::new(
        Bytes::from_elems(values),
        Layout::contiguous(Shape::from(shape.iter().copied())),
        DType::F32,
    )
}

/// The contiguous tensor of `x`, without its graph, if it is f32 on flex.
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
