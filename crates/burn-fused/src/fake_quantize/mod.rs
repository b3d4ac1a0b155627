//! Fake quantization as one operator, with straight-through gradients.
//!
//! Quantization-aware training computes with dequantized values, by the formulas of
//! [`int8`](crate::int8). Gradients pass if a value is within the quantized range, and
//! are 0 if it is clipped: PyTorch's `fake_quantize`. Backward stores only the list of
//! clipped values, which is short when ranges follow the values. Values and gradients
//! are the same bits on every SIMD level.

mod kernels;
mod ranges;
mod step;

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients as Container;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::tensor::{Bytes, DType, Tensor, TensorData};

pub(crate) use self::kernels::Steps;
pub(crate) use self::step::Step;
use crate::extension::operator;
use crate::flex_tensor::values;
use crate::int8::{QParams, Scheme};
use crate::precision::{Half, cast};
use crate::simd::Level;

pub use ranges::{channel_ranges, range};

/// Fake quantization of `x`, of any shape: each value is quantized and dequantized,
/// (clamp(round(x · (1 / scale)) + zero point) - zero point) · scale, half to even.
/// There is one pair of `parameters` for all values, or one for each index of the
/// dimension `axis`. NaN stays NaN. The output has the type of `x`; 16-bit values are
/// quantized in f32.
///
/// # Panics
/// If the number of parameters is different, or one is invalid.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use burn_fused::fake_quantize::fake_quantize;
/// use burn_fused::int8::{QParams, Scheme};
///
/// let device = Device::flex().autodiff();
/// let x = Tensor::<1>::from_floats([0.1, -0.3, 70.0], &device).require_grad();
/// let parameters = QParams { scale: 0.25, zero_point: 10 };
/// let y = fake_quantize(x.clone(), Scheme::Affine, &[parameters], 0);
/// assert_eq!(y.to_data().to_vec::<f32>().unwrap(), [0.0, -0.25, 61.25]);
/// let gradient = x.grad(&y.sum().backward()).unwrap();
/// assert_eq!(gradient.to_data().to_vec::<f32>().unwrap(), [1.0, 1.0, 0.0]);
/// ```
pub fn fake_quantize<const D: usize>(
    x: Tensor<D>,
    scheme: Scheme,
    parameters: &[QParams],
    axis: usize,
) -> Tensor<D> {
    let steps = Steps::new(scheme, parameters, &x.dims(), axis);
    Tensor::from_dispatch(<Dispatch as FakeQuantize>::fake_quantize(x.into_dispatch(), steps))
}

operator! {
    pub(crate) trait FakeQuantize(Backend) {
        fn fake_quantize(x: FloatTensor<Self>, steps: Steps) -> FloatTensor<Self> {
            composed::<Self>(x, &steps)
        }
    }
}

/// The same, composed of Burn's operators: the gradient passes through clamping, and
/// rounding is detached. 16-bit values are quantized in f32.
fn composed<B: Backend>(x: FloatTensor<B>, steps: &Steps) -> FloatTensor<B> {
    let (device, dtype) = (x.device(), x.dtype());
    let wide = if Half::of(dtype).is_some() { DType::F32 } else { dtype };
    let shape = steps.broadcast(x.shape().num_dims());
    let constant = |values: &[f32]| {
        let data = TensorData::new(values.to_vec(), shape.clone());
        cast::<B>(B::float_from_data(data, &device), wide)
    };
    let x = B::float_mul(cast::<B>(x, wide), constant(&steps.inverses()));
    let [low, high] = steps.bounds().map(|bounds| constant(&bounds));
    let half = |bound: &FloatTensor<B>, margin: f32| B::float_add_scalar(bound.clone(), margin.into());
    let clamp = |x: FloatTensor<B>, low: FloatTensor<B>, high: FloatTensor<B>| {
        // max(x, low), then min(…, high), by ReLU.
        let above = B::float_add(B::relu(B::float_sub(x, low.clone())), low);
        B::float_sub(high.clone(), B::relu(B::float_sub(high, above)))
    };
    let clipped = clamp(x.clone(), half(&low, -0.5), half(&high, 0.5));
    let rounded = clamp(B::float_round(x), low, high);
    let change = B::float_detach(B::float_sub(rounded, clipped.clone()));
    let quantized = B::float_mul(B::float_add(clipped, change), constant(&steps.scales()));
    cast::<B>(quantized, dtype)
}

impl FakeQuantize for Flex {
    fn fake_quantize(x: FlexTensor, steps: Steps) -> FlexTensor {
        match x.dtype() {
            DType::F32 => forward(x, &steps).0,
            _ => composed::<Self>(x, &steps),
        }
    }
}

impl<C: CheckpointStrategy> FakeQuantize for Autodiff<Flex, C> {
    fn fake_quantize(x: FloatTensor<Self>, steps: Steps) -> FloatTensor<Self> {
        if x.primitive().dtype() != DType::F32 {
            return composed::<Self>(x, &steps);
        }
        let (input, node) = x.into_parts();
        match FakeQuantizeBackward.prepare::<C>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let (output, clipped) = forward(input, &steps);
                prepared.finish(Arc::new(clipped), output)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(forward(input, &steps).0),
        }
    }
}

/// The output, and the indices of clipped values.
fn forward(x: FlexTensor, steps: &Steps) -> (FlexTensor, Vec<u32>) {
    let x = x.to_contiguous();
    let (output, clipped) = kernels::forward(Level::current(), values(&x), steps);
    (FlexTensor::new(Bytes::from_elems(output), x.layout().clone(), DType::F32), clipped)
}

/// The operator's backward.
#[derive(Debug)]
struct FakeQuantizeBackward;

impl Backward<Flex, 1> for FakeQuantizeBackward {
    type State = Arc<Vec<u32>>;

    fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Container, _checkpointer: &mut Checkpointer) {
        let mut gradient = grads.consume::<Flex>(&ops.node);
        let [Some(x)] = ops.parents else { return };
        if !ops.state.is_empty() {
            gradient = gradient.to_contiguous();
            let first = gradient.layout().start_offset();
            let slots = &mut gradient.storage_mut::<f32>()[first..];
            ops.state.iter().for_each(|&index| slots[index as usize] = 0.0);
        }
        grads.register::<Flex>(x.id, gradient);
    }
}

#[cfg(test)]
mod tests;
