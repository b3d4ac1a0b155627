//! Quantized networks, static or dynamic, and their files.

use std::path::Path;

use burn_fused::int8::{Model, Workspace};

use super::Int8File;
use super::dynamic::{DynamicLayer, DynamicModel, Windows};
use super::{QuantError, groups};
use crate::model::Network;
use crate::quant::int8_file::{Bias, LayerValues, Operation, StoredLayer};
use run_record::{Method, RecordError};

/// A quantized network for inference.
#[derive(Debug)]
pub enum Quantized {
    /// Integers from input to output, with PyTorch's names of the layers with weights.
    Static {
        /// The model.
        model: Box<Model>,
        /// Its memory.
        workspace: Box<Workspace>,
        /// Names in the order of forward.
        names: Vec<String>,
        /// Calibrated or trained.
        method: Method,
    },
    /// Only weights are integers.
    Dynamic(DynamicModel),
}

impl Quantized {
    /// A static model of `network`.
    ///
    /// # Errors
    /// If a layer cannot be quantized.
    pub fn of_model(network: &Network, model: Model, method: Method) -> Result<Self, QuantError> {
        let names = groups(network)?.into_iter().map(|group| group.name).collect();
        Ok(Self::of_names(model, names, method))
    }

    fn of_names(model: Model, names: Vec<String>, method: Method) -> Self {
        let workspace = Box::new(model.workspace());
        Self::Static { model: Box::new(model), workspace, names, method }
    }

    /// The quantization method.
    pub fn method(&self) -> Method {
        match self {
            Self::Static { method, .. } => *method,
            Self::Dynamic(_) => Method::Dynamic,
        }
    }

    /// Channels, height and width of a sample.
    pub fn input_shape(&self) -> [usize; 3] {
        match self {
            Self::Static { model, .. } => model.input_shape(),
            Self::Dynamic(model) => model.input_shape,
        }
    }

    /// Writes class scores `[batch, outputs]` of `samples` `[batch, channels, height,
    /// width]` to `scores`, whose length it sets.
    ///
    /// # Errors
    /// If samples of a dynamic model contain NaN or infinite values.
    ///
    /// # Panics
    /// If the length is not that of samples.
    pub fn infer(&mut self, samples: &[f32], scores: &mut Vec<f32>) -> Result<(), QuantError> {
        match self {
            Self::Static { model, workspace, .. } => {
                let batch = samples.len() / model.input_shape().iter().product::<usize>();
                scores.resize(batch * model.outputs(), 0.0);
                model.infer(workspace, samples, scores);
            }
            Self::Dynamic(model) => *scores = model.infer(samples)?,
        }
        Ok(())
    }

    /// The network as a file; `network` is its name, and the digest that of the float
    /// weights it was made from.
    pub fn to_file(&self, network: &str, weights_sha256: &str) -> Int8File {
        match self {
            Self::Static { model, names, method, .. } => {
                Int8File::of_model(*method, network, weights_sha256, names, model)
            }
            Self::Dynamic(model) => model.to_file(network, weights_sha256),
        }
    }

    /// The network from a file's contents; `file` is its name in errors.
    ///
    /// # Errors
    /// If the values are not a valid model.
    pub fn from_file(stored: &Int8File, file: &Path) -> Result<Self, RecordError> {
        if stored.method == Method::Dynamic {
            return DynamicModel::from_file(stored, file).map(Self::Dynamic);
        }
        let names = stored.layers.iter().filter_map(|layer| layer.op.name()).map(String::from).collect();
        Ok(Self::of_names(stored.model(file)?, names, stored.method))
    }
}

impl DynamicModel {
    fn to_file(&self, network: &str, weights_sha256: &str) -> Int8File {
        let mut layers = Vec::new();
        for layer in &self.layers {
            let (name, relu) = (layer.name.clone(), layer.relu);
            let (op, shape) = match layer.windows {
                Some(Windows { stride, padding }) => {
                    (Operation::Conv { name, stride, padding, relu }, layer.shape.to_vec())
                }
                None => (Operation::Linear { name, relu }, layer.shape[..2].to_vec()),
            };
            let values = LayerValues {
                shape,
                weights: layer.weights.clone(),
                scales: layer.scales.clone(),
                bias: Bias::Float(layer.bias.clone()),
            };
            layers.push(StoredLayer { op, values: Some(values) });
            layers.extend(layer.pool.map(|[kernel, stride]| StoredLayer {
                op: Operation::MaxPool { kernel, stride },
                values: None,
            }));
        }
        Int8File {
            method: Method::Dynamic,
            network: network.to_owned(),
            weights_sha256: weights_sha256.to_owned(),
            input_shape: self.input_shape,
            layers,
            activations: Vec::new(),
        }
    }

    fn from_file(stored: &Int8File, file: &Path) -> Result<Self, RecordError> {
        let damaged = |what: &str| RecordError::damaged(file, what.to_owned());
        let mut layers: Vec<DynamicLayer> = Vec::new();
        for StoredLayer { op, values } in &stored.layers {
            let (name, windows, relu) = match op {
                Operation::MaxPool { kernel, stride } => {
                    let last = layers.last_mut().filter(|last| last.pool.is_none());
                    let last = last.ok_or_else(|| damaged("a pooling follows no layer with weights"))?;
                    last.pool = Some([*kernel, *stride]);
                    continue;
                }
                &Operation::Conv { ref name, stride, padding, relu } => {
                    (name, Some(Windows { stride, padding }), relu)
                }
                Operation::Linear { name, relu } => (name, None, *relu),
            };
            let values = values.as_ref().ok_or_else(|| damaged("a layer has no weights"))?;
            let LayerValues { shape, weights, scales, bias: Bias::Float(bias) } = values else {
                return Err(damaged("its biases are integers, as those of a static model"));
            };
            let size = |i: usize| shape.get(i).copied().unwrap_or(1);
            layers.push(DynamicLayer {
                name: name.clone(),
                windows,
                shape: [size(0), size(1), size(2), size(3)],
                weights: weights.clone(),
                scales: scales.clone(),
                bias: bias.clone(),
                relu,
                pool: None,
            });
        }
        let model = Self { input_shape: stored.input_shape, layers };
        match model.check() {
            Ok(_) => Ok(model),
            Err((layer, reason)) => Err(damaged(&format!("{layer}: {reason}"))),
        }
    }
}
