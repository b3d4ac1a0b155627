//! Quantized networks: made of a float network, compared with one, and run.

use burn_fused::int8::{
    AveragePool, Conv, Int8Error, Layer, Linear, MaxPool, Model, QParams, Scheme, Weights, Workspace,
    fixed_point, min_max_by_channel,
};
use burn_mpi::ParamLayout;

use super::int8_file::{Int8File, LayerValues, StoredLayer, VERSION};
use super::ranges::{Ranges, WeightScheme, parameters};
use super::{Product, QuantError, groups, padding};
use crate::model::Network;
use run_record::Method;
use run_record::files::{NO_DIGEST, sha256_of_f32};

/// A quantized network for inference.
#[derive(Debug)]
pub struct Quantized {
    /// The network.
    pub file: Int8File,
    /// Integers from input to output.
    pub model: Model,
    /// Their memory.
    pub workspace: Workspace,
}

impl Quantized {
    /// The network in a file.
    ///
    /// # Errors
    /// If the values are not a valid model.
    pub fn new(file: Int8File) -> Result<Self, QuantError> {
        let model = file.model()?;
        Ok(Self { workspace: model.workspace(), file, model })
    }

    /// A model of `network`, which is on a device without autodiff: batch norm folded into the
    /// weights by its running statistics, weights quantized by `scheme`, activations by `ranges`. If ranges
    /// of weights were never observed, those of the current weights are used.
    ///
    /// # Errors
    /// If a layer cannot be quantized; if ranges were never observed, belong to a
    /// different network, or are too wide; if weights are not finite.
    pub fn of_ranges(
        network: &Network,
        method: Method,
        ranges: &Ranges,
        scheme: WeightScheme,
    ) -> Result<Self, QuantError> {
        let groups = groups(network)?;
        assert_eq!(ranges.groups.len(), groups.len(), "ranges of this network");
        let mut activations = vec![parameters(ranges.input, "the input")?];
        for (group, ranges) in groups.iter().zip(&ranges.groups) {
            activations.push(parameters(ranges.output, &format!("the output of {}", group.name))?);
        }
        let scales = |index: usize, weights: &[f32], outputs| match &ranges.groups[index].weights {
            Some(ranges) => scales_of(ranges),
            None => scales_of(&min_max_by_channel(weights, scheme.scales(outputs))?),
        };
        Self::new(Int8File::of(network, method, activations, scales)?)
    }

    /// Writes class scores `[batch, outputs]` of `samples` `[batch, channels, height,
    /// width]` to `scores`, whose length it sets.
    ///
    /// # Panics
    /// If the length is not that of samples.
    pub fn infer(&mut self, samples: &[f32], scores: &mut Vec<f32>) {
        let batch = samples.len() / self.model.input_shape().iter().product::<usize>();
        scores.resize(batch * self.model.outputs(), 0.0);
        self.model.infer(&mut self.workspace, samples, scores);
    }
}

fn scales_of(ranges: &[[f32; 2]]) -> Result<Vec<f32>, Int8Error> {
    ranges.iter().map(|&[min, max]| Ok(Scheme::Symmetric.parameters(min, max)?.scale)).collect()
}

impl Int8File {
    /// `network` with these `activations`. `scales` are those of the weights of a layer, of which there are an index,
    /// the weights and the number of outputs.
    fn of(
        network: &Network,
        method: Method,
        activations: Vec<QParams>,
        scales: impl Fn(usize, &[f32], usize) -> Result<Vec<f32>, Int8Error>,
    ) -> Result<Self, QuantError> {
        let mut layers = Vec::new();
        for (index, group) in groups(network)?.into_iter().enumerate() {
            let [weights, biases] = group.folded();
            let (name, relu) = (group.name, group.relu);
            let [input, output] = [activations[index], activations[index + 1]];
            let quantized = scales(index, &weights, biases.len())
                .and_then(|scales| Weights::quantize(&weights, &biases, &scales, input, output));
            let Weights { values: weights, scales, bias, .. } =
                quantized.map_err(|error| QuantError::values(&name, error))?;
            let values = |shape| LayerValues { shape, weights, scales, bias };
            layers.push(match group.product {
                Product::Conv(conv) => {
                    let padding = padding(&conv.padding).unwrap_or_default();
                    let values = values(conv.weight.dims().to_vec());
                    StoredLayer::Conv { name, stride: conv.stride, padding, relu, values }
                }
                Product::Linear(linear) => {
                    let [inputs, outputs] = linear.weight.dims();
                    StoredLayer::Linear { name, relu, values: values(vec![outputs, inputs]) }
                }
            });
            let pool = group.pool.map(|pool| (pool.kernel_size, pool.stride));
            layers.extend(pool.map(|(kernel, stride)| StoredLayer::MaxPool { kernel, stride }));
            layers.extend(group.average.map(|output| StoredLayer::AveragePool { output }));
        }
        Ok(Self {
            version: VERSION,
            method,
            network: network.kind().to_string(),
            weights_sha256: sha256_of_f32(&ParamLayout::of(network).read(network)),
            input_shape: network.input_shape(),
            layers,
            sha256: NO_DIGEST.into(),
            activations,
        })
    }

    /// Checks that the file's layers are those of `network`, with its weights.
    ///
    /// The digest in a file detects damage, but not an edit by a program that computes it
    /// anew. So layers, weights, scales of weights and biases, which follow from the float
    /// network, are compared with it. Scales and zero points of activations are measurements.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_origin(&self, network: &Network) -> Result<(), String> {
        let scales = |index, _: &[f32], outputs| {
            let found = self.products().nth(index).map(|(_, values)| values.scales.clone());
            Ok(found.filter(|scales| [1, outputs].contains(&scales.len())).unwrap_or_else(|| vec![1.0]))
        };
        let failed = |error: QuantError| error.to_string();
        let mut activations = self.activations.clone();
        // A file that ends early is compared up to its end.
        let least = groups(network).map_err(failed)?.len() + 1;
        activations.resize(least.max(activations.len()), QParams { scale: 1.0, zero_point: 0 });
        let expected = Self::of(network, self.method, activations, scales).map_err(failed)?;
        let mut outputs = self.activations.iter().skip(1);
        for (index, expected) in expected.layers.iter().enumerate() {
            let found = self.layers.get(index).ok_or_else(|| format!("it ends before {expected}"))?;
            if found.to_string() != expected.to_string() {
                return Err(format!("it has {found}, and the run's network {expected}"));
            }
            let Some(((name, found), (_, values))) = found.product().zip(expected.product()) else {
                continue;
            };
            if found.shape != values.shape {
                let (found, expected) = (&found.shape, &values.shape);
                return Err(format!("{name}.weight has the shape {found:?}, and the run's {expected:?}"));
            }
            for (what, is_same) in
                [("weights", found.weights == values.weights), ("biases", found.bias == values.bias)]
            {
                if !is_same {
                    return Err(format!("{name}: {what} and scales are not those of the run's network"));
                }
            }
            // ReLU's output starts at 0, which the scheme maps to the lowest byte.
            let zero = outputs.next().map_or(0, |output| output.zero_point);
            if expected.has_relu() && zero != 0 {
                return Err(format!("the zero point of {name} is {zero}, and ReLU's is 0"));
            }
        }
        match self.layers.get(expected.layers.len()) {
            Some(layer) => Err(format!("after the network's last layer it has {layer}")),
            None => Ok(()),
        }
    }

    /// The integer model.
    ///
    /// # Errors
    /// If the values are not a valid model.
    pub fn model(&self) -> Result<Model, QuantError> {
        let mut activations = self.activations.iter().copied();
        let mut next =
            |of: &str| activations.next().ok_or_else(|| QuantError::values(of, Int8Error::NotCalibrated));
        let input = next("the input")?;
        let mut before = input;
        let mut layers = Vec::new();
        for layer in &self.layers {
            let (weights, output) = match layer.product() {
                Some((name, values)) => {
                    let output = next(name)?;
                    let weights = values.integers(before, output);
                    (weights.map_err(|error| QuantError::values(name, error))?, output)
                }
                None => (NO_WEIGHTS, before),
            };
            layers.push(layer.layer(weights, output));
            before = output;
        }
        Ok(Model::new(self.input_shape, input, layers)?)
    }
}

/// Where only the sizes of a layer matter.
const NO_WEIGHTS: Weights = Weights {
    values: Vec::new(),
    scales: Vec::new(),
    bias: Vec::new(),
    multipliers: Vec::new(),
    shifts: Vec::new(),
};

impl LayerValues {
    /// The weights of a layer whose input and output have these parameters.
    fn integers(&self, input: QParams, output: QParams) -> Result<Weights, Int8Error> {
        let ratio = |&scale: &f32| f64::from(input.scale) * f64::from(scale) / f64::from(output.scale);
        let fixed = self.scales.iter().map(|scale| fixed_point(ratio(scale)));
        let (multipliers, shifts) = fixed.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let (values, scales, bias) = (self.weights.clone(), self.scales.clone(), self.bias.clone());
        Ok(Weights { values, scales, bias, multipliers, shifts })
    }
}

impl StoredLayer {
    fn has_relu(&self) -> bool {
        matches!(self, Self::Conv { relu: true, .. } | Self::Linear { relu: true, .. })
    }

    /// Channels, height and width of its output.
    ///
    /// # Errors
    /// If it does not take images of `size`.
    pub fn output_size(&self, size: [usize; 3]) -> Result<[usize; 3], Int8Error> {
        self.layer(NO_WEIGHTS, QParams { scale: 1.0, zero_point: 0 }).output_shape(size)
    }

    /// The layer of a model, with these weights if it has any.
    fn layer(&self, weights: Weights, output: QParams) -> Layer {
        match *self {
            Self::Conv { stride, padding, relu, values: LayerValues { ref shape, .. }, .. } => {
                let (inputs, outputs, kernel) = (shape[1], shape[0], [shape[2], shape[3]]);
                Layer::Conv(Conv { inputs, outputs, kernel, stride, padding, weights, relu, output })
            }
            Self::Linear { relu, values: LayerValues { ref shape, .. }, .. } => {
                Layer::Linear(Linear { inputs: shape[1], outputs: shape[0], weights, relu, output })
            }
            Self::MaxPool { kernel, stride } => Layer::MaxPool(MaxPool { kernel, stride }),
            Self::AveragePool { output } => Layer::AveragePool(AveragePool { output }),
        }
    }
}
