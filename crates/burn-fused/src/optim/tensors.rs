//! The passes of [`flat`] on Burn's tensors.

use burn::backend::flex::FlexTensor;
use burn::backend::{Flex, TensorMetadata};
use burn::tensor::{DType, Device, Tensor};

use super::flat::{self, UpdateRule};
use crate::ops::flex_tensor::{unshared, values};
use crate::runtime::memory::Buffer;

/// What [`update_tensors`] does not take.
pub const PARAMETERS: &str = "parameters other than f32 on flex";

/// Whether [`update_tensors`] takes a parameter and what belongs to it: f32 on flex, outside of a graph, in one shape.
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

/// The parameter and its moments after a step: in the memory of the old ones, where nothing else refers to it.
///
/// # Panics
/// If they are not [supported](is_supported).
pub fn update_tensors<const D: usize, const M: usize>(
    rule: impl UpdateRule<M>,
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; M],
) -> (Tensor<D>, [Tensor<D>; M]) {
    let [mut parameter, mut gradient] = [parameter, gradient].map(primitive);
    // A copy of the optimizer may refer to a moment.
    let mut moments = moments.map(|moment| unshared(primitive(moment)));
    let slices = moments.each_mut().map(slice_mut);
    let parameter = if parameter.is_unique() {
        flat::update(rule, slice_mut(&mut parameter), values(&gradient), slices);
        parameter
    } else if gradient.is_unique() && gradient.storage::<f32>().len() == values(&gradient).len() {
        // A training loop that holds the module during the step drops the old values after it. A view would keep
        // the gradients of all parameters.
        flat::update(Swapped(rule), slice_mut(&mut gradient), values(&parameter), slices);
        gradient
    } else {
        let mut target = Buffer::copy_of(values(&parameter));
        flat::update(rule, &mut target, values(&gradient), slices);
        target.into_tensor(&parameter.shape())
    };
    (Tensor::from_primitive::<Flex>(parameter), moments.map(Tensor::from_primitive::<Flex>))
}

/// A rule that writes the new weight in the place of the gradient.
#[derive(Clone, Copy)]
struct Swapped<R>(R);

impl<R: UpdateRule<M>, const M: usize> UpdateRule<M> for Swapped<R> {
    #[inline(always)]
    fn update(self, gradient: f32, weight: f32, moments: [f32; M]) -> (f32, [f32; M]) {
        self.0.update(weight, gradient, moments)
    }
}

/// A moment before the first step of this parameter.
pub fn zeros_like<const D: usize>(parameter: &Tensor<D>) -> Tensor<D> {
    let shape = parameter.dims();
    Tensor::from_primitive::<Flex>(Buffer::zeroed(shape.iter().product()).into_tensor(&shape))
}

/// Copies only what is not contiguous: a gradient may be a view into those of all parameters.
fn primitive<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    let tensor = tensor.try_into_primitive::<Flex>().expect("it is on flex");
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// The values of a contiguous tensor that nothing else refers to.
fn slice_mut(tensor: &mut FlexTensor) -> &mut [f32] {
    let (start, end) = tensor.layout().contiguous_offsets().expect("it is contiguous");
    &mut tensor.storage_mut()[start..end]
}
