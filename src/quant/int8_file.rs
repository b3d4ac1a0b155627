//! `int8.safetensors`: the file format of a quantized network, as docs/quantization.md describes it.
//!
//! A metadata entry contains what tensors cannot: the layers in order, and a digest of the whole file. The
//! digest turns a changed byte into an error, instead of a wrong prediction. Derived values (multipliers,
//! shifts) are not stored.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use burn_fused::int8::QParams;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use run_record::files::{self, NO_DIGEST};
use run_record::{INT8_ENTRY, Method, RecordError, int8_entry, json_problem, safetensors_file};

pub(super) const VERSION: u32 = 1;
/// Names of the tensors with the scales and zero points: of the network's input, then of the output of each
/// layer with weights.
const SCALES: &str = "activation.scale";
const ZERO_POINTS: &str = "activation.zero_point";
/// Maximum size of a dimension. A sum of 2^16 products of 8-bit integers fits into 32 bits, and a product of
/// three sizes into 64 bits.
pub(super) const LARGEST: usize = 1 << 16;

/// A quantized network as stored: the metadata entry, and the values of the tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Int8File {
    pub(super) version: u32,
    /// Method of quantization.
    pub method: Method,
    /// Name of the network: `convnet`, `vgg` or `mlp`.
    pub network: String,
    /// SHA-256 of the float weights from which the network was made, as in `run.json`.
    pub weights_sha256: String,
    /// Channels, height and width of a sample.
    pub input_shape: [usize; 3],
    /// The layers in order.
    pub layers: Vec<StoredLayer>,
    /// SHA-256 of the file, computed with zeros in place of these 64 digits. In memory, the digits are always
    /// zeros.
    pub(super) sha256: String,
    /// Scale and zero point of the network's input, then of the output of each layer with weights.
    #[serde(skip)]
    pub activations: Vec<QParams>,
}

/// A layer of the int8 model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum StoredLayer {
    /// Convolution.
    Conv {
        /// PyTorch's name of the layer.
        name: String,
        /// Vertical and horizontal stride.
        stride: [usize; 2],
        /// Rows added on each side (above and below), and columns added on each side (left and right).
        padding: [usize; 2],
        /// Whether ReLU follows.
        relu: bool,
        /// Weights and biases.
        #[serde(skip)]
        values: LayerValues,
    },
    /// Maximum of each window.
    MaxPool {
        /// Height and width of a window.
        kernel: [usize; 2],
        /// Vertical and horizontal stride.
        stride: [usize; 2],
    },
    /// Means of windows that cover the image.
    AveragePool {
        /// Height and width of the output.
        output: [usize; 2],
    },
    /// Linear layer, which flattens its input.
    Linear {
        /// PyTorch's name of the layer.
        name: String,
        /// Whether ReLU follows.
        relu: bool,
        /// Weights and biases.
        #[serde(skip)]
        values: LayerValues,
    },
}

/// Weights and biases of a layer.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LayerValues {
    /// `[outputs, inputs, height, width]`, or `[outputs, inputs]` of a linear layer.
    pub shape: Vec<usize>,
    /// Values from -127 to 127.
    pub weights: Vec<i8>,
    /// Scale of each output's weights, or one scale for all outputs.
    pub scales: Vec<f32>,
    /// Bias of each output, in steps of input scale · weight scale.
    pub bias: Vec<i32>,
}

impl StoredLayer {
    /// Returns PyTorch's name and the values of a layer with weights; `None` for a pooling.
    pub fn product(&self) -> Option<(&str, &LayerValues)> {
        match self {
            Self::Conv { name, values, .. } | Self::Linear { name, values, .. } => Some((name, values)),
            Self::MaxPool { .. } | Self::AveragePool { .. } => None,
        }
    }
}

impl Int8File {
    /// Returns names and values of the layers with weights, in order.
    pub fn products(&self) -> impl Iterator<Item = (&str, &LayerValues)> {
        self.layers.iter().filter_map(StoredLayer::product)
    }

    /// Returns the bytes of the file. Equal networks give equal bytes.
    ///
    /// # Errors
    /// If the network cannot be serialized. The error names `file`.
    pub fn encode(&self, file: &Path) -> Result<Vec<u8>, RecordError> {
        let failed = |what: String| RecordError::damaged(file, what);
        let mut tensors = Vec::new();
        let mut add = |name: String, dtype, shape: &[usize], bytes: &[u8]| {
            tensors.push((name, dtype, shape.to_vec(), bytes.to_vec()));
        };
        for (name, LayerValues { shape, weights, scales, bias }) in self.products() {
            add(format!("{name}.weight"), Dtype::I8, shape, bytemuck::cast_slice(weights));
            add(format!("{name}.weight_scale"), Dtype::F32, &[scales.len()], bytemuck::cast_slice(scales));
            add(format!("{name}.bias"), Dtype::I32, &[bias.len()], bytemuck::cast_slice(bias));
        }
        let scales: Vec<f32> = self.activations.iter().map(|p| p.scale).collect();
        let zeros: Vec<u8> = self.activations.iter().map(|p| p.zero_point as u8).collect();
        add(SCALES.into(), Dtype::F32, &[scales.len()], bytemuck::cast_slice(&scales));
        add(ZERO_POINTS.into(), Dtype::U8, &[zeros.len()], &zeros);
        let entry = serde_json::to_string(self).map_err(|e| failed(e.to_string()))?;
        let metadata = HashMap::from([(INT8_ENTRY.to_owned(), entry)]);
        let mut bytes = safetensors_file(&tensors, Some(metadata)).map_err(|e| failed(e.to_string()))?;
        let digest = files::sha256(&bytes);
        let at = position(&bytes, NO_DIGEST).ok_or_else(|| failed("has no room for a digest".into()))?;
        bytes[at..at + digest.len()].copy_from_slice(digest.as_bytes());
        Ok(bytes)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If the file cannot be read, contains a float network, or is damaged.
    pub fn read(file: &Path) -> Result<Self, RecordError> {
        let bytes = files::read_regular(file).map_err(|e| match e.kind() {
            ErrorKind::NotFound => RecordError::NoInt8(file.to_owned()),
            _ => RecordError::read(file, e),
        })?;
        Self::decode(file, &bytes)
    }

    /// Reads the network from a file's bytes. Errors name `file`.
    ///
    /// # Errors
    /// Returns the errors of [`read`](Self::read).
    pub fn decode(file: &Path, bytes: &[u8]) -> Result<Self, RecordError> {
        let damaged = |what: String| RecordError::damaged(file, what);
        let Some(text) = int8_entry(bytes).map_err(damaged)? else {
            return Err(RecordError::FloatWeights(file.to_owned()));
        };
        let mut int8: Self = serde_json::from_str(&text)
            .map_err(|e| damaged(format!("metadata {INT8_ENTRY} is invalid: {}", json_problem(&e))))?;
        check_digest(bytes, &std::mem::replace(&mut int8.sha256, NO_DIGEST.into())).map_err(damaged)?;
        if int8.version != VERSION {
            let what =
                format!("has layout version {}, but this program reads version {VERSION}", int8.version);
            return Err(damaged(what));
        }
        let tensors = SafeTensors::deserialize(bytes)
            .map_err(|_| damaged("is not a complete safetensors file".to_owned()))?;
        int8.fill(&tensors).map_err(damaged)?;
        Ok(int8)
    }

    /// Reads the values of the layers from the tensors. Rejects sizes above [`LARGEST`], so that later
    /// computations with them do not overflow.
    fn fill(&mut self, tensors: &SafeTensors<'_>) -> Result<(), String> {
        use StoredLayer::{AveragePool, Conv, Linear, MaxPool};
        let sizes = self.layers.iter().flat_map(|layer| match layer {
            Conv { stride, padding, .. } => [*stride, *padding].concat(),
            MaxPool { kernel, stride } => [*kernel, *stride].concat(),
            AveragePool { output } => output.to_vec(),
            Linear { .. } => Vec::new(),
        });
        if let Some(size) = sizes.chain(self.input_shape).find(|&size| size > LARGEST) {
            return Err(format!("a size of the input or of a layer is {size}, above the limit of {LARGEST}"));
        }
        let mut known = 0;
        for layer in &mut self.layers {
            let rank = if matches!(layer, Conv { .. }) { 4 } else { 2 };
            let (Conv { name, values, .. } | Linear { name, values, .. }) = layer else { continue };
            let weights = tensor(tensors, &format!("{name}.weight"), Dtype::I8)?;
            let shape = weights.shape().to_vec();
            if shape.len() != rank || shape.iter().any(|&size| size == 0 || size > LARGEST) {
                return Err(format!(
                    "{name}.weight has the shape {shape:?}, expected {rank} dimensions, each from 1 to {LARGEST}"
                ));
            }
            let scales = floats(&tensor(tensors, &format!("{name}.weight_scale"), Dtype::F32)?);
            let bias = tensor(tensors, &format!("{name}.bias"), Dtype::I32)?;
            let bias: Vec<i32> = chunks(&bias).map(i32::from_le_bytes).collect();
            let (outputs, biases) = (shape[0], bias.len());
            if biases != outputs || ![1, outputs].contains(&scales.len()) {
                let scales = scales.len();
                return Err(format!("{name} has {scales} scales and {biases} biases for {outputs} outputs"));
            }
            let weights = weights.data().iter().map(|&byte| byte.cast_signed()).collect();
            *values = LayerValues { shape, weights, scales, bias };
            known += 3;
        }
        let scales = floats(&tensor(tensors, SCALES, Dtype::F32)?);
        let zeros = tensor(tensors, ZERO_POINTS, Dtype::U8)?;
        let (expected, found) = (known / 3 + 1, [scales.len(), zeros.data().len()]);
        if found != [expected; 2] {
            let [scales, zeros] = found;
            return Err(format!(
                "{SCALES} has {scales} values and {ZERO_POINTS} has {zeros}, expected {expected} each"
            ));
        }
        let pairs = scales.into_iter().zip(zeros.data());
        self.activations =
            pairs.map(|(scale, &zero)| QParams { scale, zero_point: i32::from(zero) }).collect();
        known += 2;
        if tensors.len() == known {
            Ok(())
        } else {
            Err(format!("has {} tensors, but its layers have {known}", tensors.len()))
        }
    }
}

fn position(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len().max(1)).position(|window| window == text.as_bytes())
}

fn check_digest(bytes: &[u8], digest: &str) -> Result<(), String> {
    let at = position(bytes, digest).filter(|_| digest.len() == NO_DIGEST.len());
    let at = at.ok_or("metadata has no digest of 64 digits")?;
    let mut blank = bytes.to_vec();
    blank[at..at + digest.len()].copy_from_slice(NO_DIGEST.as_bytes());
    if files::sha256(&blank) == digest {
        Ok(())
    } else {
        Err("cut short or changed: its digest differs from the digest in its metadata".into())
    }
}

fn tensor<'a>(tensors: &SafeTensors<'a>, name: &str, dtype: Dtype) -> Result<TensorView<'a>, String> {
    let tensor = tensors.tensor(name).map_err(|_| format!("has no tensor {name}"))?;
    if tensor.dtype() == dtype {
        Ok(tensor)
    } else {
        Err(format!("{name} contains {:?}, expected {dtype:?}", tensor.dtype()))
    }
}

fn chunks<'a>(tensor: &TensorView<'a>) -> impl Iterator<Item = [u8; 4]> + use<'a> {
    tensor.data().as_chunks().0.iter().copied()
}

fn floats(tensor: &TensorView<'_>) -> Vec<f32> {
    chunks(tensor).map(f32::from_le_bytes).collect()
}

#[cfg(test)]
#[path = "int8_file_tests.rs"]
mod tests;
