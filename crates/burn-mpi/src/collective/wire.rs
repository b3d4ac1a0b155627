//! Typed message buffers.

use std::fmt;

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

/// The type of a buffer's values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants of Wire with these names say it")]
pub enum Element {
    F32,
    F64,
    Bf16,
    F16,
    Byte,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Byte => "bytes",
        })
    }
}

impl Element {
    /// Bytes per value.
    pub fn width(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Bf16 | Self::F16 => 2,
            Self::Byte => 1,
        }
    }
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
    /// Zeros.
    pub(crate) fn of(element: Element, length: usize) -> Self {
        match element {
            Element::F32 => Self::F32(vec![0.0; length]),
            Element::F64 => Self::F64(vec![0.0; length]),
            Element::Bf16 => Self::Bf16(vec![bf16::ZERO; length]),
            Element::F16 => Self::F16(vec![f16::ZERO; length]),
            Element::Byte => Self::Bytes(vec![0; length]),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The type of its values.
    pub fn element(&self) -> Element {
        match self {
            Self::F32(_) => Element::F32,
            Self::F64(_) => Element::F64,
            Self::Bf16(_) => Element::Bf16,
            Self::F16(_) => Element::F16,
            Self::Bytes(_) => Element::Byte,
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
        Self::of(self.element(), length)
    }

    /// Changes the number of elements; new ones are zero.
    pub(crate) fn resize(&mut self, length: usize) {
        each!(self, v => v.resize(length, Default::default()));
    }
}
