//! `int8.safetensors`, the quantized network beside a checkpoint, as far as a run directory needs to know it:
//! one metadata entry that no float network's file has.

use std::path::Path;

use safetensors::tensor::SafeTensors;
use serde::{Deserialize, Serialize};

use crate::files::read_regular;

/// Name of the file in a checkpoint's folder.
pub const INT8_FILE: &str = "int8.safetensors";
/// The metadata entry that identifies these files.
pub const INT8_ENTRY: &str = "mpiburn_int8";

/// How a network was quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Quantization-aware training.
    Qat,
    /// Static, post-training: ranges from calibration samples.
    Ptq,
    /// Only weights; ranges of activations are those of each batch.
    Dynamic,
}

/// The metadata entry of a safetensors file; `None` for a float network's.
///
/// # Errors
/// If the bytes are no safetensors file.
pub fn int8_entry(bytes: &[u8]) -> Result<Option<String>, String> {
    let (_, metadata) =
        SafeTensors::read_metadata(bytes).map_err(|e| format!("not a whole safetensors file ({e:?})"))?;
    Ok(metadata.metadata().as_ref().and_then(|entries| entries.get(INT8_ENTRY).cloned()))
}

/// Whether these bytes are a quantized network's.
pub(super) fn is_int8(bytes: &[u8]) -> bool {
    int8_entry(bytes).is_ok_and(|entry| entry.is_some())
}

/// How the network in the file was quantized; `None` if that cannot be read.
pub fn method_of(file: &Path) -> Option<Method> {
    let entry = int8_entry(&read_regular(file).ok()?).ok()??;
    let entry: serde_json::Value = serde_json::from_str(&entry).ok()?;
    serde_json::from_value(entry["method"].clone()).ok()
}
