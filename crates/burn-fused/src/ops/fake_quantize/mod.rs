//! Fake quantization as one operator, with straight-through gradients.
//!
//! Quantization-aware training computes with dequantized values, by the formulas of
//! [`int8`](crate::int8). Gradients pass if a value is within the quantized range, and
//! are 0 if it is clipped: PyTorch's `fake_quantize`. Backward stores only the list of
//! clipped values, which is short when ranges follow the values. Values and gradients
//! are the same bits on every SIMD level.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::activation::relu;
use burn::tensor::{DType, Tensor, TensorData};

use crate::kernels::half::Half;
use crate::kernels::quantization::{self, Int8Error, QParams, Scheme, Step};
use crate::kernels::simd::{Level, kernel};
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, f32_on_flex, values};
use crate::ops::precision::cast;
use crate::ops::shapes::refuse;
use crate::runtime::memory::Buffer;

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
    let forward = |tensors, (), backward| forward(tensors, &steps, backward);
    let supported = |[x]: [&FlexTensor; 1]| (x.dtype() == DType::F32).then_some(());
    on_flex_or("fake_quantize", [x.into_dispatch()], supported, forward, |[x]| {
        composed(Tensor::<D>::from_dispatch(x), &steps)
    })
}

/// The same, composed of Burn's operators: the gradient passes through clamping, and
/// rounding is detached. 16-bit values are quantized in f32.
fn composed<const D: usize>(x: Tensor<D>, steps: &Steps) -> Tensor<D> {
    let (device, dtype) = (x.device(), x.dtype());
    let wide = if Half::of(dtype).is_some() { DType::F32 } else { dtype };
    // Constants are broadcast.
    let mut shape = [1; D];
    if steps.steps.len() != 1 {
        shape[steps.axis] = steps.steps.len();
    }
    let constant = |number: fn(&Step) -> f32| {
        let data = TensorData::new(steps.steps.iter().map(number).collect::<Vec<_>>(), shape);
        cast(Tensor::<D>::from_data(data, &device), wide)
    };
    let x = cast(x, wide) * constant(|step| step.inverse);
    let [low, high] = [constant(|step| step.low), constant(|step| step.high)];
    // max(x, low), then min(…, high), by ReLU.
    let clamp = |x: Tensor<D>, low: Tensor<D>, high: Tensor<D>| {
        let above = relu(x - low.clone()) + low;
        high.clone() - relu(high - above)
    };
    let clipped = clamp(x.clone(), low.clone() - 0.5, high.clone() + 0.5);
    let change = (clamp(x.round(), low, high) - clipped.clone()).detach();
    cast((clipped + change) * constant(|step| step.scale), dtype)
}

fn forward(
    [x]: [FlexTensor; 1],
    steps: &Steps,
    _backward: bool,
) -> (FlexTensor, Backward<impl Saved + use<>, 1>) {
    let x = contiguous(x);
    let values = values(&x);
    let (mut output, mut clipped) = (Buffer::new(values.len()), Vec::new());
    // Without values, there may be no steps, and no length of a part.
    if !values.is_empty() {
        quantize_parts(Level::current(), values, steps, &mut output, &mut clipped);
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

/// Values checked at once for clipped ones.
const CHUNK: usize = 64;

/// Parameters of a tensor, as kernels need them.
#[derive(Debug, Clone)]
struct Steps {
    /// One for all, or one for each index of a dimension.
    steps: Vec<Step>,
    /// The dimension, and the number of contiguous values of one of its indices.
    axis: usize,
    inner: usize,
}

impl Steps {
    /// The parameters of a tensor of this shape.
    ///
    /// # Panics
    /// As [`fake_quantize`](super::fake_quantize).
    fn new(scheme: Scheme, parameters: &[QParams], shape: &[usize], axis: usize) -> Self {
        let fits = parameters.len() == 1 || shape.get(axis) == Some(&parameters.len());
        assert!(fits, "{} parameters for dimension {axis} of {shape:?}", parameters.len());
        assert!(
            u32::try_from(shape.iter().product::<usize>()).is_ok(),
            "values of {shape:?} have 32-bit indices"
        );
        let step = |&parameters: &QParams| Step::new(scheme, parameters);
        let inner = if parameters.len() == 1 { shape } else { &shape[axis + 1..] }.iter().product();
        Self { steps: parameters.iter().map(step).collect(), axis, inner }
    }
}

kernel! {
    /// The fake-quantized values, and the indices of clipped ones.
    fn quantize_parts<S>(
        _simd: S,
        values: &[f32],
        steps: &Steps,
        output: &mut [f32],
        clipped: &mut Vec<u32>,
    ) {
        let Steps { steps, inner, .. } = steps;
        if *inner == 1 {
            // As many whole rows as make long loops, with the steps in arrays.
            let period = steps.len() * CHUNK.div_ceil(steps.len());
            let cycle =
                |of: fn(&Step) -> f32| steps.iter().map(of).cycle().take(period).collect::<Vec<f32>>();
            let (scales, inverses) = (cycle(|step| step.scale), cycle(|step| step.inverse));
            let (lows, highs) = (cycle(|step| step.low), cycle(|step| step.high));
            let numbers = scales.iter().zip(&inverses).zip(lows.iter().zip(&highs));
            let steps = numbers.map(|((&scale, &inverse), (&low, &high))| Step { scale, inverse, low, high });
            let blocks = values.chunks(period).zip(output.chunks_mut(period));
            for (block, (values, output)) in blocks.enumerate() {
                part(values, output, block * period, clipped, steps.clone());
            }
            return;
        }
        let parts = values.chunks(*inner).zip(output.chunks_mut(*inner)).zip(steps.iter().cycle());
        for (at, ((values, output), step)) in parts.enumerate() {
            let chunks = values.chunks(CHUNK).zip(output.chunks_mut(CHUNK));
            for (chunk, (values, output)) in chunks.enumerate() {
                part(values, output, at * inner + chunk * CHUNK, clipped, std::iter::repeat(*step));
            }
        }
    }
}

/// Values with a step each.
#[inline(always)]
fn part(
    values: &[f32],
    output: &mut [f32],
    first: usize,
    clipped: &mut Vec<u32>,
    steps: impl Iterator<Item = Step> + Clone,
) {
    let mut all = true;
    for ((slot, &value), step) in output.iter_mut().zip(values).zip(steps.clone()) {
        let (quantized, passes) = step.apply(value);
        *slot = quantized;
        all &= passes;
    }
    if !all {
        let outside =
            values.iter().zip(steps).enumerate().filter(|(_, (value, step))| !step.apply(**value).1);
        clipped.extend(outside.map(|(at, _)| (first + at) as u32));
    }
}

/// Minimum and maximum of `x`.
///
/// # Errors
/// If `x` is empty or contains NaN or infinite values.
pub fn range<const D: usize>(x: &Tensor<D>) -> Result<[f32; 2], Int8Error> {
    with_values(x, quantization::min_max)
}

/// Minimum and maximum for each index of the dimension `axis` of `x`.
///
/// # Errors
/// As [`range`].
///
/// # Panics
/// If `x` has no such dimension.
#[track_caller]
pub fn channel_ranges<const D: usize>(x: &Tensor<D>, axis: usize) -> Result<Vec<[f32; 2]>, Int8Error> {
    let dims = x.dims();
    if axis >= D {
        let rule = "The dimension must be one of the tensor's.";
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

kernel! {
    /// Ranges of the columns of rows of so many values.
    fn column_ranges<S>(_simd: S, values: &[f32], columns: usize) -> Result<Vec<[f32; 2]>, Int8Error> {
        let (mut min, mut max) = (vec![f32::INFINITY; columns], vec![f32::NEG_INFINITY; columns]);
        let mut finite = vec![0.0f32; columns];
        for row in values.chunks_exact(columns) {
            let ends = min.iter_mut().zip(&mut max).zip(&mut finite);
            for (((min, max), finite), &value) in ends.zip(row) {
                *min = if value < *min { value } else { *min };
                *max = if value > *max { value } else { *max };
                *finite += value * 0.0;
            }
        }
        match finite.iter().all(|&zero| zero == 0.0) {
            true => Ok(min.iter().zip(&max).map(|(min, max)| [min + 0.0, max + 0.0]).collect()),
            false => Err(Int8Error::NonFinite),
        }
    }
}

/// Applies `read` to the values of `x`; flex's memory is read in place.
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
