//! Typed message buffers.

use half::{bf16, f16};

/// A buffer of a collective, in the type in which it is sent.
#[derive(Debug, Clone, PartialEq)]
pub enum Wire {
    /// 4 bytes per element.
    F32(Vec<f32>),
    /// 8 bytes per element.
    F64(Vec<f64>),
    /// 2 bytes per element, summed in f32.
    Bf16(Vec<bf16>),
    /// 2 bytes per element, summed in f32.
    F16(Vec<f16>),
    /// Bytes, which can be gathered and broadcast but not summed.
    Bytes(Vec<u8>),
}

/// Expands one expression for the vector of each type.
macro_rules! each {
    ($wire:expr, $vector:ident => $result:expr) => {
        match $wire {
            Self::F32($vector) => $result,
            Self::F64($vector) => $result,
            Self::Bf16($vector) => $result,
            Self::F16($vector) => $result,
            Self::Bytes($vector) => $result,
        }
    };
}

impl Wire {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes per element.
    pub fn width(&self) -> usize {
        match self {
            Self::F32(_) => 4,
            Self::F64(_) => 8,
            Self::Bf16(_) | Self::F16(_) => 2,
            Self::Bytes(_) => 1,
        }
    }

    /// The buffer's bytes as sent.
    pub fn bytes(&self) -> &[u8] {
        each!(self, v => bytemuck::cast_slice(v))
    }

    /// The buffer's bytes as sent, mutable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        each!(self, v => bytemuck::cast_slice_mut(v))
    }

    /// Zeros of the same type.
    pub fn zeros_like(&self, length: usize) -> Self {
        match self {
            Self::F32(_) => Self::F32(vec![0.0; length]),
            Self::F64(_) => Self::F64(vec![0.0; length]),
            Self::Bf16(_) => Self::Bf16(vec![bf16::ZERO; length]),
            Self::F16(_) => Self::F16(vec![f16::ZERO; length]),
            Self::Bytes(_) => Self::Bytes(vec![0; length]),
        }
    }

    /// Changes the number of elements; new ones are zero.
    pub(crate) fn resize(&mut self, length: usize) {
        each!(self, v => v.resize(length, Default::default()));
    }

    /// Whether the type can be summed.
    pub(crate) fn has_sum(&self) -> bool {
        !matches!(self, Self::Bytes(_))
    }

    /// Whether both have the same type.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}
