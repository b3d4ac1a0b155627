//! Element types of samples on disk.

use std::fmt;

use half::f16;
use serde::{Deserialize, Serialize};

/// Type of the numbers that a sample consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Element {
    /// A byte, 0 to 255.
    U8,
    /// Half precision. Only data sets of the format [`DataFormat::Npy`](crate::DataFormat::Npy) may contain
    /// it.
    #[serde(skip_deserializing)]
    F16,
    /// Single precision.
    F32,
    /// Double precision. Only data sets of the format [`DataFormat::Npy`](crate::DataFormat::Npy) may contain
    /// it.
    #[serde(skip_deserializing)]
    F64,
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Element {
    /// All types.
    const ALL: [Self; 4] = [Self::U8, Self::F16, Self::F32, Self::F64];

    /// Returns the type with this name, or `None` if the name is unknown.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name() == name)
    }

    /// Returns `u8`, `f16`, `f32` or `f64`.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Returns the size of one number in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
        }
    }

    /// Appends the little-endian numbers in `bytes` to `values`, cast to f32.
    pub fn cast(self, bytes: &[u8], values: &mut Vec<f32>) {
        fn all<const N: usize>(bytes: &[u8], values: &mut Vec<f32>, cast: impl Fn([u8; N]) -> f32) {
            values.extend(bytes.as_chunks().0.iter().map(|&number| cast(number)));
        }
        match self {
            Self::U8 => values.extend(bytes.iter().map(|&byte| f32::from(byte))),
            Self::F16 => all(bytes, values, |number| f16::from_le_bytes(number).to_f32()),
            Self::F32 => match bytemuck::try_cast_slice(bytes) {
                // The file is little-endian. If the host is little-endian too, and the bytes are aligned for
                // f32, copy all bytes at once.
                Ok(floats) if cfg!(target_endian = "little") => values.extend_from_slice(floats),
                _ => all(bytes, values, f32::from_le_bytes),
            },
            Self::F64 => all(bytes, values, |number| f64::from_le_bytes(number) as f32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_cast_to_single_precision() {
        let mut values = vec![9.0];
        Element::U8.cast(&[0, 200], &mut values);
        let halves = [f16::from_f32(-0.5), f16::MAX].map(f16::to_le_bytes);
        Element::F16.cast(halves.as_flattened(), &mut values);
        Element::F32.cast([0.1f32, f32::MIN].map(f32::to_le_bytes).as_flattened(), &mut values);
        Element::F64.cast([0.1f64, 1e300].map(f64::to_le_bytes).as_flattened(), &mut values);
        assert_eq!(values, [9.0, 0.0, 200.0, -0.5, 65504.0, 0.1, f32::MIN, 0.1, f32::INFINITY]);
    }
}
