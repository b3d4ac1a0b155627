//! Types in which gradients are sent.

use serde::{Deserialize, Serialize};

use crate::named::named;

/// The type in which gradients are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireType {
    /// f32, without conversion.
    F32,
    /// Half the bytes, the range of f32, 8 bits of precision.
    Bf16,
    /// Half the bytes, 11 bits of precision, values to 65504.
    F16,
}

named!(WireType, "type": F32 = "f32", Bf16 = "bf16", F16 = "f16");

impl WireType {
    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}
