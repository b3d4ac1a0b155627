//! Fake quantization as one operator, with straight-through gradients.
//!
//! Quantization-aware training rounds values to the numbers that 8-bit integers can represent, by the
//! formulas of [`int8`](crate::int8). As in PyTorch's `fake_quantize`, the gradient of a value passes if the
//! value is within the quantized range, and is 0 if the value is clipped. Forward saves only a list of the
//! clipped values, which is short if the quantized range covers most values. Values and gradients are the
//! same bits on every SIMD level.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::activation::relu;
use burn::tensor::{DType, Tensor, TensorData};

use crate::kernels::half::Half;
use crate::kernels::quantization::{
    self, Grid, Grids, Int8Error, QParams, Scheme, column_ranges, quantize_parts,
};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, f32_on_flex, values};
use crate::ops::precision::cast;
use crate::ops::shapes::refuse;
use crate::runtime::memory::Buffer;

/// Quantizes and dequantizes each value of `x`. In the formula, `round` rounds ties to even, and `clamp`
/// limits a number to the integers of `scheme`:
///
/// (clamp(round(x · (1 / scale)) + zero point) - zero point) · scale.
///
/// `parameters` has one pair of scale and zero point for all values, or one pair for each index of the
/// dimension `axis`. NaN stays NaN. The output has the type of `x`; 16-bit values are quantized in f32.
///
/// # Panics
/// If the number of pairs is neither 1 nor the size of the dimension `axis`, if a pair is invalid, or if `x`
/// has 2^32 values or more.
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
    let grids = Grids::new(scheme, parameters, &x.dims(), axis);
    let forward = |tensors, (), backward| forward(tensors, &grids, backward);
    let supported = |[x]: [&FlexTensor; 1]| (x.dtype() == DType::F32).then_some(());
    on_flex_or("fake_quantize", [x.into_dispatch()], supported, forward, |[x]| {
        composed(Tensor::<D>::from_dispatch(x), &grids)
    })
}

/// Computes [`fake_quantize`] with Burn's operators. The gradient passes through the clamping, but not
/// through the rounding, which is detached. 16-bit values are quantized in f32.
fn composed<const D: usize>(x: Tensor<D>, grids: &Grids) -> Tensor<D> {
    let (device, dtype) = (x.device(), x.dtype());
    let wide = if Half::from_dtype(dtype).is_some() { DType::F32 } else { dtype };
    // Constants of this shape broadcast to the shape of `x`.
    let mut shape = [1; D];
    if grids.each.len() != 1 {
        shape[grids.axis] = grids.each.len();
    }
    let constant = |number: fn(&Grid) -> f32| {
        let data = TensorData::new(grids.each.iter().map(number).collect::<Vec<_>>(), shape);
        cast(Tensor::<D>::from_data(data, &device), wide)
    };
    let x = cast(x, wide) * constant(|grid| grid.inverse);
    let [low, high] = [constant(|grid| grid.low), constant(|grid| grid.high)];
    // Computes max(x, low), then min(…, high), by ReLU.
    let clamp = |x: Tensor<D>, low: Tensor<D>, high: Tensor<D>| {
        let above = relu(x - low.clone()) + low;
        high.clone() - relu(high - above)
    };
    let clipped = clamp(x.clone(), low.clone() - 0.5, high.clone() + 0.5);
    let change = (clamp(x.round(), low, high) - clipped.clone()).detach();
    cast((clipped + change) * constant(|grid| grid.scale), dtype)
}

fn forward(
    [x]: [FlexTensor; 1],
    grids: &Grids,
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved + use<>, 1>) {
    let x = contiguous(x);
    let values = values(&x);
    let (mut output, mut clipped) = (Buffer::new(values.len()), Vec::new());
    // If `x` is empty, there may be no grid, and the length of a part may be 0.
    if !values.is_empty() {
        quantize_parts(Level::current(), values, grids, &mut output, &mut clipped);
    }
    let clipped = Arc::new(clipped);
    let backward = Backward::new(move |mut gradient, _of_x| {
        if !clipped.is_empty() {
            let slots = gradient.storage_mut::<f32>();
            clipped.iter().for_each(|&index| slots[index as usize] = 0.0);
        }
        [Some(gradient)]
    });
    (output.into_tensor(&x.shape()), backward)
}

/// Returns minimum and maximum of `x`.
///
/// # Errors
/// If `x` is empty or contains NaN or infinite values.
pub fn range<const D: usize>(x: &Tensor<D>) -> Result<[f32; 2], Int8Error> {
    with_values(x, quantization::min_max)
}

/// Returns minimum and maximum for each index of the dimension `axis` of `x`.
///
/// # Errors
/// In the same cases as [`range`].
///
/// # Panics
/// If `x` has no such dimension.
#[track_caller]
pub fn channel_ranges<const D: usize>(x: &Tensor<D>, axis: usize) -> Result<Vec<[f32; 2]>, Int8Error> {
    let dims = x.dims();
    if axis >= D {
        let rule = "The axis must be less than the number of dimensions.";
        refuse("channel_ranges", rule, format_args!("got: {axis}, dimensions: {D}"));
    }
    let (channels, inner) = (dims[axis], dims[axis + 1..].iter().product::<usize>());
    with_values(x, |values| {
        if values.is_empty() {
            return Err(Int8Error::NoValues);
        }
        if axis == 0 {
            return quantization::min_max_by_channel(values, channels);
        }
        let columns = column_ranges(Level::current(), values, channels * inner)?;
        let join = |[min, max]: [f32; 2], end: &[f32; 2]| [min.min(end[0]), max.max(end[1])];
        Ok(columns.chunks(inner).map(|ends| ends.iter().fold(ends[0], join)).collect())
    })
}

/// Applies `read` to the values of `x`, without a copy if `x` is f32 on flex.
fn with_values<const D: usize, T>(x: &Tensor<D>, read: impl FnOnce(&[f32]) -> T) -> T {
    match f32_on_flex(x) {
        Some(x) => read(values(&x)),
        None => {
            let data = x.to_data().convert_dtype(DType::F32);
            read(data.as_slice::<f32>().unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests;
