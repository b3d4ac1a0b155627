//! `int8.safetensors`: a quantized network on disk, as docs/quantization.md describes it.
//!
//! One metadata entry holds what tensors cannot: the layers in order, and a digest of the
//! whole file, so that a changed byte is an error and not a wrong prediction. Derived
//! values (multipliers, shifts) are not stored.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;

use burn_fused::int8::QParams;
use safetensors::tensor::Dtype;
use serde::{Deserialize, Serialize};

use run_record::files::{self, NO_DIGEST};
use run_record::{INT8_ENTRY, Method, RecordError, Values};

pub(super) const VERSION: u32 = 1;
/// Scales and zero points of the input and of each layer with weights.
pub(super) const SCALES: &str = "activation.scale";
pub(super) const ZERO_POINTS: &str = "activation.zero_point";

/// A quantized network, as it is on disk.
#[derive(Debug, Clone, PartialEq)]
pub struct Int8File {
    /// How it was quantized.
    pub method: Method,
    /// Name of the network: `convnet`, `vgg` or `mlp`.
    pub network: String,
    /// SHA-256 of the float weights it was made from, as in `run.json`.
    pub weights_sha256: String,
    /// Channels, height and width of a sample.
    pub input_shape: [usize; 3],
    /// The layers in order.
    pub layers: Vec<StoredLayer>,
    /// Scale and zero point of the input and of the output of each layer with weights;
    /// empty for a [`Method::Dynamic`].
    pub activations: Vec<QParams>,
}

/// A layer, and its values if it has weights.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredLayer {
    /// The layer.
    pub op: Operation,
    /// Its values; `None` for a pooling.
    pub values: Option<LayerValues>,
}

/// A layer without its values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Convolution.
    Conv {
        /// PyTorch's name of the layer.
        name: String,
        /// Vertical and horizontal.
        stride: [usize; 2],
        /// Rows above and below, columns to the left and to the right.
        padding: [usize; 2],
        /// Whether ReLU follows.
        relu: bool,
    },
    /// Maximum of each window.
    MaxPool {
        /// Height and width.
        kernel: [usize; 2],
        /// Vertical and horizontal.
        stride: [usize; 2],
    },
    /// Linear layer; it takes its input flattened.
    Linear {
        /// PyTorch's name of the layer.
        name: String,
        /// Whether ReLU follows.
        relu: bool,
    },
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |[rows, columns]: &[usize; 2]| format!("{rows}x{columns}");
        let epilogue = |relu: &bool| if *relu { " with ReLU" } else { " without ReLU" };
        match self {
            Self::Conv { name, stride, padding, relu } => {
                let (stride, padding) = (of(stride), of(padding));
                write!(f, "convolution {name}, stride {stride}, padding {padding},{}", epilogue(relu))
            }
            Self::MaxPool { kernel, stride } => {
                write!(f, "max pooling of {}, stride {}", of(kernel), of(stride))
            }
            Self::Linear { name, relu } => write!(f, "linear layer {name}{}", epilogue(relu)),
        }
    }
}

/// Weights and biases of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerValues {
    /// `[outputs, inputs, height, width]`, or `[outputs, inputs]` of a linear layer.
    pub shape: Vec<usize>,
    /// -127 to 127 each.
    pub weights: Vec<i8>,
    /// Scale of each output's weights, or one for all.
    pub scales: Vec<f32>,
    /// One for each output.
    pub bias: Bias,
}

/// Biases of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Bias {
    /// In steps of input scale · weight scale.
    Integer(Vec<i32>),
    /// Real values, for a [`Method::Dynamic`].
    Float(Vec<f32>),
}

/// The metadata entry.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub version: u32,
    pub method: Method,
    pub network: String,
    pub weights_sha256: String,
    pub input_shape: [usize; 3],
    pub layers: Vec<Operation>,
    /// SHA-256 of the file with zeros in place of these 64 digits.
    pub sha256: String,
}

impl Operation {
    /// PyTorch's name, if it has weights.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Conv { name, .. } | Self::Linear { name, .. } => Some(name),
            Self::MaxPool { .. } => None,
        }
    }
}

impl Int8File {
    /// The file's bytes; the same network gives the same bytes.
    ///
    /// # Errors
    /// If two layers have the same name; the error names `file`.
    pub fn encode(&self, file: &Path) -> Result<Vec<u8>, RecordError> {
        let failed = |what: String| RecordError::damaged(file, what);
        let mut tensors = Vec::new();
        let mut add = |name: String, dtype, shape: Vec<usize>, bytes: Vec<u8>| {
            tensors.push((name, Values { dtype, shape, bytes }));
        };
        for StoredLayer { op, values } in &self.layers {
            let (Some(name), Some(values)) = (op.name(), values) else { continue };
            let LayerValues { shape, weights, scales, bias } = values;
            let weights = weights.iter().map(|w| w.cast_unsigned()).collect();
            add(format!("{name}.weight"), Dtype::I8, shape.clone(), weights);
            add(format!("{name}.weight_scale"), Dtype::F32, vec![scales.len()], floats(scales));
            let name = format!("{name}.bias");
            match bias {
                Bias::Integer(steps) => {
                    let bytes = steps.iter().flat_map(|step| step.to_le_bytes()).collect();
                    add(name, Dtype::I32, vec![steps.len()], bytes);
                }
                Bias::Float(values) => add(name, Dtype::F32, vec![values.len()], floats(values)),
            }
        }
        if self.method != Method::Dynamic {
            let scales: Vec<f32> = self.activations.iter().map(|p| p.scale).collect();
            let zeros = self.activations.iter().map(|p| p.zero_point as u8).collect();
            add(SCALES.into(), Dtype::F32, vec![scales.len()], floats(&scales));
            add(ZERO_POINTS.into(), Dtype::U8, vec![scales.len()], zeros);
        }
        let names: BTreeSet<&String> = tensors.iter().map(|(name, _)| name).collect();
        if names.len() < tensors.len() {
            return Err(failed("two layers have the same name".into()));
        }
        let entry = Entry {
            version: VERSION,
            method: self.method,
            network: self.network.clone(),
            weights_sha256: self.weights_sha256.clone(),
            input_shape: self.input_shape,
            layers: self.layers.iter().map(|layer| layer.op.clone()).collect(),
            sha256: NO_DIGEST.into(),
        };
        let entry = serde_json::to_string(&entry).map_err(|e| failed(e.to_string()))?;
        let metadata = HashMap::from([(INT8_ENTRY.to_owned(), entry)]);
        let mut bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|e| failed(e.to_string()))?;
        let digest = files::sha256(&bytes);
        let at = position(&bytes, NO_DIGEST).ok_or_else(|| failed("it has no room for a digest".into()))?;
        bytes[at..at + digest.len()].copy_from_slice(digest.as_bytes());
        Ok(bytes)
    }
}

pub(super) fn position(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len().max(1)).position(|window| window == text.as_bytes())
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

#[cfg(test)]
#[path = "int8_file_tests.rs"]
mod tests;
