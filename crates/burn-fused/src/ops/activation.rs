//! Activation functions, each as one operator with its backward.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor, activation};

use crate::kernels::activation::{ActivationFunction, ROWS, activate_rows, apply_slopes};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, target_of, unshared, values};
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

impl ActivationFunction {
    /// Applies the activation to `x` with Burn's operators.
    pub(crate) fn composed<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::Identity => x,
            Self::Relu => activation::relu(x),
            Self::Gelu => activation::gelu(x),
            Self::GeluApproximate => activation::gelu_approximate(x),
        }
    }
}

/// Number of values in a row. The kernels compute in blocks of rows, but an activation function needs no
/// rows. The values are therefore divided into rows of this length, so that a block stays in the processor's
/// cache.
const PART: usize = 1024;

/// Applies `activation` to each value of `x`.
pub(crate) fn activate<const D: usize>(x: Tensor<D>, activation: ActivationFunction) -> Tensor<D> {
    if activation == ActivationFunction::Identity {
        return x;
    }
    let supported = |[x]: [&FlexTensor; 1]| (x.dtype() == DType::F32).then_some(());
    let forward = |[x]: [FlexTensor; 1], (), backward| forward(contiguous(x), activation, backward);
    on_flex_or("activation", [x.into_dispatch()], supported, forward, |[x]| {
        activation.composed(Tensor::from_dispatch(x))
    })
}

fn forward(
    x: FlexTensor,
    activation: ActivationFunction,
    backward: bool,
) -> (FlexTensor, Backward<impl Saved, 1>) {
    let (mut inner, source) = target_of(x);
    let mut output =
        (backward && !activation.is_known_by_output()).then(|| Buffer::new(values(&inner).len()));
    let level = Level::current();
    let (source, target) = (source.as_ref().map(values), output.as_deref_mut());
    activate_rows(level, activation, PART, &[], source, inner.storage_mut(), target);
    let output = output.map_or_else(|| inner.clone(), |output| output.into_tensor(&inner.shape()));
    let backward = Backward::new(move |gradient, _of_x| {
        let (mut gradient, poll) = (unshared(gradient), Poll::current());
        let parts = gradient.storage_mut().chunks_mut(ROWS * PART);
        let parts = values(&inner).chunks(ROWS * PART).zip(parts);
        each(values(&inner).len() / 8, parts, |(known, gradient)| {
            apply_slopes(level, activation, known, gradient);
            poll.call();
        });
        [Some(gradient)]
    });
    (output, backward)
}
