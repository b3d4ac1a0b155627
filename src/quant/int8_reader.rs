//! Reading `int8.safetensors`: every invalid file is one error with its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use burn_fused::int8::QParams;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use run_record::files::{self, NO_DIGEST};
use run_record::{INT8_ENTRY, Method, RecordError, int8_entry};

use super::int8_file::{
    Bias, Entry, Int8File, LayerValues, Operation, SCALES, StoredLayer, VERSION, ZERO_POINTS, position,
};

/// Maximum size of a dimension: far above any network's, and products of three still fit
/// 64 bits.
const LARGEST: usize = 1 << 16;

impl Operation {
    /// Dimensions of its weights.
    fn rank(&self) -> usize {
        if matches!(self, Self::Conv { .. }) { 4 } else { 2 }
    }

    fn sizes(&self) -> Vec<usize> {
        match self {
            Self::Conv { stride, padding, .. } => [*stride, *padding].concat(),
            Self::MaxPool { kernel, stride } => [*kernel, *stride].concat(),
            Self::Linear { .. } => Vec::new(),
        }
    }
}

impl Int8File {
    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, is a float network's, or is damaged.
    pub fn read(file: &Path) -> Result<Self, RecordError> {
        // Opening a pipe would block until there is a writer.
        if fs::metadata(file).is_ok_and(|found| !found.is_file()) {
            return Err(RecordError::damaged(file, "it is not a regular file".into()));
        }
        let bytes = files::read_regular(file).map_err(|e| match e.kind() {
            std::io::ErrorKind::NotFound => RecordError::NoInt8(file.to_owned()),
            _ => RecordError::read(file, e),
        })?;
        Self::decode(file, &bytes)
    }

    /// The network in a file's bytes; `file` is its name in errors.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn decode(file: &Path, bytes: &[u8]) -> Result<Self, RecordError> {
        let damaged = |what: String| RecordError::damaged(file, what);
        let Some(text) = int8_entry(bytes).map_err(damaged)? else {
            return Err(RecordError::FloatWeights(file.to_owned()));
        };
        let entry: Entry = serde_json::from_str(&text)
            .map_err(|e| damaged(format!("its metadata {INT8_ENTRY} is invalid: {e}")))?;
        check_digest(bytes, &entry.sha256).map_err(damaged)?;
        if entry.version != VERSION {
            return Err(damaged(format!(
                "its layout has version {}, and this program reads {VERSION}",
                entry.version
            )));
        }
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|e| damaged(format!("not a whole safetensors file ({e:?})")))?;
        Reader { tensors, method: entry.method }.network(entry).map_err(damaged)
    }
}

fn check_digest(bytes: &[u8], digest: &str) -> Result<(), String> {
    let at = position(bytes, digest).filter(|_| digest.len() == NO_DIGEST.len());
    let at = at.ok_or("its metadata has no digest of 64 digits")?;
    let mut blank = bytes.to_vec();
    blank[at..at + digest.len()].copy_from_slice(NO_DIGEST.as_bytes());
    match files::sha256(&blank) == digest {
        true => Ok(()),
        false => Err("cut short or changed: its digest is not the one in its metadata".into()),
    }
}

/// Extracts tensors from a file whose digest has been checked.
struct Reader<'a> {
    tensors: SafeTensors<'a>,
    method: Method,
}

impl Reader<'_> {
    fn network(&self, entry: Entry) -> Result<Int8File, String> {
        let sizes = entry.layers.iter().flat_map(Operation::sizes).chain(entry.input_shape);
        if let Some(size) = sizes.into_iter().find(|&size| size > LARGEST) {
            return Err(format!("a size of {size} is above {LARGEST}"));
        }
        let mut names = BTreeSet::new();
        let mut layers = Vec::new();
        for op in entry.layers {
            let values = op.name().map(|name| self.values(name, op.rank(), &mut names)).transpose()?;
            layers.push(StoredLayer { op, values });
        }
        let with_weights = layers.iter().filter(|layer| layer.values.is_some()).count();
        let activations = match self.method {
            Method::Dynamic => Vec::new(),
            Method::Qat | Method::Ptq => self.activations(with_weights + 1, &mut names)?,
        };
        if let Some(name) = self.tensors.names().into_iter().find(|name| !names.contains(*name)) {
            return Err(format!("it has a tensor {name} that belongs to no layer"));
        }
        let Entry { method, network, weights_sha256, input_shape, .. } = entry;
        Ok(Int8File { method, network, weights_sha256, input_shape, layers, activations })
    }

    fn values(&self, name: &str, rank: usize, names: &mut BTreeSet<String>) -> Result<LayerValues, String> {
        let weights = self.tensor(&format!("{name}.weight"), Dtype::I8, names)?;
        let shape = weights.shape().to_vec();
        if shape.len() != rank || shape.iter().any(|&size| size == 0 || size > LARGEST) {
            return Err(format!("{name}.weight has the shape {shape:?}, expected {rank} sizes above 0"));
        }
        let weights: Vec<i8> = weights.data().iter().map(|&byte| byte.cast_signed()).collect();
        if weights.contains(&i8::MIN) {
            return Err(format!("{name}.weight contains -128, expected -127 to 127"));
        }
        let outputs = shape[0];
        let scale_name = format!("{name}.weight_scale");
        let scales = self.tensor(&scale_name, Dtype::F32, names)?;
        if scales.shape() != [1] && scales.shape() != [outputs] {
            return Err(format!(
                "{scale_name} has the shape {:?}, expected [1] or [{outputs}]",
                scales.shape()
            ));
        }
        let scales = to_floats(scales.data());
        if let Some(scale) = scales.iter().find(|scale| !scale.is_normal() || **scale < 0.0) {
            return Err(format!("{scale_name} contains {scale}, which is no scale"));
        }
        let bias_name = format!("{name}.bias");
        let of = if self.method == Method::Dynamic { Dtype::F32 } else { Dtype::I32 };
        let bias = self.tensor(&bias_name, of, names)?;
        if bias.shape() != [outputs] {
            return Err(format!("{bias_name} has the shape {:?}, expected [{outputs}]", bias.shape()));
        }
        let bias = match of {
            Dtype::F32 => Bias::Float(to_floats(bias.data())),
            _ => Bias::Integer(bias.data().as_chunks().0.iter().map(|&b| i32::from_le_bytes(b)).collect()),
        };
        if matches!(&bias, Bias::Float(values) if values.iter().any(|value| !value.is_finite())) {
            return Err(format!("{bias_name} contains NaN or infinite values"));
        }
        Ok(LayerValues { shape, weights, scales, bias })
    }

    fn activations(&self, count: usize, names: &mut BTreeSet<String>) -> Result<Vec<QParams>, String> {
        let scales = self.tensor(SCALES, Dtype::F32, names)?;
        let zeros = self.tensor(ZERO_POINTS, Dtype::U8, names)?;
        for (name, tensor) in [(SCALES, &scales), (ZERO_POINTS, &zeros)] {
            if tensor.shape() != [count] {
                return Err(format!("{name} has the shape {:?}, expected [{count}]", tensor.shape()));
            }
        }
        let pairs = to_floats(scales.data()).into_iter().zip(zeros.data());
        Ok(pairs.map(|(scale, &zero)| QParams { scale, zero_point: i32::from(zero) }).collect())
    }

    fn tensor(
        &self,
        name: &str,
        dtype: Dtype,
        names: &mut BTreeSet<String>,
    ) -> Result<TensorView<'_>, String> {
        let tensor = self.tensors.tensor(name).map_err(|_| format!("it has no tensor {name}"))?;
        if tensor.dtype() != dtype {
            return Err(format!("{name} holds {:?}, expected {dtype:?}", tensor.dtype()));
        }
        match names.insert(name.to_owned()) {
            true => Ok(tensor),
            false => Err(format!("{name} belongs to two layers")),
        }
    }
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}
