//! [`Quantized`]: a network of 8-bit integers, made from a float network, for inference.

use burn_fused::int8::{
    AveragePool, Conv, Int8Error, Layer, Linear, MaxPool, Model, QParams, Scheme, Weights, Workspace,
    fixed_point, min_max_by_channel,
};

use super::int8_file::{Int8File, LayerValues, StoredLayer, VERSION};
use super::ranges::{Ranges, WeightScheme, parameters};
use super::{Product, QuantError, groups, padding};
use crate::model::Network;
use run_record::Method;
use run_record::files::{NO_DIGEST, sha256_of_f32};

/// A quantized network for inference.
#[derive(Debug)]
pub struct Quantized {
    /// The network as it is stored.
    pub file: Int8File,
    /// The integer model.
    pub model: Model,
    /// Buffers of the integer model.
    pub workspace: Workspace,
}

impl Quantized {
    /// Makes the integer model of a stored network.
    ///
    /// # Errors
    /// If the values are not a valid model.
    pub fn new(file: Int8File) -> Result<Self, QuantError> {
        let model = file.model()?;
        Ok(Self { workspace: model.workspace(), file, model })
    }

    /// Quantizes `network`, which must be on a device without autodiff.
    ///
    /// Batch norm is folded into the weights with its running statistics. Weights and activations are
    /// quantized with `ranges`. If the ranges of a layer's weights were never observed, the ranges of its
    /// current weights are used: one range for each output or one for all outputs, by `scheme`.
    ///
    /// # Errors
    /// If a layer cannot be quantized. If ranges of activations were never observed or are too wide. If
    /// ranges of weights have another number of channels than the network, or weights are not finite.
    ///
    /// # Panics
    /// If `ranges` has another number of groups than `network`.
    pub fn of_ranges(
        network: &Network,
        method: Method,
        ranges: &Ranges,
        scheme: WeightScheme,
    ) -> Result<Self, QuantError> {
        let groups = groups(network)?;
        assert_eq!(ranges.groups.len(), groups.len(), "ranges of another network");
        let mut activations = vec![parameters(ranges.input, "the input")?];
        for (group, ranges) in groups.iter().zip(&ranges.groups) {
            activations.push(parameters(ranges.output, &format!("the output of {}", group.name))?);
        }
        let mut layers = Vec::new();
        for (index, group) in groups.into_iter().enumerate() {
            let [weights, biases] = group.folded();
            let (name, relu) = (group.name, group.relu);
            let [input, output] = [activations[index], activations[index + 1]];
            let scales = match &ranges.groups[index].weights {
                Some(ranges) => scales_of(ranges),
                None => min_max_by_channel(&weights, scheme.scales(biases.len())).and_then(|r| scales_of(&r)),
            };
            let quantized =
                scales.and_then(|scales| Weights::quantize(&weights, &biases, &scales, input, output));
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
        Self::new(Int8File {
            version: VERSION,
            method,
            network: network.kind().to_string(),
            weights_sha256: sha256_of_f32(&network.parameters().read(network)),
            input_shape: network.input_shape(),
            layers,
            sha256: NO_DIGEST.into(),
            activations,
        })
    }

    /// Computes class scores `[batch, outputs]` of `samples` `[batch, channels, height, width]`. Stores them
    /// in `scores` and sets its length.
    ///
    /// # Panics
    /// If the length of `samples` is not a multiple of the length of one sample.
    // `make icount` counts the instructions between entry and return of this function, so it must not be
    // inlined.
    #[inline(never)]
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
    /// Makes the integer model.
    ///
    /// # Errors
    /// If the values are not a valid model.
    pub fn model(&self) -> Result<Model, QuantError> {
        let mut activations = self.activations.iter().copied();
        let mut next = |layer: &str| {
            activations.next().ok_or_else(|| QuantError::values(layer, Int8Error::NotCalibrated))
        };
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

/// A placeholder for layers without weights, and for computations that need only the sizes of a layer.
const NO_WEIGHTS: Weights = Weights {
    values: Vec::new(),
    scales: Vec::new(),
    bias: Vec::new(),
    multipliers: Vec::new(),
    shifts: Vec::new(),
};

impl LayerValues {
    /// Returns the integer weights of a layer, with multipliers and shifts. `input` and `output` are scales
    /// and zero points of the layer's input and output.
    fn integers(&self, input: QParams, output: QParams) -> Result<Weights, Int8Error> {
        let ratio = |&scale: &f32| f64::from(input.scale) * f64::from(scale) / f64::from(output.scale);
        let fixed = self.scales.iter().map(|scale| fixed_point(ratio(scale)));
        let (multipliers, shifts) = fixed.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        let (values, scales, bias) = (self.weights.clone(), self.scales.clone(), self.bias.clone());
        Ok(Weights { values, scales, bias, multipliers, shifts })
    }
}

impl StoredLayer {
    /// Returns the size (channels, height, width) of the layer's output for an input of `size`, which has the
    /// same order.
    ///
    /// # Errors
    /// If the layer does not accept an input of `size`.
    pub fn output_size(&self, size: [usize; 3]) -> Result<[usize; 3], Int8Error> {
        self.layer(NO_WEIGHTS, QParams { scale: 1.0, zero_point: 0 }).output_shape(size)
    }

    /// Makes the integer model's layer from this stored layer. Poolings ignore `weights` and `output`.
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
