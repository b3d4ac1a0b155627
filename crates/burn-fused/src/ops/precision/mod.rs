//! Mixed precision: activations in a 16-bit floating-point type beside parameters in f32.
//!
//! Operators accept activations in bf16 or f16 beside parameters in f32. Linear layers and convolutions round
//! the weights to the type of the activations, sum products of the rounded values in f32, and round the
//! output. Normalisation layers, and convolutions that have no operator here, compute in f32 with unrounded
//! parameters and round only the output. Gradients of activations have the type of the activations. No
//! other types are cast: if activations and parameters differ otherwise, Burn's operators run, and most of
//! them panic.
//!
//! The method is that of Micikevicius et al., "Mixed precision training" (2018).

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Tensor, bf16, f16};

use crate::kernels::half::{Bits, Half, add_product};
use crate::kernels::simd::Level;
use crate::ops::flex_tensor::{tensor, values};
use crate::runtime::memory::Buffer;

pub use crate::kernels::half::{Bf16Products, MatmulPrecision, bf16_products, limit_bf16_products};

impl Half {
    /// Returns the 16-bit type for Burn's `dtype`; `None` for other types.
    pub(crate) fn from_dtype(dtype: DType) -> Option<Self> {
        match dtype {
            DType::BF16 => Some(Self::Bf16),
            DType::F16 => Some(Self::F16),
            _ => None,
        }
    }

    fn dtype(self) -> DType {
        match self {
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// Returns the values of a contiguous tensor of this type, as bits.
    ///
    /// # Panics
    /// If the tensor is not contiguous or has another type.
    pub(crate) fn bits(self, tensor: &FlexTensor) -> &[u16] {
        let bits = match self {
            Self::Bf16 => tensor.as_slice::<bf16>().map(bytemuck::cast_slice),
            Self::F16 => tensor.as_slice::<f16>().map(bytemuck::cast_slice),
        };
        bits.expect("the tensor is contiguous and of this type")
    }

    /// Returns a tensor of values that are given as bits.
    pub(crate) fn tensor(self, bits: Buffer<u16>, shape: &[usize]) -> FlexTensor {
        bits.into_tensor_of(self.dtype(), shape)
    }
}

/// Returns whether operators support these types: f32, or 16-bit activations beside parameters in f32.
pub(crate) fn supported(activations: &FlexTensor, parameters: &[&FlexTensor]) -> bool {
    let dtype = activations.dtype();
    (dtype == DType::F32 || Half::from_dtype(dtype).is_some())
        && parameters.iter().all(|parameter| parameter.dtype() == DType::F32)
}

/// Returns the values of a contiguous tensor as f32. Its type must be [supported](supported).
pub(crate) fn wide(level: Level, tensor: &FlexTensor) -> Cow<'_, [f32]> {
    match Half::from_dtype(tensor.dtype()) {
        Some(half) => Cow::Owned(half.widened(level, half.bits(tensor))),
        None => Cow::Borrowed(values(tensor)),
    }
}

/// Returns a tensor of `values`, rounded to `dtype` if `dtype` is a 16-bit type.
pub(crate) fn tensor_of(dtype: DType, level: Level, values: Buffer, shape: &[usize]) -> FlexTensor {
    match Half::from_dtype(dtype) {
        Some(half) => half.tensor(half.narrowed(level, &values), shape),
        None => values.into_tensor(shape),
    }
}

/// Returns the product of `a` and `b`, which are matrices of type `half`. The product is row-major, in f32.
///
/// # Panics
/// If the numbers of rows of `b` and columns of `a` differ, or a matrix is empty.
pub(crate) fn multiply(level: Level, half: Half, a: Bits<'_>, b: Bits<'_>) -> Buffer {
    let mut product = Buffer::zeroed(a.rows * b.columns);
    if half == Half::Bf16 && add_product(level, a, b, &mut product) {
        return product;
    }
    let [a, b] = [a, b].map(|matrix| {
        let wide = half.widened(level, matrix.values);
        if matrix.transposed {
            tensor(wide, &[matrix.columns, matrix.rows]).transpose(0, 1)
        } else {
            tensor(wide, &[matrix.rows, matrix.columns])
        }
    });
    Buffer::copy_of(values(&Flex::float_matmul(a, b).to_contiguous()))
}

/// Runs `model` with activations in `dtype`, such as bf16: casts `x` to `dtype`, and the output back to the
/// type of `x`. Parameters, their gradients, and running statistics of batch normalisation stay in f32.
///
/// Of the layers with parameters, `Linear`, `Conv2d`, `BatchNorm`, `LayerNorm`, `RmsNorm` and
/// `MultiHeadAttention` of `burn_fused::nn` take 16-bit activations beside parameters in f32. Layers without
/// parameters, such as activations, poolings and dropout, also take 16-bit activations. Other layers, such as
/// `Lstm` or `Conv1d`, panic: inside `model`, run such layers in f32 with
/// `autocast(x, DType::F32, |x| layer.forward(x))`.
///
/// With f16, scale the loss: otherwise, some gradients of activations become 0, because they are smaller than
/// the smallest positive number of f16.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use burn_fused::loss::cross_entropy;
/// use burn_fused::nn::LinearConfig;
/// use burn_fused::precision::autocast;
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(64, 10).init(&device);
/// let scores = autocast(Tensor::<2>::ones([2, 64], &device), DType::BF16, |x| {
///     assert_eq!(x.dtype(), DType::BF16);
///     layer.forward(x)
/// });
/// assert_eq!(scores.dtype(), DType::F32);
/// let gradients = cross_entropy(scores, &[3, 7]).loss.backward();
/// assert_eq!(layer.weight.val().grad(&gradients).unwrap().dtype(), DType::F32);
/// ```
pub fn autocast<const D: usize, const E: usize>(
    x: Tensor<D>,
    dtype: DType,
    model: impl FnOnce(Tensor<D>) -> Tensor<E>,
) -> Tensor<E> {
    let output = x.dtype();
    cast(model(cast(x, dtype)), output)
}

/// Returns whether these types are mixed precision: 16-bit activations beside parameters in f32.
fn is_mixed(activations: DType, parameters: DType) -> bool {
    Half::from_dtype(activations).is_some() && parameters == DType::F32
}

/// Returns `burns(x)`, for operators that are composed of Burn's operators. Computes mixed precision in f32,
/// because Burn requires one type for activations and parameters. Passes all other types on unchanged, so
/// that Burn accepts or rejects them.
pub(crate) fn compose_mixed<const D: usize>(
    x: Tensor<D>,
    parameters: DType,
    burns: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    if is_mixed(x.dtype(), parameters) { autocast(x, DType::F32, burns) } else { burns(x) }
}

/// Rounds a parameter to the type of the activations in mixed precision. Returns other parameters unchanged.
pub(crate) fn rounded_to<const D: usize>(parameter: Tensor<D>, activations: DType) -> Tensor<D> {
    if is_mixed(activations, parameter.dtype()) { parameter.cast(activations) } else { parameter }
}

/// Casts `tensor` to this type, for operators that are composed of Burn's operators.
pub(crate) fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    // A cast to the same type would add a useless node to the graph.
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}
