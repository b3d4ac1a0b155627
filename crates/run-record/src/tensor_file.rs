//! Reads and writes a network's parameters as safetensors files that PyTorch can load. In memory, all
//! parameters are one flat buffer of f32 values; a [`Layout`] lists the tensors in this buffer.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, SafeTensors, TensorView, View};
use serde::{Deserialize, Serialize};

use super::RecordError;
use crate::files::{foreign, read_regular};

/// Name suffixes of PyTorch's batch norm tensors.
const RUNNING_VAR: &str = "running_var";
const BATCHES: &str = "num_batches_tracked";

/// One tensor of a network: its position in flat buffers, and its name and order of dimensions in files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// PyTorch's name, such as `conv1.weight`.
    pub name: String,
    /// Shape of the tensor in flat buffers.
    pub shape: Vec<usize>,
    /// Range of its values in a flat buffer.
    pub range: Range<usize>,
    /// Whether the tensor is transposed in files. Only a matrix can be transposed.
    pub transposed: bool,
}

/// The tensors of a network, in the order of flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout(pub Vec<TensorSpec>);

/// Reads the beginning of the safetensors file `path`, which is open as `file`. Returns the description of its
/// tensors, and the offset of the first value. `SafeTensors::read_metadata` needs the whole file in memory.
///
/// # Errors
/// If the file cannot be read, or its beginning is damaged.
pub(super) fn read_header(path: &Path, file: &mut File) -> Result<(Metadata, u64), RecordError> {
    let failed = |e| RecordError::read(path, e);
    let mut bytes = vec![0; size_of::<u64>()];
    file.read_exact(&mut bytes).map_err(failed)?;
    let length = u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
    file.take(length).read_to_end(&mut bytes).map_err(failed)?;
    let metadata = serde_json::from_slice(&bytes[size_of::<u64>()..]);
    let damaged = |_| RecordError::damaged(path, "is damaged: it is not a complete safetensors file".into());
    Ok((metadata.map_err(damaged)?, bytes.len() as u64))
}

impl Layout {
    /// Returns the length of a flat buffer.
    fn len(&self) -> usize {
        self.0.last().map_or(0, |spec| spec.range.end)
    }
}

impl TensorSpec {
    /// Returns the shape of the tensor in files.
    pub(super) fn file_shape(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        shape
    }

    /// Calls `each` with every value, and converts between the two orders: if `values` are in the order of
    /// flat buffers, the calls are in the order of files, and vice versa. `from` is the shape of `values`.
    pub(super) fn for_each(&self, values: &[f32], from: &[usize], mut each: impl FnMut(f32)) {
        match (self.transposed, from) {
            (true, &[rows, columns]) => {
                (0..columns).for_each(|column| (0..rows).for_each(|row| each(values[row * columns + column])))
            }
            _ => values.iter().copied().for_each(each),
        }
    }
}

/// Returns the bytes of a safetensors file. `tensors` are names, types, shapes and little-endian values.
///
/// # Errors
/// If a shape does not match the number of values.
pub fn safetensors_file(
    tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)],
    metadata: Option<HashMap<String, String>>,
) -> Result<Vec<u8>, SafeTensorError> {
    let mut views = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        views.push((name, TensorView::new(*dtype, shape.clone(), bytes)?));
    }
    safetensors::serialize(views, metadata)
}

/// Returns flat buffers as a safetensors file. Each buffer has a prefix, which precedes the names of its
/// tensors.
///
/// If `batches` is given, each batch norm also gets the number of batches that it has processed. PyTorch
/// requires this number when it loads weights; with a fixed momentum, the number has no effect.
pub(super) fn encode(
    file: &Path,
    layout: &Layout,
    buffers: &[(String, &Vec<f32>)],
    batches: Option<u64>,
) -> Result<Vec<u8>, RecordError> {
    let mut tensors = Vec::new();
    for (prefix, flat) in buffers {
        for spec in &layout.0 {
            let content = Content::Floats(spec, &flat[spec.range.clone()]);
            tensors.push((format!("{prefix}{}", spec.name), Stored { shape: spec.file_shape(), content }));
        }
    }
    if let Some(batches) = batches {
        let norms = layout.0.iter().filter_map(|spec| spec.name.strip_suffix(RUNNING_VAR));
        let count = || Stored { shape: Vec::new(), content: Content::Count(batches.to_le_bytes()) };
        tensors.extend(norms.map(|norm| (format!("{norm}{BATCHES}"), count())));
    }
    safetensors::serialize(tensors, None).map_err(|e| RecordError::damaged(file, e.to_string()))
}

/// A tensor to write. Its bytes are made only while it is written: all tensors' bytes at once would need as
/// much memory as another copy of the network.
struct Stored<'a> {
    shape: Vec<usize>,
    content: Content<'a>,
}

enum Content<'a> {
    /// Values in the order of flat buffers.
    Floats(&'a TensorSpec, &'a [f32]),
    /// The number of batches that a batch norm has processed, as little-endian i64.
    Count([u8; 8]),
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        match self.content {
            Content::Floats(..) => Dtype::F32,
            Content::Count(_) => Dtype::I64,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let (spec, values) = match &self.content {
            Content::Count(bytes) => return bytes.into(),
            Content::Floats(spec, values) => (spec, values),
        };
        let mut bytes = Vec::with_capacity(self.data_len());
        spec.for_each(values, &spec.shape, |value| bytes.extend(value.to_le_bytes()));
        bytes.into()
    }

    fn data_len(&self) -> usize {
        match &self.content {
            Content::Floats(_, values) => size_of_val(*values),
            Content::Count(bytes) => bytes.len(),
        }
    }
}

/// Reads a network's weights from a file into a flat buffer. Tensors that the network does not have are
/// rejected, except batch counts of PyTorch's batch norms.
///
/// All names may have the prefix of a module that wraps the network: `module.` of PyTorch's
/// `DistributedDataParallel`, `_orig_mod.` of `torch.compile`.
pub(super) fn decode_weights(file: &Path, bytes: &[u8], layout: &Layout) -> Result<Vec<f32>, RecordError> {
    let tensors = SafeTensors::deserialize(bytes).ok();
    let names = tensors.as_ref().map(|tensors| tensors.names()).unwrap_or_default();
    let is_known = |name: &str| name.ends_with(BATCHES) || layout.0.iter().any(|spec| spec.name == name);
    let first = layout.0.first().map(|spec| spec.name.as_str()).unwrap_or_default();
    let mut prefixes = names.iter().filter_map(|name| name.strip_suffix(first));
    let of_all = |prefix: &&str| prefix.ends_with('.') && names.iter().all(|name| name.starts_with(prefix));
    let prefix = prefixes.find(of_all).unwrap_or_default();
    let values = decode(file, bytes, layout, prefix)?;
    match names.iter().find(|name| !name.strip_prefix(prefix).is_some_and(is_known)) {
        Some(name) => Err(RecordError::damaged(
            file,
            format!("contains a tensor {name}: these are weights of another network"),
        )),
        None => Ok(values),
    }
}

/// Says why a file is not a safetensors file: it is of another kind, or incomplete.
fn not_whole(bytes: &[u8]) -> String {
    // A safetensors file begins with the header's length in eight bytes. The header is JSON.
    let is_one = bytes.get(8) == Some(&b'{');
    match foreign(bytes).filter(|_| !is_one) {
        // Advice to save a table is useless here: weights are not a table.
        Some(kind) if kind.advice.starts_with("save the table") => {
            format!("is {}; weights must be in a .safetensors file", kind.name)
        }
        Some(kind) => format!("is {kind}; weights must be in a .safetensors file"),
        None => "is not a complete safetensors file".into(),
    }
}

/// Reads the tensors of `layout` into a flat buffer. In the file, each name begins with `prefix`.
pub(super) fn decode(
    file: &Path,
    bytes: &[u8],
    layout: &Layout,
    prefix: &str,
) -> Result<Vec<f32>, RecordError> {
    let damaged = |what: String| RecordError::damaged(file, what);
    if is_int8(bytes) {
        return Err(RecordError::Int8Weights(file.to_owned()));
    }
    let tensors = SafeTensors::deserialize(bytes).map_err(|_| damaged(not_whole(bytes)))?;
    let mut flat = vec![0.0; layout.len()];
    for spec in &layout.0 {
        let name = format!("{prefix}{}", spec.name);
        let tensor = tensors.tensor(&name).map_err(|_| {
            damaged(format!("does not contain the tensor {name}: these are weights of another network"))
        })?;
        if tensor.shape() != spec.file_shape() || tensor.dtype() != Dtype::F32 {
            return Err(damaged(format!(
                "{name} is {:?} with shape {:?}, but this network needs F32 with shape {:?}",
                tensor.dtype(),
                tensor.shape(),
                spec.file_shape()
            )));
        }
        let values: Vec<f32> =
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let mut slots = flat[spec.range.clone()].iter_mut();
        spec.for_each(&values, &spec.file_shape(), |value| {
            slots.next().into_iter().for_each(|slot| *slot = value)
        });
    }
    Ok(flat)
}

/// Checks that all weights are finite, and that no variance of a batch norm is negative.
///
/// # Errors
/// The first tensor with such a value, as text.
pub(super) fn check_values(layout: &Layout, weights: &[f32]) -> Result<(), String> {
    for TensorSpec { name, range, .. } in &layout.0 {
        let values = &weights[range.clone()];
        if values.iter().any(|value| !value.is_finite()) {
            return Err(format!("{name} contains NaN or infinite values"));
        }
        if name.ends_with("running_var") && values.iter().any(|&value| value < 0.0) {
            return Err(format!("{name} contains a negative variance"));
        }
    }
    Ok(())
}

/// Name of the int8 model in a checkpoint's folder.
pub const INT8_FILE: &str = "int8.safetensors";
/// Metadata entry of a safetensors file that marks it as an int8 model.
pub const INT8_ENTRY: &str = "mpiburn_int8";

/// How a network was quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Quantization-aware training.
    Qat,
    /// Static post-training quantization. Ranges are from calibration samples.
    Ptq,
}

/// Returns the entry [`INT8_ENTRY`] of a safetensors file; `None` if the file contains float weights.
///
/// # Errors
/// If the bytes are not a safetensors file.
pub fn int8_entry(bytes: &[u8]) -> Result<Option<String>, String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|_| not_whole(bytes))?;
    Ok(metadata.metadata().as_ref().and_then(|entries| entries.get(INT8_ENTRY).cloned()))
}

/// Whether these bytes are an int8 model.
pub(super) fn is_int8(bytes: &[u8]) -> bool {
    int8_entry(bytes).is_ok_and(|entry| entry.is_some())
}

/// Returns how the int8 model in the file was quantized; `None` if this cannot be read.
pub fn method_of(file: &Path) -> Option<Method> {
    let entry = int8_entry(&read_regular(file).ok()?).ok()??;
    let entry: serde_json::Value = serde_json::from_str(&entry).ok()?;
    serde_json::from_value(entry["method"].clone()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_kind_is_no_table_to_save() {
        let what = not_whole(b"{\"status\": \"completed\"}");
        assert!(what.contains("JSON") && what.contains(".safetensors") && !what.contains(".csv"), "{what}");
    }

    fn layout(batch_norm: bool) -> Layout {
        let linear = [("linear.weight", vec![2, 3]), ("linear.bias", vec![3])]
            .map(|(name, shape)| (name.to_owned(), shape));
        let norms = ["bn1", "bn2"].into_iter().filter(|_| batch_norm).flat_map(|norm| {
            ["weight", "bias", "running_mean", "running_var"].map(|name| (format!("{norm}.{name}"), vec![3]))
        });
        let mut end = 0;
        let spec = |(name, shape): (String, Vec<usize>)| {
            let range = end..end + shape.iter().product::<usize>();
            end = range.end;
            TensorSpec { transposed: shape.len() == 2, name, shape, range }
        };
        Layout(linear.into_iter().chain(norms).map(spec).collect())
    }

    fn file(layout: &Layout, batches: Option<u64>) -> Vec<u8> {
        let values: Vec<f32> = (0..layout.len()).map(|i| i as f32).collect();
        encode(Path::new("file"), layout, &[(String::new(), &values)], batches).expect("a file")
    }

    #[test]
    fn batch_norms_come_with_pytorchs_count_and_are_read_with_and_without() {
        let layout = layout(true);
        let with = file(&layout, Some(70_000));
        let tensors = SafeTensors::deserialize(&with).unwrap();
        for norm in ["bn1", "bn2"] {
            let count = tensors.tensor(&format!("{norm}.num_batches_tracked")).unwrap();
            assert_eq!(
                (count.dtype(), count.shape(), count.data()),
                (Dtype::I64, &[][..], &70_000u64.to_le_bytes()[..])
            );
        }
        let expected: Vec<f32> = (0..layout.len()).map(|i| i as f32).collect();
        for bytes in [with, file(&layout, None)] {
            assert_eq!(decode_weights(Path::new("file"), &bytes, &layout).unwrap(), expected);
        }
    }

    #[test]
    fn a_network_in_a_wrapping_module_is_found() {
        let layout = layout(true);
        let values: Vec<f32> = (0..layout.len()).map(|i| i as f32).collect();
        let decoded_from = |prefixes: &[&str]| {
            let buffers: Vec<_> = prefixes.iter().map(|prefix| (format!("{prefix}."), &values)).collect();
            decode_weights(
                Path::new("file"),
                &encode(Path::new("file"), &layout, &buffers, None).unwrap(),
                &layout,
            )
        };
        for prefix in ["module", "_orig_mod", "module._orig_mod"] {
            assert_eq!(decoded_from(&[prefix]).unwrap(), values, "{prefix}");
        }
        let error = decoded_from(&["module", "ema"]).unwrap_err().to_string();
        assert!(error.contains("the tensor linear.weight: these are weights of another network"), "{error}");
    }

    #[test]
    fn another_networks_weights_are_refused_by_the_tensor_that_does_not_fit() {
        for (written, read, expected) in
            [(true, false, "contains a tensor bn"), (false, true, "does not contain the tensor bn1.weight: ")]
        {
            let bytes = file(&layout(written), Some(1));
            let error = decode_weights(Path::new("file"), &bytes, &layout(read)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_file_of_another_kind_is_named() {
        let layout = layout(false);
        let whole = file(&layout, None);
        let zipped = [b"PK\x03\x04", &[0; 22][..], &[14, 0, 0, 0], b"model/data.pkl", &[0; 9]].concat();
        for (bytes, expected) in [
            (&zipped[..], "is a PyTorch checkpoint: save its state_dict with safetensors"),
            (b"<!DOCTYPE html>", "is an HTML page"),
            (&whole[..whole.len() - 1], "is not a complete safetensors file"),
            (b"", "is not a complete safetensors file"),
        ] {
            let error = decode_weights(Path::new("file"), bytes, &layout).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn matrices_are_transposed_in_files() {
        let layout = layout(false);
        let bytes = file(&layout, None);
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let weight = tensors.tensor("linear.weight").unwrap();
        let values: Vec<f32> = weight.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
        assert_eq!((weight.shape(), values), (&[3, 2][..], vec![0.0, 3.0, 1.0, 4.0, 2.0, 5.0]));
    }
}
