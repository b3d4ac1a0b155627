//! Fake quantization as one operator, with straight-through gradients.
//!
//! Quantization-aware training computes with dequantized values, by the formulas of
//! [`int8`](crate::int8). Gradients pass if a value is within the quantized range, and
//! are 0 if it is clipped: PyTorch's `fake_quantize`. Backward stores only the list of
//! clipped values, which is short when ranges follow the values. Values and gradients
//! are the same bits on every SIMD level.

mod kernels;
mod ranges;

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, Flex, TensorMetadata};
use burn::tensor::{DType, Tensor, TensorData};

pub(crate) use self::kernels::Steps;
use crate::extension::{Saved, fused_operator, on_graph, operator};
use crate::flex_tensor::{contiguous, tensor, values};
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

fused_operator! {
    pub(crate) trait FakeQuantize(Backend) {
        fn fake_quantize([x], steps: Steps) = is_supported, forward or composed;
    }
}

/// The same, composed of Burn's operators: the gradient passes through clamping, and
/// rounding is detached. 16-bit values are quantized in f32.
fn composed<B: Backend>([x]: [FloatTensor<B>; 1], steps: Steps) -> FloatTensor<B> {
    let (device, dtype) = (x.device(), x.dtype());
    let wide = if Half::of(dtype).is_some() { DType::F32 } else { dtype };
    let shape = steps.broadcast(x.shape().num_dims());
    let constant = |values: Vec<f32>| {
        let data = TensorData::new(values, shape.clone());
        cast::<B>(B::float_from_data(data, &device), wide)
    };
    let x = B::float_mul(cast::<B>(x, wide), constant(steps.each(|step| step.inverse)));
    let [low, high] = [constant(steps.each(|step| step.low)), constant(steps.each(|step| step.high))];
    let half = |bound: &FloatTensor<B>, margin: f32| B::float_add_scalar(bound.clone(), margin.into());
    let clamp = |x: FloatTensor<B>, low: FloatTensor<B>, high: FloatTensor<B>| {
        // max(x, low), then min(…, high), by ReLU.
        let above = B::float_add(B::relu(B::float_sub(x, low.clone())), low);
        B::float_sub(high.clone(), B::relu(B::float_sub(high, above)))
    };
    let clipped = clamp(x.clone(), half(&low, -0.5), half(&high, 0.5));
    let rounded = clamp(B::float_round(x), low, high);
    let change = B::float_detach(B::float_sub(rounded, clipped.clone()));
    let quantized = B::float_mul(B::float_add(clipped, change), constant(steps.each(|step| step.scale)));
    cast::<B>(quantized, dtype)
}

fn is_supported([x]: [&FlexTensor; 1]) -> Option<()> {
    (x.dtype() == DType::F32).then_some(())
}

fn forward([x]: [FlexTensor; 1], (): (), steps: Steps, _backward: bool) -> (FlexTensor, Clipped) {
    let x = contiguous(x);
    let (output, clipped) = kernels::forward(Level::current(), values(&x), &steps);
    (tensor(output, &x.shape()), Clipped(Arc::new(clipped)))
}

/// Saved by forward for backward: the indices of clipped values.
#[derive(Debug, Clone)]
struct Clipped(Arc<Vec<u32>>);

impl Saved<1> for Clipped {
    fn backward(self, mut gradient: FlexTensor, _of_x: bool) -> [Option<FlexTensor>; 1] {
        if !self.0.is_empty() {
            let slots = gradient.storage_mut::<f32>();
            self.0.iter().for_each(|&index| slots[index as usize] = 0.0);
        }
        [Some(gradient)]
    }
}

#[cfg(test)]
mod tests;
