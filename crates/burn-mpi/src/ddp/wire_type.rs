//! Types in which gradients are sent.

use serde::{Deserialize, Serialize};

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

impl WireType {
    /// All types.
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::F16];

    /// The name in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// Bytes per value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }
}

impl std::str::FromStr for WireType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Self::F32),
            "bf16" => Ok(Self::Bf16),
            "f16" => Ok(Self::F16),
            _ => Err(format!("unknown type {text}: choose f32, bf16 or f16")),
        }
    }
}
