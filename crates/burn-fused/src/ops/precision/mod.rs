//! 16-bit floating-point types of activations: mixed precision.
//!
//! Operators accept activations in bf16 or f16 beside weights in f32. They round the
//! weights to the type of the activations, sum products of the rounded values in f32,
//! and round the output; layers without an operator here run Burn's in f32, with the weights as they
//! are, and round the output. Gradients of activations have the type of the activations.
//! Micikevicius et al., "Mixed precision training" (2018).

mod product;
mod setting;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Tensor, bf16, f16};
use half::slice::HalfFloatSliceExt;

use crate::kernels::matrix::Matrix;
use crate::kernels::simd::{Level, kernel};
use crate::ops::flex_tensor::values;
use crate::runtime::memory::Buffer;

pub use product::{Bf16Products, bf16_products, limit_bf16_products};
pub(crate) use product::{Bits, multiply};
pub use setting::Precision;

/// A 16-bit type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    /// The range of f32, 8 bits of precision.
    Bf16,
    /// Values to 65504, 11 bits of precision.
    F16,
}

impl Half {
    /// The 16-bit type among Burn's types; none for the others.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
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

    /// The values of a contiguous tensor of this type, as bits.
    ///
    /// # Panics
    /// If it is not contiguous or of another type.
    pub(crate) fn bits(self, tensor: &FlexTensor) -> &[u16] {
        let bits = match self {
            Self::Bf16 => tensor.as_slice::<bf16>().map(bytemuck::cast_slice),
            Self::F16 => tensor.as_slice::<f16>().map(bytemuck::cast_slice),
        };
        bits.expect("the tensor is contiguous and of this type")
    }

    /// A tensor of values, given as bits.
    pub(crate) fn tensor(self, bits: Vec<u16>, shape: &[usize]) -> FlexTensor {
        FlexTensor::new(Bytes::from_elems(bits), Layout::contiguous(shape.to_vec().into()), self.dtype())
    }

    /// Converts to f32, exactly.
    ///
    /// # Panics
    /// If lengths differ, as in the next.
    pub(crate) fn widen(self, level: Level, bits: &[u16], values: &mut [f32]) {
        assert_eq!(bits.len(), values.len());
        match self {
            Self::Bf16 => widen_bf16(level, bits, values),
            Self::F16 => bytemuck::cast_slice::<_, f16>(bits).convert_to_f32_slice(values),
        }
    }

    /// The values in f32.
    pub(crate) fn widened(self, level: Level, bits: &[u16]) -> Vec<f32> {
        let mut values = vec![0.0; bits.len()];
        self.widen(level, bits, &mut values);
        values
    }

    /// Rounds to nearest, ties to even. NaN and infinity are preserved; f16 rounds
    /// magnitudes from 65520 to infinity.
    pub(crate) fn narrow(self, level: Level, values: &[f32], bits: &mut [u16]) {
        assert_eq!(bits.len(), values.len());
        match self {
            Self::Bf16 => narrow_bf16(level, values, bits),
            Self::F16 => bytemuck::cast_slice_mut::<_, f16>(bits).convert_from_f32_slice(values),
        }
    }

    /// The bits of the rounded values.
    pub(crate) fn narrowed(self, level: Level, values: &[f32]) -> Vec<u16> {
        let mut bits = vec![0; values.len()];
        self.narrow(level, values, &mut bits);
        bits
    }

    /// The rounded values, as f32.
    pub(crate) fn rounded(self, level: Level, values: &[f32]) -> Vec<f32> {
        self.widened(level, &self.narrowed(level, values))
    }

    /// Rounds the gradient of weights to what the weights' own type stores: f32 for bf16. In
    /// f16 it is that of a f16 copy, as with PyTorch's autocast, so that it overflows.
    pub(crate) fn weight_gradient(self, level: Level, gradient: &mut [f32]) {
        if self == Self::F16 {
            gradient.copy_from_slice(&self.rounded(level, gradient));
        }
    }
}

/// Whether an operator supports these types: f32, or activations in 16 bits beside
/// parameters in f32.
pub(crate) fn supported(activations: &FlexTensor, parameters: &[&FlexTensor]) -> bool {
    let dtype = activations.dtype();
    (dtype == DType::F32 || Half::of(dtype).is_some())
        && parameters.iter().all(|parameter| parameter.dtype() == DType::F32)
}

/// The values of a contiguous tensor of a [supported](supported) type as f32.
pub(crate) fn wide(level: Level, tensor: &FlexTensor) -> Cow<'_, [f32]> {
    match Half::of(tensor.dtype()) {
        Some(half) => Cow::Owned(half.widened(level, half.bits(tensor))),
        None => Cow::Borrowed(values(tensor)),
    }
}

/// A tensor of `values`, rounded to `dtype`.
pub(crate) fn tensor_of(dtype: DType, level: Level, values: Buffer, shape: &[usize]) -> FlexTensor {
    match Half::of(dtype) {
        Some(half) => half.tensor(half.narrowed(level, &values), shape),
        None => values.into_tensor(shape),
    }
}

/// `layer` of 16-bit activations in f32, and of others as they are; the output has the
/// type of `x`. For layers without an operator here: Burn's need one type for
/// activations and parameters.
pub(crate) fn in_f32<const D: usize, const E: usize>(
    x: Tensor<D>,
    layer: impl FnOnce(Tensor<D>) -> Tensor<E>,
) -> Tensor<E> {
    match Half::of(x.dtype()) {
        Some(half) => layer(x.cast(DType::F32)).cast(half.dtype()),
        None => layer(x),
    }
}

/// `tensor` in this type, for operators composed of Burn's.
pub(crate) fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    // Without a node of the graph that does nothing.
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

kernel! {
    /// bf16 to f32: the upper half of its bits.
    fn widen_bf16<S>(_simd: S, bits: &[u16], values: &mut [f32]) {
        for (value, &bits) in values.iter_mut().zip(bits) {
            *value = f32::from_bits(u32::from(bits) << 16);
        }
    }
}

kernel! {
    /// f32 to bf16.
    fn narrow_bf16<S>(_simd: S, values: &[f32], bits: &mut [u16]) {
        for (bits, &value) in bits.iter_mut().zip(values) {
            let all = value.to_bits();
            // Half of the last place is added, less one where the result would be odd.
            let rounded = all.wrapping_add(0x7fff + ((all >> 16) & 1)) >> 16;
            // A NaN whose lower half was all of it must not become infinity.
            let quiet = (all >> 16) | 0x40;
            *bits = (if value.is_nan() { quiet } else { rounded }) as u16;
        }
    }
}
