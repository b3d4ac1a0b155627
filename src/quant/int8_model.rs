//! Conversion between static integer models and their files.

use std::path::Path;

use burn_fused::int8::{Conv, Int8Error, Layer, Linear, MaxPool, Model, QParams, Weights, fixed_point};

use run_record::{Method, RecordError};

use super::int8_file::{Bias, Int8File, LayerValues, Operation, StoredLayer};

impl Int8File {
    /// A static integer model of the network `network`, made from float weights
    /// with this digest; `names` are PyTorch's names of its layers with weights,
    /// in order.
    ///
    /// # Panics
    /// If there are fewer names than layers with weights.
    pub fn of_model(
        method: Method,
        network: &str,
        weights_sha256: &str,
        names: &[String],
        model: &Model,
    ) -> Self {
        let mut names = names.iter();
        let mut name = || names.next().expect("a name for each layer with weights").clone();
        let mut activations = vec![model.input()];
        let layers = model.layers().iter().map(|layer| match layer {
            Layer::Conv(conv) => {
                activations.push(conv.output);
                let Conv { inputs, outputs, kernel, stride, padding, relu, .. } = *conv;
                let shape = vec![outputs, inputs, kernel[0], kernel[1]];
                let op = Operation::Conv { name: name(), stride, padding, relu };
                StoredLayer { op, values: Some(LayerValues::of(shape, &conv.weights)) }
            }
            Layer::Linear(linear) => {
                activations.push(linear.output);
                let op = Operation::Linear { name: name(), relu: linear.relu };
                let shape = vec![linear.outputs, linear.inputs];
                StoredLayer { op, values: Some(LayerValues::of(shape, &linear.weights)) }
            }
            &Layer::MaxPool(MaxPool { kernel, stride }) => {
                StoredLayer { op: Operation::MaxPool { kernel, stride }, values: None }
            }
        });
        let layers = layers.collect();
        Self {
            method,
            network: network.to_owned(),
            weights_sha256: weights_sha256.to_owned(),
            input_shape: model.input_shape(),
            layers,
            activations,
        }
    }

    /// The static integer model; `file` is its name in errors.
    ///
    /// # Errors
    /// If the values are not a valid model, or it is a [`Method::Dynamic`] one.
    pub fn model(&self, file: &Path) -> Result<Model, RecordError> {
        let damaged = |error: Int8Error| RecordError::damaged(file, error.to_string());
        let Some((&input, outputs)) = self.activations.split_first() else {
            return Err(RecordError::damaged(file, "it has no scales of activations".into()));
        };
        let mut parameters = input;
        let mut outputs = outputs.iter();
        let mut layers = Vec::new();
        for StoredLayer { op, values } in &self.layers {
            let product = values.as_ref().zip(op.name());
            let (weights, output) = match product {
                Some((values, name)) => {
                    let missing = || format!("{name} has no scale of its output");
                    let &output = outputs.next().ok_or_else(|| RecordError::damaged(file, missing()))?;
                    let weights = values
                        .weights(parameters, output)
                        .map_err(|what| RecordError::damaged(file, format!("{name}: {what}")))?;
                    parameters = output;
                    (Some((weights, &values.shape)), output)
                }
                None => (None, parameters),
            };
            layers.push(match (op, weights) {
                (&Operation::Conv { stride, padding, relu, .. }, Some((weights, shape))) => {
                    Layer::Conv(Conv {
                        inputs: shape[1],
                        outputs: shape[0],
                        kernel: [shape[2], shape[3]],
                        stride,
                        padding,
                        weights,
                        relu,
                        output,
                    })
                }
                (&Operation::Linear { relu, .. }, Some((weights, shape))) => {
                    Layer::Linear(Linear { inputs: shape[1], outputs: shape[0], weights, relu, output })
                }
                (&Operation::MaxPool { kernel, stride }, _) => Layer::MaxPool(MaxPool { kernel, stride }),
                (op, None) => return Err(RecordError::damaged(file, format!("{op:?} has no weights"))),
            });
        }
        Model::new(self.input_shape, input, layers).map_err(damaged)
    }
}

impl LayerValues {
    fn of(shape: Vec<usize>, weights: &Weights) -> Self {
        Self {
            shape,
            weights: weights.values.clone(),
            scales: weights.scales.clone(),
            bias: Bias::Integer(weights.bias.clone()),
        }
    }

    /// The weights of a layer whose input and output have these parameters.
    fn weights(&self, input: QParams, output: QParams) -> Result<Weights, String> {
        let Bias::Integer(bias) = &self.bias else {
            return Err("its biases are real numbers, as those of a dynamic model".into());
        };
        let (mut multipliers, mut shifts) = (Vec::new(), Vec::new());
        for &scale in &self.scales {
            let ratio = f64::from(input.scale) * f64::from(scale) / f64::from(output.scale);
            let (multiplier, shift) = fixed_point(ratio).map_err(|error| error.to_string())?;
            multipliers.push(multiplier);
            shifts.push(shift);
        }
        let (values, scales, bias) = (self.weights.clone(), self.scales.clone(), bias.clone());
        Ok(Weights { values, scales, bias, multipliers, shifts })
    }
}
