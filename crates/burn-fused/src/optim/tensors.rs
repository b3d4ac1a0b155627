//! The updates of [`flat`] on Burn's tensors.
//!
//! A step avoids allocating memory for the parameter. It writes the new values to the first of these places
//! that is available:
//!
//! 1. the memory of the parameter, if no other tensor shares it;
//! 2. the memory of the gradient, if no other tensor shares it and it is not a part of a larger buffer;
//! 3. new memory.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Device, Tensor};

use super::flat::{self, UpdateRule};
use crate::ops::flex_tensor::{unshared, values};
use crate::runtime::memory::Buffer;

/// What [`update_tensors`] does not support, for the debug lines.
pub const PARAMETERS: &str = "parameters other than f32 on flex";

/// Returns whether [`update_tensors`] supports a parameter and the tensors that belong to it: f32 on flex,
/// without autodiff, and of one shape.
pub fn is_supported<'a, const D: usize>(
    parameter: &'a Tensor<D>,
    others: impl IntoIterator<Item = &'a Tensor<D>>,
) -> bool {
    let flex = Device::flex();
    std::iter::once(parameter).chain(others).all(|tensor| {
        let device = tensor.device();
        let here = device == flex && !device.is_autodiff();
        here && tensor.dtype() == DType::F32 && tensor.dims() == parameter.dims()
    })
}

/// Returns the parameter and its moments after a step. The documentation of this module says to which memory
/// the parameter is written. Moments stay in their memory unless another tensor shares it.
///
/// # Panics
/// If the tensors are not [supported](is_supported).
pub fn update_tensors<const D: usize, const M: usize>(
    rule: impl UpdateRule<M>,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; M],
) -> (Tensor<D>, [Tensor<D>; M]) {
    let [mut parameter, mut gradient] = [parameter, gradient].map(primitive);
    // A moment is copied if another tensor shares its memory, for example in a copy of the optimizer.
    let mut moments = moments.map(|moment| unshared(primitive(moment)));
    let slices = moments.each_mut().map(slice_mut);
    let parameter = if parameter.is_unique() {
        flat::update(rule, slice_mut(&mut parameter), values(&gradient), slices);
        parameter
    } else if gradient.is_unique() && gradient.storage::<f32>().len() == values(&gradient).len() {
        // A training loop may hold the module during the step and drop the old values afterwards, so write
        // the new values over the gradient. A gradient that is a view into a larger buffer does not qualify:
        // the parameter would keep the whole buffer, with the gradients of other parameters, in memory.
        flat::update(Swapped(rule), slice_mut(&mut gradient), values(&parameter), slices);
        gradient
    } else {
        let mut target = Buffer::copy_of(values(&parameter));
        flat::update(rule, &mut target, values(&gradient), slices);
        target.into_tensor(&parameter.shape())
    };
    (Tensor::from_primitive::<Flex>(parameter), moments.map(Tensor::from_primitive::<Flex>))
}

/// Exchanges the roles of weight and gradient in a rule, so that an update writes the new weights over the
/// gradients.
#[derive(Clone, Copy)]
struct Swapped<R>(R);

impl<R: UpdateRule<M>, const M: usize> UpdateRule<M> for Swapped<R> {
    #[inline(always)]
    fn update(self, gradient: f32, weight: f32, moments: [f32; M]) -> (f32, [f32; M]) {
        self.0.update(weight, gradient, moments)
    }
}

/// Returns a moment of zeros, as before the first step of a parameter.
pub fn zeros_like<const D: usize>(parameter: &Tensor<D>) -> Tensor<D> {
    let shape = parameter.dims();
    Tensor::from_primitive::<Flex>(Buffer::zeroed(shape.iter().product()).into_tensor(&shape))
}

/// Returns the flex tensor of `tensor`, or a copy if it is not contiguous. A contiguous view into a buffer
/// with the gradients of all parameters is not copied.
fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = tensor.try_into_primitive::<Flex>().expect("it is on flex");
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// Returns the values of a contiguous tensor that nothing else refers to.
fn slice_mut(tensor: &mut FlexTensor) -> &mut [f32] {
    let (start, end) = tensor.layout().contiguous_offsets().expect("it is contiguous");
    &mut tensor.storage_mut()[start..end]
}
